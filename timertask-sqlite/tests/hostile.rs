//! Ids and payloads that break what is put together from strings, from the plan through the engine into the file and back.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::TempDir;
use timertask_core::key::{Namespace, PlanKey};
use timertask_core::seam::{Ending, Ledger, Query, SlotState};
use timertask_core::{Plan, PlanId, Run, Scheduler, Trigger};
use timertask_sqlite::Sqlite;
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
