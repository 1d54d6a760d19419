//! The rooms: who gets a worker and when, what shares a heap entry, how many turns idle hours cost.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use timertask_core::clock::{Clock, Signal, Until};
use timertask_core::{CatchUp, Overlap, Plan, RetryBudget, Run, Scheduler};
use timertask_testkit::FakeClock;

#[test]
fn one_slow_job_delays_its_own_plan_only() {
    for shared in [false, true] {
        let clock = FakeClock::new();
        let log = Log::default();
        let inner = log.clone();
        let job = move |run: &Run| {
            inner.add(format!("{} {}", run.plan(), short(run.started_at().trigger())));
            if run.plan() == "slow" {
                run.wait(secs(600))?;
            }
            Ok(())
        };
        let builder = Scheduler::builder(job).concurrency(2).clock(clock.clone());
        let builder = if shared { builder.ledger(ledger(&clock)) } else { builder };
        let scheduler = builder.start().unwrap();
        scheduler.reconcile([Plan::new("slow", "1 0 * * * *"), Plan::new("fast", "@every 10s")]).unwrap();
        clock.advance(secs(60));
        let wanted = ["slow 00:00:01", "fast 00:00:10", "fast 00:00:20", "fast 00:00:30"];
        assert_eq!(log.lines()[..4], wanted, "shared ledger: {shared}");
        scheduler.close_now().unwrap();
    }
}

#[test]
fn concurrency_0_counts_as_1_which_is_strictly_serial() {
    let clock = FakeClock::new();
    let log = Log::default();
    let inner = log.clone();
    let job = move |run: &Run| {
        inner.add(format!("{} begins", run.plan()));
        run.wait(secs(1))?;
        inner.add(format!("{} ends", run.plan()));
        Ok(())
    };
    let scheduler = Scheduler::builder(job).concurrency(0).clock(clock.clone()).start().unwrap();
    scheduler.reconcile(["a", "b", "c"].map(minutely)).unwrap();
    clock.advance(secs(65));
    assert_eq!(log.lines(), ["a begins", "a ends", "b begins", "b ends", "c begins", "c ends"]);
    assert_eq!(scheduler.health().threads_alive, 4, "timer, claimer, scribe, one worker");
    scheduler.close(secs(1)).unwrap();
}

#[test]
fn a_new_group_is_not_fired_by_the_heap_entry_of_one_that_is_gone() {
    let clock = FakeClock::new();
    let log = Log::default();
    let scheduler = Scheduler::builder(recorder(&log)).clock(clock.clone()).start().unwrap();
    scheduler.reconcile([minutely("a")]).unwrap();
    clock.advance(secs(1));
    scheduler.reconcile([Plan::new("b", "@hourly")]).unwrap();
    clock.advance(secs(3600));
    assert_eq!(log.lines(), ["b 01:00:00"]);
    assert_eq!(scheduler.run_history(None).len(), 1);
}

#[test]
fn equal_schedules_share_a_heap_entry_and_fire_in_install_order() {
    let clock = FakeClock::new();
    let log = Log::default();
    let scheduler = Scheduler::builder(recorder(&log)).concurrency(1).clock(clock.clone()).start().unwrap();
    let plans: Vec<_> = (0..500).map(|n| minutely(&format!("p{n:03}"))).collect();
    scheduler.reconcile(plans).unwrap();
    let before = clock.trace().steps;
    clock.advance(secs(60));
    let ran = log.lines();
    assert_eq!(ran.len(), 500);
    assert!(ran.is_sorted(), "in install order");
    assert_eq!(scheduler.stats().due, 500);
    let timer = clock.trace().steps - before;
    assert!(timer < 5_000, "{timer} turns for 500 runs");
}

#[test]
fn hours_without_work_cost_few_turns_and_calls() {
    let clock = FakeClock::new();
    let log = Log::default();
    let scheduler = Scheduler::builder(recorder(&log)).clock(clock.clone()).ledger(ledger(&clock)).start().unwrap();
    scheduler.reconcile([Plan::new("a", "@yearly")]).unwrap();
    clock.advance(secs(60));
    let (turns, calls) = (clock.trace().steps, scheduler.stats().store_calls);
    clock.advance(secs(10 * 3600));
    let (turns, calls) = (clock.trace().steps - turns, scheduler.stats().store_calls - calls);
    // Every ten seconds a sweep, and a look whether there is something to renew.
    assert!(turns <= 3 * 3600, "{turns} turns in ten hours");
    assert!(calls <= 3 * 3600, "{calls} calls in ten hours");
}

