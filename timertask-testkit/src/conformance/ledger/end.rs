//! How a started slot ends: by its runner, given back, or by a sweep.

use std::sync::Arc;

use timertask_core::key::Fence;
use timertask_core::seam::{
    Applied, Cancel, Claim, ClaimRequest, EndOp, Ended, Ending, Grant, NotStarted, PlanOp, Refusal, RunKind, SlotRow,
    SlotState,
};
use timertask_core::time::Timestamp;

use super::super::LedgerHarness;
use super::super::probe::{LONG, Probe, SHORT, nonce};

const OPEN: Ended = Ended::Recorded(SlotState::Open);
const ORPHANED: SlotState = SlotState::Ended(Ending::Orphaned);

/// A slot whose lease has lapsed, under a sweeper's eyes.
fn lapsed<H: LedgerHarness>(harness: &H, p: &Probe<H::Ledger>, n: i64, allowed: u32) -> (ClaimRequest, Grant) {
    let request = ClaimRequest { ttl: SHORT, attempts_allowed: allowed, ..p.free(n) };
    let grant = p.grant(&request);
    harness.pass_time(SHORT + SHORT / 2);
    (request, grant)
}

/// The runner's end is recorded as it tells it.
pub fn a_settlement_is_recorded<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    for (n, ending) in (1..).zip(Ending::ALL) {
        let request = p.live(n);
        let grant = p.grant(&request);
        let before = p.slot(&request.key);
        let (started_at, ended_at) = (Timestamp::from_micros(n * 1_000_001), Timestamp::from_micros(n * 2_000_003));
        let detail: Option<Arc<str>> = (n % 2 == 0).then(|| "it's \"said\" {so}\n\u{1F980}".into());
        let op = EndOp::Settle { nonce: request.nonce, ending, started_at, ended_at, tries: 3, detail: detail.clone() };
        assert_eq!(p.end(&request.key, grant.fence, op), Ended::Recorded(SlotState::Ended(ending)));
        let expected = before.map(|row| SlotRow {
            state: SlotState::Ended(ending),
            lease_end: Timestamp::EPOCH,
            started_at: Some(started_at),
            ended_at: Some(ended_at),
            tries: 3,
            detail,
            ..row
        });
        assert_eq!(p.slot(&request.key), expected);
    }
}

/// What an error says is cut to what a row holds, at a character's end.
pub fn a_long_detail_is_cut<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.live(1);
    let grant = p.grant(&request);
    let (started_at, ended_at) = (Timestamp::EPOCH, Timestamp::EPOCH);
    let detail: Arc<str> = format!("x{}", "é".repeat(SlotRow::DETAIL)).into();
    let ending = Ending::Failed;
    let op = EndOp::Settle { nonce: request.nonce, ending, started_at, ended_at, tries: 1, detail: Some(detail) };
    let _ = p.end(&request.key, grant.fence, op);
    let kept = p.slot(&request.key).and_then(|row| row.detail).unwrap_or_default();
    assert_eq!(kept.len(), SlotRow::DETAIL - 1, "1,024 would split a letter");
    assert!(kept.starts_with("xéé") && kept.ends_with('é'));
}

/// The same end again has been recorded already; another end changes nothing and hears how it ended.
pub fn a_second_settlement_changes_nothing<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.live(1);
    let grant = p.grant(&request);
    let _ = p.settle(&request, grant, Ending::Failed);
    let again = p.unchanged(|p| p.settle_at(&request, grant, Ending::Failed, Timestamp::EPOCH));
    assert_eq!(again, Ended::AlreadyRecorded);
    let other = p.unchanged(|p| p.settle(&request, grant, Ending::Succeeded));
    assert_eq!(other, Ended::Lost(Some(SlotState::Ended(Ending::Failed))));
}

