//! No statement walks through a table: each finds its rows by a key, and those of the running and open ones by the index
//! that holds only them.

use rusqlite::Connection;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use timertask_core::key::{Fence, Fingerprint, InstanceId, Namespace, Nonce, PlanId, PlanKey, RequestId, SlotKey};
use timertask_core::seam::{
    Board, Cancel, ClaimRequest, Cover, EndOp, EndRequest, Gate, Ledger, Mutex, NotStarted, Overlap, PlanOp, Posting,
    PostingKind, Query, Retention, RunKind, Term,
};
use timertask_core::time::{Timestamp, Trigger};

use crate::Sqlite;

static SEEN: AtomicUsize = AtomicUsize::new(0);

/// Called for each statement that the tests of this crate prepare.
pub(super) fn assert_by_key(connection: &Connection, sql: &str) {
    let mut explain = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let unbound = explain.parameter_count();
    let steps = explain
        .query_map(rusqlite::params_from_iter(vec![rusqlite::types::Null; unbound]), |row| row.get::<_, String>(3));
    for step in steps.unwrap().map(Result::unwrap) {
        // A subquery's own few rows may be walked through and sorted.
        let walks = step.starts_with("SCAN timertask") || step.contains("AUTOMATIC") || step.contains("TEMP B-TREE");
        assert!(!walks, "{step}: {sql}");
        if sql.contains("state < 2") && step.contains("timertask_slot") {
            assert!(step.contains("timertask_slot_unfinished"), "{step}: {sql}");
        }
    }
    SEEN.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn every_statement_finds_its_rows_by_a_key() {
    let path = std::env::temp_dir().join(format!("timertask-sqlite-plans-{}.db", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let store = Sqlite::open(&path).unwrap();
    let plan = PlanKey::new(Namespace::default(), PlanId::new("p").unwrap());
    let fingerprint = Fingerprint::from_bits(1);
    let opened = store.plan(&[(plan.clone(), PlanOp::Open { fingerprint, replaces: None })]).unwrap();
    let from = opened.value[0].row.as_ref().unwrap().cursor;
    let at = |n: i64| Trigger::from_secs(from.as_secs() + n);

    for (n, request) in [(5, None), (6, Some(RequestId::new("r").unwrap()))] {
        for overlap in [Overlap::CancelPrevious, Overlap::QueueOne, Overlap::Skip] {
            let request = ClaimRequest {
                key: SlotKey { plan: plan.clone(), at: at(n), request: request.clone() },
                nonce: Nonce::from_bits(1),
                fingerprint,
                prev: None,
                kind: if request.is_some() { RunKind::Manual } else { RunKind::Scheduled },
                asked: None,
                gate: Gate::Policy(overlap),
                attempts_allowed: 1,
                ttl: Duration::from_secs(9),
                instance: InstanceId::new("i").unwrap(),
                version: None,
            };
            let _ = store.claim(&[request]).unwrap();
        }
    }
    let key = SlotKey { plan: plan.clone(), at: at(5), request: None };
    let cancel = Cancel { by: "b".to_owned(), why: "w".to_owned() };
    for op in [
        PlanOp::Account { fingerprint, from: at(5), to: at(5), cover: Cover::Rows(vec![at(6)]) },
        PlanOp::Account {
            fingerprint,
            from: at(0),
            to: at(0),
            cover: Cover::Range { count: None, reason: NotStarted::TooLate },
        },
        PlanOp::SetBack { max_skew: Duration::ZERO },
        PlanOp::Cancel { at: at(5), request: None, cancel },
        PlanOp::Read,
    ] {
        let _ = store.plan(&[(plan.clone(), op)]).unwrap();
    }
    let term = Term { key: key.clone(), nonce: Nonce::from_bits(1), fence: Fence::NONE };
    let _ = store.renew(&[term], Duration::from_secs(60)).unwrap();
    let op = EndOp::Expire { attempts_allowed: 1 };
    let _ = store.end(&[EndRequest { key: key.clone(), fence: Fence::NONE, op }]).unwrap();
    let (namespace, max_skew) = (Namespace::default(), Duration::ZERO);
    for query in [
        Query::Lapsed { namespace: namespace.clone(), max_skew, after: None, limit: 9 },
        Query::Unfinished { plan: plan.clone(), limit: 9 },
        Query::History { plan: plan.clone(), after: at(0), upto: at(9), page: None, limit: 9 },
        Query::Slots(vec![key.clone()]),
        Query::Plans { namespace: namespace.clone(), after: None, limit: 9 },
    ] {
        let _ = store.read(&query).unwrap();
    }
    let keep = Retention { age: None, count: Some(0), keep_last: 0 };
    let _ = store.purge(&plan, keep, 10).unwrap();
    let lease = store.try_lock(&key, Nonce::from_bits(1), Duration::from_secs(9)).unwrap().unwrap();
    let _ = store.extend(&lease, Duration::from_secs(9)).unwrap();
    let _ = store.unlock(&lease).unwrap();
    let (kind, key, until) = (PostingKind::Request, "k".to_owned(), Timestamp::MAX);
    let _ = store.post(&Posting { namespace: namespace.clone(), kind, key, body: String::new(), until }).unwrap();
    let _ = store.list(&namespace, kind).unwrap();
    let _ = store.take(&namespace, kind, "k").unwrap();
    drop(store);
    std::fs::remove_file(&path).unwrap();
    assert!(SEEN.load(Ordering::Relaxed) > 40, "statements were looked at");
}
