//! What operators do, through the server: pauses over restarts of instances and of the server, cancels, the audit, why.

use std::time::Duration;

use timertask_core::chrono::{DateTime, TimeDelta, Utc};
use timertask_core::clock::{Clock, SystemClock};
use timertask_core::operate::{AuditState, CancelOutcome, Operator, Reason, ResumeOutcome, Standing};
use timertask_core::seam::{Board, Ending, NotStarted, Overlap, PostingKind, SlotState};
use timertask_core::{
    Asked, Backfill, CatchUp, Namespace, Plan, PlanStatus, RequestId, Resume, Run, RunNow, Scheduler,
};
use timertask_redis::Redis;

use crate::common::clock::FAST;
use crate::common::*;
use crate::service::{close, slots};

const PAUSED: &str = "paused";
const FREE: &str = "free";

fn ana() -> Asked {
    Asked::new("ana", "the database moves").unwrap()
}

fn now() -> DateTime<Utc> {
    SystemClock.now().to_datetime()
}

fn instance(store: Redis) -> Scheduler {
    let job = |run: &Run| {
        if run.plan() == "long" {
            run.wait(Duration::from_secs(600))?;
        }
        Ok(())
    };
    let scheduler = Scheduler::builder(job).store(store).clock(FAST).start().unwrap();
    let plan = |id: &str| Plan::new(id, "@every 1s").overlap(Overlap::Allow(100)).catch_up(CatchUp::All { cap: 100 });
    scheduler.reconcile([plan(PAUSED), plan(FREE)]).unwrap();
    scheduler
}

fn succeeded(store: &Redis, plan: &str) -> usize {
    slots(store, plan).iter().filter(|slot| slot.state == SlotState::Ended(Ending::Succeeded)).count()
}

/// Waits until `n` slots more of the plan that is not paused have been run.
fn until_free_ran(store: &Redis, n: usize) {
    let before = succeeded(store, FREE);
    until(|| (succeeded(store, FREE) >= before + n).then_some(()));
}

#[test]
fn a_pause_survives_restarts_of_instances_and_server_and_nothing_of_it_is_made_up() {
    let mut server = Server::start(APPENDS);
    let store = server.connect();
    let from = now();
    let operator = Operator::new(store.clone(), Namespace::default());
    let a = instance(server.connect());
    until(|| (succeeded(&store, PAUSED) > 0).then_some(()));
    let paused = operator.pause(PAUSED, &ana(), None).unwrap().pause;
    until_free_ran(&store, 1);
    let before = slots(&store, PAUSED).len();
    close(&a);
    server.kill();
    server.start_again();
    let store = server.connect();
    let operator = Operator::new(store.clone(), Namespace::default());
    let (b, c) = (instance(server.connect()), instance(server.connect()));
    until_free_ran(&store, 3);
    assert_eq!(slots(&store, PAUSED).len(), before, "nothing starts, and nothing is written about what waits");
    until(|| (b.plan(PAUSED).unwrap().unwrap().status == PlanStatus::Paused).then_some(()));
    let why = c.why(PAUSED);
    let Some(Reason::Paused { pause, all: false }) = why.reasons.first() else { panic!("{why}") };
    assert_eq!((pause, &*pause.by), (&paused, "ana"));
    let resumed = operator.resume(PAUSED, &ana(), Resume::FromNow, Some(&paused)).unwrap().outcome;
    assert_eq!(resumed, ResumeOutcome::Ended(paused));
    let cursor = until(|| (slots(&store, PAUSED).len() > before + 1).then_some(SystemClock.now()));
    let audit = b.audit(PAUSED, from, cursor.to_datetime()).unwrap();
    assert!(audit.findings.is_empty(), "{:?}", audit.findings);
    let waited = |state| state == AuditState::NotStarted(NotStarted::Paused);
    assert!(audit.slots.iter().filter(|slot| waited(slot.state)).count() >= 3, "{:?}", audit.tally());
    let made_up = audit.slots.iter().filter_map(|slot| slot.row.as_ref());
    assert!(made_up.clone().all(|row| row.kind == timertask_core::RunKind::Scheduled), "{:?}", audit.tally());
    assert_eq!(audit.ranges.iter().filter(|range| range.reason == NotStarted::Paused).count(), 1);
    close(&b);
    close(&c);
}