/// A settlement is compared on nonce and fence.
pub fn a_settlement_names_its_term<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.live(1);
    let grant = p.grant(&request);
    let lost = Ended::Lost(Some(SlotState::Running));
    for off in [-1_i64, 1] {
        let fence = Fence::from_u64(grant.fence.as_u64().saturating_add_signed(off));
        assert_eq!(p.unchanged(|p| p.settle(&request, Grant { fence, ..grant }, Ending::Succeeded)), lost);
        assert_eq!(p.unchanged(|p| p.give_back(&request, Grant { fence, ..grant })), lost);
    }
    let other = ClaimRequest { nonce: nonce(), ..request.clone() };
    assert_eq!(p.unchanged(|p| p.settle(&other, grant, Ending::Succeeded)), lost);
    assert_eq!(p.unchanged(|p| p.give_back(&other, grant)), lost);
    let nowhere = p.live(2);
    assert_eq!(p.unchanged(|p| p.settle(&nowhere, grant, Ending::Succeeded)), Ended::Lost(None));
    assert_eq!(p.unchanged(|p| p.give_back(&nowhere, grant)), Ended::Lost(None));
}

/// A runner that comes late, after its slot was swept, hears so; its end is not recorded.
pub fn a_late_settlement_is_lost<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let (request, grant) = lapsed(harness, &p, 1, 1);
    assert_eq!(p.expire(&request.key, grant.fence, 1), Ended::Recorded(ORPHANED));
    let late = p.unchanged(|p| p.settle(&request, grant, Ending::Succeeded));
    assert_eq!(late, Ended::Lost(Some(ORPHANED)));
    assert_eq!(p.row().last_success, None);
}

/// After a rerun the settlement of the first run is lost; one is accepted in all.
pub fn one_settlement_is_accepted_in_all<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let (first, old) = lapsed(harness, &p, 1, 2);
    assert_eq!(p.expire(&first.key, old.fence, 2), OPEN);
    assert_eq!(p.settle(&first, old, Ending::Succeeded), Ended::Lost(Some(SlotState::Open)));
    let second = ClaimRequest { attempts_allowed: 2, ..p.free(1) };
    let new = p.grant(&second);
    assert_eq!(p.settle(&first, old, Ending::Succeeded), Ended::Lost(Some(SlotState::Running)));
    assert_eq!(p.settle(&second, new, Ending::Failed), Ended::Recorded(SlotState::Ended(Ending::Failed)));
    assert_eq!(p.settle(&first, old, Ending::Succeeded), Ended::Lost(Some(SlotState::Ended(Ending::Failed))));
}

/// The plan remembers the latest trigger point that succeeded: scheduled, caught up or backfilled.
pub fn the_last_success_is_remembered<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let last = |p: &Probe<H::Ledger>| p.row().last_success.map(|at| at.as_secs() - p.base);
    for ending in [Ending::Failed, Ending::Cancelled, Ending::Orphaned] {
        let request = p.live(1 + i64::from(ending.code()));
        let grant = p.grant(&request);
        let _ = p.settle(&request, grant, ending);
        assert_eq!(last(&p), None, "{ending}");
    }
    p.run(&p.run_now(9, "request"));
    assert_eq!(last(&p), None, "a run_now is no trigger point");
    p.run(&p.of_kind(5, RunKind::CatchUp));
    assert_eq!(last(&p), Some(5));
    p.run(&p.of_kind(6, RunKind::Backfill));
    assert_eq!(last(&p), Some(6));
    p.run(&ClaimRequest { prev: None, ..p.live(8) });
    p.run(&p.of_kind(7, RunKind::Backfill));
    assert_eq!(last(&p), Some(8), "the latest stays");
    assert_eq!(p.grant(&p.live(9)).last_success, Some(p.at(8)), "and each grant tells it");
}

/// What was given back is open again: the start doesn't count, its decision is released.
pub fn a_slot_given_back_is_open<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.live(1);
    let grant = p.grant(&request);
    let before = p.slot(&request.key);
    assert_eq!(p.give_back(&request, grant), OPEN);
    let expected = before.map(|row| SlotRow {
        state: SlotState::Open,
        attempt: 0,
        lease_end: Timestamp::EPOCH,
        released: vec![request.nonce],
        ..row
    });
    assert_eq!(p.slot(&request.key), expected);
    assert_eq!(p.unchanged(|p| p.give_back(&request, grant)), Ended::AlreadyRecorded);
    assert_eq!(p.settle(&request, grant, Ending::Succeeded), Ended::Lost(Some(SlotState::Open)));
}

