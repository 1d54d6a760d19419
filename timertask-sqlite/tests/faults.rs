//! Each fault that an SQLite file can have, provoked for real, and what it is told as. None may look like "another has
//! it", and none may start anything.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::*;
use rusqlite::Connection;
use timertask_core::seam::{Claim, Ledger, StoreError, StoreErrorKind};
use timertask_core::{Plan, Run, Scheduler};
use timertask_sqlite::{Sqlite, rusqlite};
use timertask_testkit::FakeClock;

const SHORT: Duration = Duration::from_millis(40);

fn store_at(path: &Path) -> Sqlite {
    let store = Sqlite::options().clock(SetClock::at(1_000)).open(path).unwrap();
    open_plan(&store, "p");
    store
}

fn try_claim(store: &Sqlite, at: i64) -> Result<Claim, StoreError> {
    store.claim(&[request(slot("p", at), nonce())]).map(|mut answer| answer.value.remove(0))
}

#[track_caller]
fn assert_kind<T: std::fmt::Debug>(result: Result<T, StoreError>, kind: StoreErrorKind) -> StoreError {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}: {:?}", std::error::Error::source(&error).map(ToString::to_string));
    error
}

#[test]
#[ignore = "played by the tests of this file in a process of its own"]
fn child() {
    let Some((role, args)) = role() else { return };
    match role.as_str() {
        "hold" => {
            let other = Connection::open(&args[0]).unwrap();
            other.execute_batch("BEGIN IMMEDIATE").unwrap();
            say("held");
            await_word();
        }
        "full disk" => {
            say("begun");
            full_disk(Path::new(&args[0]));
        }
        "read-only mount" => {
            say("begun");
            read_only_mount(Path::new(&args[0]));
        }
        _ => unreachable!("{role}"),
    }
}

#[test]
fn busy_where_another_process_holds_the_lock_beyond_the_deadline() {
    let dir = TempDir::new();
    let path = dir.path("a.db");
    let store = Sqlite::options().clock(SetClock::at(1_000)).busy_deadline(SHORT).open(&path).unwrap();
    open_plan(&store, "p");
    let mut holder = Other::start("hold", &[text(&path)]);
    holder.expect_line("held");
    let error = assert_kind(try_claim(&store, 1_001), StoreErrorKind::Busy);
    assert!(!error.outcome_unknown(), "nothing was begun: {error}");
    // Reading and opening wait for nobody's write.
    store.describe().unwrap();
    Sqlite::options().busy_deadline(SHORT).open(&path).unwrap();
    // Its lock dies with it.
    holder.kill();
    granted(try_claim(&store, 1_001).unwrap());
}

#[test]
fn busy_where_a_new_file_is_held_while_it_is_made() {
    let dir = TempDir::new();
    let path = dir.path("a.db");
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    assert_kind(Sqlite::options().busy_deadline(SHORT).open(&path), StoreErrorKind::Busy);
    other.execute_batch("ROLLBACK").unwrap();
    Sqlite::open(&path).unwrap();
}

#[test]
fn full_disk_is_told_and_passes() {
    let dir = TempDir::new();
    in_namespace("full disk", &dir, "the commit on a full disk is only tested by `max_page_count` inside the crate");
}

#[test]
fn a_read_only_mount_is_told() {
    let dir = TempDir::new();
    in_namespace("read-only mount", &dir, "a read-only mount is not tested; a read-only file is where not root");
}

/// Plays `role` where it may mount things; says so where the system does not let it.
fn in_namespace(role: &str, dir: &TempDir, instead: &str) {
    let (lines, status) = Other::start_in_namespace(role, &[text(&dir.path(""))]).finish();
    match &lines.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["begun", "done"] if status.success() => {}
        // No namespace was to be had, or no mount in it.
        [] | ["begun", "no mount"] => eprintln!("NOT TESTED HERE: this user may not mount; {instead}"),
        _ => panic!("{role}: {lines:?}, {status}"),
    }
}

fn mount(args: &[&str]) -> bool {
    Command::new("mount").args(args).status().is_ok_and(|status| status.success())
}

