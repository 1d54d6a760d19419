//! Leases and clocks: how long the store vouches for a run, who learns that it no longer does, and clocks that are off.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chrono::TimeDelta;
use common::*;
use timertask_core::clock::{Clock, Signal, Until};
use timertask_core::{BoxError, OnOrphan, Plan, RetryBudget, Run, Scheduler};
use timertask_testkit::{Call, FakeClock, Faulty};

/// A resource that refuses a fence lower than it has seen.
#[derive(Clone, Default)]
struct Fenced(Arc<AtomicU64>);

impl Fenced {
    fn write(&self, run: &Run) -> Result<(), &'static str> {
        let fence = run.fence().as_u64();
        if self.0.fetch_max(fence, Ordering::SeqCst) > fence { Err("a stale fence") } else { Ok(()) }
    }
}

/// Ways in which an instance stands still.
#[derive(Clone, Copy, Debug)]
enum Pause {
    /// Its process is stopped: both of its clocks go on.
    Frozen,
    /// Its host is suspended: wall time alone goes on.
    Suspended,
    /// Its process is stopped, and meanwhile its wall clock is set back: monotonic time alone goes on.
    SetBack,
}

#[test]
fn fault_12_a_zombie_knows_as_soon_as_it_wakes_by_whichever_clock_went_on_and_can_do_no_harm() {
    for pause in [Pause::Frozen, Pause::Suspended, Pause::SetBack] {
        let clock = FakeClock::new();
        let ledger = ledger(&clock);
        let (log, events, sink) = (Log::default(), Log::default(), Fenced::default());
        let view = clock.view("zombie");
        let (inner, asleep, fenced) = (log.clone(), view.clone(), sink.clone());
        let zombie = move |run: &Run| -> Result<(), BoxError> {
            fenced.write(run)?;
            let token = run.cancelled();
            run.wait(secs(5))?;
            inner.add(format!("{:?} trust {:?}", run.check(), run.trust_left().unwrap()));
            match pause {
                Pause::Suspended => asleep.suspend(),
                Pause::Frozen | Pause::SetBack => asleep.freeze(),
            }
            // Awake again: before any renewal could tell.
            inner.add(format!("{:?} trust {:?} {:?}", run.check(), run.trust_left().unwrap(), fenced.write(run)));
            inner.add(format!("{:?}", run.wait(secs(60))));
            let _ = token.recv_timeout(secs(0));
            Ok(())
        };
        let second = sink.clone();
        let after = log.clone();
        let rerun = move |run: &Run| -> Result<(), BoxError> {
            after.add(format!("rerun {} {:?}", run.attempt(), second.write(run)));
            Ok(())
        };
        let plan = || Plan::new("p", "@hourly").on_orphan(OnOrphan::Rerun { max: 1 });
        let a = start(Scheduler::builder(zombie).observer(Ear(events.clone())), &view, &ledger);
        a.reconcile([plan()]).unwrap();
        clock.advance(secs(3601));
        let b = start(Scheduler::builder(rerun), &clock.view("b"), &ledger);
        b.reconcile([plan()]).unwrap();
        clock.advance(secs(180));
        if let Pause::SetBack = pause {
            view.set_skew(TimeDelta::seconds(-179));
        }
        view.thaw();
        clock.advance(secs(1));
        view.set_skew(TimeDelta::zero());
        clock.advance(secs(30));
        let wanted =
            ["Ok(()) trust 23s", "rerun 2 Ok(())", "Err(LeaseLost) trust 0ns Err(\"a stale fence\")", "Err(LeaseLost)"];
        assert_eq!(log.lines(), wanted, "{pause:?}");
        // Event, outcome, metric; the ledger knows of the second one's end alone.
        assert_eq!(events.lines().iter().filter(|l| *l == "p 01:00:00 lease lost").count(), 1, "{:?}", events.lines());
        assert_eq!(history(&a), ["p 01:00:00 lease lost"], "{pause:?}");
        assert_eq!((a.stats().lease_lost, a.stats().succeeded), (1, 0));
        assert_eq!(a.plan_stats("p").unwrap().lease_lost, 1);
        let row = &slots(&ledger, "p")[0];
        assert_eq!(
            (row.state.to_string().as_str(), row.attempt, row.fence.as_u64()),
            ("succeeded", 2, sink.0.load(Ordering::SeqCst))
        );
    }
}

