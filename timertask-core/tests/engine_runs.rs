//! What a job sees and how it comes out: panics, stops, budgets, windows, the late worker.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use std::fmt;
use std::sync::Arc;
use timertask_core::clock::{Clock, Signal, Until};
use timertask_core::{
    BoxError, CatchUp, Ending, Jobs, Overlap, Permanent, Plan, RetryBudget, Run, RunKind, RunOutcome, Scheduler, Stop,
};
use timertask_testkit::FakeClock;

/// A payload and an error that make all the trouble they can.
struct Bomb;
impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("in drop");
    }
}

#[derive(Debug)]
struct Rude {
    display: bool,
    drop: bool,
}
impl fmt::Display for Rude {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        assert!(!self.display, "in display");
        f.write_str("rude")
    }
}
impl std::error::Error for Rude {}
impl Drop for Rude {
    fn drop(&mut self) {
        assert!(!self.drop, "in the error's drop");
    }
}

#[derive(Debug)]
struct Liar;
impl fmt::Display for Liar {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Err(fmt::Error)
    }
}
impl std::error::Error for Liar {}

#[test]
fn fault_22_a_panic_of_any_kind_is_a_failure_and_the_next_slot_runs() {
    let clock = FakeClock::new();
    let log = Log::default();
    let inner = log.clone();
    let poisoned = Arc::new(std::sync::Mutex::new(0));
    let job = move |run: &Run| -> Result<(), BoxError> {
        inner.add(format!("{} {}", run.plan(), short(run.slot_key().at)));
        match run.plan() {
            "str" => panic!("a text"),
            "string" => panic!("a text with {}", 1),
            "custom" => std::panic::panic_any(7_u8),
            "bomb" => std::panic::panic_any(Bomb),
            "mutex" => {
                let _guard = poisoned.lock().unwrap();
                panic!("holding a lock")
            }
            "display" => Err(Rude { display: true, drop: false }.into()),
            "drop" => Err(Rude { display: false, drop: true }.into()),
            "both" => Err(Rude { display: true, drop: true }.into()),
            "liar" => Err(Liar.into()),
            _ => Ok(()),
        }
    };
    let scheduler = Scheduler::builder(job).concurrency(1).clock(clock.clone()).start().unwrap();
    let ids = ["str", "string", "custom", "bomb", "mutex", "display", "drop", "both", "liar", "well"];
    scheduler.reconcile(ids.map(minutely)).unwrap();
    clock.advance(secs(125));
    let ran = log.lines();
    assert_eq!(ran.len(), 2 * ids.len(), "each slot of each plan: {ran:?}");
    for record in scheduler.run_history(None) {
        let wanted = if record.slot.plan.plan_str() == "well" { Ending::Succeeded } else { Ending::Failed };
        assert_eq!(record.outcome, RunOutcome::Ended(wanted), "{record:?}");
    }
    let details: Vec<_> =
        scheduler.run_history(None).iter().map(|r| r.detail.as_deref().unwrap_or("").to_owned()).collect();
    assert_eq!(details[0], "panicked: a text");
    assert_eq!(details[1], "panicked: a text with 1");
    assert!(details[4].contains("holding a lock") && details[14].contains("Poison"), "{details:?}");
    let health = scheduler.health();
    assert_eq!((health.threads_alive, health.threads_panicked.len()), (4, 0));
    assert!(scheduler.close(secs(1)).unwrap().is_clean());
}

#[test]
fn a_panic_after_its_token_fired_is_a_failure_and_an_error_is_cancelled() {
    let clock = FakeClock::new();
    let job = |run: &Run| -> Result<(), BoxError> {
        let stop = run.wait(secs(600));
        assert!(run.plan() != "panics", "told to stop, and panicked");
        if run.plan() == "finishes" { Ok(()) } else { Ok(stop?) }
    };
    let scheduler = Scheduler::builder(job).clock(clock.clone()).start().unwrap();
    scheduler.reconcile(["panics", "errs", "finishes"].map(minutely)).unwrap();
    clock.advance(secs(61));
    assert!(scheduler.close_now().unwrap().is_clean());
    let mut told = history(&scheduler);
    told.sort();
    assert_eq!(told, ["errs 00:01:00 cancelled", "finishes 00:01:00 succeeded", "panics 00:01:00 failed"]);
}

