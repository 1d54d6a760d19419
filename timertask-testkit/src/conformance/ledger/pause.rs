//! Pauses, of a plan and of all.

use std::time::Duration;

use timertask_core::key::{Namespace, PlanKey};
use timertask_core::seam::{
    Applied, Claim, ClaimRequest, Ended, Ending, Gate, Ledger, PlanOp, Refusal, Renewal, RunKind, SlotState,
};
use timertask_core::time::Timestamp;

use super::super::LedgerHarness;
use super::super::probe::{LONG, Probe, SHORT, answer, fingerprint, only, other, plan_id, value};

const PAUSED: Claim = Claim::Refused(Refusal::Paused);

fn pause(until: Option<Timestamp>) -> PlanOp {
    PlanOp::Pause { by: "o'ps \"{x}\"".to_owned(), why: "month \u{1F980} end".to_owned(), until }
}

fn whole<L: Ledger>(p: &Probe<L>, namespace: &Namespace, op: PlanOp) -> Applied {
    only(value(p.ledger_of(PlanKey::whole(namespace.clone()), op))).applied
}

/// A paused plan starts nothing; its slots wait, and nothing is written about them.
pub fn a_paused_plan_waits<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    assert_eq!(p.op(pause(None)), Applied::Done);
    for kind in [RunKind::Scheduled, RunKind::CatchUp] {
        assert_eq!(p.unchanged(|p| p.claim(&p.of_kind(1, kind))), PAUSED);
    }
    assert_eq!(p.claim(&ClaimRequest { gate: Gate::Force, ..p.live(1) }), PAUSED, "force is about the gate");
    let since = p.row().pause.map(|pause| pause.since).unwrap_or_default();
    assert_eq!(p.op(PlanOp::Resume { since, lapsed_only: false }), Applied::Done);
    p.run(&p.live(1));
}

/// `run_now` and backfill pass a pause, of a plan and of all.
pub fn operators_pass_a_pause<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    assert_eq!(p.op(pause(None)), Applied::Done);
    p.run(&p.run_now(1, "a"));
    p.run(&p.of_kind(1, RunKind::Backfill));
    assert_eq!(whole(&p, &harness.namespace(), pause(None)), Applied::Done);
    p.run(&p.run_now(1, "b"));
    p.run(&p.of_kind(2, RunKind::Backfill));
}

/// What runs goes on under a pause.
pub fn runs_go_on_under_a_pause<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.live(1);
    let grant = p.grant(&request);
    assert_eq!(p.op(pause(None)), Applied::Done);
    assert_eq!(p.grant(&request).fence, grant.fence, "a lost answer is asked for again");
    assert!(matches!(p.renew(&request, grant.fence, LONG), Renewal::Held(_)));
    assert_eq!(p.claim(&p.live(1)), Claim::Held);
    assert_eq!(p.settle(&request, grant, Ending::Succeeded), Ended::Recorded(SlotState::Ended(Ending::Succeeded)));
}

/// A pause has who, why and until, and begins at the store's now; a plan that is paused already keeps its pause.
pub fn the_first_pause_stays<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let until = Some(p.now().saturating_add(LONG));
    let outcome = answer(p.ledger_plan(pause(until)));
    let kept = p.row().pause;
    let shown = kept.as_ref().map(|pause| (pause.since, pause.by.as_str(), pause.why.as_str(), pause.until));
    assert_eq!(shown, Some((outcome.now, "o'ps \"{x}\"", "month \u{1F980} end", until)));
    let second = PlanOp::Pause { by: "another".to_owned(), why: String::new(), until: None };
    assert_eq!(p.unchanged(|p| p.op(second)), Applied::Unchanged);
    assert_eq!(p.row().pause, kept);
}

/// An operator's resume names the pause that it saw; another one stays.
pub fn resume_names_its_pause<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    assert_eq!(p.op(pause(None)), Applied::Done);
    let first = p.row().pause.map(|pause| pause.since).unwrap_or_default();
    let resume = |since| PlanOp::Resume { since, lapsed_only: false };
    assert_eq!(p.unchanged(|p| p.op(resume(Timestamp::EPOCH))), Applied::Conflict);
    assert_eq!(p.op(resume(first)), Applied::Done);
    assert_eq!(p.row().pause, None);
    assert_eq!(p.unchanged(|p| p.op(resume(first))), Applied::Unchanged, "it is over already");
    harness.pass_time(Duration::from_millis(1));
    assert_eq!(p.op(pause(None)), Applied::Done);
    assert_eq!(p.unchanged(|p| p.op(resume(first))), Applied::Conflict, "a later pause");
    assert_eq!(p.claim(&p.live(1)), PAUSED);
}

