//! The built-in stores, at their public API. That they keep the contract is shown by the conformance suites of the
//! testkit; here stands what is theirs alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::*;
use crate::clock::{Clock, Signal, Until, Wake};
use crate::key::*;
use crate::seam::*;
use crate::time::{Timestamp, Trigger};

const TTL: Duration = Duration::from_secs(30);

/// A clock that moves only by hand.
struct Hand(AtomicI64);

impl Hand {
    fn at(secs: i64) -> Arc<Self> {
        Arc::new(Self(AtomicI64::new(secs)))
    }

    fn set(&self, secs: i64) {
        self.0.store(secs, Ordering::Relaxed);
    }
}

impl Clock for Hand {
    fn now(&self) -> Timestamp {
        Trigger::from_secs(self.0.load(Ordering::Relaxed)).timestamp()
    }
    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
    fn wait(&self, _: &Signal, _: Option<Until>) -> Wake {
        panic!("the stores of this process never wait")
    }
    fn entropy(&self) -> u64 {
        0
    }
}

fn key(plan: &str) -> PlanKey {
    PlanKey::new(Namespace::default(), PlanId::new(plan).unwrap())
}

fn slot(plan: &str, secs: i64) -> SlotKey {
    SlotKey { plan: key(plan), at: Trigger::from_secs(secs), request: None }
}

fn plan_op(ledger: &MemLedger, plan: &str, op: PlanOp) -> PlanState {
    ledger.plan(&[(key(plan), op)]).unwrap().value.remove(0)
}

fn open(ledger: &MemLedger, plan: &str) {
    let op = PlanOp::Open { fingerprint: Fingerprint::default(), replaces: None };
    assert_eq!(plan_op(ledger, plan, op).applied, Applied::Done);
}

fn request(key: SlotKey) -> ClaimRequest {
    ClaimRequest {
        nonce: Nonce::from_bits(u128::from(key.at.as_secs().unsigned_abs())),
        key,
        fingerprint: Fingerprint::default(),
        prev: None,
        kind: RunKind::Scheduled,
        asked: None,
        gate: Gate::Force,
        attempts_allowed: 1,
        ttl: TTL,
        instance: InstanceId::new("i").unwrap(),
        version: None,
    }
}

fn claim(ledger: &MemLedger, request: &ClaimRequest) -> Claim {
    ledger.claim(std::slice::from_ref(request)).unwrap().value.remove(0)
}

fn start(ledger: &MemLedger, key: SlotKey) -> EndRequest {
    let request = request(key);
    let Claim::Granted(grant) = claim(ledger, &request) else { panic!("not granted") };
    let op = EndOp::Settle {
        nonce: request.nonce,
        ending: Ending::Succeeded,
        started_at: Timestamp::EPOCH,
        ended_at: Timestamp::EPOCH,
        tries: 1,
        detail: None,
    };
    EndRequest { key: request.key, fence: grant.fence, op }
}

fn end(ledger: &MemLedger, request: EndRequest) {
    let ended = ledger.end(&[request]).unwrap().value.remove(0);
    assert_eq!(ended, Ended::Recorded(SlotState::Ended(Ending::Succeeded)));
}

fn history(ledger: &MemLedger, plan: &str) -> Page {
    let (after, upto) = (Trigger::from_secs(i64::MIN), Trigger::from_secs(i64::MAX));
    let query = Query::History { plan: key(plan), after, upto, page: None, limit: 10_000 };
    ledger.read(&query).unwrap().value
}

fn triggers(page: &Page) -> Vec<i64> {
    page.slots.iter().map(|row| row.key.at.as_secs()).collect()
}

#[test]
fn it_is_volatile_and_says_so() {
    assert_eq!(MemLedger::new().describe().unwrap(), Durability::Volatile);
}

#[test]
fn clones_share_one_ledger() {
    let clock = Hand::at(0);
    let ledger = MemLedger::with_clock(clock.clone());
    open(&ledger, "p");
    clock.set(60);
    let _ = start(&ledger, slot("p", 60));
    let other = Nonce::from_bits(99);
    assert_eq!(claim(&ledger.clone(), &ClaimRequest { nonce: other, ..request(slot("p", 60)) }), Claim::Held);
}

#[test]
fn it_keeps_the_last_records_of_all_plans_together() {
    let clock = Hand::at(0);
    let ledger = MemLedger::with_clock(clock.clone()).keeping(4);
    open(&ledger, "a");
    open(&ledger, "b");
    for at in 1..=10 {
        clock.set(at);
        for plan in ["a", "b"] {
            end(&ledger, start(&ledger, slot(plan, at)));
        }
    }
    for plan in ["a", "b"] {
        let page = history(&ledger, plan);
        assert_eq!(triggers(&page), [9, 10]);
        assert_eq!(page.plans[0].1.low_water, Trigger::from_secs(8));
        let late = ClaimRequest { kind: RunKind::Backfill, ..request(slot(plan, 8)) };
        assert_eq!(claim(&ledger, &late), Claim::Refused(Refusal::TooOld));
        assert_eq!(claim(&ledger, &request(slot(plan, 9))), Claim::Ended(Ending::Succeeded));
    }
}

