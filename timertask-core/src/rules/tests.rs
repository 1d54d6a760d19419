//! Cases of the rules, one for each sentence, and properties that hold for any rows.

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