fn budget(attempts: u32, timeout: u64, backoff: u64) -> RetryBudget {
    RetryBudget { attempts, timeout: secs(timeout), backoff: secs(backoff).into(), slack: secs(30) }
}

/// A job that notes each try with the time since the trigger, works `d`, and fails but on try `good`.
fn trier(
    log: &Log,
    d: std::time::Duration,
    good: u32,
) -> impl Fn(&Run) -> Result<(), BoxError> + Send + Sync + 'static {
    let log = log.clone();
    move |run: &Run| {
        log.add(format!("try {} left {:?}", run.tries(), run.time_left().unwrap()));
        run.wait(d)?;
        if run.tries() == good { Ok(()) } else { Err("not yet".into()) }
    }
}

#[test]
fn a_set_budget_repeats_attempts_each_with_a_time_out() {
    let clock = FakeClock::new();
    let log = Log::default();
    let scheduler = Scheduler::builder(trier(&log, secs(3), 3)).clock(clock.clone()).start().unwrap();
    scheduler.reconcile([minutely("a").retry(budget(3, 10, 5))]).unwrap();
    clock.advance(secs(90));
    assert_eq!(log.lines(), ["try 1 left 10s", "try 2 left 10s", "try 3 left 10s"]);
    let record = &scheduler.run_history(None)[0];
    assert_eq!((record.tries, record.outcome), (3, RunOutcome::Ended(Ending::Succeeded)));
    assert_eq!(record.ended_at, micros("00:01:19"), "3 × 3 s and two back-offs");

    // One that is over time is told so, and counts as a try.
    let log = Log::default();
    let scheduler = Scheduler::builder(trier(&log, secs(20), 9)).clock(clock.clone()).start().unwrap();
    scheduler.reconcile([Plan::new("b", "@hourly").retry(budget(2, 10, 5))]).unwrap();
    clock.advance(secs(3600));
    assert_eq!(log.lines(), ["try 1 left 10s", "try 2 left 10s"]);
    let record = &scheduler.run_history(None)[0];
    assert_eq!((record.tries, record.outcome), (2, RunOutcome::Ended(Ending::Failed)));
    assert_eq!(record.ended_at.since(record.started_at.unwrap()), secs(25));
}

#[test]
fn the_term_ends_the_budget() {
    let clock = FakeClock::new();
    let log = Log::default();
    let (inner, time) = (log.clone(), clock.clone());
    // It ignores its time-out of 10 s, and is over its term of 2 × 10 + 5 + 30 s when it comes back.
    let job = move |run: &Run| -> Result<(), BoxError> {
        inner.add(format!("try {}", run.tries()));
        let _ = time.wait(&Signal::new(), Some(Until::Monotonic(time.monotonic() + secs(56))));
        inner.add(format!("{:?}", run.check()));
        Err("late".into())
    };
    let scheduler = Scheduler::builder(job).clock(clock.clone()).start().unwrap();
    scheduler.reconcile([Plan::new("a", "@hourly").retry(budget(2, 10, 5))]).unwrap();
    clock.advance(secs(3700));
    assert_eq!(log.lines(), ["try 1", "Err(Deadline)"]);
    assert_eq!(history(&scheduler), ["a 01:00:00 failed"]);
}

#[test]
fn permanent_errors_stop_at_once_and_without_a_budget_there_is_one_attempt() {
    let clock = FakeClock::new();
    let log = Log::default();
    let (a, b) = (log.clone(), log.clone());
    let jobs = Jobs::new()
        .on("permanent", move |_: &Run| {
            a.add("permanent");
            Err(Permanent::new("closed").into())
        })
        .on("once", move |run: &Run| {
            b.add(format!("once {:?} {:?}", run.time_left(), run.deadline_is_none()));
            Err("no".into())
        });
    let scheduler = Scheduler::builder(jobs).clock(clock.clone()).start().unwrap();
    scheduler.reconcile([minutely("permanent").retry(budget(5, 10, 1)), minutely("once")]).unwrap();
    clock.advance(secs(110));
    let mut lines = log.lines();
    lines.sort();
    assert_eq!(lines, ["once None true", "permanent"]);
    assert!(scheduler.run_history(None).iter().all(|r| r.tries == 1 && r.outcome == RunOutcome::Ended(Ending::Failed)));
}

