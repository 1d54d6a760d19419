//! Cases of the rules that no store shows, and properties that hold for any rows. Each sentence of the contract is a
//! case of the testkit's conformance suite, which runs these functions through the stores.

mod properties;

use std::time::Duration;

use super::*;
use crate::key::*;
use crate::seam::*;

const TTL: Duration = Duration::from_secs(30);

fn key() -> PlanKey {
    PlanKey::new(Namespace::default(), PlanId::new("p").unwrap())
}

fn at(secs: i64) -> Trigger {
    Trigger::from_secs(secs)
}

fn ts(secs: i64) -> Timestamp {
    at(secs).timestamp()
}

fn fingerprint(n: u128) -> Fingerprint {
    Fingerprint::from_bits(n)
}

/// A plan under fingerprint 1, opened at `opened`.
fn opened(opened: i64) -> PlanRow {
    let op = PlanOp::Open { fingerprint: fingerprint(1), replaces: None };
    let (applied, change) = plan(ts(opened), &key(), &op, &PlanRows::default());
    assert_eq!(applied, Applied::Done);
    change.plan.unwrap()
}

/// A live claim of the slot at `secs`, a minute after the one before, under nonce `nonce`.
fn request(secs: i64, nonce: u128) -> ClaimRequest {
    ClaimRequest {
        key: SlotKey { plan: key(), at: at(secs), request: None },
        nonce: Nonce::from_bits(nonce),
        fingerprint: fingerprint(1),
        prev: Some(at(secs - 60)),
        kind: RunKind::Scheduled,
        asked: None,
        gate: Gate::Policy(Overlap::Skip),
        attempts_allowed: 1,
        ttl: TTL,
        instance: InstanceId::new("i").unwrap(),
        version: None,
    }
}

fn rows<'a>(plan: &'a PlanRow, slot: Option<&'a SlotRow>) -> ClaimRows<'a> {
    ClaimRows { plan: Some(plan), all_paused: false, slot, running: 0, older: &[], newest_started: None }
}

#[test]
fn a_fresh_slot_is_granted_and_moves_the_cursor() {
    let plan = opened(600);
    let (answer, change) = claim(ts(661), &request(660, 7), &rows(&plan, None));
    let Claim::Granted(grant) = answer else { panic!("{answer:?}") };
    assert_eq!(grant.fence.as_u64(), 661_000_000);
    assert_eq!((grant.attempt, grant.lease_end, grant.cursor), (1, ts(691), at(600)));
    let row = change.slot.unwrap();
    assert_eq!((row.state, row.nonce, row.attempt), (SlotState::Running, Nonce::from_bits(7), 1));
    let plan = change.plan.unwrap();
    assert_eq!((plan.cursor, plan.fence), (at(660), grant.fence));
}

#[test]
fn fences_follow_the_clock_and_never_fall_behind() {
    let next = |last, micros| next_fence(Fence::from_u64(last), Timestamp::from_micros(micros)).map(Fence::as_u64);
    assert_eq!(next(0, 1_700_000_000_000_000), Some(1_700_000_000_000_000));
    assert_eq!(next(1_700_000_000_000_000, 1_700_000_000_000_000), Some(1_700_000_000_000_001));
    assert_eq!(next(1_700_000_000_000_000, 5), Some(1_700_000_000_000_001), "a clock that went back");
    assert_eq!(next(0, -1), Some(1), "a clock before the epoch");
}

#[test]
fn a_clock_gone_mad_leaves_fences_to_grant() {
    let max = (1 << 53) - 1;
    let mad = next_fence(Fence::NONE, Timestamp::MAX).unwrap();
    assert!(mad.as_u64() < max - 1_000_000_000_000);
    assert!(next_fence(mad, Timestamp::MAX).unwrap() > mad);
    assert_eq!(next_fence(Fence::from_u64(max - 1), Timestamp::EPOCH), Some(Fence::from_u64(max)));
    assert_eq!(next_fence(Fence::from_u64(max), Timestamp::EPOCH), None);
    assert_eq!(next_fence(Fence::from_u64(u64::MAX), Timestamp::MAX), None, "a damaged row");
}

