//! Pauses: of a plan and of all, until resumed or until their own end; what becomes of the slots that fell into them.

use super::common::*;
use super::{ana, operator, two};
use timertask_core::operate::{ResumeOutcome, Scope};
use timertask_core::{CatchUp, PlanStatus, Resume};
use timertask_testkit::FakeClock;

#[test]
fn a_paused_plan_starts_nothing_and_from_now_makes_nothing_up() {
    let (clock, log) = (FakeClock::new(), Log::default());
    let ledger = ledger(&clock);
    let [a, b] = two(&clock, &ledger, || recorder(&log), &[minutely("p").catch_up(CatchUp::All { cap: 100 })]);
    clock.advance(secs(65));
    let paused = a.pause("p", &ana(), None).unwrap();
    assert_eq!((paused.already, paused.scope, paused.pause.by.as_str()), (false, Scope::Shared, "ana"));
    clock.advance(secs(600));
    assert_eq!(log.take(), ["p 00:01:00"]);
    for scheduler in [&a, &b] {
        let view = scheduler.plan("p").unwrap().unwrap();
        assert_eq!((view.status, view.pause.as_ref()), (PlanStatus::Paused, Some(&paused.pause)));
        let told = "paused by ana since 2026-01-01T00:01:05Z: the database moves";
        assert_eq!(view.why_not.as_deref(), Some(told));
    }
    assert_eq!(story(&ledger, "p"), ["00:01:00 succeeded"], "paused slots wait, and nothing is written about them");
    // Resumed by another process, in the midst of a start window.
    let resumed = operator(&ledger).resume("p", Resume::FromNow, Some(&paused.pause)).unwrap();
    assert_eq!(resumed.outcome, ResumeOutcome::Ended(paused.pause));
    clock.advance(secs(90));
    assert_eq!(log.take(), ["p 00:12:00"]);
    assert_eq!(story(&ledger, "p"), ["00:01:00 succeeded", "00:01:01..00:11:05 paused × ?", "00:12:00 succeeded"]);
    assert_eq!(b.plan("p").unwrap().unwrap().status, PlanStatus::Active);
    assert!(unaccounted(&ledger, "p", "* * * * *", t("00:00:00"), t("00:12:00")).is_empty());
}
