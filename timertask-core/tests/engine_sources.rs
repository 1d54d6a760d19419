//! Where plans come from and what their schedules ask: sources in a loop, the stale sweep, calendars.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use timertask_core::{BoxError, Calendar, Plan, PlanError, PlanStatus, Run, Scheduler, SchedulerError};
use timertask_testkit::FakeClock;

fn quiet() -> impl Fn(&Run) -> Result<(), BoxError> + Send + Sync + 'static {
    |_: &Run| Ok(())
}

#[test]
fn a_loop_reconciles_at_once_and_at_each_interval_whatever_the_source_does() {
    let clock = FakeClock::new();
    let log = Log::default();
    let events = Log::default();
    let scheduler =
        Scheduler::builder(recorder(&log)).clock(clock.clone()).observer(Ear(events.clone())).start().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let (inner, time) = (Arc::clone(&calls), clock.clone());
    let source = move || -> Result<Vec<Plan>, BoxError> {
        use timertask_core::clock::{Clock, Signal, Until};
        match inner.fetch_add(1, Ordering::SeqCst) {
            1 => Err("no database".into()),
            2 => panic!("oh dear"),
            3 => {
                let _ = time.wait(&Signal::new(), Some(Until::Monotonic(time.monotonic() + secs(25))));
                Ok(vec![minutely("a")])
            }
            4 => Ok(vec![minutely("a"), minutely("a")]),
            _ => Ok(vec![minutely("a")]),
        }
    };
    scheduler.spawn_reconcile(secs(10), source).unwrap();
    clock.settle();
    assert_eq!(calls.load(Ordering::SeqCst), 1, "at once");
    clock.advance(secs(65));
    assert_eq!(log.lines(), ["a 00:01:00"], "no failure reads as an empty set");
    assert_eq!(scheduler.stats().source_failures, 3);
    let failures: Vec<_> = events.lines().into_iter().filter(|l| l.starts_with("source failed")).collect();
    assert_eq!(failures.len(), 3, "{failures:?}");
    assert!(failures[1].contains("oh dear") && failures[2].contains("twice"), "{failures:?}");
    // 0, 10, 20, 30 (until 55), then at once, 65.
    assert_eq!(calls.load(Ordering::SeqCst), 6);
    assert!(scheduler.close(secs(1)).unwrap().is_clean());
    assert_eq!(scheduler.health().threads_alive, 0, "the loop has ended, too");
}

#[test]
fn start_reconcile_is_ok_on_close_and_an_error_on_close_now() {
    for now in [false, true] {
        let clock = FakeClock::new();
        let scheduler = Scheduler::builder(quiet()).clock(clock.clone()).start().unwrap();
        let (inner, calls) = (scheduler.clone(), AtomicUsize::new(0));
        // The source itself closes the scheduler, at its third call.
        let result = scheduler.start_reconcile(secs(10), move || {
            if calls.fetch_add(1, Ordering::SeqCst) == 2 {
                let _ = if now { inner.close_now() } else { inner.close(secs(1)) };
            }
            Ok(vec![minutely("a")])
        });
        match result {
            Ok(()) => assert!(!now),
            Err(error) => assert!(now && matches!(error, SchedulerError::Cancelled), "{error}"),
        }
        assert!(matches!(scheduler.start_reconcile(secs(1), || Ok(vec![])), Err(SchedulerError::Stopped)));
    }
}

#[test]
fn the_stale_sweep_comes_first_and_its_failure_begins_nothing() {
    let clock = FakeClock::new();
    let log = Log::default();
    let (sweep, source) = (log.clone(), log.clone());
    let outcome = Arc::new(AtomicUsize::new(0));
    let inner = Arc::clone(&outcome);
    let scheduler = Scheduler::builder(quiet())
        .clock(clock.clone())
        .stale_sweep(move || {
            sweep.add("sweep");
            match inner.load(Ordering::SeqCst) {
                0 => Err("no".into()),
                1 => panic!("worse"),
                _ => Ok(()),
            }
        })
        .start()
        .unwrap();
    let source = move || {
        source.add("source");
        Ok(vec![])
    };
    for n in 0..2 {
        outcome.store(n, Ordering::SeqCst);
        let error = scheduler.spawn_reconcile(secs(5), source.clone()).unwrap_err();
        assert!(matches!(error, SchedulerError::StaleSweep(_)), "{error}");
        assert!(matches!(scheduler.start_reconcile(secs(5), source.clone()), Err(SchedulerError::StaleSweep(_))));
    }
    outcome.store(2, Ordering::SeqCst);
    scheduler.spawn_reconcile(secs(5), source).unwrap();
    clock.settle();
    assert_eq!(log.lines(), ["sweep", "sweep", "sweep", "sweep", "sweep", "source"]);
}

