//! Generations: edits, removals, restarts and rolling deploys never fire the past and lose no slot.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use std::sync::Arc;
use timertask_core::{BoxError, Plan, Run, Scheduler, StoreErrorKind};
use timertask_testkit::{Call, FakeClock, Fault, Faulty};

fn quiet() -> impl Fn(&Run) -> Result<(), BoxError> + Send + Sync + 'static {
    |_: &Run| Ok(())
}

#[test]
fn edits_back_and_forth_never_fire_the_past() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let scheduler = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    let (a, b) = (|| minutely("p"), || Plan::new("p", "30 0 * * * *"));
    scheduler.reconcile([a()]).unwrap();
    clock.advance(secs(65));
    scheduler.reconcile([b()]).unwrap();
    clock.advance(secs(3595 - 65));
    scheduler.reconcile([a()]).unwrap();
    clock.advance(secs(10));
    assert_eq!(log.lines(), ["p 00:01:00", "p 01:00:00"]);
    let fingerprint = scheduler.plan("p").unwrap().unwrap().fingerprint;
    assert_eq!(row(&ledger, "p").unwrap().generation.fingerprint, fingerprint);
    let told =
        ["00:01:00 succeeded", "00:01:01..00:01:05 edited × ?", "00:01:06..00:59:55 edited × ?", "01:00:00 succeeded"];
    assert_eq!(story(&ledger, "p"), told);
    assert!(unaccounted(&ledger, "p", "* * * * *", t("00:00:00"), t("01:00:00")).is_empty());
}

#[test]
fn disabled_absent_removed_and_back_again_never_fire_the_past() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let scheduler = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    let on = || [minutely("p")];
    let offs: [&dyn Fn(); 3] = [
        &|| drop(scheduler.reconcile([minutely("p").enabled(false)]).unwrap()),
        &|| drop(scheduler.reconcile([]).unwrap()),
        &|| assert!(scheduler.remove("p").unwrap()),
    ];
    for off in offs {
        scheduler.reconcile(on()).unwrap();
        clock.advance(secs(60));
        assert_eq!(log.take().len(), 1);
        off();
        clock.settle();
        assert!(row(&ledger, "p").unwrap().closed, "the generation is closed in the ledger");
        clock.advance(secs(600));
        assert_eq!(log.len(), 0);
    }
    assert!(!scheduler.remove("p").unwrap(), "it was not there");
    scheduler.reconcile(on()).unwrap();
    clock.advance(secs(1));
    assert_eq!(log.len(), 0);
    assert!(
        unaccounted(&ledger, "p", "* * * * *", t("00:00:00"), t("00:33:00")).is_empty(),
        "{:?}",
        story(&ledger, "p")
    );
}

#[test]
fn a_disabled_plan_is_closed_also_where_it_was_not_installed() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let first = start(Scheduler::builder(quiet()), &clock, &ledger);
    first.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(61));
    first.close(secs(1)).unwrap();
    assert!(!row(&ledger, "p").unwrap().closed, "close of a scheduler closes no generation");
    let second = start(Scheduler::builder(quiet()), &clock, &ledger);
    second.reconcile([minutely("p").enabled(false)]).unwrap();
    clock.settle();
    assert!(row(&ledger, "p").unwrap().closed);
}

#[test]
fn a_plan_removed_right_before_close_is_closed_in_the_ledger() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let scheduler = start(Scheduler::builder(quiet()), &clock, &ledger);
    scheduler.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(1));
    scheduler.remove("p").unwrap();
    scheduler.close(secs(1)).unwrap();
    assert!(row(&ledger, "p").unwrap().closed);
}

#[test]
fn a_generation_is_closed_in_spite_of_faults_while_close_waits_for_a_run() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
    let log = Log::default();
    let scheduler =
        Scheduler::builder(worker(&log, secs(30))).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
    scheduler.reconcile([minutely("p"), minutely("q")]).unwrap();
    clock.advance(secs(61));
    faulty.on(Call::Plan).next(10, Fault::Error(StoreErrorKind::Busy));
    scheduler.remove("q").unwrap();
    assert!(scheduler.close(secs(60)).unwrap().is_clean());
    assert!(row(&ledger, "q").unwrap().closed && !row(&ledger, "p").unwrap().closed);
    // With nothing else to wait for, a store that is gone does not hold it up.
    let scheduler = Scheduler::builder(quiet()).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
    scheduler.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(1));
    faulty.cut_off();
    scheduler.remove("p").unwrap();
    let begin = timertask_core::Clock::monotonic(&*clock);
    scheduler.close(secs(60)).unwrap();
    assert_eq!(timertask_core::Clock::monotonic(&*clock), begin);
}

#[test]
fn a_restart_keeps_its_cursor_and_makes_up_the_latest() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let first = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    first.reconcile([Plan::new("p", "@hourly")]).unwrap();
    clock.advance(secs(3601));
    first.close(secs(1)).unwrap();
    clock.advance(secs(3 * 3600 + 600));
    let second = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    second.reconcile([Plan::new("p", "@hourly")]).unwrap();
    clock.advance(secs(60));
    assert_eq!(log.lines(), ["p 01:00:00", "p 04:00:00"]);
    assert_eq!(story(&ledger, "p"), ["01:00:00 succeeded", "01:00:01..03:00:00 superseded × 2", "04:00:00 succeeded"]);
}