trait NoDeadline {
    fn deadline_is_none(&self) -> bool;
}
impl NoDeadline for Run {
    fn deadline_is_none(&self) -> bool {
        self.time_left().is_none()
    }
}

#[test]
fn a_cancel_during_a_timed_out_try_is_not_forgotten() {
    let clock = FakeClock::new();
    let log = Log::default();
    let (inner, time) = (log.clone(), clock.clone());
    let job = move |run: &Run| -> Result<(), BoxError> {
        inner.add(format!("try {}", run.tries()));
        let _ = time.wait(&Signal::new(), Some(Until::Monotonic(time.monotonic() + secs(12))));
        run.check()?;
        Ok(())
    };
    let scheduler = Scheduler::builder(job).clock(clock.clone()).start().unwrap();
    scheduler.reconcile([minutely("a").retry(budget(3, 10, 5))]).unwrap();
    clock.advance(secs(71));
    // Its try has timed out; now the scheduler closes, and gives it a second.
    let report = scheduler.close_now().unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(log.lines(), ["try 1"], "no further try");
    assert_eq!(history(&scheduler), ["a 00:01:00 cancelled"]);
}

#[test]
fn a_run_tells_its_slot_window_trust_and_last_success() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let inner = log.clone();
    let job = move |run: &Run| -> Result<(), BoxError> {
        let window = run.window();
        inner.add(format!(
            "{} {} fence {} attempt {} {:?} {}..{} last {:?} trust {:?} due {} closing {}",
            run.slot_key(),
            String::from_utf8_lossy(run.payload()),
            run.fence() > timertask_core::Fence::NONE,
            run.attempt(),
            run.kind(),
            window.from.format("%T"),
            window.to.format("%T"),
            run.last_success().map(|t| t.format("%T").to_string()),
            run.trust_left().unwrap(),
            run.due(),
            run.closing(),
        ));
        if run.trigger().timestamp() == START + 120 { Err("no".into()) } else { Ok(()) }
    };
    let scheduler = start(Scheduler::builder(job).namespace("shop").version("1.2"), &clock, &ledger);
    scheduler.reconcile([minutely("a").payload("{}").spread(secs(1))]).unwrap();
    clock.advance(secs(185));
    let head = |at: &str, last: &str, from: &str| {
        format!(
            "shop:timertask/cron/exec/a/2026-01-01T{at}Z {{}} fence true attempt 1 Scheduled {from}..{at} last {last} \
             trust 28s due 2026-01-01T{at}Z closing false"
        )
    };
    assert_eq!(
        log.lines(),
        [
            head("00:01:00", "None", "00:00:00"),
            head("00:02:00", "Some(\"00:01:00\")", "00:01:00"),
            head("00:03:00", "Some(\"00:01:00\")", "00:02:00"),
        ]
    );
    let record = &scheduler.run_history(None)[0];
    assert_eq!((record.version.as_deref(), record.kind, record.attempt), (Some("1.2"), RunKind::Scheduled, 1));
}

#[test]
fn heartbeats_go_on_to_the_end_of_the_run_and_are_reported_as_long() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let (a, b) = (Log::default(), Log::default());
    let events = Log::default();
    let inner = log.clone();
    let job = move |run: &Run| -> Result<(), BoxError> {
        for _ in 0..60 {
            run.wait(secs(60))?;
            assert!(run.trust_left().unwrap() > secs(15));
        }
        inner.add("done");
        Ok(())
    };
    let first = start(Scheduler::builder(job).observer(Ear(events.clone())), &clock.view("a"), &ledger);
    let second = start(Scheduler::builder(worker(&b, secs(0))), &clock.view("b"), &ledger);
    let plan = || Plan::new("a", "1 0 * * * *");
    first.reconcile([plan()]).unwrap();
    clock.advance(secs(2));
    second.reconcile([plan()]).unwrap();
    clock.advance(secs(3700));
    assert_eq!(log.lines(), ["done"]);
    assert_eq!(a.len() + b.len(), 0);
    assert_eq!(tally(&ledger, "a").get("succeeded"), Some(&1));
    let long = events.lines().into_iter().filter(|l| l.starts_with("long run")).collect::<Vec<_>>();
    assert_eq!(long, ["long run 00:00:01"], "once");
}