#[test]
fn forgetting_waits_for_a_running_slot_and_then_catches_up() {
    let clock = Hand::at(0);
    let ledger = MemLedger::with_clock(clock.clone()).keeping(2);
    open(&ledger, "p");
    clock.set(1_000);
    let first = start(&ledger, slot("p", 1));
    for at in 2..=50 {
        end(&ledger, start(&ledger, slot("p", at)));
    }
    let page = history(&ledger, "p");
    assert_eq!(page.slots.len(), 50, "nothing after a running slot may go");
    assert_eq!(page.plans[0].1.low_water, Trigger::default());
    end(&ledger, first);
    for at in 51..=110 {
        end(&ledger, start(&ledger, slot("p", at)));
    }
    assert_eq!(triggers(&history(&ledger, "p")), [109, 110]);
}

#[test]
fn forgetting_never_passes_the_cursor() {
    let clock = Hand::at(0);
    let ledger = MemLedger::with_clock(clock.clone()).keeping(0);
    open(&ledger, "p");
    clock.set(100);
    // The slot before it is missing, so the cursor stays.
    let gap = ClaimRequest { prev: Some(Trigger::from_secs(60)), ..request(slot("p", 90)) };
    let Claim::Granted(grant) = claim(&ledger, &gap) else { panic!("not granted") };
    let op = EndOp::Settle {
        nonce: gap.nonce,
        ending: Ending::Failed,
        started_at: Timestamp::EPOCH,
        ended_at: Timestamp::EPOCH,
        tries: 1,
        detail: None,
    };
    let _ = ledger.end(&[EndRequest { key: gap.key, fence: grant.fence, op }]).unwrap();
    let page = history(&ledger, "p");
    assert_eq!((triggers(&page), page.plans[0].1.low_water), (vec![90], Trigger::default()));
    let close_gap = PlanOp::Account {
        fingerprint: Fingerprint::default(),
        from: Trigger::default(),
        to: Trigger::from_secs(100),
        cover: Cover::Range { count: None, reason: NotStarted::TooLate },
    };
    assert_eq!(plan_op(&ledger, "p", close_gap).applied, Applied::Done);
    let page = history(&ledger, "p");
    assert_eq!((triggers(&page), page.ranges.len()), (vec![], 0));
    assert_eq!(page.plans[0].1.low_water, Trigger::from_secs(100));
}

#[test]
fn range_records_are_forgotten_too() {
    let clock = Hand::at(0);
    let ledger = MemLedger::with_clock(clock.clone()).keeping(3);
    open(&ledger, "p");
    for n in 1..=20 {
        clock.set(n * 10);
        let op = PlanOp::Open { fingerprint: Fingerprint::from_bits(n.unsigned_abs().into()), replaces: None };
        assert_eq!(plan_op(&ledger, "p", op).applied, Applied::Done);
    }
    let page = history(&ledger, "p");
    let lasts: Vec<_> = page.ranges.iter().map(|range| range.last.as_secs()).collect();
    assert_eq!(lasts, [180, 190, 200]);
    assert_eq!(page.plans[0].1.low_water, Trigger::from_secs(170));
}

#[test]
fn debug_shows_numbers_and_nothing_of_the_rows() {
    let clock = Hand::at(0);
    let ledger = MemLedger::with_clock(clock.clone());
    open(&ledger, "secret");
    assert_eq!(format!("{ledger:?}"), "MemLedger { plans: 1, slots: 0 }");
    let mutex = LocalMutex::with_clock(clock);
    let _ = mutex.try_lock(&slot("secret", 1), Nonce::from_bits(1), TTL).unwrap();
    assert_eq!(format!("{mutex:?}"), "LocalMutex { held: 1 }");
}

#[test]
fn a_lapsed_lock_is_dropped_from_memory() {
    let clock = Hand::at(0);
    let mutex = LocalMutex::with_clock(clock.clone());
    for at in 0..100 {
        let lease = mutex.try_lock(&slot("p", at), Nonce::from_bits(1), TTL).unwrap().unwrap();
        assert_eq!(mutex.extend(&lease, TTL * 2).unwrap(), Held::Held);
    }
    clock.set(60);
    let _ = mutex.try_lock(&slot("p", 200), Nonce::from_bits(1), TTL).unwrap();
    assert_eq!(format!("{mutex:?}"), "LocalMutex { held: 1 }");
}

#[test]
fn postings_that_nobody_lists_do_not_pile_up() {
    let clock = Hand::at(0);
    let ledger = MemLedger::with_clock(clock.clone());
    for n in 0..10_000 {
        clock.set(n);
        let posting = Posting {
            namespace: Namespace::default(),
            kind: PostingKind::Request,
            key: n.to_string(),
            body: String::new(),
            until: Trigger::from_secs(n + 10).timestamp(),
        };
        let _ = ledger.post(&posting).unwrap();
    }
    assert_eq!(ledger.list(&Namespace::default(), PostingKind::Request).unwrap().value.len(), 10);
    assert!(ledger.postings() < 200);
}
