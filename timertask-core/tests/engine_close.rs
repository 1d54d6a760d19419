//! Closing: idle, running, hung; twice, from a job, before any plan; ends written last; drop does not wait.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use std::sync::Arc;
use timertask_core::clock::{Clock, Signal, Until};
use timertask_core::{BoxError, CloseError, Plan, Run, Scheduler, StoreErrorKind};
use timertask_testkit::{Call, FakeClock, Fault, Faulty};

#[test]
fn fault_59_an_idle_scheduler_closes_at_once_and_twice() {
    let clock = FakeClock::new();
    let scheduler = Scheduler::builder(|_: &Run| Ok(())).clock(clock.clone()).start().unwrap();
    let before = clock.monotonic();
    // Before any plan.
    assert!(scheduler.close(secs(30)).unwrap().is_clean());
    assert!(scheduler.close(secs(30)).unwrap().is_clean());
    assert!(scheduler.close_now().unwrap().is_clean());
    assert_eq!(clock.monotonic(), before, "no time passes");
    assert_eq!((scheduler.health().threads_alive, clock.rooms()), (0, 0));
    let scheduler = Scheduler::builder(|_: &Run| Ok(())).clock(clock.clone()).start().unwrap();
    scheduler.reconcile([minutely("a")]).unwrap();
    clock.advance(secs(125));
    let before = clock.monotonic();
    assert!(scheduler.close(secs(30)).unwrap().is_clean());
    assert_eq!(clock.monotonic(), before);
}

#[test]
fn fault_14_renewals_go_on_while_a_run_finishes_and_nobody_else_starts_it() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let (log, other) = (Log::default(), Log::default());
    let inner = log.clone();
    let job = move |run: &Run| -> Result<(), BoxError> {
        for _ in 0..6 {
            inner.add(format!("closing {} {:?}", run.closing(), run.check()));
            run.wait(secs(15))?;
        }
        Ok(())
    };
    let a = start(Scheduler::builder(job), &clock.view("a"), &ledger);
    a.reconcile([Plan::new("p", "@hourly")]).unwrap();
    clock.advance(secs(3601));
    let b = start(Scheduler::builder(recorder(&other)), &clock.view("b"), &ledger);
    b.reconcile([Plan::new("p", "@hourly")]).unwrap();
    clock.advance(secs(15));
    let begin = clock.monotonic();
    assert!(a.close(secs(300)).unwrap().is_clean());
    assert_eq!(clock.monotonic() - begin, secs(74), "as soon as it has ended");
    let mut lines = log.lines();
    assert_eq!(lines.remove(0), "closing false Ok(())");
    assert!(lines[1..].iter().all(|l| l == "closing true Ok(())"), "{lines:?}");
    assert_eq!((other.len(), tally(&ledger, "p")), (0, [("succeeded".to_owned(), 1)].into()));
}

#[test]
fn at_its_time_out_the_token_fires_and_a_second_later_close_returns_with_what_still_runs() {
    let clock = FakeClock::new();
    let log = Log::default();
    let (inner, time) = (log.clone(), clock.clone());
    let job = move |run: &Run| -> Result<(), BoxError> {
        match run.plan() {
            "polite" => {
                let stop = run.wait(secs(600)).unwrap_err();
                inner.add(format!("{stop:?}"));
                Err(stop.into())
            }
            _ => {
                let _ = time.wait(&Signal::new(), Some(Until::Monotonic(time.monotonic() + secs(600))));
                Ok(())
            }
        }
    };
    let ledger = ledger(&clock);
    let scheduler = start(Scheduler::builder(job), &clock, &ledger);
    scheduler.reconcile([minutely("deaf"), minutely("polite")]).unwrap();
    clock.advance(secs(61));
    let begin = clock.monotonic();
    let report = scheduler.close(secs(10)).unwrap();
    let took = clock.monotonic() - begin;
    assert!((secs(11)..=secs(12)).contains(&took), "{took:?}");
    assert_eq!(log.lines(), ["Cancelled"]);
    assert_eq!(tally(&ledger, "polite"), [("cancelled".to_owned(), 1)].into(), "its end was written");
    let still: Vec<_> = report.still_running.iter().map(|s| (s.slot.to_string(), s.since)).collect();
    assert_eq!(still, [("timertask/cron/exec/deaf/2026-01-01T00:01:00Z".to_owned(), micros("00:01:00"))]);
    assert!(report.unrecorded.is_empty());
    // Again: it still runs.
    assert_eq!(scheduler.close(secs(1)).unwrap().still_running.len(), 1);
    assert_eq!(scheduler.health().threads_alive, 1);
    // Once it has returned, its lease lapses in the ledger; here all threads are gone.
    clock.advance(secs(600));
    assert!(scheduler.close(secs(1)).unwrap().still_running.is_empty());
    assert_eq!(scheduler.health().threads_alive, 0);
}

#[test]
fn close_now_fires_first() {
    let clock = FakeClock::new();
    let log = Log::default();
    let inner = log.clone();
    let job = move |run: &Run| -> Result<(), BoxError> {
        let stop = run.wait(secs(600)).unwrap_err();
        inner.add(format!("{stop:?} {}", run.closing()));
        Err(stop.into())
    };
    let scheduler = Scheduler::builder(job).clock(clock.clone()).start().unwrap();
    scheduler.reconcile([minutely("a"), minutely("b")]).unwrap();
    clock.advance(secs(61));
    let begin = clock.monotonic();
    assert!(scheduler.close_now().unwrap().is_clean());
    assert_eq!(clock.monotonic(), begin);
    assert_eq!(log.lines(), ["Cancelled true", "Cancelled true"]);
    assert_eq!(scheduler.stats().cancelled, 2);
}