#[test]
fn a_worker_that_is_too_late_gives_back() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let plan = || minutely("a").start_window(secs(2));
    // Between the claim and the job the store's answer takes three seconds.
    let faulty = timertask_testkit::Faulty::new(ledger.clone(), Arc::new(clock.clone()));
    let scheduler = Scheduler::builder(recorder(&log)).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
    scheduler.reconcile([plan()]).unwrap();
    clock.advance(secs(30));
    faulty.on(timertask_testkit::Call::Claim).next(1, timertask_testkit::Fault::SlowAnswer(secs(3)));
    clock.advance(secs(34));
    assert_eq!(log.len(), 0, "not entered");
    assert_eq!(history(&scheduler), ["a 00:01:00 given back"]);
    // The sweep takes it up as a slot that was missed: the latest one is made up.
    clock.advance(secs(30));
    assert_eq!(log.lines(), ["a 00:01:00"]);
    clock.advance(secs(60));
    assert_eq!(tally(&ledger, "a").get("succeeded"), Some(&2));
}

#[test]
fn overlap_skip_and_allow_within_one_and_across_two_instances() {
    for (overlap, wanted) in
        [(Overlap::Skip, 1), (Overlap::Allow(1), 1), (Overlap::Allow(0), 1), (Overlap::Allow(3), 3)]
    {
        for instances in [1, 2] {
            let clock = FakeClock::seeded(5);
            let ledger = ledger(&clock);
            let log = Log::default();
            let schedulers: Vec<_> = (0..instances)
                .map(|n| {
                    let view = clock.view(&format!("i{n}"));
                    let scheduler = start(Scheduler::builder(worker(&log, secs(55))), &view, &ledger);
                    scheduler
                        .reconcile([Plan::new("a", "@every 10s").overlap(overlap).catch_up(CatchUp::None)])
                        .unwrap();
                    scheduler
                })
                .collect();
            clock.advance(secs(64));
            assert_eq!(log.len(), wanted, "{overlap:?} on {instances}: {:?}", log.lines());
            let tally = tally(&ledger, "a");
            assert_eq!(tally.get("not started (overlap)").copied().unwrap_or(0), 6 - wanted, "{tally:?}");
            assert!(unaccounted(&ledger, "a", "@every 10s", t("00:00:00"), t("00:01:00")).is_empty());
            drop(schedulers);
        }
    }
}

#[test]
fn wait_and_check_end_early_with_the_reason() {
    let clock = FakeClock::new();
    let log = Log::default();
    let inner = log.clone();
    let job = move |run: &Run| -> Result<(), BoxError> {
        inner.add(format!("{:?} {:?}", run.wait(secs(5)), run.check()));
        let stop = run.wait(secs(1000)).unwrap_err();
        inner.add(format!("{stop:?} {} {:?} {:?}", short(run.due().trigger()), run.check(), run.wait(secs(1))));
        assert_eq!(stop, Stop::Deadline);
        Err(stop.into())
    };
    let scheduler = Scheduler::builder(job).clock(clock.clone()).start().unwrap();
    scheduler.reconcile([minutely("a").retry(budget(1, 20, 0))]).unwrap();
    clock.advance(secs(100));
    assert_eq!(log.lines(), ["Ok(()) Ok(())", "Deadline 00:01:00 Err(Deadline) Err(Deadline)"]);
    let record = &scheduler.run_history(None)[0];
    assert_eq!(record.ended_at, micros("00:01:20"));
}