/// Giving back after the slot went to another changes nothing.
pub fn a_stale_give_back_changes_nothing<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let first = p.live(1);
    let old = p.grant(&first);
    let _ = p.give_back(&first, old);
    p.grant(&p.live(1));
    assert_eq!(p.unchanged(|p| p.give_back(&first, old)), Ended::Lost(Some(SlotState::Running)));
}

/// A lease ends by a sweep only once its end has passed by the store's clock.
pub fn a_sweep_ends_only_what_has_lapsed<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.live(1);
    let grant = p.grant(&request);
    let expired = p.unchanged(|p| p.expire(&request.key, grant.fence, 1));
    assert_eq!(expired, Ended::Lost(Some(SlotState::Running)));
    let (request, grant) = lapsed(harness, &p, 2, 1);
    assert_eq!(p.expire(&request.key, grant.fence, 1), Ended::Recorded(ORPHANED));
    let row = p.slot(&request.key);
    assert!(row.is_some_and(|row| row.ended_at.is_some() && row.lease_end == Timestamp::EPOCH));
    assert_eq!(p.unchanged(|p| p.expire(&request.key, grant.fence, 1)), Ended::AlreadyRecorded);
}

/// A sweep compares the fence: a later term is left alone.
pub fn a_sweep_names_its_term<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let (first, old) = lapsed(harness, &p, 1, 3);
    assert_eq!(p.expire(&first.key, old.fence, 3), OPEN);
    let second = ClaimRequest { ttl: SHORT, attempts_allowed: 3, ..p.free(1) };
    let new = p.grant(&second);
    harness.pass_time(SHORT + SHORT / 2);
    assert_eq!(p.unchanged(|p| p.expire(&first.key, old.fence, 3)), Ended::Lost(Some(SlotState::Running)));
    assert_eq!(p.expire(&first.key, new.fence, 3), OPEN);
    assert_eq!(p.unchanged(|p| p.expire(&p.key(7), new.fence, 3)), Ended::Lost(None));
}

/// A renewal that came between a sweep's look and its end saves the lease.
pub fn a_renewed_lease_is_not_swept<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let (request, grant) = lapsed(harness, &p, 1, 1);
    let _ = p.renew(&request, grant.fence, LONG);
    assert_eq!(p.expire(&request.key, grant.fence, 1), Ended::Lost(Some(SlotState::Running)));
}

/// While starts are left a swept slot opens again, its decision released; then it is orphaned.
pub fn a_swept_slot_opens_while_starts_are_left<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let (first, old) = lapsed(harness, &p, 1, 2);
    assert_eq!(p.expire(&first.key, old.fence, 2), OPEN);
    let row = p.slot(&first.key);
    assert_eq!(row.map(|row| (row.attempt, row.released)), Some((1, vec![first.nonce])), "the start counts");
    assert_eq!(p.claim(&first), Claim::Refused(Refusal::Released), "a late duplicate starts nothing");
    let second = ClaimRequest { ttl: SHORT, attempts_allowed: 2, ..p.free(1) };
    let new = p.grant(&second);
    assert!(new.attempt == 2 && new.fence > old.fence, "{new:?} after {old:?}");
    harness.pass_time(SHORT + SHORT / 2);
    assert_eq!(p.expire(&first.key, new.fence, 2), Ended::Recorded(ORPHANED));
    assert_eq!(p.claim(&p.free(1)), Claim::Ended(Ending::Orphaned));
}

/// Where the run was told to stop, a sweep does not open its slot again.
pub fn a_cancelled_slot_is_not_run_again<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let (request, grant) = lapsed(harness, &p, 1, 9);
    let cancel = Cancel { by: "ops".to_owned(), why: "wrong month".to_owned() };
    let op = PlanOp::Cancel { at: p.at(1), request: None, cancel };
    assert_eq!(p.op(op), Applied::Done);
    assert_eq!(p.expire(&request.key, grant.fence, 9), Ended::Recorded(ORPHANED));
}

