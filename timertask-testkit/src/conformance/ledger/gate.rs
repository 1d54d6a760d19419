//! Overlap, judged in the claim over the plan's running rows, for all instances at once.

use timertask_core::key::{InstanceId, PlanKey};
use timertask_core::seam::{
    Claim, ClaimRequest, Ended, Ending, Gate, NotStarted, Overlap, Refusal, Renewal, RunKind, SlotState,
};

use super::super::LedgerHarness;
use super::super::probe::{LONG, Probe, SHORT, id, plan_id, seconds};

const FULL: Claim = Claim::Refused(Refusal::Full);
const OVERLAP: Claim = Claim::Refused(Refusal::NotStarted(NotStarted::Overlap));
const SUPERSEDED: Claim = Claim::Refused(Refusal::NotStarted(NotStarted::Superseded));
const EACH: [Overlap; 4] = [Overlap::Skip, Overlap::QueueOne, Overlap::CancelPrevious, Overlap::Allow(1)];

/// `Skip`: a live slot is accounted as not started in the step that refuses it, for everybody.
pub fn skip_accounts_a_live_slot<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let first = p.live(1);
    let grant = p.grant(&first);
    assert_eq!(p.claim(&p.live(2)), OVERLAP);
    assert_eq!(p.slot_state(2), Some(SlotState::NotStarted(NotStarted::Overlap)));
    assert_eq!(p.cursor(), 2, "the slot has a row");
    let _ = p.settle(&first, grant, Ending::Succeeded);
    assert_eq!(p.claim(&p.live(2)), OVERLAP, "also once the plan is free");
    p.run(&p.live(3));
}

/// `Allow(n)`: n run at once; what comes beyond is accounted as not started.
pub fn allow_counts_to_its_number<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let three = Overlap::Allow(3);
    let first = p.under(1, three);
    let grant = p.grant(&first);
    p.grant(&p.under(2, three));
    p.grant(&p.under(3, three));
    assert_eq!(p.claim(&p.under(4, three)), OVERLAP);
    assert_eq!(p.slot_state(4), Some(SlotState::NotStarted(NotStarted::Overlap)));
    let _ = p.settle(&first, grant, Ending::Succeeded);
    p.grant(&p.under(5, three));
}

/// `Allow(0)` counts as one.
pub fn allow_zero_is_one<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    p.grant(&p.under(1, Overlap::Allow(0)));
    assert_eq!(p.claim(&p.under(2, Overlap::Allow(0))), OVERLAP);
}

/// `QueueOne`: refused, and nothing is written; once the plan is free the slot starts.
pub fn queue_one_waits<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let first = p.under(1, Overlap::QueueOne);
    let grant = p.grant(&first);
    let second = p.under(2, Overlap::QueueOne);
    assert_eq!(p.unchanged(|p| p.claim(&second)), FULL);
    let _ = p.settle(&first, grant, Ending::Succeeded);
    p.run(&second);
}

/// `QueueOne`: a live slot older than one that was started is superseded, whether the plan is free or not.
pub fn queue_one_supersedes_an_older_slot<H: LedgerHarness>(harness: &H) {
    superseded(harness, Overlap::QueueOne);
}

/// `CancelPrevious`: a live slot older than one that was started is superseded, whether the plan is free or not.
pub fn cancel_previous_supersedes_an_older_slot<H: LedgerHarness>(harness: &H) {
    superseded(harness, Overlap::CancelPrevious);
}

fn superseded<H: LedgerHarness>(harness: &H, overlap: Overlap) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(4));
    let newer = p.free(4);
    let grant = p.grant(&newer);
    assert_eq!(p.claim(&p.under(1, overlap)), SUPERSEDED, "while the newer one runs");
    assert_eq!(p.slot_state(1), Some(SlotState::NotStarted(NotStarted::Superseded)));
    let _ = p.settle(&newer, grant, Ending::Failed);
    assert_eq!(p.claim(&p.under(2, overlap)), SUPERSEDED, "and after it has ended");
    p.run(&ClaimRequest { gate: Gate::Policy(overlap), ..p.of_kind(3, RunKind::CatchUp) });
}

/// Only a scheduled slot supersedes: a `run_now` does not, nor one that was not started, nor one given back.
pub fn what_was_not_started_supersedes_nothing<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(5));
    let blocking = p.free(1);
    let grant = p.grant(&blocking);
    assert_eq!(p.claim(&p.live(3)), OVERLAP);
    let _ = p.settle(&blocking, grant, Ending::Succeeded);
    p.run(&p.run_now(4, "request"));
    let back = p.free(5);
    let grant = p.grant(&back);
    let _ = p.give_back(&back, grant);
    p.run(&p.under(2, Overlap::QueueOne));
}

/// A slot ahead of the store's now supersedes nothing: it was started under a clock that ran ahead.
pub fn a_slot_ahead_of_now_supersedes_nothing<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    p.run(&p.free(3_600));
    p.run(&p.under(1, Overlap::QueueOne));
    p.run(&p.under(2, Overlap::CancelPrevious));
}

