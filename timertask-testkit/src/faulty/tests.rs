//! Each fault, on the built-in stores, under the fake clock.

use std::sync::Arc;
use std::time::Duration;

use timertask_core::clock::{Clock, Room, Signal, Turn};
use timertask_core::key::{Fingerprint, InstanceId, Namespace, Nonce, PlanId, PlanKey, SlotKey};
use timertask_core::memory::{LocalMutex, MemLedger};
use timertask_core::seam::{
    Applied, Board, Claim, ClaimRequest, Gate, Ledger, Mutex, Overlap, PlanOp, Posting, PostingKind, Query, Refusal,
    RunKind, SlotState, StoreErrorKind,
};
use timertask_core::time::{Timestamp, Trigger};

use super::*;
use crate::FakeClock;

fn ledger() -> (FakeClock, Faulty<MemLedger>) {
    let clock = FakeClock::seeded(1);
    let store = MemLedger::with_clock(Arc::new(clock.clone()));
    let faulty = Faulty::new(store, Arc::new(clock.clone()));
    let open = PlanOp::Open { fingerprint: Fingerprint::default(), replaces: None };
    let states = faulty.plan(&[(plan(), open)]).expect("no fault yet").value;
    assert_eq!(states[0].applied, Applied::Done);
    (clock, faulty)
}

fn plan() -> PlanKey {
    PlanKey::new(Namespace::default(), PlanId::new("p").unwrap())
}

/// A claim of the slot a minute after the clock's start.
fn request(nonce: u128) -> ClaimRequest {
    let start = FakeClock::new().now().trigger();
    ClaimRequest {
        key: SlotKey { plan: plan(), at: Trigger::from_secs(start.as_secs() + 60), request: None },
        nonce: Nonce::from_bits(nonce),
        fingerprint: Fingerprint::default(),
        prev: Some(start),
        kind: RunKind::Scheduled,
        asked: None,
        gate: Gate::Policy(Overlap::Skip),
        attempts_allowed: 1,
        ttl: Duration::from_secs(30),
        instance: InstanceId::new("i").unwrap(),
        version: None,
    }
}

fn claim(store: &impl Ledger, nonce: u128) -> Claim {
    store.claim(&[request(nonce)]).expect("an answer").value.remove(0)
}

fn running(store: &impl Ledger) -> usize {
    let page = store.read(&Query::Slots(vec![request(0).key])).expect("an answer").value;
    page.slots.iter().filter(|s| s.state == SlotState::Running).count()
}

#[test]
fn an_error_is_met_by_the_call_it_was_meant_for() {
    let (_, faulty) = ledger();
    faulty.on(Call::Claim).nth(2, Fault::Error(StoreErrorKind::Full));
    assert_eq!(running(&faulty), 0);
    assert!(matches!(claim(&faulty, 1), Claim::Granted(_)));
    let error = faulty.claim(&[request(1)]).expect_err("the second");
    assert_eq!((error.kind(), error.outcome_unknown()), (StoreErrorKind::Full, false));
    assert_eq!(error.to_string(), "store full: refused to work (claim 2, injected)");
    assert!(matches!(claim(&faulty, 1), Claim::Granted(_)));
    assert_eq!((faulty.calls(Call::Claim), faulty.faults(Call::Claim), faulty.calls(Call::Plan)), (3, 1, 1));
    assert_eq!((faulty.calls_in_all(), faulty.faults_in_all()), (5, 1));
}

#[test]
fn a_lost_answer_was_carried_out_and_a_lost_request_was_not() {
    let (_, faulty) = ledger();
    faulty.on(Call::Claim).nth(1, Fault::LostRequest);
    faulty.on(Call::Claim).nth(2, Fault::LostAnswer);
    for there in [0, 1] {
        let error = faulty.claim(&[request(1)]).expect_err("lost");
        assert_eq!((error.kind(), error.outcome_unknown()), (StoreErrorKind::TimedOut, true));
        assert_eq!(running(&faulty), there);
    }
    assert!(matches!(claim(&faulty, 1), Claim::Granted(_)), "the same nonce gets the same grant");
    assert_eq!(claim(&faulty, 2), Claim::Held);
}