#[test]
fn fault_20_what_is_claimed_and_not_entered_is_given_back() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
    let log = Log::default();
    let a = Scheduler::builder(recorder(&log)).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
    a.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(50));
    // The claim is granted while the scheduler closes.
    faulty.on(Call::Claim).next(1, Fault::SlowAnswer(secs(3)));
    clock.advance(secs(11));
    assert!(a.close(secs(30)).unwrap().is_clean());
    assert_eq!((log.len(), tally(&ledger, "p")), (0, [("open".to_owned(), 1)].into()));
    // Another instance takes it up at its next sweep, inside the start window.
    let b = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    b.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(20));
    assert_eq!(log.lines(), ["p 00:01:00"]);
    assert_eq!(slots(&ledger, "p")[0].attempt, 1, "a give-back is no start");
}

#[test]
fn a_store_that_hangs_or_fails_does_not_hold_close_up_for_good() {
    for fault in [Fault::Stall, Fault::Error(StoreErrorKind::Unreachable)] {
        let clock = FakeClock::new();
        let ledger = ledger(&clock);
        let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
        let log = Log::default();
        let scheduler =
            Scheduler::builder(worker(&log, secs(5))).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
        scheduler.reconcile([minutely("p"), Plan::new("q", "2 * * * * *")]).unwrap();
        clock.advance(secs(61));
        faulty.on_any().always(fault.clone());
        clock.advance(secs(3));
        let begin = clock.monotonic();
        let report = scheduler.close(secs(10)).unwrap();
        assert!(clock.monotonic() - begin <= secs(13), "{fault:?}: {:?}", clock.monotonic() - begin);
        assert_eq!(report.unrecorded.len(), 1, "{fault:?}: {report:?}");
        assert_eq!(scheduler.stats().unrecorded, u64::from(!matches!(fault, Fault::Stall)));
        faulty.heal();
        clock.settle();
        assert_eq!(scheduler.health().threads_alive, 0, "{fault:?}");
    }
}

#[test]
fn ends_are_written_last() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
    let log = Log::default();
    let scheduler =
        Scheduler::builder(worker(&log, secs(5))).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
    scheduler.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(61));
    faulty.on(Call::End).next(8, Fault::Error(StoreErrorKind::Busy));
    assert!(scheduler.close(secs(60)).unwrap().is_clean());
    assert_eq!(tally(&ledger, "p"), [("succeeded".to_owned(), 1)].into());
    assert!(faulty.faults(Call::End) >= 5);
}

#[test]
fn drop_signals_and_does_not_wait() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let inner = log.clone();
    let job = move |run: &Run| -> Result<(), BoxError> {
        run.wait(secs(30))?;
        inner.add(format!("closing {}", run.closing()));
        Ok(())
    };
    let scheduler = start(Scheduler::builder(job), &clock, &ledger);
    scheduler.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(61));
    let clone = scheduler.clone();
    drop(scheduler);
    clock.advance(secs(1));
    assert!(!clone.health().closing, "clones are the same scheduler");
    let begin = clock.monotonic();
    drop(clone);
    assert_eq!(clock.monotonic(), begin);
    clock.advance(secs(60));
    assert_eq!(log.lines(), ["closing true"], "the run was not interrupted");
    assert_eq!(tally(&ledger, "p"), [("succeeded".to_owned(), 1)].into());
    assert_eq!(clock.rooms(), 0, "and all rooms have ended");
}

#[test]
fn close_from_callbacks_of_the_engine_does_not_wait_for_itself() {
    let clock = FakeClock::new();
    let log = Log::default();
    let handle: Arc<std::sync::OnceLock<Scheduler>> = Arc::default();
    let (inner, lines) = (Arc::clone(&handle), log.clone());
    let scheduler = Scheduler::builder(|_: &Run| Ok(()))
        .clock(clock.clone())
        .on_record(move |_| lines.add(format!("{:?}", inner.get().unwrap().close(secs(600)).map(|_| ()))))
        .start()
        .unwrap();
    assert!(handle.set(scheduler.clone()).is_ok());
    scheduler.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(61));
    assert_eq!(log.lines(), [format!("{:?}", Err::<(), _>(CloseError::FromInside))]);
    assert!(scheduler.close(secs(1)).unwrap().is_clean());
}

#[test]
fn nothing_starts_after_close() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let scheduler = start(Scheduler::builder(worker(&log, secs(10))).concurrency(1), &clock, &ledger);
    scheduler.reconcile(["a", "b", "c"].map(minutely)).unwrap();
    clock.advance(secs(61));
    assert!(scheduler.close(secs(60)).unwrap().is_clean());
    clock.advance(secs(600));
    assert_eq!(log.lines(), ["a 00:01:00"]);
    // With a ledger of its own, claims have run ahead: they are given back.
    let clock = FakeClock::new();
    let log = Log::default();
    let scheduler = Scheduler::builder(worker(&log, secs(10))).concurrency(1).clock(clock.clone()).start().unwrap();
    scheduler.reconcile(["a", "b", "c"].map(minutely)).unwrap();
    clock.advance(secs(61));
    assert!(scheduler.close(secs(60)).unwrap().is_clean());
    assert_eq!(log.len(), 1);
    assert_eq!(scheduler.stats().given_back, 2);
}
