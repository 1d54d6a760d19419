//! Runners that die, hang, or come back from the dead; shared and fixed leases; mutex only.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use chrono::TimeDelta;
use common::*;
use std::sync::Arc;
use std::time::Duration;
use timertask_core::clock::{Clock, Signal, Until};
use timertask_core::seam::Durability;
use timertask_core::{
    BoxError, CatchUp, LocalMutex, OnOrphan, Plan, PlanError, RetryBudget, Run, Scheduler, Scope, StartError, Stop,
    StoreErrorKind,
};
use timertask_testkit::{Call, FakeClock, Fault, Faulty};

#[test]
fn fault_19_a_killed_run_is_orphaned_after_its_lease_and_not_before_and_the_plan_goes_on() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let (log_a, log_b) = (Log::default(), Log::default());
    let events = Log::default();
    let dying = clock.view("a");
    let a = start(Scheduler::builder(worker(&log_a, secs(3600))), &dying, &ledger);
    a.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(61));
    let b = start(Scheduler::builder(recorder(&log_b)).observer(Ear(events.clone())), &clock.view("b"), &ledger);
    b.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(20));
    dying.kill();
    // Its last renewal was at 1:20 at the latest, so its lease lasts to 1:50 at most.
    clock.advance(secs(20));
    assert_eq!(tally(&ledger, "p").get("orphaned"), None, "not before its lease has lapsed");
    clock.advance(secs(49));
    assert_eq!(
        tally(&ledger, "p").get("orphaned"),
        Some(&1),
        "within lease and three sweeps: {:?}",
        story(&ledger, "p")
    );
    assert!(events.lines().contains(&"orphaned 00:01:00 rerun false".to_owned()), "{:?}", events.lines());
    assert_eq!(b.stats().orphaned, 1);
    clock.advance(secs(120));
    assert!(log_b.len() >= 2, "{:?}", log_b.lines());
    assert!(!log_b.lines().contains(&"p 00:01:00".to_owned()), "never started again");
    drop(a);
}

#[test]
fn a_step_of_the_clock_forward_orphans_no_living_run() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let (inner, time) = (log.clone(), clock.clone());
    let job = move |_: &Run| -> Result<(), BoxError> {
        let _ = time.wait(&Signal::new(), Some(Until::Monotonic(time.monotonic() + secs(300))));
        inner.add("done");
        Ok(())
    };
    let a = start(Scheduler::builder(job), &clock.view("a"), &ledger);
    let b = start(Scheduler::builder(worker(&log, secs(0))), &clock.view("b"), &ledger);
    for s in [&a, &b] {
        s.reconcile([Plan::new("p", "@hourly")]).unwrap();
    }
    clock.advance(secs(3605));
    for _ in 0..5 {
        clock.step_wall(TimeDelta::seconds(3600));
        clock.advance(secs(40));
    }
    clock.advance(secs(200));
    let tally = tally(&ledger, "p");
    assert_eq!(tally.get("orphaned"), None, "{tally:?}");
}

#[test]
fn fault_12_a_zombie_is_told_and_its_end_refused() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let events = Log::default();
    let (inner, view) = (log.clone(), clock.view("a"));
    let frozen = view.clone();
    let job = move |run: &Run| -> Result<(), BoxError> {
        frozen.freeze();
        // Thawed: it looks before it writes.
        inner.add(format!("{:?} trust {:?}", run.check(), run.trust_left()));
        Ok(run.check()?)
    };
    let a = start(Scheduler::builder(job).observer(Ear(events.clone())), &view, &ledger);
    let b = start(Scheduler::builder(recorder(&log)), &clock.view("b"), &ledger);
    for s in [&a, &b] {
        s.reconcile([Plan::new("p", "@hourly")]).unwrap();
        clock.settle();
    }
    clock.advance(secs(3600));
    assert!(view.is_frozen(), "a has it");
    clock.advance(secs(180));
    assert_eq!(tally(&ledger, "p").get("orphaned"), Some(&1));
    view.thaw();
    clock.advance(secs(30));
    assert_eq!(log.lines(), ["Err(LeaseLost) trust Some(0ns)"]);
    assert_eq!(history(&a), ["p 01:00:00 lease lost"]);
    assert_eq!(a.stats().lease_lost, 1);
    assert!(events.lines().contains(&"p 01:00:00 lease lost".to_owned()));
    assert_eq!(tally(&ledger, "p"), [("orphaned".to_owned(), 1)].into(), "final");
}

