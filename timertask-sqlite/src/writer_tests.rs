use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use rusqlite::Connection;
use timertask_core::clock::SystemClock;

use super::*;
use crate::connection;
use crate::file::{Paths, create_if_missing};
use crate::options::Options;

/// A writer on a file of its own.
struct Rig {
    folder: PathBuf,
    writer: Writer,
}

impl Rig {
    fn new(patience: Duration) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("timertask-sqlite-writer-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.db");
        create_if_missing(&path).unwrap();
        let options = Options::default().busy_deadline(patience);
        let (connected, _) = connection::open(&Paths::new(path), &options).unwrap();
        Self { writer: Writer::new(connected, Arc::new(SystemClock), patience), folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.join("a.db")
    }

    /// Holds the file's write lock until it is dropped.
    fn hold(&self) -> Connection {
        let other = Connection::open(self.path()).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        other
    }

    fn await_waiting(&self, calls: usize) {
        while self.writer.lock().len() < calls {
            thread::yield_now();
        }
    }

    fn post(&self, key: &'static str) -> Result<(), Fault> {
        self.writer.write(Urgency::Last, 1, move |t| post(t, key)).map(drop)
    }

    fn posted(&self) -> Vec<String> {
        let other = Connection::open(self.path()).unwrap();
        let mut statement = other.prepare("SELECT key FROM timertask_board ORDER BY key").unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn post(t: &Tables<'_>, key: &str) -> Result<(), Fault> {
    t.run("INSERT INTO timertask_board (namespace, kind, key, body, until) VALUES ('', 'x', ?1, '', 0)", [key])
        .map(drop)
}

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(30);

#[test]
fn what_waits_goes_into_one_transaction_and_renewals_go_first() {
    let rig = Rig::new(LONG);
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let holder = rig.hold();
    thread::scope(|scope| {
        let calls = [
            ("claim", Urgency::Normal),
            ("purge", Urgency::Last),
            ("claim 2", Urgency::Normal),
            ("renewal", Urgency::First),
        ];
        for (n, (name, urgency)) in calls.into_iter().enumerate() {
            let (rig, order) = (&rig, Arc::clone(&order));
            scope.spawn(move || {
                let work = move |t: &Tables<'_>| {
                    // One transaction sees what the one before it in the same wrote.
                    let before = t
                        .all("SELECT key FROM timertask_board WHERE namespace = '' AND kind = 'x'", [], |_| Ok(()))?
                        .len();
                    order.lock().unwrap().push((name, before));
                    post(t, name)
                };
                rig.writer.write(urgency, 1, work).map(drop).unwrap();
            });
            rig.await_waiting(n + 1);
        }
        // The first of them leads, and has waited for the lock all the time.
        holder.execute_batch("COMMIT").unwrap();
    });
    assert_eq!(*order.lock().unwrap(), [("renewal", 0), ("claim", 1), ("claim 2", 2), ("purge", 3)]);
}

#[test]
fn the_deadline_holds_for_the_leader_and_for_those_behind_it() {
    let rig = Rig::new(SHORT);
    let holder = rig.hold();
    thread::scope(|scope| {
        let calls: Vec<_> = ["a", "b", "c"].map(|key| scope.spawn(|| rig.post(key))).into_iter().collect();
        for call in calls {
            let fault = call.join().unwrap().unwrap_err();
            assert_eq!(fault.kind(), StoreErrorKind::Busy);
            assert!(!fault.into_store_error("").outcome_unknown(), "nothing was begun");
        }
    });
    assert_eq!(rig.writer.lock().len(), 0, "who has gone does not wait");
    drop(holder);
    rig.post("d").unwrap();
    assert_eq!(rig.posted(), ["d"]);
}

#[test]
fn a_panic_is_a_fault_of_its_call_alone() {
    let rig = Rig::new(LONG);
    let holder = rig.hold();
    thread::scope(|scope| {
        let good = scope.spawn(|| rig.post("a"));
        rig.await_waiting(1);
        let bad =
            scope.spawn(|| rig.writer.write(Urgency::First, 1, |_| -> Result<(), Fault> { panic!("a rule's bug") }));
        rig.await_waiting(2);
        let also_good = scope.spawn(|| rig.post("b"));
        rig.await_waiting(3);
        drop(holder);
        assert_eq!(bad.join().unwrap().unwrap_err().kind(), StoreErrorKind::Internal);
        good.join().unwrap().unwrap();
        also_good.join().unwrap().unwrap();
    });
    rig.post("c").unwrap();
    assert_eq!(rig.posted(), ["a", "b", "c"]);
}

#[test]
fn a_fault_takes_back_what_its_call_wrote_and_no_more() {
    let rig = Rig::new(LONG);
    let holder = rig.hold();
    let calls = AtomicUsize::new(0);
    let calls = Arc::new(calls);
    thread::scope(|scope| {
        let counted = Arc::clone(&calls);
        let rig = &rig;
        let good = scope.spawn(move || {
            rig.writer.write(Urgency::Normal, 1, move |t| {
                counted.fetch_add(1, Ordering::Relaxed);
                post(t, "good")
            })
        });
        rig.await_waiting(1);
        let bad = scope.spawn(|| {
            rig.writer.write(Urgency::Last, 1, |t| {
                post(t, "bad")?;
                post(t, "bad")
            })
        });
        rig.await_waiting(2);
        drop(holder);
        good.join().unwrap().unwrap();
        assert_eq!(bad.join().unwrap().unwrap_err().kind(), StoreErrorKind::Internal, "a key twice");
    });
    assert_eq!(calls.load(Ordering::Relaxed), 2, "with the other, and again alone");
    assert_eq!(rig.posted(), ["good"]);
}

#[test]
fn groups_are_limited_but_never_empty() {
    let mut queue = Queue::default();
    let mut push = |urgency: Urgency, weight| {
        let job = Job { work: Box::new(|_| Ok(())), weight, ticket: Arc::default() };
        queue.waiting[urgency as usize].push_back(job);
    };
    push(Urgency::Last, 1);
    push(Urgency::Normal, 200);
    push(Urgency::Normal, 100);
    push(Urgency::First, 1_000);
    let mut weights = || queue.group().iter().map(|job| job.weight).collect::<Vec<_>>();
    assert_eq!(weights(), [1_000]);
    assert_eq!(weights(), [200, 1]);
    assert_eq!(weights(), [100]);
    assert_eq!(weights(), Vec::<usize>::new());
}

#[test]
fn a_full_file_is_told_and_the_handle_goes_on() {
    let rig = Rig::new(LONG);
    let limit = |pages: i64| {
        let connected = rig.writer.connected.lock().unwrap();
        connected.connection().pragma_update(None, "max_page_count", pages).unwrap();
    };
    // SQLite takes it for the pages that there are, at least.
    limit(1);
    let fill = || rig.writer.write(Urgency::Last, 1, |t| post(t, &"x".repeat(100_000))).map(drop);
    assert_eq!(fill().unwrap_err().kind(), StoreErrorKind::Full);
    assert_eq!(fill().unwrap_err().kind(), StoreErrorKind::Full);
    limit(1 << 20);
    fill().unwrap();
    assert_eq!(rig.posted().len(), 1);
}

#[test]
fn a_forked_child_is_refused_and_leaves_its_parents_files_alone() {
    let rig = Rig::new(LONG);
    let paths = Paths::new(rig.path());
    let (mut writer, mut reader) = connection::open(&paths, &Options::default()).unwrap();
    writer.pretend_to_be_a_child();
    reader.pretend_to_be_a_child();
    for connected in [&writer, &reader] {
        let fault = connected.begin(Deadline::after(LONG)).unwrap_err();
        assert_eq!(fault.kind(), StoreErrorKind::Internal);
        assert!(fault.into_store_error("claim").to_string().contains("forked"));
    }
    rig.post("a").unwrap();
    let log = rig.folder.join("a.db-wal");
    let before = std::fs::metadata(&log).unwrap().len();
    drop((writer, reader));
    assert_eq!(std::fs::metadata(&log).unwrap().len(), before, "no checkpoint");
    rig.post("b").unwrap();
}