fn full_disk(at: &Path) {
    if !mount(&["-t", "tmpfs", "-o", "size=1m", "tmpfs", text(at)]) {
        return say("no mount");
    }
    let store = store_at(&at.join("a.db"));
    granted(try_claim(&store, 1_001).unwrap());
    fill(&at.join("filler"));
    // What is left in the files' last pages is used up first.
    let (at_last, error) = (1_002..2_000).find_map(|at| try_claim(&store, at).err().map(|e| (at, e))).unwrap();
    assert_eq!(error.kind(), StoreErrorKind::Full, "{error}");
    assert_kind(try_claim(&store, at_last), StoreErrorKind::Full);
    // Reading works on, and with room so does writing, on the same handle.
    store.describe().unwrap();
    fs::remove_file(at.join("filler")).unwrap();
    granted(try_claim(&store, at_last).unwrap());
    assert_eq!(try_claim(&store, 1_001).unwrap(), Claim::Held);
    drop(store);
    // No room to make a file, or to fill a new one.
    fill(&at.join("filler"));
    assert_kind(Sqlite::options().busy_deadline(SHORT).open(at.join("b.db")), StoreErrorKind::Full);
    say("done");
}

fn fill(path: &Path) {
    use std::io::Write;
    let mut filler = fs::File::create(path).unwrap();
    while filler.write_all(&[0; 4096]).is_ok() {}
    while filler.write_all(&[0]).is_ok() {}
}

fn read_only_mount(at: &Path) {
    if !mount(&["-t", "tmpfs", "tmpfs", text(at)]) {
        return say("no mount");
    }
    drop(store_at(&at.join("a.db")));
    assert!(mount(&["-o", "remount,bind,ro", text(at)]));
    assert_kind(Sqlite::open(at.join("a.db")), StoreErrorKind::ReadOnly);
    assert_kind(Sqlite::open(at.join("new.db")), StoreErrorKind::ReadOnly);
    say("done");
}

#[test]
#[cfg(unix)]
fn rights_of_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let dir = TempDir::new();
    let path = dir.path("a.db");
    let store = store_at(&path);
    for name in ["a.db", "a.db-wal", "a.db-shm"] {
        assert_eq!(fs::metadata(dir.path(name)).unwrap().permissions().mode() & 0o777, 0o600, "{name}");
    }
    drop(store);
    if is_root() {
        // Root passes all permission bits; the mount of the test above is what stops it.
        return;
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    assert_kind(Sqlite::open(&path), StoreErrorKind::ReadOnly);
    let closed = dir.path("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).unwrap();
    assert_kind(Sqlite::open(closed.join("a.db")), StoreErrorKind::Auth);
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn not_a_database() {
    let dir = TempDir::new();
    let path = dir.path("a.txt");
    fs::write(&path, "just some text, and not a database\n".repeat(100)).unwrap();
    assert_kind(Sqlite::open(&path), StoreErrorKind::Corrupt);
    // It was not touched.
    assert!(fs::read_to_string(&path).unwrap().starts_with("just some text"));
}

/// A closed store with some rows, all in the file itself.
fn closed_store(path: &Path) {
    let store = store_at(path);
    for at in 1_001..1_200 {
        granted(try_claim(&store, at).unwrap());
    }
}

#[test]
fn a_header_of_zeros() {
    let dir = TempDir::new();
    let path = dir.path("a.db");
    closed_store(&path);
    let mut bytes = fs::read(&path).unwrap();
    bytes[..100].fill(0);
    fs::write(&path, bytes).unwrap();
    assert_kind(Sqlite::open(&path), StoreErrorKind::Corrupt);
}

#[test]
fn a_truncated_file() {
    let dir = TempDir::new();
    let path = dir.path("a.db");
    closed_store(&path);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2 / 4096 * 4096]).unwrap();
    let opened = Sqlite::open(&path).and_then(|store| {
        store.read(&timertask_core::seam::Query::Unfinished { plan: plan("p"), limit: 1_000 }).map(drop)
    });
    assert_kind(opened, StoreErrorKind::Corrupt);
}

#[test]
fn trashed_pages_are_met_at_the_first_use_or_by_the_check() {
    let dir = TempDir::new();
    let path = dir.path("a.db");
    closed_store(&path);
    let mut bytes = fs::read(&path).unwrap();
    // Behind the schema and the small tables lie the slots.
    bytes[4096 * 4..].fill(0xa5);
    fs::write(&path, bytes).unwrap();
    let used = Sqlite::open(&path).and_then(|store| try_claim(&store, 1_100).map(drop));
    assert_kind(used, StoreErrorKind::Corrupt);
    assert_kind(Sqlite::options().quick_check().open(&path), StoreErrorKind::Corrupt);
}