/// `CancelPrevious`: refused; the runs of older slots, and only they, are told to stop at their next renewal.
pub fn cancel_previous_marks_older_runs<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let (older, newer) = (p.free(1), p.free(3));
    let (old, new) = (p.grant(&older), p.grant(&newer));
    assert_eq!(p.claim(&p.under(2, Overlap::CancelPrevious)), FULL);
    assert_eq!(p.slot_state(2), None, "nothing is written but the mark");
    let renewal = p.renew(&older, old.fence, LONG);
    assert!(matches!(renewal, Renewal::Cancel(_, ref mark) if !mark.why.is_empty()), "{renewal:?}");
    assert!(matches!(p.renew(&newer, new.fence, LONG), Renewal::Held(_)));
    let _ = p.settle(&older, old, Ending::Cancelled);
    assert_eq!(p.claim(&p.under(2, Overlap::CancelPrevious)), FULL, "the newer one still runs");
    let _ = p.settle(&newer, new, Ending::Succeeded);
    p.run(&p.under(2, Overlap::CancelPrevious));
}

/// A mark that is there already stays as it is.
pub fn cancel_previous_keeps_an_older_mark<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let older = p.free(1);
    let grant = p.grant(&older);
    assert_eq!(p.claim(&p.under(2, Overlap::CancelPrevious)), FULL);
    let row = p.slot(&older.key);
    let mut request = p.under(3, Overlap::CancelPrevious);
    request.instance = id(InstanceId::new("another"));
    assert_eq!(p.claim(&request), FULL);
    assert_eq!(p.slot(&older.key), row);
    assert!(matches!(p.renew(&older, grant.fence, LONG), Renewal::Cancel(..)));
}

/// Catch-up and backfill wait at a full gate: nothing is accounted, nobody is cancelled, under no policy.
pub fn catch_up_waits_at_a_full_gate<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let running = p.free(1);
    let grant = p.grant(&running);
    for overlap in EACH {
        for kind in [RunKind::CatchUp, RunKind::Backfill] {
            let request = ClaimRequest { kind, ..p.under(2, overlap) };
            assert_eq!(p.unchanged(|p| p.claim(&request)), FULL, "{kind}, {overlap:?}");
        }
    }
    let _ = p.settle(&running, grant, Ending::Succeeded);
    p.run(&p.of_kind(2, RunKind::CatchUp));
    p.run(&p.of_kind(3, RunKind::Backfill));
}

/// `run_now` obeys the gate: a refusal writes nothing under any policy; with `force` it passes.
pub fn run_now_obeys_the_gate_unless_forced<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    p.grant(&p.live(1));
    for overlap in EACH {
        let request = ClaimRequest { gate: Gate::Policy(overlap), ..p.run_now(2, "request") };
        assert_eq!(p.unchanged(|p| p.claim(&request)), FULL, "{overlap:?}");
    }
    p.grant(&ClaimRequest { gate: Gate::Force, ..p.run_now(2, "request") });
}

/// A `run_now` that runs fills the gate like any other run.
pub fn a_run_now_fills_the_gate<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    p.grant(&p.run_now(1, "request"));
    assert_eq!(p.unchanged(|p| p.claim(&p.under(2, Overlap::QueueOne))), FULL);
    assert_eq!(p.claim(&p.live(2)), OVERLAP);
}

/// Running rows fill the gate whatever their lease ends say, until a sweep has ended them.
pub fn a_lapsed_run_fills_the_gate<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = ClaimRequest { ttl: SHORT, ..p.live(1) };
    let grant = p.grant(&request);
    harness.pass_time(SHORT * 2);
    assert_eq!(p.claim(&p.under(2, Overlap::QueueOne)), FULL);
    assert_eq!(p.expire(&request.key, grant.fence, 1), Ended::Recorded(SlotState::Ended(Ending::Orphaned)));
    p.run(&p.under(2, Overlap::QueueOne));
}

/// An open slot does not run, and leaves the gate free.
pub fn an_open_slot_leaves_the_gate_free<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.live(1);
    let grant = p.grant(&request);
    let _ = p.give_back(&request, grant);
    p.grant(&p.live(2));
    assert_eq!(p.claim(&p.live(1)), OVERLAP, "given back and never started, it is a live slot again");
    assert_eq!(p.slot_state(1), Some(SlotState::NotStarted(NotStarted::Overlap)));
}

/// A slot that was started before is claimed as catch-up is: a full gate, or a newer slot, never accounts it.
pub fn a_started_slot_waits_at_a_full_gate<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = ClaimRequest { ttl: SHORT, ..p.live(1) };
    let grant = p.grant(&request);
    harness.pass_time(SHORT * 4);
    assert_eq!(p.expire(&request.key, grant.fence, 2), Ended::Recorded(SlotState::Open));
    let newer = p.live(2);
    let grant = p.grant(&newer);
    for overlap in EACH {
        let again = ClaimRequest { attempts_allowed: 2, ..p.under(1, overlap) };
        assert_eq!(p.unchanged(|p| p.claim(&again)), FULL, "{overlap:?}");
    }
    let _ = p.settle(&newer, grant, Ending::Succeeded);
    let again = ClaimRequest { attempts_allowed: 2, ..p.under(1, Overlap::QueueOne) };
    assert_eq!(p.grant(&again).attempt, 2);
}

/// The gate is the plan's own: other plans' runs don't fill it.
pub fn other_plans_leave_the_gate_free<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let key = PlanKey::new(harness.namespace(), plan_id("q"));
    let q = Probe::of(harness.handle(), key);
    p.grant(&p.live(1));
    q.grant(&q.live(1));
}