/// The number of starts is also compared in the claim: where the plan allows fewer by then, the slot ends as orphaned.
pub fn attempts_are_compared_in_the_claim<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    for (n, allowed) in [(1, 1), (2, 0)] {
        let (request, grant) = lapsed(harness, &p, n, 3);
        assert_eq!(p.expire(&request.key, grant.fence, 3), OPEN);
        let rolled = ClaimRequest { attempts_allowed: allowed, ..p.of_kind(n, RunKind::CatchUp) };
        assert_eq!(p.claim(&rolled), Claim::Ended(Ending::Orphaned));
        let row = p.slot(&request.key);
        assert_eq!(row.map(|row| (row.state, row.attempt, row.ended_at.is_some())), Some((ORPHANED, 1, true)));
    }
}

/// A backfill is bound by the number of starts, too.
pub fn reruns_have_a_limit<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = ClaimRequest { ttl: SHORT, ..p.live(1) };
    let grant = p.grant(&request);
    harness.pass_time(SHORT + SHORT / 2);
    assert_eq!(p.expire(&request.key, grant.fence, 1), Ended::Recorded(ORPHANED));
    for kind in [RunKind::CatchUp, RunKind::Backfill] {
        assert_eq!(p.claim(&p.of_kind(1, kind)), Claim::Ended(Ending::Orphaned));
    }
}

/// An open slot that nobody will take up is resolved: not started for the reason given if it never was.
pub fn an_open_slot_is_resolved<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.live(1);
    let grant = p.grant(&request);
    let running = p.unchanged(|p| p.resolve(&request.key, grant.fence, NotStarted::GivenBack));
    assert_eq!(running, Ended::Lost(Some(SlotState::Running)), "a running slot has a runner");
    let _ = p.give_back(&request, grant);
    let stale = Fence::from_u64(grant.fence.as_u64() - 1);
    let lost = p.unchanged(|p| p.resolve(&request.key, stale, NotStarted::GivenBack));
    assert_eq!(lost, Ended::Lost(Some(SlotState::Open)));
    let resolved = SlotState::NotStarted(NotStarted::GivenBack);
    assert_eq!(p.resolve(&request.key, grant.fence, NotStarted::GivenBack), Ended::Recorded(resolved));
    assert!(p.slot(&request.key).is_some_and(|row| row.state == resolved && row.ended_at.is_some()));
    let again = p.unchanged(|p| p.resolve(&request.key, grant.fence, NotStarted::GivenBack));
    assert_eq!(again, Ended::AlreadyRecorded);
    let other = p.unchanged(|p| p.resolve(&request.key, grant.fence, NotStarted::TooLate));
    assert_eq!(other, Ended::Lost(Some(resolved)));
    assert_eq!(p.unchanged(|p| p.resolve(&p.key(7), grant.fence, NotStarted::TooLate)), Ended::Lost(None));
    assert_eq!(p.claim(&request), Claim::Refused(Refusal::Released), "also now");
    p.run(&p.of_kind(1, RunKind::Backfill));
}

/// An open slot that was started before is never accounted as not started: it is orphaned.
pub fn a_started_slot_is_resolved_as_orphaned<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let (request, grant) = lapsed(harness, &p, 1, 2);
    assert_eq!(p.expire(&request.key, grant.fence, 2), OPEN);
    assert_eq!(p.resolve(&request.key, grant.fence, NotStarted::Edited), Ended::Recorded(ORPHANED));
    assert_eq!(p.claim(&p.of_kind(1, RunKind::Backfill)), Claim::Ended(Ending::Orphaned));
    assert_eq!(p.unchanged(|p| p.resolve(&request.key, grant.fence, NotStarted::Edited)), Ended::AlreadyRecorded);
}

/// Nothing that ended is touched by a sweep.
pub fn a_sweep_leaves_ended_slots_alone<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = ClaimRequest { ttl: SHORT, ..p.live(1) };
    let grant = p.grant(&request);
    let _ = p.settle(&request, grant, Ending::Succeeded);
    harness.pass_time(SHORT * 2);
    let lost = Ended::Lost(Some(SlotState::Ended(Ending::Succeeded)));
    for op in [
        EndOp::Expire { attempts_allowed: 9 },
        EndOp::Resolve { reason: NotStarted::TooLate },
        EndOp::CutLease { max_skew: SHORT },
        EndOp::GiveBack { nonce: request.nonce },
    ] {
        assert_eq!(p.unchanged(|p| p.end(&request.key, grant.fence, op.clone())), lost, "{op:?}");
    }
}