#[test]
fn in_a_rolling_deploy_each_slot_starts_once() {
    let clock = FakeClock::seeded(3);
    let ledger = ledger(&clock);
    let log = Log::default();
    let old = start(Scheduler::builder(recorder(&log)), &clock.view("old"), &ledger);
    let plan = |v: &str| minutely("p").fingerprint(v);
    old.reconcile([plan("1")]).unwrap();
    clock.advance(secs(150));
    let new = start(Scheduler::builder(recorder(&log)), &clock.view("new"), &ledger);
    for _ in 0..20 {
        // Both reconcile on and on, each with its own version.
        new.reconcile([plan("2")]).unwrap();
        clock.advance(secs(20));
        old.reconcile([plan("1")]).unwrap();
        clock.advance(secs(10));
    }
    let mut ran = log.lines();
    let all = ran.len();
    ran.dedup();
    assert_eq!(ran.len(), all, "{ran:?}");
    // An edit never fires the past, so only a slot at the very instant of a flip may fall to it.
    assert!(all >= 11, "{ran:?} {:?}", story(&ledger, "p"));
    old.close(secs(1)).unwrap();
    clock.advance(secs(120));
    let view = new.plan("p").unwrap().unwrap();
    new.reconcile([plan("2")]).unwrap();
    clock.advance(secs(30));
    new.reconcile([plan("2")]).unwrap();
    clock.advance(secs(30));
    assert_eq!(row(&ledger, "p").unwrap().generation.fingerprint, view.fingerprint);
    assert!(unaccounted(&ledger, "p", "* * * * *", t("00:00:00"), t("00:13:00")).is_empty());
}

#[test]
fn a_generation_that_another_instance_closed_is_opened_again_after_two_reconciles() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let a = start(Scheduler::builder(recorder(&log)), &clock.view("a"), &ledger);
    let b = start(Scheduler::builder(recorder(&log)), &clock.view("b"), &ledger);
    a.reconcile([minutely("p")]).unwrap();
    b.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(5));
    b.remove("p").unwrap();
    clock.settle();
    assert!(row(&ledger, "p").unwrap().closed);
    for _ in 0..3 {
        a.reconcile([minutely("p")]).unwrap();
        clock.advance(secs(15));
    }
    assert!(!row(&ledger, "p").unwrap().closed);
    log.take();
    let yielded = a.stats().yielded;
    clock.advance(secs(60));
    assert_eq!((log.len(), a.stats().yielded), (1, yielded), "and asked for once");
}

#[test]
fn the_first_window_after_an_edit_begins_where_the_accounted_ones_ended() {
    let clock = FakeClock::new();
    let log = Log::default();
    let inner = log.clone();
    let job = move |run: &Run| {
        let window = run.window();
        inner.add(format!("{}..{}", window.from.format("%T"), window.to.format("%T")));
        Ok(())
    };
    let scheduler = Scheduler::builder(job).clock(clock.clone()).start().unwrap();
    scheduler.reconcile([Plan::new("p", "*/10 * * * *")]).unwrap();
    clock.advance(secs(601));
    scheduler.reconcile([Plan::new("p", "25,45 * * * *")]).unwrap();
    clock.advance(secs(45 * 60));
    assert_eq!(log.lines(), ["00:00:00..00:10:00", "00:10:00..00:25:00", "00:25:00..00:45:00"]);
}

#[test]
fn edits_while_the_store_is_down_come_through_in_order_and_do_not_pile_up() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
    let log = Log::default();
    let scheduler = Scheduler::builder(recorder(&log)).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
    scheduler.reconcile([minutely("p"), minutely("gone")]).unwrap();
    clock.advance(secs(1));
    faulty.cut_off();
    for n in 0..3000 {
        let set: Vec<_> = if n % 3 == 0 { vec![] } else { vec![minutely("p").fingerprint(n.to_string())] };
        scheduler.reconcile(set).unwrap();
    }
    clock.advance(secs(30));
    let calls = faulty.calls(Call::Plan);
    faulty.heal();
    clock.advance(secs(5));
    assert!(faulty.calls(Call::Plan) - calls < 20, "{} calls", faulty.calls(Call::Plan) - calls);
    assert!(row(&ledger, "gone").unwrap().closed);
    let view = scheduler.plan("p").unwrap().unwrap();
    assert_eq!(row(&ledger, "p").unwrap().generation.fingerprint, view.fingerprint);
    clock.advance(secs(60));
    assert_eq!(log.lines(), ["p 00:01:00"]);
}

#[test]
fn fault_57_what_another_version_knows_is_not_deleted() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let old = start(Scheduler::builder(recorder(&log)), &clock.view("old"), &ledger);
    let new = start(Scheduler::builder(recorder(&log)), &clock.view("new"), &ledger);
    for _ in 0..5 {
        old.reconcile([minutely("both"), minutely("before")]).unwrap();
        new.reconcile([minutely("both"), minutely("after")]).unwrap();
        clock.advance(secs(20));
    }
    for id in ["both", "before", "after"] {
        assert!(!row(&ledger, id).unwrap().closed, "{id} is nobody's to close who does not know it");
    }
    log.take();
    clock.advance(secs(60));
    assert_eq!(log.len(), 3);
    // A rename is one plan less and one more; the history of the old name stays.
    old.close(secs(1)).unwrap();
    new.reconcile([minutely("renamed"), minutely("after")]).unwrap();
    log.take();
    clock.advance(secs(60));
    assert_eq!(log.len(), 2);
    assert!(row(&ledger, "both").unwrap().closed);
    assert!(tally(&ledger, "both")["succeeded"] >= 2);
    assert!(!row(&ledger, "before").unwrap().closed, "left over, and listed by the ledger until an operator purges it");
}
