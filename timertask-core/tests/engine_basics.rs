//! The engine at its public API, on the fake clock.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use timertask_core::{Ending, Plan, RunOutcome, Scheduler};
use timertask_testkit::FakeClock;

#[test]
fn runs_each_slot_once_and_records_it() {
    let clock = FakeClock::new();
    let log = Log::default();
    let scheduler = Scheduler::builder(recorder(&log)).clock(clock.clone()).start().unwrap();
    let report = scheduler.reconcile([Plan::new("a", "* * * * *"), Plan::new("b", "@every 20s")]).unwrap();
    assert_eq!(report.installed.len(), 2);
    clock.advance(secs(61));
    assert_eq!(log.lines(), ["b 00:00:20", "b 00:00:40", "a 00:01:00", "b 00:01:00"]);
    let records = scheduler.run_history(None);
    assert_eq!(records.len(), 4);
    assert!(records.iter().all(|r| r.outcome == RunOutcome::Ended(Ending::Succeeded)));
    let report = scheduler.close(secs(5)).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn a_clock_that_steps_back_is_followed_at_once() {
    let clock = FakeClock::new();
    let log = Log::default();
    let scheduler = Scheduler::builder(recorder(&log)).clock(clock.clone()).start().unwrap();
    scheduler.reconcile([Plan::new("a", "* * * * *")]).unwrap();
    clock.advance(secs(61));
    clock.step_wall(chrono::TimeDelta::hours(2));
    clock.advance(secs(61));
    clock.step_wall(chrono::TimeDelta::hours(-2));
    clock.advance(secs(120));
    let ran = log.lines();
    // Ahead: the newest slot that is due there starts. Back: what follows is the corrected clock's.
    let wanted = ["00:01:00", "02:01:00", "02:02:00", "00:03:00", "00:04:00"];
    assert_eq!(ran, wanted.map(|at| format!("a {at}")));
}