#[test]
fn a_full_instance_leaves_slots_to_others() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let (log_a, log_b) = (Log::default(), Log::default());
    let a = start(Scheduler::builder(worker(&log_a, secs(600))).concurrency(1), &clock, &ledger);
    let b = start(Scheduler::builder(recorder(&log_b)).concurrency(1), &clock.view("b"), &ledger);
    a.reconcile([Plan::new("slow", "1 0 * * * *"), Plan::new("fast", "@every 10s")]).unwrap();
    clock.advance(secs(5));
    assert_eq!(log_a.lines(), ["slow 00:00:01"]);
    b.reconcile([Plan::new("slow", "1 0 * * * *"), Plan::new("fast", "@every 10s")]).unwrap();
    clock.advance(secs(56));
    assert_eq!(log_a.len(), 1);
    assert_eq!(log_b.len(), 6);
    a.close_now().unwrap();
}

#[test]
fn a_busy_plan_does_not_starve_others() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let inner = log.clone();
    // The busy plan's jobs take as long as its period, on the only worker.
    let job = move |run: &Run| {
        inner.add(run.plan().to_owned());
        run.wait(secs(1))?;
        Ok(())
    };
    let scheduler = start(Scheduler::builder(job).concurrency(1), &clock, &ledger);
    let busy = Plan::new("busy", "* * * * * *").overlap(Overlap::Allow(8)).catch_up(CatchUp::None);
    scheduler.reconcile([busy, Plan::new("calm", "30 * * * * *")]).unwrap();
    clock.advance(secs(600));
    let calm = log.lines().iter().filter(|l| *l == "calm").count();
    assert_eq!(calm, 10, "each of its slots was started");
    scheduler.close_now().unwrap();
}

#[test]
fn each_try_has_a_channel_of_its_own() {
    let clock = FakeClock::new();
    let log = Log::default();
    let (inner, time) = (log.clone(), clock.clone());
    let job = move |run: &Run| {
        let fired = |run: &Run| run.cancelled().try_recv() == Err(crossbeam_channel::TryRecvError::Disconnected);
        inner.add(format!("try {} fired {}", run.tries(), fired(run)));
        // It goes by the channel alone.
        for _ in 0..60 {
            if fired(run) {
                return Err("told to stop".into());
            }
            let _ = time.wait(&Signal::new(), Some(Until::Monotonic(time.monotonic() + secs(1))));
        }
        Ok(())
    };
    let scheduler = Scheduler::builder(job).clock(clock.clone()).start().unwrap();
    let budget = RetryBudget { attempts: 2, timeout: secs(10), backoff: secs(5).into(), slack: secs(30) };
    scheduler.reconcile([minutely("a").retry(budget)]).unwrap();
    clock.advance(secs(100));
    assert_eq!(log.lines(), ["try 1 fired false", "try 2 fired false"]);
    assert_eq!(history(&scheduler), ["a 00:01:00 failed"]);
}

#[test]
fn a_full_instance_asks_the_store_no_more_than_an_idle_one() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let scheduler = start(Scheduler::builder(worker(&log, secs(3000))).concurrency(1), &clock, &ledger);
    let plans = (0..20).map(|n| Plan::new(format!("p{n}"), "* * * * * *").catch_up(CatchUp::None));
    scheduler.reconcile(plans).unwrap();
    clock.advance(secs(120));
    let (calls, turns) = (scheduler.stats().store_calls, clock.trace().steps);
    clock.advance(secs(600));
    let (calls, turns) = (scheduler.stats().store_calls - calls, clock.trace().steps - turns);
    assert_eq!(log.len(), 1);
    // Sweeps, renewals, and each second what has just become too late, of all plans together.
    assert!(calls < 600 * 6, "{calls} calls in ten minutes");
    assert!(turns < 600 * 12, "{turns} turns in ten minutes");
    scheduler.close_now().unwrap();
}
