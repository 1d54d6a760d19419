//! What the conformance suite does not see: what is in the file, and that it outlives the handle.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::sync::Arc;

use common::*;
use rusqlite::Connection;
use timertask_core::seam::{Claim, Durability, Ended, Ending, Ledger, Mutex, PlanOp, Query};
use timertask_core::time::{Timestamp, Trigger};
use timertask_sqlite::{Sqlite, Synchronous, rusqlite};

fn assert_handle<T: Clone + Send + Sync + std::fmt::Debug + 'static>() {}

#[test]
fn the_handle_is_what_a_builder_wants() {
    assert_handle::<Sqlite>();
    let dir = TempDir::new();
    let store = Sqlite::open(dir.path("a.db")).unwrap();
    assert_eq!(format!("{store:?}"), format!("Sqlite {{ path: {:?}, .. }}", dir.path("a.db")));
    let _: Arc<dyn Ledger> = Arc::new(store.clone());
    let _: Arc<dyn Mutex> = Arc::new(store.clone());
    assert_eq!(store.describe().unwrap(), Durability::Durable { synced: true });
    let store = Sqlite::options().synchronous(Synchronous::Normal).open(dir.path("a.db")).unwrap();
    assert_eq!(store.describe().unwrap(), Durability::Durable { synced: false });
}

#[test]
fn claims_and_ends_outlive_the_handle() {
    let dir = TempDir::new();
    let path = dir.path("a.db");
    let open = || Sqlite::options().clock(SetClock::at(1_000)).open(&path).unwrap();
    let store = open();
    open_plan(&store, "p");
    let (first, second) = (request(slot("p", 1_001), nonce()), request(slot("p", 1_002), nonce()));
    let grant = granted(claim_one(&store, &first));
    granted(claim_one(&store, &second));
    let ended = store.end(&[settle(&first, &grant, Timestamp::from_micros(5))]).unwrap().value;
    assert!(matches!(ended[..], [Ended::Recorded(_)]));
    drop(store);
    // The last to close leaves one file.
    assert!(!dir.path("a.db-wal").exists());

    let store = open();
    assert_eq!(claim_one(&store, &request(first.key.clone(), nonce())), Claim::Ended(Ending::Succeeded));
    assert_eq!(claim_one(&store, &request(second.key.clone(), nonce())), Claim::Held);
    let page = store.read(&Query::Slots(vec![first.key.clone()])).unwrap().value;
    assert_eq!(page.slots[0].started_at, Some(Timestamp::from_micros(5)));
    let row = store.plan(&[(plan("p"), PlanOp::Read)]).unwrap().value.remove(0).row.unwrap();
    assert_eq!(row.last_success, Some(Trigger::from_secs(1_001)));
}

#[test]
fn opening_an_up_to_date_file_writes_nothing() {
    let dir = TempDir::new();
    let path = dir.path("a.db");
    drop(Sqlite::open(&path).unwrap());
    let before = std::fs::read(&path).unwrap();
    let holder = Connection::open(&path).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    drop(Sqlite::open(&path).unwrap());
    drop(holder);
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn marks_of_a_file_of_its_own_and_of_an_application() {
    let dir = TempDir::new();
    let marks = |path: &std::path::Path| {
        let other = Connection::open(path).unwrap();
        let pragma = |name| other.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).unwrap();
        (pragma("application_id"), pragma("user_version"))
    };
    let own = dir.path("own.db");
    drop(Sqlite::open(&own).unwrap());
    assert_eq!(marks(&own), (0x746d_746b, 1));

    let theirs = dir.path("theirs.db");
    let sql = "PRAGMA application_id = 5; PRAGMA user_version = 12; CREATE TABLE orders (id INTEGER)";
    Connection::open(&theirs).unwrap().execute_batch(sql).unwrap();
    let store = Sqlite::options().in_application_file().open(&theirs).unwrap();
    open_plan(&store, "p");
    drop(store);
    assert_eq!(marks(&theirs), (5, 12));
    // From then on it opens either way, whatever their version becomes.
    Connection::open(&theirs).unwrap().execute_batch("PRAGMA user_version = 13").unwrap();
    let store = Sqlite::open(&theirs).unwrap();
    assert!(store.plan(&[(plan("p"), PlanOp::Read)]).unwrap().value[0].row.is_some());
    assert_eq!(marks(&theirs), (5, 13));
}

#[test]
fn ids_of_all_kinds_are_kept_apart() {
    let dir = TempDir::new();
    let store = Sqlite::options().clock(SetClock::at(1_000)).open(dir.path("a.db")).unwrap();
    let ids = [
        "a",
        "A",
        "a ",
        " a",
        "é",
        "e\u{301}",
        "'; DROP TABLE timertask_slot; --",
        "{}",
        "\"",
        "😀",
        "%",
        "a/b",
        "\u{202e}x",
    ];
    for id in ids {
        open_plan(&store, id);
        granted(claim_one(&store, &request(slot(id, 1_001), nonce())));
    }
    let page = store.read(&Query::Plans { namespace: Default::default(), after: None, limit: 100 }).unwrap().value;
    let mut found: Vec<_> = page.plans.iter().map(|(key, _)| key.plan_str().to_owned()).collect();
    let mut expected = ids.map(str::to_owned);
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}
