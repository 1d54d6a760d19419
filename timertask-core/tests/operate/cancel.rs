//! Telling a run to stop, from wherever.

use super::common::*;
use super::{ana, operator, two};
use timertask_core::operate::{CancelOutcome, Scope};
use timertask_core::seam::{Ending, NotStarted, Query, SlotState};
use timertask_core::time::Trigger;
use timertask_core::{
    Asked, MemLedger, Namespace, OperateError, Overlap, PlanId, Run, Scheduler, SchedulerError, SlotKey, Stop,
};
use timertask_testkit::FakeClock;

fn slot(plan: &str, at: Trigger) -> SlotKey {
    SlotKey { plan: key(plan), at, request: None }
}

fn state(ledger: &MemLedger, slot: &SlotKey) -> SlotState {
    use timertask_core::Ledger;
    ledger.read(&Query::Slots(vec![slot.clone()])).unwrap().value.slots[0].state
}

/// Works for ten minutes, or until it is told to stop, and notes why.
fn listening(log: &Log) -> impl Fn(&Run) -> Result<(), timertask_core::BoxError> + Send + Sync + 'static {
    let log = log.clone();
    move |run: &Run| {
        let stopped = run.wait(secs(600));
        log.add(format!("{} {:?}", run.instance(), stopped.err()));
        stopped?;
        Ok(())
    }
}

#[test]
fn a_cancel_reaches_the_instance_that_runs_it_at_its_next_renewal() {
    for from in ["the one", "the other", "elsewhere"] {
        let (clock, log) = (FakeClock::new(), Log::default());
        let ledger = ledger(&clock);
        let both = two(&clock, &ledger, || listening(&log), &[minutely("p")]);
        clock.advance(secs(61));
        let slot = slot("p", t("00:01:00"));
        let runs = both.iter().position(|scheduler| scheduler.stats().running == 1).unwrap();
        let cancel = |asked: &Asked| match from {
            "the one" => both[runs].cancel(&slot, asked).unwrap(),
            "the other" => both[1 - runs].cancel(&slot, asked).unwrap(),
            _ => operator(&ledger).cancel(&slot, asked).unwrap(),
        };
        let answer = cancel(&ana());
        assert_eq!((answer.outcome, answer.scope), (CancelOutcome::Told, Scope::Shared));
        let again = cancel(&Asked::new("bo", "hurry").unwrap());
        let CancelOutcome::ToldBefore(first) = again.outcome else { panic!("{again:?}") };
        assert_eq!((first.by.as_str(), first.why.as_str()), ("ana", "the database moves"));
        assert!(log.is_empty(), "not before the renewal");
        clock.advance(secs(10));
        let name = ["a", "b"][runs];
        assert_eq!(log.take(), [format!("{name} Some({:?})", Stop::Cancelled)]);
        assert_eq!(state(&ledger, &slot), SlotState::Ended(Ending::Cancelled));
        assert_eq!(cancel(&ana()).outcome, CancelOutcome::Ended(Ending::Cancelled));
        let told = both[runs].run_history(None);
        assert_eq!(told[0].outcome.to_string(), "cancelled");
    }
}

#[test]
fn what_does_not_run_cannot_be_cancelled_and_the_answer_says_why() {
    let (clock, log) = (FakeClock::new(), Log::default());
    let ledger = ledger(&clock);
    let plans = [minutely("p").overlap(Overlap::Skip)];
    let [a, b] = two(&clock, &ledger, || listening(&log), &plans);
    clock.advance(secs(125));
    let outcome = |at: &str| a.cancel(&slot("p", t(at)), &ana()).unwrap().outcome;
    assert_eq!(outcome("00:02:00"), CancelOutcome::NotStarted(NotStarted::Overlap));
    assert_eq!(outcome("00:09:00"), CancelOutcome::NoRecord);
    assert_eq!(outcome("00:01:30"), CancelOutcome::NoRecord);
    // Killed in the midst of a run that may be run again, it is open until a sweep takes it up.
    drop(b);
    let other = SlotKey {
        plan: timertask_core::key::PlanKey::new(Namespace::new("x").unwrap(), PlanId::new("p").unwrap()),
        ..slot("p", t("00:01:00"))
    };
    let refused = a.cancel(&other, &ana()).unwrap_err();
    assert!(matches!(&refused, SchedulerError::Operate(OperateError::Namespace { .. })), "{refused}");
}

#[test]
fn an_open_slot_is_left_alone() {
    let (clock, log) = (FakeClock::new(), Log::default());
    let ledger = ledger(&clock);
    let a = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    a.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(30));
    open(&ledger, &a, t("00:01:00"));
    let answer = a.cancel(&slot("p", t("00:01:00")), &ana()).unwrap();
    assert_eq!(answer.outcome, CancelOutcome::Open);
    clock.advance(secs(60));
    assert_eq!(log.lines(), ["p 00:01:00"], "it is run all the same");
}

/// Leaves the slot open, as an instance does that claimed it and gave it back.
pub(super) fn open(ledger: &MemLedger, scheduler: &Scheduler, at: Trigger) {
    use timertask_core::Ledger;
    use timertask_core::seam::{Claim, EndOp, EndRequest};
    let request = claim(scheduler, at);
    let Claim::Granted(grant) = ledger.claim(std::slice::from_ref(&request)).unwrap().value[0].clone() else {
        panic!()
    };
    let op = EndOp::GiveBack { nonce: request.nonce };
    let _ = ledger.end(&[EndRequest { key: request.key, fence: grant.fence, op }]).unwrap();
}

/// A claim by an instance that has nothing but a name.
pub(super) fn claim(scheduler: &Scheduler, at: Trigger) -> timertask_core::seam::ClaimRequest {
    use timertask_core::key::{InstanceId, Nonce};
    use timertask_core::seam::{ClaimRequest, Gate};
    ClaimRequest {
        key: slot("p", at),
        nonce: Nonce::from_bits(at.as_secs() as u128),
        fingerprint: scheduler.plan("p").unwrap().unwrap().fingerprint,
        prev: Some(Trigger::from_secs(at.as_secs() - 60)),
        kind: timertask_core::RunKind::Scheduled,
        asked: None,
        gate: Gate::Policy(Overlap::Skip),
        attempts_allowed: 1,
        ttl: secs(30),
        instance: InstanceId::new("long gone").unwrap(),
        version: None,
    }
}

#[test]
fn cancel_previous_stops_the_older_run_on_another_instance_and_the_newer_one_starts() {
    let (clock, log) = (FakeClock::new(), Log::default());
    let ledger = ledger(&clock);
    let plans = [minutely("p").overlap(Overlap::CancelPrevious)];
    let both = two(&clock, &ledger, || listening(&log), &plans);
    clock.advance(secs(60 + 75));
    assert_eq!(log.len(), 1, "{:?}", log.lines());
    assert!(log.take()[0].ends_with("Some(Cancelled)"));
    assert_eq!(story(&ledger, "p"), ["00:01:00 cancelled", "00:02:00 running"]);
    assert_eq!(both.iter().map(|scheduler| scheduler.stats().cancelled).sum::<u64>(), 1);
}