#[test]
fn a_rerun_is_bounded_and_under_a_higher_fence() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let plan = || Plan::new("p", "@hourly").on_orphan(OnOrphan::Rerun { max: 1 });
    let job = |log: &Log| {
        let log = log.clone();
        move |run: &Run| -> Result<(), BoxError> {
            log.add(format!("attempt {} fence {} {:?}", run.attempt(), run.fence(), run.kind()));
            run.wait(secs(3600))?;
            Ok(())
        }
    };
    let views: Vec<_> = (0..3).map(|n| clock.view(&format!("i{n}"))).collect();
    let first = start(Scheduler::builder(job(&log)), &views[0], &ledger);
    first.reconcile([plan()]).unwrap();
    clock.advance(secs(3601));
    let second = start(Scheduler::builder(job(&log)), &views[1], &ledger);
    second.reconcile([plan()]).unwrap();
    views[0].kill();
    clock.advance(secs(120));
    assert_eq!(log.len(), 2, "{:?}", log.lines());
    views[1].kill();
    let third = start(Scheduler::builder(job(&log)), &views[2], &ledger);
    third.reconcile([plan()]).unwrap();
    clock.advance(secs(180));
    let lines = log.lines();
    assert_eq!(lines.len(), 2, "1 + max starts: {lines:?}");
    assert!(lines[0].starts_with("attempt 1") && lines[1].starts_with("attempt 2"), "{lines:?}");
    let fence = |line: &str| line.split(' ').nth(3).unwrap().parse::<u64>().unwrap();
    assert!(fence(&lines[1]) > fence(&lines[0]));
    assert_eq!(tally(&ledger, "p"), [("orphaned".to_owned(), 1)].into());
    drop((first, second));
}

#[test]
fn fault_21_a_planted_row_of_a_dead_owner_blocks_only_until_the_sweep() {
    use timertask_core::Ledger;
    use timertask_core::key::{Nonce, SlotKey};
    use timertask_core::seam::{ClaimRequest, Gate};
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let scheduler = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    scheduler.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(61));
    let at = t("00:01:30");
    let request = ClaimRequest {
        key: SlotKey { plan: key("p"), at, request: None },
        nonce: Nonce::from_bits(7),
        fingerprint: row(&ledger, "p").unwrap().generation.fingerprint,
        prev: None,
        kind: timertask_core::RunKind::Scheduled,
        asked: None,
        gate: Gate::Force,
        attempts_allowed: 1,
        ttl: secs(30),
        instance: timertask_core::InstanceId::new("dead").unwrap(),
        version: None,
    };
    let _ = ledger.claim(&[request]).unwrap();
    log.take();
    clock.advance(secs(240));
    assert!(log.len() >= 3, "{:?}", log.lines());
    assert_eq!(tally(&ledger, "p")["orphaned"], 1);
}

#[test]
fn renewals_that_fail_for_a_while_cost_trust_and_bring_it_back() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
    let log = Log::default();
    let (inner, time) = (log.clone(), clock.clone());
    let job = move |run: &Run| -> Result<(), BoxError> {
        for _ in 0..8 {
            let _ = time.wait(&Signal::new(), Some(Until::Monotonic(time.monotonic() + secs(10))));
            inner.add(format!("{:?}", run.check()));
        }
        Ok(())
    };
    let scheduler = Scheduler::builder(job).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
    scheduler.reconcile([Plan::new("p", "@hourly")]).unwrap();
    clock.advance(secs(3602));
    faulty.on(Call::Renew).always(Fault::Error(StoreErrorKind::Unreachable));
    clock.advance(secs(45));
    faulty.heal();
    clock.advance(secs(60));
    let lost = log.lines().iter().filter(|l| l.contains("LeaseLost")).count();
    assert!((1..=3).contains(&lost), "{:?}", log.lines());
    assert_eq!(log.lines().last().unwrap(), "Ok(())", "trust came back with a renewal");
    assert_eq!(history(&scheduler), ["p 01:00:00 succeeded"]);
}

#[test]
fn fault_06_the_same_label_is_no_identity() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let schedulers: Vec<_> = (0..2)
        .map(|_| {
            let s = start(Scheduler::builder(worker(&log, secs(30))).instance("same"), &clock.view(""), &ledger);
            s.reconcile([minutely("p")]).unwrap();
            s
        })
        .collect();
    clock.advance(secs(605));
    assert_eq!(log.len(), 10, "{:?}", log.lines());
    drop(schedulers);
}

#[test]
fn fault_07_without_a_store_it_says_so_and_with_one_each_slot_starts_once() {
    let clock = FakeClock::seeded(7);
    let ledger = ledger(&clock);
    assert_eq!(timertask_core::Ledger::describe(&ledger).unwrap(), Durability::Volatile);
    let log = Log::default();
    let schedulers: Vec<_> = (0..3)
        .map(|n| {
            let s = start(Scheduler::builder(recorder(&log)), &clock.view(&format!("i{n}")), &ledger);
            s.reconcile([Plan::new("p", "@every 1m")]).unwrap();
            clock.advance(secs(7));
            s
        })
        .collect();
    clock.advance(secs(3600));
    let mut ran = log.lines();
    assert_eq!(ran.len(), 60);
    ran.dedup();
    assert_eq!(ran.len(), 60);
    drop(schedulers);
}