#[test]
fn a_pause_of_all_ends_by_itself() {
    let server = Server::start(&[]);
    let store = server.connect();
    let operator = Operator::new(store.clone(), Namespace::default());
    let a = instance(server.connect());
    until(|| (succeeded(&store, PAUSED) > 0 && succeeded(&store, FREE) > 0).then_some(()));
    let until_then = now() + TimeDelta::seconds(3);
    let pause = operator.pause_all(&ana(), Some(until_then)).unwrap().pause;
    assert_eq!(operator.all_paused().unwrap(), Some(pause));
    until(|| operator.all_paused().unwrap().is_none().then_some(()));
    let before = [PAUSED, FREE].map(|plan| slots(&store, plan).len());
    until(|| (slots(&store, PAUSED).len() > before[0] && slots(&store, FREE).len() > before[1]).then_some(()));
    for plan in [PAUSED, FREE] {
        let audit = a.audit(plan, until_then - TimeDelta::seconds(3), now()).unwrap();
        assert!(audit.findings.is_empty() && audit.tally()["not started (paused)"] >= 1, "{:?}", audit.tally());
    }
    close(&a);
}

#[test]
fn a_cancel_reaches_the_run_at_its_next_renewal() {
    let server = Server::start(&[]);
    let store = server.connect();
    let a = instance(server.connect());
    a.upsert(Plan::new("long", "@every 1s")).unwrap();
    let slot = until(|| slots(&store, "long").into_iter().find(|slot| slot.state == SlotState::Running)).key;
    let operator = Operator::new(store.clone(), Namespace::default());
    assert_eq!(operator.cancel(&slot, &ana()).unwrap().outcome, CancelOutcome::Told);
    let ended =
        |row: &timertask_core::seam::SlotRow| row.key == slot && row.state == SlotState::Ended(Ending::Cancelled);
    let row = until(|| slots(&store, "long").into_iter().find(ended));
    assert_eq!(row.cancel.unwrap().why, "the database moves");
    assert_eq!(operator.cancel(&slot, &ana()).unwrap().outcome, CancelOutcome::Ended(Ending::Cancelled));
    a.remove("long").unwrap();
    let _ = a.close_now().unwrap();
}

#[test]
fn another_process_asks_for_a_run_and_for_slots_of_the_past_and_each_starts_once() {
    let server = Server::start(APPENDS);
    let store = server.connect();
    let entered = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let start = |store: Redis| {
        let entered = std::sync::Arc::clone(&entered);
        let job = move |run: &Run| {
            entered.lock().unwrap().push((run.slot_key().clone(), run.asked().cloned()));
            Ok(())
        };
        let scheduler = Scheduler::builder(job).store(store).clock(FAST).start().unwrap();
        scheduler.reconcile([Plan::new("p", "0 0 1 1 *")]).unwrap();
        until(|| (scheduler.plan("p").unwrap().unwrap().status == PlanStatus::Active).then_some(()));
        scheduler
    };
    let (a, b) = (start(server.connect()), start(server.connect()));
    let operator = Operator::of_store(store.clone(), Namespace::default()).clock(FAST);
    let how = RunNow::new(ana()).id(RequestId::new("a/\\{b}\u{e9}").unwrap());
    let first = operator.run_now("p", &how).unwrap();
    let ended = Standing::Ended(Ending::Succeeded);
    // Both may find the request on the board. The one that comes second tells how far the first one's run is, and its answer
    // may be the one that is read.
    assert!([Standing::Started, Standing::Running, ended].contains(&first.standing), "{:?}", first.standing);
    let again = until(|| a.run_now("p", &how).ok().filter(|again| again.standing == ended));
    assert_eq!((again.slot, operator.run_now("p", &how).unwrap().standing), (first.slot.clone(), ended));

    // From before the plan was known, which nobody started.
    let year = |year: i32| format!("{year}-01-01T00:00:00Z").parse::<DateTime<Utc>>().unwrap();
    let what = Backfill::new(year(2001), year(2020), ana()).cap(19);
    assert!(operator.backfill("p", &what).unwrap_err().to_string().contains("would start 20 slots"));
    assert_eq!(b.dry_run("p", &what).unwrap().iter().filter(|prospect| prospect.starts()).count(), 20);
    assert_eq!(operator.backfill("p", &what.clone().cap(20)).unwrap().starts, Some(20));
    until(|| (succeeded(&store, "p") == 21).then_some(()));
    close(&a);
    close(&b);
    let entered = entered.lock().unwrap();
    let keys: std::collections::BTreeSet<_> = entered.iter().map(|(key, _)| key.clone()).collect();
    assert_eq!((entered.len(), keys.len()), (21, 21));
    assert!(entered.iter().all(|(_, asked)| asked.as_ref() == Some(&ana())));
    assert!(slots(&store, "p").iter().all(|slot| slot.asked.as_deref() == Some(&ana())));
    let left = store.list(&Namespace::default(), PostingKind::Request).unwrap().value;
    assert_eq!(left, []);
}