#[test]
fn a_straggler_arrives_after_its_asker_has_given_up() {
    let (clock, faulty) = ledger();
    faulty.on(Call::Claim).next(1, Fault::Straggler(Duration::from_secs(5)));
    assert!(faulty.claim(&[request(1)]).expect_err("late").outcome_unknown());
    clock.advance(Duration::from_secs(4));
    assert_eq!(running(&faulty), 0);
    clock.advance(Duration::from_secs(1));
    let other = faulty.handle(Arc::new(clock));
    assert_eq!(claim(&other, 2), Claim::Held, "it is carried out before anybody's next call");
}

#[test]
fn duplicates_find_what_the_first_has_done() {
    let (clock, faulty) = ledger();
    let open = || PlanOp::Open { fingerprint: Fingerprint::from_bits(1), replaces: None };
    faulty.on(Call::Plan).next(1, Fault::Duplicate);
    let answer = faulty.plan(&[(plan(), open())]).expect("an answer").value;
    assert_eq!(answer[0].applied, Applied::Done, "the first answer is the one that is seen");
    faulty.on(Call::Claim).next(1, Fault::DuplicateLater(Duration::from_secs(100)));
    assert!(matches!(claim(&faulty, 1), Claim::Granted(_)));
    let before = faulty.inner().read(&Query::Slots(vec![request(0).key])).expect("an answer").value.slots;
    clock.advance(Duration::from_secs(100));
    assert_eq!(running(&faulty), 1);
    let after = faulty.inner().read(&Query::Slots(vec![request(0).key])).expect("an answer").value.slots;
    assert_eq!(after[0].lease_end, before[0].lease_end.saturating_add(Duration::from_secs(100)));
}

#[test]
fn a_slow_store_costs_simulated_time_only() {
    let (clock, faulty) = ledger();
    faulty.on(Call::Claim).nth(1, Fault::Slow(Duration::from_secs(40)));
    faulty.on(Call::Claim).nth(2, Fault::SlowAnswer(Duration::from_secs(50)));
    for seconds in [40, 90] {
        assert!(matches!(claim(&faulty, 1), Claim::Granted(_)));
        assert_eq!(clock.monotonic(), Duration::from_secs(seconds));
    }
}

/// A room that claims once and rings.
struct Claimer(Faulty<MemLedger>, Signal, Signal);

impl Room for Claimer {
    fn name(&self) -> &str {
        "claimer"
    }
    fn signal(&self) -> &Signal {
        &self.1
    }
    fn turn(&mut self, _: Timestamp) -> Turn {
        assert!(matches!(claim(&self.0, 1), Claim::Granted(_)));
        self.2.notify();
        Turn::Done
    }
}

#[test]
fn a_stalled_call_hangs_until_it_is_released() {
    let (clock, faulty) = ledger();
    faulty.on(Call::Claim).always(Fault::Stall);
    let done = Signal::new();
    let driver = clock.driver().expect("a driver");
    driver.adopt(Box::new(Claimer(faulty.clone(), Signal::new(), done.clone())));
    clock.advance(Duration::from_secs(3600));
    assert_eq!((faulty.stalled(), running(&faulty), done.is_set()), (1, 0, false));
    faulty.heal();
    clock.settle();
    assert_eq!((faulty.stalled(), running(&faulty), done.is_set()), (0, 1, true));
}

#[test]
fn hooks_run_on_either_side_and_may_kill_the_asker() {
    let (clock, faulty) = ledger();
    for (carried_out, view) in [(0, clock.view("a")), (1, clock.view("b"))] {
        let mine = faulty.handle(Arc::new(view.clone()));
        let victim = view.clone();
        let kill = move || victim.kill();
        mine.on(Call::Claim).nth(1, if carried_out == 0 { Fault::before(kill) } else { Fault::after(kill) });
        let done = Signal::new();
        view.driver().expect("a driver").adopt(Box::new(Claimer(mine, Signal::new(), done.clone())));
        clock.settle();
        assert_eq!((running(&faulty), done.is_set(), view.is_alive()), (carried_out, false, false));
    }
}