#[test]
fn values_that_cannot_be_are_corrupt_and_no_panic() {
    let dir = TempDir::new();
    for (n, sql) in [
        "UPDATE timertask_slot SET state = 9",
        "UPDATE timertask_slot SET state = 2, how = 200",
        "UPDATE timertask_slot SET state = 0, how = 1",
        "UPDATE timertask_slot SET kind = -1",
        "UPDATE timertask_slot SET nonce = x'00'",
        "UPDATE timertask_slot SET released = x'0001'",
        "UPDATE timertask_slot SET fence = -5",
        "UPDATE timertask_slot SET attempt = 5000000000",
        "UPDATE timertask_slot SET ttl = -1",
        "UPDATE timertask_slot SET instance = ''",
        "UPDATE timertask_plan SET fingerprint = x''",
        "UPDATE timertask_plan SET fence = -1",
        "UPDATE timertask_plan SET closed = 999",
        "UPDATE timertask_plan SET pause_since = 1",
    ]
    .into_iter()
    .enumerate()
    {
        let path = dir.path(&format!("{n}.db"));
        let store = store_at(&path);
        granted(try_claim(&store, 1_001).unwrap());
        Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        let error = assert_kind(try_claim(&store, 1_001), StoreErrorKind::Corrupt);
        assert!(!error.outcome_unknown(), "{sql}: {error}");
    }
}

#[test]
fn a_deleted_file() {
    let dir = TempDir::new();
    let path = dir.path("a.db");
    let store = store_at(&path);
    fs::remove_file(&path).unwrap();
    let error = assert_kind(try_claim(&store, 1_001), StoreErrorKind::Replaced);
    assert!(error.to_string().contains("deleted"), "{error}");
    assert_kind(store.describe(), StoreErrorKind::Replaced);
    // A second opener begins an empty store; the first goes on being refused.
    let second = store_at(&path);
    granted(try_claim(&second, 1_001).unwrap());
    assert_kind(try_claim(&store, 1_001), StoreErrorKind::Replaced);
}

#[test]
fn a_replaced_file() {
    let dir = TempDir::new();
    let path = dir.path("a.db");
    let store = store_at(&path);
    drop(store_at(&dir.path("b.db")));
    fs::rename(dir.path("b.db"), &path).unwrap();
    assert_kind(try_claim(&store, 1_001), StoreErrorKind::Replaced);
}

