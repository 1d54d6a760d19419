//! Nobody sleeps through a permit or a retry, whatever happens between two looks. The clock is where the others get their
//! turn: a look that they must not slip past reads it.

use super::*;
use crate::clock::{Until, Wake};
use crate::engine::registry::{Registry, Wanted};
use crate::engine::{Installed, Policy};
use crate::key::{Fence, Fingerprint, Namespace, Nonce, PlanId, PlanKey, SlotKey};
use crate::plan::{CatchUp, OnOrphan};
use crate::run::{NewRun, Trust, phase};
use crate::schedule::Schedule;
use crate::seam::{Grant, Overlap, RunKind};
use crate::time::{Timestamp, Trigger};

/// What it shows is up to the test, which may let others do something first.
struct Scripted<F>(F);

impl<F: Fn() -> u64 + Send + Sync> Clock for Scripted<F> {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(0)
    }
    fn monotonic(&self) -> Duration {
        Duration::from_secs((self.0)())
    }
    fn wait(&self, _: &Signal, _: Option<Until>) -> Wake {
        Wake::Time
    }
    fn entropy(&self) -> u64 {
        0
    }
}

fn at(secs: u64) -> impl Clock {
    Scripted(move || secs)
}

fn plan() -> Arc<Installed> {
    let policy = Policy {
        job: None,
        overlap: Overlap::Skip,
        catch_up: CatchUp::None,
        catch_up_window: None,
        start_window: Duration::from_secs(60),
        on_orphan: OnOrphan::Record,
        retry: None,
    };
    let (id, schedule) = (PlanId::new("p").unwrap(), Schedule::parse("* * * * *").unwrap());
    let wanted = Wanted { id, fingerprint: Fingerprint::EMPTY, schedule, policy, payload: None, offset: 0 };
    Registry::default().install(wanted).0
}

/// A run whose job was entered.
fn entered() -> Arc<RunCell> {
    let (plan, slot_at) = (plan(), Trigger::from_secs(0));
    let slot = SlotKey { plan: PlanKey::new(Namespace::default(), plan.id.clone()), at: slot_at, request: None };
    let lease_end = Timestamp::from_micros(0);
    let grant = Grant {
        at: slot_at,
        fence: Fence::NONE,
        attempt: 1,
        lease_end,
        cursor: slot_at,
        last_success: None,
        window_from: None,
    };
    let cell = RunCell::new(NewRun {
        plan,
        slot,
        nonce: Nonce::from_bits(1),
        grant,
        kind: RunKind::Scheduled,
        asked: None,
        due: lease_end,
        start_by: lease_end,
        window_from: slot_at,
        term_end: None,
        trust: Trust { wall: lease_end, mono: Duration::ZERO, span: None },
        order: None,
    });
    assert!(cell.step(phase::CLAIMED, phase::ENTERED));
    Arc::new(cell)
}

/// A pool of so many workers, all permits taken, and a run that goes on at 10 s.
fn full(workers: usize) -> Pool {
    let pool = Pool::new(workers, false, Signal::new());
    assert_eq!(pool.reserve(workers, Duration::ZERO), workers);
    assert!(pool.put_aside(Duration::from_secs(10), &entered()));
    pool
}

#[test]
fn a_permit_that_gets_free_while_another_worker_looks_away_is_not_slept_through() {
    let pool = Arc::new(full(2));
    let looks = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let clock = {
        let pool = Arc::clone(&pool);
        Scripted(move || {
            if looks.fetch_add(1, Ordering::Relaxed) < 2 {
                return 9;
            }
            // In between the other worker comes back from its job, finds nothing to do yet, and goes to sleep.
            pool.release();
            assert!(matches!(pool.next(0, &at(9)), Next::Wait(None)), "worker 1 watches already");
            11
        })
    };
    let next = pool.next(1, &clock);
    assert!(matches!(next, Next::Wait(Some(until)) if until == Duration::from_secs(10)), "nobody would run it");
}

#[test]
fn a_permit_that_is_given_back_while_a_worker_looks_for_one_is_not_slept_through() {
    let pool = Arc::new(full(1));
    let found = Arc::new(std::sync::Mutex::new(None));
    let clock = {
        let (pool, found) = (Arc::clone(&pool), Arc::clone(&found));
        Scripted(move || {
            // Before the claimer's look at the clock is over, the worker has had one of its own.
            *found.lock().unwrap() = Some(matches!(pool.next(0, &at(11)), Next::Retry(_)));
            9
        })
    };
    pool.give_back(1, &clock);
    assert!(found.lock().unwrap().unwrap() || pool.signal(0).is_set(), "nobody would run it");
}

#[test]
fn a_worker_that_waits_for_a_permit_is_woken_by_one_that_is_given_back() {
    let pool = full(1);
    assert!(matches!(pool.next(0, &at(11)), Next::Wait(None)), "there is no permit, and time brings none");
    pool.give_back(1, &at(11));
    assert!(pool.signal(0).is_set());
    assert!(matches!(pool.next(0, &at(11)), Next::Retry(_)));
}

#[test]
fn the_claimer_hears_of_the_permit_that_it_left_to_a_retry_which_is_over() {
    let claimer = Signal::new();
    let pool = Pool::new(1, false, claimer.clone());
    assert!(pool.put_aside(Duration::from_secs(10), &entered()));
    assert_eq!(pool.room(Duration::from_secs(10)), 0, "the permit is the retry's");
    assert!(!claimer.is_set());
    assert_eq!(pool.stop_waiting(|_| true).len(), 1);
    assert!(claimer.is_set());
    assert_eq!(pool.room(Duration::from_secs(10)), 1);
}
