//! Ids and payloads that break what is put together from strings, from the plan through the engine into the file and back.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use timertask_core::key::Fence;
use timertask_core::key::{Namespace, PlanKey};
use timertask_core::seam::{Claim, ClaimRequest, EndOp, EndRequest, Ending, Ledger, PlanOp, Query, SlotState, Term};
use timertask_core::{Plan, PlanId, Run, Scheduler, Trigger};
use timertask_sqlite::{Options, Sqlite, Synchronous, rusqlite};
use timertask_testkit::FakeClock;

/// Each alike to another by some reading: case, normal form, blanks, quoting, a prefix.
fn ids() -> Vec<String> {
    let texts = [
        "a",
        "A",
        "a ",
        " a",
        "a/b",
        "a/b/2026-01-01T00:01:00Z",
        "a:b",
        "a'b",
        "a''b",
        "a\"b",
        "a`b",
        "a;--",
        "%",
        "_",
        "a%",
        "NULL",
        "null",
        "0",
        "-1",
        "1e9",
        "{a}",
        "\\",
        "\\0",
        "?1",
        ":plan",
        "$1",
        "é",
        "e\u{301}",
        "ß",
        "SS",
        "\u{202e}a",
        "\u{feff}a",
        "\u{fffd}",
        "🦀",
        "timertask/cron/exec/a",
    ];
    let long = ["x".repeat(255), "🦀".repeat(63) + "abc"];
    texts.iter().map(|text| (*text).to_owned()).chain(long).collect()
}

fn payload(number: usize) -> Vec<u8> {
    match number % 4 {
        0 => b"s3cr3t \0 ' \" \xff\xfe".to_vec(),
        1 => Vec::new(),
        2 => (0..=255).collect(),
        _ => b"s3cr3t ".repeat(20_000),
    }
}

#[test]
fn hostile_ids_and_payloads_go_through_engine_and_file_unchanged() {
    let dir = TempDir::new();
    let clock = FakeClock::new();
    let store = Sqlite::options().clock(Arc::new(clock.clone())).open(dir.path("hostile.db")).unwrap();
    let seen = Arc::new(std::sync::Mutex::new(BTreeMap::new()));
    let job = {
        let seen = Arc::clone(&seen);
        move |run: &Run| {
            let mut seen = seen.lock().unwrap();
            let runs: &mut Vec<_> = seen.entry(run.plan().to_owned()).or_default();
            runs.push((run.payload().to_vec(), run.slot_key().to_string()));
            Ok(())
        }
    };
    let scheduler = Scheduler::builder(job).clock(clock.clone()).store(store.clone()).start().unwrap();
    let plans = ids().into_iter().enumerate().map(|(n, id)| Plan::new(id, "* * * * *").payload(payload(n)));
    let report = scheduler.reconcile(plans).unwrap();
    assert_eq!((report.installed.len(), report.failed.len()), (ids().len(), 0), "{report:?}");
    clock.advance(Duration::from_secs(130));
    scheduler.close(Duration::from_secs(5)).unwrap();

    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), ids().len());
    for (n, id) in ids().into_iter().enumerate() {
        let runs = &seen[&id];
        assert_eq!(runs.len(), 2, "{id:?}: two minutes, two runs");
        assert!(runs.iter().all(|(bytes, key)| *bytes == payload(n) && key.contains(&id)), "{id:?}");
        let plan = PlanKey::new(Namespace::default(), PlanId::new(id.clone()).unwrap());
        let all = (Trigger::from_secs(0), Trigger::from_secs(i64::from(u32::MAX)));
        let query = Query::History { plan: plan.clone(), after: all.0, upto: all.1, page: None, limit: 10 };
        let slots = store.read(&query).unwrap().value.slots;
        assert_eq!(slots.len(), 2, "{id:?}");
        assert!(
            slots.iter().all(|s| s.key.plan == plan && s.state == SlotState::Ended(Ending::Succeeded)),
            "{slots:?}"
        );
    }
    for suffix in ["", "-wal"] {
        let bytes = std::fs::read(dir.path(&format!("hostile.db{suffix}"))).unwrap();
        assert!(!bytes.windows(6).any(|window| window == b"s3cr3t"), "a payload is no business of the file");
    }
}

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.0 >> 33) % n as u64).unwrap()
    }
}