#[test]
fn a_deleted_log_or_index() {
    for name in ["a.db-wal", "a.db-shm"] {
        let dir = TempDir::new();
        let path = dir.path("a.db");
        let store = store_at(&path);
        fs::remove_file(dir.path(name)).unwrap();
        let error = assert_kind(try_claim(&store, 1_001), StoreErrorKind::Replaced);
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn a_log_deleted_before_another_opens() {
    let dir = TempDir::new();
    let path = dir.path("a.db");
    let store = store_at(&path);
    granted(try_claim(&store, 1_001).unwrap());
    fs::remove_file(dir.path("a.db-wal")).unwrap();
    assert_kind(Sqlite::open(&path), StoreErrorKind::Corrupt);
}

#[test]
fn another_store_or_none_in_the_same_file() {
    let dir = TempDir::new();
    let path = dir.path("a.db");
    let store = store_at(&path);
    let other = Connection::open(&path).unwrap();
    // What a backup that is restored into the open file looks like.
    other.execute_batch("UPDATE timertask_store SET id = randomblob(16)").unwrap();
    assert_kind(try_claim(&store, 1_001), StoreErrorKind::Replaced);
    other.execute_batch("DELETE FROM timertask_store").unwrap();
    assert_kind(try_claim(&store, 1_001), StoreErrorKind::Replaced);
    other.execute_batch("DROP TABLE timertask_store").unwrap();
    assert_kind(try_claim(&store, 1_001), StoreErrorKind::Replaced);
}

#[test]
fn a_newer_schema_is_refused_and_left_alone() {
    let dir = TempDir::new();
    for (n, sql) in ["PRAGMA user_version = 99", "UPDATE timertask_store SET layout = 99"].iter().enumerate() {
        let path = dir.path(&format!("{n}.db"));
        let store = store_at(&path);
        Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        let error = assert_kind(Sqlite::open(&path), StoreErrorKind::SchemaTooNew);
        assert!(error.to_string().contains("layout 99") && error.to_string().contains("update it"), "{error}");
        if n == 1 {
            // A process that has it open stops as well.
            assert_kind(try_claim(&store, 1_001), StoreErrorKind::SchemaTooNew);
        }
    }
}

#[test]
fn a_foreign_database_is_refused_and_left_alone() {
    let dir = TempDir::new();
    for (n, sql) in [
        "PRAGMA application_id = 12345",
        "CREATE TABLE theirs (x)",
        "PRAGMA user_version = 3",
        "PRAGMA application_id = 12345; CREATE TABLE theirs (x)",
    ]
    .iter()
    .enumerate()
    {
        let path = dir.path(&format!("{n}.db"));
        Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        let before = fs::read(&path).unwrap();
        let error = assert_kind(Sqlite::open(&path), StoreErrorKind::Misconfigured);
        assert!(error.to_string().contains("in_application_file"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), before);
    }
}

#[test]
fn paths_that_cannot_be() {
    let dir = TempDir::new();
    fs::create_dir(dir.path("sub")).unwrap();
    fs::write(dir.path("file"), "").unwrap();
    assert_kind(Sqlite::open(dir.path("sub")), StoreErrorKind::Misconfigured);
    let error = assert_kind(Sqlite::open(dir.path("missing/a.db")), StoreErrorKind::Unreachable);
    assert!(error.to_string().contains("missing does not exist"), "{error}");
    assert_kind(Sqlite::open(dir.path("file/a.db")), StoreErrorKind::Unreachable);
    assert_kind(Sqlite::open(":memory:"), StoreErrorKind::Misconfigured);
    assert_kind(Sqlite::open(""), StoreErrorKind::Misconfigured);
    assert_kind(Sqlite::open(dir.path(&"x".repeat(300))), StoreErrorKind::Misconfigured);
    #[cfg(target_os = "linux")]
    assert_kind(Sqlite::open("/dev/null"), StoreErrorKind::Misconfigured);
    // No URI: a file of that very name.
    let odd = dir.path("file:odd?mode=memory");
    drop(Sqlite::open(&odd).unwrap());
    assert!(odd.exists());
}

#[test]
fn one_corrupt_row_does_not_fail_the_calls_beside_it() {
    let dir = TempDir::new();
    let path = dir.path("a.db");
    let store = store_at(&path);
    (0..4).for_each(|n| open_plan(&store, &format!("q{n}")));
    granted(try_claim(&store, 1_001).unwrap());
    Connection::open(&path).unwrap().execute_batch("UPDATE timertask_slot SET kind = 77 WHERE plan = 'p'").unwrap();
    // Held back by a lock they go into one transaction, where the first fails.
    let holder = Connection::open(&path).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    std::thread::scope(|scope| {
        let bad = scope.spawn(|| try_claim(&store, 1_001));
        let good: Vec<_> = (0..4)
            .map(|n| {
                let store = &store;
                scope.spawn(move || claim_one(store, &request(slot(&format!("q{n}"), 1_001), nonce())))
            })
            .collect();
        holder.execute_batch("COMMIT").unwrap();
        assert_kind(bad.join().unwrap(), StoreErrorKind::Corrupt);
        for good in good {
            granted(good.join().unwrap());
        }
    });
}

/// Row 10: a failed answer of the store was followed by a run. Here the store is one that cannot be written to for a while,
/// and one whose file is gone.
#[test]
fn fault_10_no_run_follows_a_fault_of_the_file() {
    let dir = TempDir::new();
    let path = dir.path("a.db");
    let clock = FakeClock::new();
    let store = Sqlite::options().clock(clock.clone()).busy_deadline(Duration::from_millis(1)).open(&path).unwrap();
    let entered = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&entered);
    let job = move |_: &Run| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(())
    };
    let scheduler = Scheduler::builder(job).clock(clock.clone()).store(store).start().unwrap();
    scheduler.reconcile([Plan::new("p", "@every 1m")]).unwrap();
    clock.advance(Duration::from_secs(60));
    assert_eq!(entered.load(Ordering::SeqCst), 1);

    let holder = Connection::open(&path).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    clock.advance(Duration::from_secs(150));
    assert_eq!(entered.load(Ordering::SeqCst), 1, "nothing starts where the ledger does not answer");
    assert!(!scheduler.health().store_reachable);
    // A slot whose window is open starts then; the one before is made up for, once, or accounted for.
    holder.execute_batch("ROLLBACK").unwrap();
    clock.advance(Duration::from_secs(30));
    assert!(entered.load(Ordering::SeqCst) > 1, "it goes on by itself");

    let before = entered.load(Ordering::SeqCst);
    drop(holder);
    fs::remove_file(&path).unwrap();
    clock.advance(Duration::from_secs(600));
    assert_eq!(entered.load(Ordering::SeqCst), before, "nothing starts by a file that is not the ledger any more");
}
