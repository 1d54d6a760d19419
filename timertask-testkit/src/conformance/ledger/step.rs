//! A clock that was ahead and is set back.

use timertask_core::key::Fence;
use timertask_core::seam::{
    Applied, Claim, ClaimRequest, Cover, EndOp, Ended, Ending, Ledger, NotStarted, PlanOp, Query, SlotState,
};

use super::super::Step;
use super::super::probe::{LONG, Probe, SKEW, fingerprint, seconds, value};

/// A lease end that lies beyond now + TTL + skew was written under another clock: a sweep sees it and cuts it, once.
pub fn a_lease_from_the_future_is_cut<H: Step>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.live(1);
    let grant = p.grant(&request);
    let lapsed = || {
        let query = Query::Lapsed { namespace: harness.namespace(), max_skew: SKEW, after: None, limit: 10 };
        value(p.ledger.read(&query)).slots.len()
    };
    assert_eq!(lapsed(), 0);
    harness.step_back(LONG);
    assert_eq!(lapsed(), 1);
    let stale = Fence::from_u64(grant.fence.as_u64() - 1);
    let cut = EndOp::CutLease { max_skew: SKEW };
    let running = Ended::Lost(Some(SlotState::Running));
    assert_eq!(p.unchanged(|p| p.end(&request.key, stale, cut.clone())), running);
    assert_eq!(p.end(&request.key, grant.fence, cut.clone()), Ended::Recorded(SlotState::Running));
    let row = p.slot(&request.key);
    assert!(row.is_some_and(|row| row.lease_end <= p.now().saturating_add(LONG)));
    assert_eq!(lapsed(), 0);
    assert_eq!(p.unchanged(|p| p.end(&request.key, grant.fence, cut)), running, "now it is as it should be");
    assert_eq!(p.settle(&request, grant, Ending::Succeeded), Ended::Recorded(SlotState::Ended(Ending::Succeeded)));
}

/// A lease that is ahead by no more than the skew is left alone.
pub fn a_small_step_cuts_nothing<H: Step>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.live(1);
    let grant = p.grant(&request);
    harness.step_back(SKEW / 2);
    let cut = EndOp::CutLease { max_skew: SKEW };
    assert_eq!(p.unchanged(|p| p.end(&request.key, grant.fence, cut)), Ended::Lost(Some(SlotState::Running)));
}

/// Ended stays ended, fences go on rising, and the cursor stays, however far the clock goes back.
pub fn ended_stays_ended_when_the_clock_goes_back<H: Step>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(100));
    let fence = p.run(&ClaimRequest { prev: None, ..p.live(99) });
    harness.step_back(seconds(90));
    assert_eq!(p.claim(&p.live(99)), Claim::Ended(Ending::Succeeded));
    assert_eq!(p.cursor(), 99);
    assert!(p.grant(&ClaimRequest { prev: None, ..p.live(100) }).fence > fence);
}

/// Ranges that the clock running ahead had written are withdrawn, those wholly ahead as well.
pub fn ranges_from_the_future_are_withdrawn<H: Step>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(1_000));
    for (from, to) in [(0, 100), (100, 500), (500, 900)] {
        let range = Cover::Range { count: Some(9), reason: NotStarted::TooLate };
        assert_eq!(p.op(p.account(from, to, range)), Applied::Done);
    }
    harness.step_back(seconds(800));
    assert_eq!(p.op(PlanOp::SetBack { max_skew: SKEW }), Applied::Done);
    let cursor = p.cursor();
    assert!((100..500).contains(&cursor), "{cursor}");
    let ranges = p.history().ranges;
    let shown: Vec<_> = ranges.iter().map(|range| (range.last.as_secs() - p.base, range.count)).collect();
    assert_eq!(shown, [(100, Some(9)), (cursor, None)], "what its writer had counted no longer holds for a part");
    p.run(&ClaimRequest { prev: None, ..p.live(600) });
}

/// An edit made while the clock was ahead begins no earlier than the cursor, and is set back with it.
pub fn an_effective_from_in_the_future_is_set_back<H: Step>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(1_000));
    assert_eq!(p.op(PlanOp::Open { fingerprint: fingerprint(2), replaces: None }), Applied::Done);
    harness.step_back(seconds(900));
    assert_eq!(p.op(PlanOp::SetBack { max_skew: SKEW }), Applied::Done);
    let row = p.row();
    assert!(row.generation.effective_from < p.at(500), "{row:?}");
    assert_eq!(row.cursor, row.generation.effective_from);
    assert!(row.window_from <= Some(row.cursor));
    assert_eq!(row.generation.fingerprint, fingerprint(2));
}

/// Where the effective-from is within the skew and stays, the cursor goes back to it and no further: what lies before was
/// another generation's, and its range record stays.
pub fn a_set_back_stops_at_the_effective_from<H: Step>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(100));
    assert_eq!(p.op(PlanOp::Open { fingerprint: fingerprint(2), replaces: None }), Applied::Done);
    let from = p.row().generation.effective_from;
    let ahead = ClaimRequest { fingerprint: fingerprint(2), prev: None, ..p.live(120) };
    p.run(&ahead);
    harness.step_back(SKEW / 2);
    assert_eq!(p.op(PlanOp::SetBack { max_skew: SKEW }), Applied::Done);
    let row = p.row();
    assert_eq!((row.generation.effective_from, row.cursor), (from, from));
    assert_eq!(p.ranges(), [(1, from.as_secs() - p.base, NotStarted::Edited)]);
}