#[test]
fn a_cancel_mark_reaches_the_run_with_its_next_renewal() {
    use timertask_core::Ledger;
    use timertask_core::seam::{Cancel, PlanOp};
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let (log, events) = (Log::default(), Log::default());
    let inner = log.clone();
    let job = move |run: &Run| -> Result<(), BoxError> {
        let stop = run.wait(secs(600)).unwrap_err();
        let asked = run.cancel().unwrap();
        inner.add(format!("{stop:?} by {} {}", asked.by, asked.why));
        Err(stop.into())
    };
    let scheduler = start(Scheduler::builder(job).observer(Ear(events.clone())), &clock, &ledger);
    scheduler.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(61));
    let cancel = Cancel { by: "ann".to_owned(), why: "wrong data".to_owned() };
    let _ = ledger.plan(&[(key("p"), PlanOp::Cancel { at: t("00:01:00"), request: None, cancel })]).unwrap();
    clock.advance(secs(10));
    assert_eq!(log.lines(), ["Cancelled by ann wrong data"]);
    assert_eq!(history(&scheduler), ["p 00:01:00 cancelled"]);
    assert_eq!(events.lines().iter().filter(|l| *l == "cancel asked 00:01:00").count(), 1);
}

#[test]
fn after_the_term_of_a_set_budget_nobody_vouches_for_the_run_any_more() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let (inner, time) = (log.clone(), clock.clone());
    let job = move |run: &Run| -> Result<(), BoxError> {
        let _ = time.wait(&Signal::new(), Some(Until::Monotonic(time.monotonic() + secs(200))));
        inner.add(format!("{:?}", run.check()));
        Ok(())
    };
    let scheduler = start(Scheduler::builder(job), &clock, &ledger);
    scheduler.reconcile([Plan::new("p", "@hourly").retry(budget(1, 10, 0))]).unwrap();
    clock.advance(secs(3600 + 180));
    // Its term was 40 s; a lease and three sweeps later it is orphaned, and the plan is free.
    assert_eq!(tally(&ledger, "p"), [("orphaned".to_owned(), 1)].into());
    clock.advance(secs(60));
    assert_eq!(log.len(), 1);
    assert_eq!(history(&scheduler), ["p 01:00:00 lease lost"]);
}

#[test]
fn namespaces_share_a_store_and_nothing_else() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let both: Vec<_> = ["shop", "bank"]
        .into_iter()
        .map(|name| {
            let s = start(Scheduler::builder(recorder(&log)).namespace(name), &clock.view(name), &ledger);
            s.reconcile([minutely("p")]).unwrap();
            s
        })
        .collect();
    clock.advance(secs(125));
    assert_eq!(log.len(), 4);
    both[0].reconcile([]).unwrap();
    clock.advance(secs(60));
    assert_eq!(log.len(), 5);
    for bad in ["", "a b", "ü", &"x".repeat(65)] {
        assert!(Scheduler::builder(|_: &Run| Ok(())).namespace(bad).clock(clock.clone()).start().is_err(), "{bad:?}");
    }
}

#[test]
fn durations_without_measure_panic_nowhere() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let max = std::time::Duration::MAX;
    let scheduler = start(Scheduler::builder(worker(&log, secs(3))).max_skew(max), &clock, &ledger);
    let all = RetryBudget { attempts: u32::MAX, timeout: max, backoff: max.into(), slack: max };
    let plan = |id: &str| Plan::new(id, "*/7 * * * * *").start_window(max).catch_up_window(max);
    scheduler
        .reconcile([
            plan("a").retry(all),
            plan("b").overlap(Overlap::Allow(u32::MAX)),
            plan("c").overlap(Overlap::QueueOne).catch_up(CatchUp::None),
            plan("d").spread(max),
            plan("e").spread(secs(4)).retry(RetryBudget::ZERO),
        ])
        .unwrap();
    clock.advance(secs(120));
    clock.suspend(secs(400 * 86_400));
    clock.advance(secs(120));
    for id in ["a", "b", "c", "e"] {
        assert!(log.lines().iter().filter(|l| l.starts_with(id)).count() > 20, "{id}: {:?}", log.lines());
    }
    assert!(scheduler.health().threads_panicked.is_empty(), "{:?}", scheduler.health());
    assert!(scheduler.close(max).unwrap().is_clean());
}
