//! Renewals, and telling a run to stop.

use std::sync::Arc;

use timertask_core::key::{Fence, RequestId};
use timertask_core::seam::{
    Applied, Cancel, Claim, ClaimRequest, EndOp, Ended, Ending, Ledger, PlanOp, Renewal, SlotState, Term,
};

use super::super::LedgerHarness;
use super::super::probe::{LONG, Probe, SHORT, answer, id, nonce, only};

/// A renewal moves the lease end to now + TTL and tells it.
pub fn a_renewal_lengthens_the_lease<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = ClaimRequest { ttl: SHORT, ..p.live(1) };
    let grant = p.grant(&request);
    let term = Term { key: request.key.clone(), nonce: request.nonce, fence: grant.fence };
    let outcome = answer(p.ledger.renew(&[term], LONG));
    let end = outcome.now.saturating_add(LONG);
    assert_eq!(only(outcome.value), Renewal::Held(end));
    assert_eq!(p.slot(&request.key).map(|row| (row.lease_end, row.attempt)), Some((end, 1)));
    harness.pass_time(SHORT * 2);
    assert_eq!(p.expire(&request.key, grant.fence, 1), Ended::Lost(Some(SlotState::Running)));
}

/// A renewal never shortens.
pub fn a_renewal_never_shortens_the_lease<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.live(1);
    let grant = p.grant(&request);
    assert_eq!(p.unchanged(|p| p.renew(&request, grant.fence, SHORT)), Renewal::Held(grant.lease_end));
}

/// A row that still runs under its term is renewed also after its lease end has passed.
pub fn a_lapsed_lease_is_renewed<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = ClaimRequest { ttl: SHORT, ..p.live(1) };
    let grant = p.grant(&request);
    harness.pass_time(SHORT * 2);
    assert!(matches!(p.renew(&request, grant.fence, LONG), Renewal::Held(end) if end > grant.lease_end));
    assert_eq!(p.settle(&request, grant, Ending::Succeeded), Ended::Recorded(SlotState::Ended(Ending::Succeeded)));
}

/// A renewal names its term by nonce and fence, not by the slot.
pub fn a_renewal_names_its_term<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.live(1);
    let grant = p.grant(&request);
    let stale = Fence::from_u64(grant.fence.as_u64() - 1);
    assert_eq!(p.unchanged(|p| p.renew(&request, stale, LONG * 2)), Renewal::Lost);
    let other = ClaimRequest { nonce: nonce(), ..request.clone() };
    assert_eq!(p.unchanged(|p| p.renew(&other, grant.fence, LONG * 2)), Renewal::Lost);
    assert_eq!(p.unchanged(|p| p.renew(&p.live(2), grant.fence, LONG * 2)), Renewal::Lost);
}

/// A term that is over is lost: after a settlement, a give-back, a sweep, and when another runs the slot.
pub fn a_term_that_is_over_is_lost<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let settled = p.free(1);
    let grant = p.grant(&settled);
    let _ = p.settle(&settled, grant, Ending::Succeeded);
    assert_eq!(p.renew(&settled, grant.fence, LONG), Renewal::Lost);
    let back = p.free(2);
    let grant = p.grant(&back);
    let _ = p.give_back(&back, grant);
    assert_eq!(p.renew(&back, grant.fence, LONG), Renewal::Lost);
    p.grant(&p.free(2));
    assert_eq!(p.unchanged(|p| p.renew(&back, grant.fence, LONG * 2)), Renewal::Lost);
    let swept = ClaimRequest { ttl: SHORT, ..p.free(3) };
    let grant = p.grant(&swept);
    harness.pass_time(SHORT * 2);
    let _ = p.expire(&swept.key, grant.fence, 2);
    assert_eq!(p.renew(&swept, grant.fence, LONG), Renewal::Lost);
}

/// A lease end that is as far ahead as it should be is not cut.
pub fn a_good_lease_is_not_cut<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.live(1);
    let grant = p.grant(&request);
    let _ = p.renew(&request, grant.fence, LONG * 3);
    let op = EndOp::CutLease { max_skew: SHORT };
    assert_eq!(p.unchanged(|p| p.end(&request.key, grant.fence, op)), Ended::Lost(Some(SlotState::Running)));
}

/// A run that is told to stop hears it at each renewal, with who and why; its lease goes on.
pub fn a_cancelled_run_hears_it<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = ClaimRequest { ttl: SHORT, ..p.live(1) };
    let grant = p.grant(&request);
    let mark = Cancel { by: "o'ps \"{x}\"".to_owned(), why: "wrong \u{6708}\u{4efd}".to_owned() };
    let cancel = |cancel: &Cancel| PlanOp::Cancel { at: p.at(1), request: None, cancel: cancel.clone() };
    assert_eq!(p.op(cancel(&mark)), Applied::Done);
    for _ in 0..2 {
        let renewal = p.renew(&request, grant.fence, LONG);
        let Renewal::Cancel(end, heard) = renewal else { panic!("{renewal:?}") };
        assert!(end > grant.lease_end);
        assert_eq!(heard, Arc::new(mark.clone()));
    }
    let second = Cancel { by: "another".to_owned(), why: "later".to_owned() };
    assert_eq!(p.unchanged(|p| p.op(cancel(&second))), Applied::Unchanged, "the first mark stays");
    assert_eq!(p.settle(&request, grant, Ending::Cancelled), Ended::Recorded(SlotState::Ended(Ending::Cancelled)));
}

/// The mark does not end the run: whoever ignores it may still succeed.
pub fn a_mark_does_not_end_a_run<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.run_now(1, "request");
    let grant = p.grant(&request);
    let cancel = Cancel { by: String::new(), why: String::new() };
    let request_id = Some(id(RequestId::new("request")));
    assert_eq!(p.op(PlanOp::Cancel { at: p.at(1), request: request_id, cancel }), Applied::Done);
    assert_eq!(p.claim(&p.run_now(1, "request")), Claim::Held);
    assert_eq!(p.settle(&request, grant, Ending::Succeeded), Ended::Recorded(SlotState::Ended(Ending::Succeeded)));
}

/// Only a running slot can be told to stop.
pub fn only_a_running_slot_is_cancelled<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let cancel = |n| PlanOp::Cancel { at: p.at(n), request: None, cancel: Cancel { by: "a".into(), why: "b".into() } };
    assert_eq!(p.unchanged(|p| p.op(cancel(1))), Applied::Conflict, "no row");
    p.grant(&p.run_now(1, "request"));
    assert_eq!(p.unchanged(|p| p.op(cancel(1))), Applied::Conflict, "a run_now's row is its own");
    p.run(&p.free(2));
    assert_eq!(p.unchanged(|p| p.op(cancel(2))), Applied::Conflict, "ended");
    let back = p.free(3);
    let grant = p.grant(&back);
    let _ = p.give_back(&back, grant);
    assert_eq!(p.unchanged(|p| p.op(cancel(3))), Applied::Conflict, "open");
}

/// An operator's word outlives a give-back: the next runner hears it.
pub fn a_mark_outlives_a_give_back<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let first = p.live(1);
    let grant = p.grant(&first);
    let cancel = Cancel { by: "ops".to_owned(), why: "no".to_owned() };
    assert_eq!(p.op(PlanOp::Cancel { at: p.at(1), request: None, cancel }), Applied::Done);
    let _ = p.give_back(&first, grant);
    let second = p.live(1);
    let grant = p.grant(&second);
    assert!(matches!(p.renew(&second, grant.fence, LONG), Renewal::Cancel(..)));
}