/// A pause ends by itself only once its end has passed by the store's clock, and only where it has one.
pub fn a_pause_lapses_by_the_stores_clock<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let lapse = |p: &Probe<H::Ledger>| {
        let since = p.row().pause.map(|pause| pause.since).unwrap_or_default();
        p.op(PlanOp::Resume { since, lapsed_only: true })
    };
    assert_eq!(p.op(pause(None)), Applied::Done);
    assert_eq!(p.unchanged(lapse), Applied::Conflict, "it has no end");
    let since = p.row().pause.map(|pause| pause.since).unwrap_or_default();
    assert_eq!(p.op(PlanOp::Resume { since, lapsed_only: false }), Applied::Done);
    assert_eq!(p.op(pause(Some(p.now().saturating_add(LONG)))), Applied::Done);
    assert_eq!(p.unchanged(lapse), Applied::Conflict, "its end lies ahead");
    let since = p.row().pause.map(|pause| pause.since).unwrap_or_default();
    assert_eq!(p.op(PlanOp::Resume { since, lapsed_only: false }), Applied::Done, "an operator may end it earlier");
    assert_eq!(p.op(pause(Some(p.now().saturating_add(SHORT)))), Applied::Done);
    harness.pass_time(SHORT * 2);
    assert_eq!(p.claim(&p.live(1)), PAUSED, "until somebody ends it");
    assert_eq!(lapse(&p), Applied::Done);
    p.run(&p.live(1));
}

/// A pause of all covers the namespace's plans, also those added later, and no other namespace.
pub fn a_pause_of_all_covers_later_plans<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let elsewhere = Probe::of(harness.handle(), PlanKey::new(other(&harness.namespace()), plan_id("p")));
    assert_eq!(whole(&p, &harness.namespace(), pause(None)), Applied::Done);
    let later = Probe::of(harness.handle(), PlanKey::new(harness.namespace(), plan_id("later")));
    assert_eq!(p.unchanged(|p| p.claim(&p.live(1))), PAUSED);
    assert_eq!(later.claim(&later.live(1)), PAUSED);
    elsewhere.run(&elsewhere.live(1));
    assert_eq!(p.row().pause, None, "the plan itself is not paused");
    let row = only(value(p.ledger_of(PlanKey::whole(harness.namespace()), PlanOp::Read))).row;
    let since = row.and_then(|row| row.pause).map(|pause| pause.since).unwrap_or_default();
    let resume = PlanOp::Resume { since, lapsed_only: false };
    assert_eq!(whole(&p, &other(&harness.namespace()), resume.clone()), Applied::Conflict, "not there");
    assert_eq!(whole(&p, &harness.namespace(), pause(None)), Applied::Unchanged);
    assert_eq!(whole(&p, &harness.namespace(), resume.clone()), Applied::Done);
    assert_eq!(whole(&p, &harness.namespace(), resume), Applied::Unchanged);
    p.run(&p.live(1));
    later.run(&later.live(1));
    assert_eq!(whole(&p, &harness.namespace(), pause(None)), Applied::Done, "and again");
    assert_eq!(p.claim(&p.live(2)), PAUSED);
}

/// An edit keeps the pause.
pub fn an_edit_keeps_the_pause<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    assert_eq!(p.op(pause(None)), Applied::Done);
    let kept = p.row().pause;
    assert_eq!(p.op(PlanOp::Open { fingerprint: fingerprint(2), replaces: None }), Applied::Done);
    assert_eq!(p.row().pause, kept);
}

/// A plan that the ledger doesn't know can't be paused.
pub fn an_unknown_plan_is_not_paused<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let unknown = PlanKey::new(harness.namespace(), plan_id("unknown"));
    for op in [pause(None), PlanOp::Resume { since: Timestamp::EPOCH, lapsed_only: false }] {
        let state = only(value(p.ledger_of(unknown.clone(), op)));
        assert_eq!((state.applied, state.row), (Applied::Conflict, None));
    }
}