#[test]
fn a_run_that_is_told_by_a_renewal_that_its_lease_is_lost_hears_it_through_its_token_too() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let (log, events) = (Log::default(), Log::default());
    let view = clock.view("a");
    let (inner, time) = (log.clone(), view.clone());
    let deaf = move |run: &Run| -> Result<(), BoxError> {
        let token = run.cancelled();
        let _ = time.wait(&Signal::new(), Some(Until::Monotonic(time.monotonic() + secs(300))));
        inner.add(format!("{:?} {:?}", token.try_recv(), run.check()));
        Ok(())
    };
    let faulty = Faulty::new(ledger.clone(), Arc::new(view.clone()));
    let a = Scheduler::builder(deaf).observer(Ear(events.clone())).clock(view).ledger(faulty.clone()).start().unwrap();
    a.reconcile([Plan::new("p", "@hourly")]).unwrap();
    clock.advance(secs(3601));
    let b = start(Scheduler::builder(recorder(&log)), &clock.view("b"), &ledger);
    b.reconcile([Plan::new("p", "@hourly")]).unwrap();
    faulty.cut_off();
    clock.advance(secs(120));
    assert_eq!(tally(&ledger, "p"), [("orphaned".to_owned(), 1)].into());
    faulty.heal();
    clock.advance(secs(5));
    assert!(events.lines().contains(&"lease lost 01:00:00".to_owned()), "{:?}", events.lines());
    assert_eq!(a.health().stuck_runs.len(), 0);
    clock.advance(secs(10));
    let stuck = &a.health().stuck_runs[0];
    assert_eq!(stuck.stop, Some(timertask_core::Stop::LeaseLost), "it was told, and does not listen");
    clock.advance(secs(200));
    assert_eq!(log.lines(), ["Err(Disconnected) Err(LeaseLost)"]);
    assert_eq!((history(&a), a.stats().lease_lost), (vec!["p 01:00:00 lease lost".to_owned()], 1));
}

#[test]
fn heartbeats_come_every_ten_seconds_to_the_end_of_a_set_budget_and_without_one_to_the_end_of_the_run() {
    for (budget, renewals) in
        [(None, 31), (Some(RetryBudget { attempts: 1, timeout: secs(100), ..RetryBudget::ZERO }), 13)]
    {
        let clock = FakeClock::new();
        let faulty = Faulty::new(ledger(&clock), Arc::new(clock.clone()));
        let time = clock.clone();
        let deaf = move |_: &Run| -> Result<(), BoxError> {
            let _ = time.wait(&Signal::new(), Some(Until::Monotonic(time.monotonic() + secs(301))));
            Ok(())
        };
        let scheduler = Scheduler::builder(deaf).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
        let plan = Plan::new("p", "@hourly");
        scheduler
            .reconcile([match budget {
                Some(budget) => plan.retry(budget),
                None => plan,
            }])
            .unwrap();
        clock.advance(secs(3595));
        assert_eq!(faulty.calls(Call::Renew), 0, "nothing to renew");
        // Also while it closes, half of the time.
        clock.advance(secs(155));
        let report = scheduler.close(secs(1000)).unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(faulty.calls(Call::Renew), renewals, "{budget:?}");
    }
}