// ---- mutex only ----

fn budget(attempts: u32, timeout: u64) -> RetryBudget {
    RetryBudget { attempts, timeout: secs(timeout), backoff: secs(0).into(), slack: secs(30) }
}

#[test]
fn start_checks_what_mutex_only_rests_on() {
    let clock = FakeClock::new();
    let mutex = || LocalMutex::with_clock(Arc::new(clock.clone()));
    let job = |_: &Run| Ok(());
    // The defaults: 0 + 60 s + 2 × 5 s < 220 s.
    let scheduler = Scheduler::builder(job).clock(clock.clone()).mutex(mutex()).start().unwrap();
    assert_eq!(scheduler.scope(), Scope::Process);
    let alone = Scheduler::builder(job).clock(clock.clone()).start().unwrap();
    assert_eq!(alone.scope(), Scope::Process);
    let shared = Scheduler::builder(job).clock(clock.clone()).ledger(ledger(&clock)).start().unwrap();
    assert_eq!(shared.scope(), Scope::Shared);
    let report = scheduler
        .reconcile([
            minutely("fits").spread(secs(149)),
            minutely("spread").spread(secs(150)),
            minutely("budget").retry(budget(1, 40)),
            minutely("window").start_window(secs(210)),
        ])
        .unwrap();
    assert_eq!((report.installed.len(), report.failed.len()), (1, 3), "{report:?}");
    assert!(report.failed.iter().all(|f| matches!(f.reason, PlanError::LockTooShort { .. })), "{report:?}");
    for builder in [
        Scheduler::builder(job).retry_budget(budget(1, 40)),
        Scheduler::builder(job).start_window(secs(210)),
        Scheduler::builder(job).max_skew(secs(80)),
    ] {
        let error = builder.clock(clock.clone()).mutex(mutex()).start().unwrap_err();
        assert!(matches!(error, StartError::LockTooShort { .. }), "{error}");
    }
    let error = Scheduler::builder(job).every_from_install().mutex(mutex()).clock(clock.clone()).start().unwrap_err();
    assert!(matches!(error, StartError::EveryBaseShared));
    assert!(matches!(
        Scheduler::builder(job).start_window(Duration::from_millis(1999)).start().unwrap_err(),
        StartError::StartWindow(_)
    ));
}

/// Two hosts: nothing in common but the mutex.
fn hosts(clock: &FakeClock, log: &Log, work: Duration, n: usize) -> Vec<(timertask_testkit::ClockView, Scheduler)> {
    let mutex = LocalMutex::with_clock(Arc::new(clock.clone()));
    (0..n)
        .map(|n| {
            let view = clock.view(&format!("host{n}"));
            let scheduler =
                Scheduler::builder(worker(log, work)).clock(view.clone()).mutex(mutex.clone()).start().unwrap();
            (view, scheduler)
        })
        .collect()
}

#[test]
fn with_a_mutex_alone_each_slot_starts_once_and_the_others_yield() {
    let clock = FakeClock::seeded(4);
    let log = Log::default();
    let hosts = hosts(&clock, &log, secs(1), 3);
    for (_, s) in &hosts {
        s.reconcile([minutely("p"), Plan::new("q", "*/20 * * * * *")]).unwrap();
        clock.advance(secs(3));
    }
    clock.advance(secs(600));
    let mut ran = log.lines();
    assert_eq!(ran.iter().filter(|l| l.starts_with("p ")).count(), 10);
    assert_eq!(ran.iter().filter(|l| l.starts_with("q ")).count(), 30);
    ran.sort();
    ran.dedup();
    assert_eq!(ran.len(), 40);
    let (started, yielded) = hosts.iter().fold((0, 0), |(a, b), (_, s)| (a + s.stats().started, b + s.stats().yielded));
    assert_eq!((started, yielded), (40, 80));
    for (_, s) in &hosts {
        assert!(s.run_history(None).iter().all(|r| r.attempt == 0 || r.fence > timertask_core::Fence::NONE));
        assert!(s.close(secs(5)).unwrap().is_clean());
    }
}