/// Everything that an engine asks of a store, about a slot that runs: none of it may panic. The claims, where there was an
/// answer.
fn ask_for_all(store: &Sqlite, run: &ClaimRequest, fence: Fence) -> Option<Vec<Claim>> {
    let key = run.key.plan.clone();
    let namespace = key.namespace.clone();
    let (after, upto) = (Trigger::from_secs(0), Trigger::from_secs(1 << 40));
    let _ = store.read(&Query::Lapsed { namespace, max_skew: TTL, after: None, limit: 10 });
    let _ = store.read(&Query::Unfinished { plan: key.clone(), limit: 10 });
    let _ = store.read(&Query::History { plan: key.clone(), after, upto, page: None, limit: 10 });
    let _ = store.plan(&[(key, PlanOp::Read)]);
    let again = ClaimRequest { nonce: nonce(), ..run.clone() };
    let claims = store.claim(&[again, request(slot("p", 1_002), nonce())]).ok().map(|answer| answer.value);
    let term = Term { key: run.key.clone(), nonce: run.nonce, fence };
    let _ = store.renew(&[term], TTL);
    let expire = EndOp::Expire { attempts_allowed: 3 };
    let _ = store.end(&[EndRequest { key: run.key.clone(), fence, op: expire }]);
    claims
}

/// No test here pulls the plug, so none waits for the disk.
fn options() -> Options {
    Sqlite::options().clock(Arc::new(SetClock::at(1_000))).synchronous(Synchronous::Normal)
}

/// A file with a plan and a slot that runs; the request that it runs under, and its fence.
fn a_run(path: &std::path::Path) -> (ClaimRequest, Fence) {
    let store = options().open(path).unwrap();
    open_plan(&store, "p");
    let run = request(slot("p", 1_001), nonce());
    let grant = granted(claim_one(&store, &run));
    (run, grant.fence)
}

#[test]
fn damaged_columns_never_start_a_slot_a_second_time() {
    const VALUES: [&str; 14] = [
        "-1",
        "255",
        "-9223372036854775808",
        "9223372036854775807",
        "4294967296",
        "x''",
        "x'00'",
        "zeroblob(17)",
        "''",
        "char(1)",
        "'a' || char(0) || 'b'",
        "x'c328'",
        "NULL",
        "'9'",
    ];
    let dir = TempDir::new();
    let mut dice = Dice(1);
    let (mut damaged, mut refused) = (0, 0);
    for round in 0..150 {
        let path = dir.path(&format!("{round}.db"));
        let (run, fence) = a_run(&path);
        let raw = rusqlite::Connection::open(&path).unwrap();
        let table = ["timertask_slot", "timertask_plan"][dice.below(2)];
        let sql = format!("SELECT name FROM pragma_table_info('{table}') WHERE pk = 0");
        let columns: Vec<String> =
            raw.prepare(&sql).unwrap().query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        let (column, value) = (&columns[dice.below(columns.len())], VALUES[dice.below(VALUES.len())]);
        // What the table's own constraints refuse cannot stand there.
        if raw.execute(&format!("UPDATE {table} SET {column} = {value}"), []).is_err() {
            continue;
        }
        drop(raw);
        damaged += 1;
        let store = options().open(&path).unwrap();
        let claims = ask_for_all(&store, &run, fence);
        refused += usize::from(claims.is_none());
        let second = claims.is_some_and(|claims| matches!(claims[0], Claim::Granted(_)));
        assert!(!second, "{table}.{column} = {value}: started a second time");
    }
    assert!(damaged > 40 && refused > 10, "{damaged} damaged, {refused} refused");
}

#[test]
fn a_file_with_damaged_bytes_is_refused_or_read_and_never_panics() {
    let dir = TempDir::new();
    let whole = dir.path("whole.db");
    let (run, fence) = a_run(&whole);
    let bytes = std::fs::read(&whole).unwrap();
    let mut dice = Dice(2);
    let mut refused = 0;
    for round in 0..150 {
        let mut bytes = bytes.clone();
        for _ in 0..1 + dice.below(40) {
            let at = dice.below(bytes.len());
            bytes[at] = u8::try_from(dice.below(256)).unwrap();
        }
        let path = dir.path(&format!("{round}.db"));
        std::fs::write(&path, bytes).unwrap();
        match options().open(&path) {
            Ok(store) => refused += usize::from(ask_for_all(&store, &run, fence).is_none()),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 10, "{refused} refused");
}