#[test]
fn without_a_higher_fence_nothing_starts() {
    let plan = PlanRow { fence: Fence::from_u64((1 << 53) - 1), ..opened(600) };
    let (answer, change) = claim(ts(661), &request(660, 7), &rows(&plan, None));
    assert_eq!((answer, change), (Claim::Refused(Refusal::Full), Change::default()));
}

#[test]
fn a_running_slot_without_its_plan_is_granted_to_nobody() {
    let plan = opened(600);
    let (_, change) = claim(ts(661), &request(660, 7), &rows(&plan, None));
    let slot = change.slot.unwrap();
    let orphan = ClaimRows { plan: None, ..rows(&plan, Some(&slot)) };
    assert_eq!(claim(ts(661), &request(660, 7), &orphan).0, Claim::Refused(Refusal::Unknown));
}

#[test]
fn a_lease_is_ended_only_after_two_looks() {
    let plan = opened(600);
    let (_, change) = claim(ts(661), &request(660, 7), &rows(&plan, None));
    let slot = change.slot.unwrap();
    let interval = Duration::from_secs(10);
    let look = |slot: &SlotRow, now, monotonic| Look::at(slot, ts(now), Duration::from_secs(monotonic));
    assert_eq!(look(&slot, 690, 0), None, "not lapsed");
    let first = look(&slot, 691, 0).unwrap();
    assert!(!first.confirmed_by(&first, interval), "one look is none");
    assert!(!first.confirmed_by(&look(&slot, 800, 14).unwrap(), interval), "the clock may have stepped");
    assert!(first.confirmed_by(&look(&slot, 691, 15).unwrap(), interval));
    let renewed = SlotRow { lease_end: ts(700), ..slot.clone() };
    assert!(!first.confirmed_by(&look(&renewed, 700, 99).unwrap(), interval), "it was renewed in between");
    let granted_anew = SlotRow { fence: Fence::from_u64(slot.fence.as_u64() + 1), ..slot.clone() };
    assert!(!first.confirmed_by(&look(&granted_anew, 700, 99).unwrap(), interval));
    let ended = SlotRow { state: SlotState::Ended(Ending::Failed), ..slot };
    assert_eq!(look(&ended, 700, 99), None);
}

#[test]
fn what_is_left_of_a_range_is_cut_at_the_new_cursor() {
    let range = RangeRow { first: at(10), last: at(20), count: Some(11), reason: NotStarted::TooLate, at: ts(30) };
    assert_eq!(cut(&range, at(9)), None);
    assert_eq!(cut(&range, at(10)), Some(RangeRow { last: at(10), count: None, ..range.clone() }));
    assert_eq!(cut(&range, at(19)), Some(RangeRow { last: at(19), count: None, ..range.clone() }));
    assert_eq!(cut(&range, at(20)), Some(range.clone()));
}

#[test]
fn settling_without_the_plans_row_still_records() {
    let plan = opened(600);
    let (_, change) = claim(ts(661), &request(660, 7), &rows(&plan, None));
    let slot = change.slot.unwrap();
    let op = EndOp::Settle {
        nonce: slot.nonce,
        ending: Ending::Succeeded,
        started_at: ts(661),
        ended_at: ts(662),
        tries: 1,
        detail: None,
    };
    let (answer, change) =
        end(ts(662), &EndRequest { key: slot.key.clone(), fence: slot.fence, op }, Some(&slot), None);
    assert_eq!(answer, Ended::Recorded(SlotState::Ended(Ending::Succeeded)));
    assert_eq!((&change.plan, change.slots().count()), (&None, 1));
}

#[test]
fn the_common_claim_writes_one_slot_row() {
    let plan = opened(600);
    let (_, change) = claim(ts(661), &request(660, 7), &rows(&plan, None));
    assert_eq!(change.more_slots.capacity(), 0, "nothing is allocated for more");
    assert!(!change.is_empty() && Change::default().is_empty());
}