#[test]
fn with_a_mutex_alone_nothing_is_made_up_beyond_the_start_window() {
    let clock = FakeClock::new();
    let log = Log::default();
    let hosts = hosts(&clock, &log, secs(0), 2);
    for (_, s) in &hosts {
        s.reconcile([Plan::new("p", "*/10 * * * *").catch_up(CatchUp::Latest)]).unwrap();
    }
    clock.advance(secs(601));
    assert_eq!(log.len(), 1);
    for (view, _) in &hosts {
        view.freeze();
    }
    // Over 00:20, 00:30, 00:40 (of which the window has closed) until 00:50 (open).
    clock.advance(secs(2430));
    for (view, _) in &hosts {
        view.thaw();
    }
    clock.advance(secs(120));
    assert_eq!(log.lines(), ["p 00:10:00", "p 00:50:00"]);
    // A slow job in the only worker makes another slot too late: it is given back, and not made up either.
    let log = Log::default();
    let mutex = LocalMutex::with_clock(Arc::new(clock.clone()));
    let s =
        Scheduler::builder(worker(&log, secs(300))).concurrency(1).clock(clock.clone()).mutex(mutex).start().unwrap();
    s.reconcile([minutely("a"), minutely("b")]).unwrap();
    clock.advance(secs(295));
    assert_eq!(log.len(), 1);
    clock.advance(secs(900));
    for line in log.lines() {
        assert!(line.starts_with("a ") || line.starts_with("b "));
    }
    assert!(s.run_history(None).iter().all(|r| r.kind == timertask_core::RunKind::Scheduled), "{:?}", history(&s));
}

#[test]
fn a_lock_is_left_to_lapse_after_a_run_and_given_back_where_nothing_was_entered() {
    let clock = FakeClock::new();
    let inner = LocalMutex::with_clock(Arc::new(clock.clone()));
    let faulty = Faulty::new(inner, Arc::new(clock.clone()));
    let log = Log::default();
    let s = Scheduler::builder(recorder(&log)).clock(clock.clone()).mutex(faulty.clone()).start().unwrap();
    s.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(61));
    assert_eq!((log.len(), faulty.calls(Call::TryLock), faulty.calls(Call::Unlock)), (1, 1, 0));
    // The answer of the lock comes after the start window: the worker gives the slot and the lock back.
    faulty.on(Call::TryLock).next(1, Fault::SlowAnswer(secs(65)));
    clock.advance(secs(59 + 66));
    assert!(faulty.calls(Call::Unlock) >= 1);
    assert!(history(&s).contains(&"p 00:02:00 given back".to_owned()), "{:?}", history(&s));
    assert_eq!(faulty.calls(Call::Extend), 0, "fixed leases are never renewed");
}

#[test]
fn fixed_leases_end_trust_only_with_a_set_budget() {
    let clock = FakeClock::new();
    let log = Log::default();
    let inner = log.clone();
    let job = move |run: &Run| -> Result<(), BoxError> {
        inner.add(format!("{} {:?}", run.plan(), run.trust_left()));
        let stop = run.wait(secs(1000));
        inner.add(format!("{} {stop:?}", run.plan()));
        Ok(())
    };
    let mutex = LocalMutex::with_clock(Arc::new(clock.clone()));
    let s = Scheduler::builder(job).clock(clock.clone()).mutex(mutex).start().unwrap();
    s.reconcile([Plan::new("free", "@hourly"), Plan::new("set", "@hourly").retry(budget(1, 200))]).unwrap();
    clock.advance(secs(3600 + 1010));
    let lines = log.lines();
    assert!(lines.contains(&"free None".to_owned()) && lines.contains(&"free Ok(())".to_owned()), "{lines:?}");
    assert!(lines.contains(&"set Some(230s)".to_owned()), "{lines:?}");
    assert!(lines.contains(&format!("set Err({:?})", Stop::Deadline)), "{lines:?}");
}

#[test]
fn faults_of_the_mutex_start_nothing_twice_and_lose_nothing_inside_the_window() {
    let faults = [
        Fault::Error(StoreErrorKind::Unreachable),
        Fault::LostAnswer,
        Fault::LostRequest,
        Fault::Duplicate,
        Fault::Before(Arc::new(|| panic!("a mutex that panics"))),
    ];
    for fault in faults {
        for call in [Call::TryLock, Call::Unlock] {
            let clock = FakeClock::new();
            let mutex = Faulty::new(LocalMutex::with_clock(Arc::new(clock.clone())), Arc::new(clock.clone()));
            let log = Log::default();
            let hosts: Vec<_> = (0..2)
                .map(|n| {
                    let view = clock.view(&format!("h{n}"));
                    let handle = mutex.handle(Arc::new(view.clone()));
                    let s = Scheduler::builder(recorder(&log)).clock(view).mutex(handle.clone()).start().unwrap();
                    s.reconcile([minutely("p")]).unwrap();
                    (handle, s)
                })
                .collect();
            clock.advance(secs(50));
            for (handle, _) in &hosts {
                handle.on(call).next(3, fault.clone());
            }
            clock.advance(secs(600));
            let mut ran = log.lines();
            let all = ran.len();
            ran.dedup();
            assert_eq!((all, ran.len()), (10, 10), "{call} {fault:?}: {ran:?}");
            for (_, s) in &hosts {
                assert!(s.health().threads_panicked.is_empty());
            }
        }
    }
}