/// Excludes nothing, says which thread asked, and panics when told to.
struct Moody(Arc<AtomicBool>, Log);
impl Calendar for Moody {
    fn excludes(&self, _: chrono::NaiveDate) -> bool {
        self.1.add(std::thread::current().name().unwrap_or("?"));
        assert!(!self.0.load(Ordering::SeqCst), "in a bad mood");
        false
    }
}

#[test]
fn a_calendar_that_panics_fails_its_plan_until_the_next_reconcile() {
    let clock = FakeClock::new();
    let log = Log::default();
    let bad = Arc::new(AtomicBool::new(true));
    let scheduler = Scheduler::builder(recorder(&log))
        .clock(clock.clone())
        .calendar("moody", Moody(Arc::clone(&bad), Log::default()))
        .start()
        .unwrap();
    let set = || [minutely("a").calendar("moody"), minutely("b")];
    let report = scheduler.reconcile(set()).unwrap();
    assert_eq!(report.to_string(), "1 installed, 0 replaced, 0 removed, 0 unchanged, 1 failed");
    assert!(matches!(report.failed[0].reason, PlanError::CalendarPanicked(_)));
    bad.store(false, Ordering::SeqCst);
    assert_eq!(scheduler.reconcile(set()).unwrap().installed.len(), 1);
    clock.advance(secs(65));
    assert_eq!(log.take().len(), 2);
    // Now in the midst of it.
    bad.store(true, Ordering::SeqCst);
    clock.advance(secs(120));
    assert_eq!(log.take(), ["b 00:02:00", "b 00:03:00"]);
    assert_eq!(scheduler.plan("a").unwrap().unwrap().status, PlanStatus::Failed);
    let report = scheduler.reconcile(set()).unwrap();
    assert_eq!((report.failed.len(), report.failed[0].kept), (1, true), "still in a bad mood");
    bad.store(false, Ordering::SeqCst);
    scheduler.reconcile(set()).unwrap();
    clock.advance(secs(60));
    let mut ran = log.take();
    ran.sort();
    assert_eq!(ran, ["a 00:03:00", "a 00:04:00", "b 00:04:00"], "the slot whose window is open, and the next");
    assert!(scheduler.health().threads_panicked.is_empty());
    // Reconciling again and again starts nothing twice, and tells of nothing.
    let records = scheduler.run_history(None).len();
    for _ in 0..20 {
        scheduler.reconcile(set()).unwrap();
        clock.settle();
    }
    assert_eq!(scheduler.run_history(None).len(), records, "{:?}", history(&scheduler));
}

#[test]
fn calendars_have_days_without_slots_and_are_searched_again() {
    let clock = FakeClock::new();
    let log = Log::default();
    let open = Arc::new(AtomicBool::new(false));
    let inner = Arc::clone(&open);
    let scheduler = Scheduler::builder(recorder(&log))
        .clock(clock.clone())
        .calendar("closed", move |_: chrono::NaiveDate| !inner.load(Ordering::SeqCst))
        .start()
        .unwrap();
    let set = || [minutely("a").calendar("closed")];
    scheduler.reconcile(set()).unwrap();
    clock.advance(secs(120));
    assert_eq!(log.len(), 0, "never again is an answer");
    assert_eq!(scheduler.plan("a").unwrap().unwrap().next, None);
    open.store(true, Ordering::SeqCst);
    clock.advance(secs(65));
    scheduler.reconcile(set()).unwrap();
    clock.advance(secs(60));
    assert!(log.lines().contains(&"a 00:04:00".to_owned()), "{:?}", log.lines());
}