#[test]
fn each_handle_has_faults_of_its_own_and_healing_ends_them() {
    let (clock, faulty) = ledger();
    let other = faulty.handle(Arc::new(clock));
    other.cut_off();
    for call in 1..=3 {
        let error = other.describe().expect_err("cut off");
        assert_eq!(error.kind(), StoreErrorKind::Unreachable);
        assert_eq!(other.faults(Call::Describe), call);
    }
    assert!(faulty.describe().is_ok());
    other.heal();
    assert!(other.describe().is_ok() && other.purge(&plan(), KEEP_ALL, 10).is_ok());
    assert!(other.renew(&[], Duration::ZERO).is_ok() && other.end(&[]).is_ok());
}

const KEEP_ALL: timertask_core::seam::Retention =
    timertask_core::seam::Retention { age: None, count: None, keep_last: 0 };

#[test]
fn chances_come_from_the_seed() {
    let draw = |seed| {
        let (_, faulty) = ledger();
        let faulty = faulty.seed(seed);
        faulty.on_any().chance(0.3, Fault::Error(StoreErrorKind::Busy));
        (0..200).map(|_| faulty.describe().is_err()).collect::<Vec<_>>()
    };
    assert_eq!(draw(5), draw(5));
    assert_ne!(draw(5), draw(6));
    let faults = draw(5).iter().filter(|failed| **failed).count();
    assert!((30..90).contains(&faults), "{faults} of 200");
}

#[test]
fn claims_can_be_made_to_lie() {
    let (_, faulty) = ledger();
    faulty.twist_claims(|requests, answers| {
        assert_eq!(requests.len(), answers.len());
        vec![Claim::Refused(Refusal::Paused); answers.len()]
    });
    assert_eq!(claim(&faulty, 1), Claim::Refused(Refusal::Paused));
    assert_eq!(running(&faulty), 1);
}

#[test]
fn mutex_and_board_go_through_the_same_faults() {
    let clock: Arc<dyn Clock> = Arc::new(FakeClock::new());
    let lock = Faulty::new(LocalMutex::with_clock(Arc::clone(&clock)), Arc::clone(&clock));
    let (key, nonce, ttl) = (request(0).key, Nonce::from_bits(1), Duration::from_secs(10));
    lock.on(Call::TryLock).nth(1, Fault::LostAnswer);
    lock.on(Call::Unlock).nth(1, Fault::Duplicate);
    assert!(lock.try_lock(&key, nonce, ttl).is_err());
    let lease = lock.try_lock(&key, nonce, ttl).expect("an answer").expect("the same nonce");
    assert_eq!(lock.extend(&lease, ttl).expect("an answer"), timertask_core::seam::Held::Held);
    assert_eq!(lock.unlock(&lease).expect("an answer"), timertask_core::seam::Held::Held);
    assert!(lock.try_lock(&key, Nonce::from_bits(2), ttl).expect("an answer").is_some());

    let board = Faulty::new(MemLedger::with_clock(Arc::clone(&clock)), clock);
    let until = board.clock.now().saturating_add(ttl);
    let namespace = Namespace::default();
    let kind = PostingKind::Request;
    let posting = Posting { namespace: namespace.clone(), kind, key: "k".into(), body: "b".into(), until };
    board.on(Call::Take).nth(1, Fault::Duplicate);
    let _ = board.post(&posting).expect("an answer");
    assert_eq!(board.list(&namespace, kind).expect("an answer").value.len(), 1);
    assert_eq!(board.take(&namespace, kind, "k").expect("an answer").value, Some(posting));
    assert!(board.list(&namespace, kind).expect("an answer").value.is_empty());
}