#[test]
fn fault_38_a_clock_that_steps_during_a_run_starts_nothing_sweeps_nothing_and_does_not_end_the_run() {
    for step in [90, -90] {
        let clock = FakeClock::new();
        let ledger = ledger(&clock);
        let (log, other, events) = (Log::default(), Log::default(), Log::default());
        let (view, dying) = (clock.view("stepping"), clock.view("dying"));
        // It dies with a run that only the stepping one could sweep up.
        let dead = start(Scheduler::builder(worker(&other, secs(3600))), &dying, &ledger);
        dead.reconcile([Plan::new("dead", "0 59 * * * *")]).unwrap();
        clock.advance(secs(59 * 60 + 30));
        let (inner, time) = (log.clone(), view.clone());
        let job = move |run: &Run| -> Result<(), BoxError> {
            inner.add(format!("{} {}", run.plan(), short(run.slot_key().at)));
            if run.plan() == "long" {
                let _ = time.wait(&Signal::new(), Some(Until::Monotonic(time.monotonic() + secs(200))));
                inner.add(format!("{:?}", run.check()));
            }
            Ok(())
        };
        let a = start(Scheduler::builder(job).observer(Ear(events.clone())), &view, &ledger);
        a.reconcile([Plan::new("long", "@hourly"), minutely("p"), Plan::new("dead", "0 59 * * * *")]).unwrap();
        clock.advance(secs(60));
        dying.kill();
        view.set_skew(TimeDelta::seconds(step));
        clock.advance(secs(11));
        let health = a.health();
        assert!(health.skewed && (health.skew_micros + step * 1_000_000).abs() < 1_000_000, "{health:?}");
        assert!((a.stats().skew_micros + step * 1_000_000).abs() < 1_000_000);
        let before = log.lines();
        let cursor = row(&ledger, "p").unwrap().cursor;
        clock.advance(secs(149));
        assert_eq!(log.lines(), before, "{step}: starts nothing");
        assert_eq!(row(&ledger, "p").unwrap().cursor, cursor, "{step}: accounts for nothing");
        assert_eq!(tally(&ledger, "dead"), [("running".to_owned(), 1)].into(), "{step}: sweeps up nothing");
        assert_eq!(tally(&ledger, "long"), [("running".to_owned(), 1)].into(), "{step}: its lease is renewed");
        view.set_skew(TimeDelta::zero());
        clock.advance(secs(120));
        assert!(!a.health().skewed);
        assert!(log.lines().contains(&"Ok(())".to_owned()), "{step}: {:?}", log.lines());
        assert_eq!(tally(&ledger, "long"), [("succeeded".to_owned(), 1)].into(), "{step}");
        assert_eq!(tally(&ledger, "dead"), [("orphaned".to_owned(), 1)].into(), "{step}: swept up since");
        let starts = log.lines().iter().filter(|l| l.starts_with("p ")).count();
        assert!(starts >= 3, "{step}: it starts again: {:?}", log.lines());
        assert_eq!(events.lines().iter().filter(|l| l.starts_with("skew")).count(), 2, "{:?}", events.lines());
        let mut ran = log.lines();
        ran.sort();
        ran.dedup();
        assert_eq!(ran.len(), log.len(), "{step}: no slot twice");
    }
}

/// What was logged about clocks in this process.
static CLOCKS: std::sync::Mutex<Vec<(log::Level, String)>> = std::sync::Mutex::new(Vec::new());

struct Logger;
impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        let text = record.args().to_string();
        if text.starts_with("drifting: clock") {
            CLOCKS.lock().unwrap().push((record.level(), text));
        }
    }
    fn flush(&self) {}
}

#[test]
fn a_clock_that_drifts_is_warned_of_first_and_logged_on_changes_only() {
    static LOGGER: Logger = Logger;
    log::set_logger(&LOGGER).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let (log, view) = (Log::default(), clock.view("a"));
    let scheduler = start(Scheduler::builder(recorder(&log)).instance("drifting"), &view, &ledger);
    scheduler.reconcile([Plan::new("p", "*/10 * * * * *")]).unwrap();
    let mut started = Vec::new();
    // A tenth of a second in ten: up to 8 s off, and back.
    for tenths in (0..80).chain((0..=80).rev()) {
        view.set_skew(TimeDelta::milliseconds(100 * tenths));
        clock.advance(secs(10));
        started.push((tenths, std::mem::take(&mut log.take()).len()));
        assert_eq!(scheduler.health().skewed, tenths > 50, "{tenths}");
    }
    let levels: Vec<_> = CLOCKS.lock().unwrap().iter().map(|(level, _)| *level).collect();
    use log::Level::{Error, Info, Warn};
    assert_eq!(levels, [Warn, Error, Warn, Info], "{:?}", CLOCKS.lock().unwrap());
    for (tenths, n) in &started {
        assert!((*tenths < 50) == (*n > 0) || (49..=52).contains(tenths), "{tenths}: {started:?}");
    }
    scheduler.close(secs(1)).unwrap();
}
