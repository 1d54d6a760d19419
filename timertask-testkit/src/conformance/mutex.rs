//! The cases of a mutex. Each function shows one sentence of the contract and panics where it does not hold.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use timertask_core::key::{Fence, LockKey, Nonce, PlanKey, RequestId, SlotKey};
use timertask_core::seam::{Held, Lease, Mutex};
use timertask_core::time::Trigger;

use super::MutexHarness;
use super::probe::{LONG, SHORT, answer, id, nonce, other, plan_id};

fn key<H: MutexHarness>(harness: &H, plan: &str, n: i64) -> LockKey {
    let plan = PlanKey::new(harness.namespace(), plan_id(plan));
    SlotKey { plan, at: Trigger::from_secs(1_700_000_000 + n), request: None }
}

#[track_caller]
fn lock<M: Mutex>(mutex: &M, key: &LockKey, nonce: Nonce, ttl: Duration) -> Lease {
    match answer(mutex.try_lock(key, nonce, ttl)) {
        Some(lease) => lease,
        None => panic!("{key} is free"),
    }
}

#[track_caller]
fn is_held<M: Mutex>(mutex: &M, key: &LockKey) {
    assert_eq!(answer(mutex.try_lock(key, nonce(), LONG)), None, "{key} is held");
}

/// A free key is locked; the lease names it, its holder and a fence.
pub fn a_free_key_is_locked<H: MutexHarness>(harness: &H) {
    let (key, nonce) = (key(harness, "p", 1), nonce());
    let lease = lock(&harness.handle(), &key, nonce, LONG);
    assert_eq!((&lease.key, lease.nonce), (&key, nonce));
    assert!(lease.fence > Fence::NONE);
}

/// A held key is refused to others, and to other decisions of the same process.
pub fn a_held_key_is_refused<H: MutexHarness>(harness: &H) {
    let key = key(harness, "p", 1);
    let mutex = harness.handle();
    lock(&mutex, &key, nonce(), LONG);
    is_held(&mutex, &key);
    is_held(&harness.handle(), &key);
}

/// The same nonce again gets the same lease, and a later end.
pub fn the_same_nonce_gets_the_same_lease<H: MutexHarness>(harness: &H) {
    let (key, nonce) = (key(harness, "p", 1), nonce());
    let mutex = harness.handle();
    let first = lock(&mutex, &key, nonce, SHORT);
    assert_eq!(lock(&mutex, &key, nonce, LONG), first);
    harness.pass_time(SHORT * 2);
    is_held(&mutex, &key);
}

/// Once a lease has lapsed the key goes to whoever asks, under a higher fence.
pub fn a_lapsed_key_goes_to_another<H: MutexHarness>(harness: &H) {
    let key = key(harness, "p", 1);
    let mutex = harness.handle();
    let first = lock(&mutex, &key, nonce(), SHORT);
    harness.pass_time(SHORT * 2);
    let second = lock(&mutex, &key, nonce(), LONG);
    assert!(second.fence > first.fence);
    assert_eq!(answer(mutex.extend(&first, LONG)), Held::Lost);
    assert_eq!(answer(mutex.unlock(&first)), Held::Lost);
    is_held(&mutex, &key);
}

/// The same nonce after a lapse is a new lease, under a higher fence.
pub fn a_lapsed_nonce_gets_a_new_lease<H: MutexHarness>(harness: &H) {
    let (key, nonce) = (key(harness, "p", 1), nonce());
    let mutex = harness.handle();
    let first = lock(&mutex, &key, nonce, SHORT);
    harness.pass_time(SHORT * 2);
    let second = lock(&mutex, &key, nonce, LONG);
    assert!(second.fence > first.fence);
    assert_eq!(answer(mutex.extend(&first, LONG)), Held::Lost, "the old term stays over");
}

/// An extended lease ends later.
pub fn an_extended_lease_ends_later<H: MutexHarness>(harness: &H) {
    let key = key(harness, "p", 1);
    let mutex = harness.handle();
    let lease = lock(&mutex, &key, nonce(), SHORT);
    assert_eq!(answer(mutex.extend(&lease, LONG)), Held::Held);
    harness.pass_time(SHORT * 2);
    is_held(&mutex, &key);
    assert_eq!(answer(mutex.unlock(&lease)), Held::Held);
}

/// A lapsed lease can't be extended or given back, also where nobody has taken the key since.
pub fn a_lapsed_lease_is_lost<H: MutexHarness>(harness: &H) {
    let key = key(harness, "p", 1);
    let mutex = harness.handle();
    let lease = lock(&mutex, &key, nonce(), SHORT);
    harness.pass_time(SHORT * 2);
    assert_eq!(answer(mutex.extend(&lease, LONG)), Held::Lost);
    assert_eq!(answer(mutex.unlock(&lease)), Held::Lost);
    lock(&mutex, &key, nonce(), LONG);
}

/// A key given back is free at once; its term is over.
pub fn a_key_given_back_is_free<H: MutexHarness>(harness: &H) {
    let key = key(harness, "p", 1);
    let mutex = harness.handle();
    let first = lock(&mutex, &key, nonce(), LONG);
    assert_eq!(answer(mutex.unlock(&first)), Held::Held);
    assert_eq!(answer(mutex.unlock(&first)), Held::Lost, "once");
    assert_eq!(answer(mutex.extend(&first, LONG)), Held::Lost);
    let second = lock(&harness.handle(), &key, nonce(), LONG);
    assert!(second.fence > first.fence);
}

/// Extending and giving back name their term: nonce and fence.
pub fn each_call_names_its_term<H: MutexHarness>(harness: &H) {
    let key = key(harness, "p", 1);
    let mutex = harness.handle();
    let lease = lock(&mutex, &key, nonce(), LONG);
    let fence = Fence::from_u64(lease.fence.as_u64() - 1);
    for wrong in [Lease { nonce: nonce(), ..lease.clone() }, Lease { fence, ..lease.clone() }] {
        assert_eq!(answer(mutex.extend(&wrong, LONG)), Held::Lost);
        assert_eq!(answer(mutex.unlock(&wrong)), Held::Lost);
    }
    is_held(&mutex, &key);
    let nowhere = Lease { key: LockKey { at: Trigger::from_secs(1), ..key }, ..lease };
    assert_eq!(answer(mutex.extend(&nowhere, LONG)), Held::Lost);
    assert_eq!(answer(mutex.unlock(&nowhere)), Held::Lost);
}

/// Slots, plans, requests and namespaces are keys of their own.
pub fn keys_are_independent<H: MutexHarness>(harness: &H) {
    let mutex = harness.handle();
    let first = key(harness, "p", 1);
    let mut elsewhere = first.clone();
    elsewhere.plan.namespace = other(&harness.namespace());
    let request = |text| LockKey { request: Some(id(RequestId::new(text))), ..first.clone() };
    let keys = [
        first.clone(),
        key(harness, "p", 2),
        key(harness, "q", 1),
        elsewhere,
        request("a"),
        request("b"),
        request("a/b"),
    ];
    for key in &keys {
        lock(&mutex, key, nonce(), LONG);
    }
    for key in &keys {
        is_held(&mutex, key);
    }
}

/// Ids of any shape are keys of their own.
pub fn hostile_keys_are_independent<H: MutexHarness>(harness: &H) {
    let mutex = harness.handle();
    let long = "x".repeat(255);
    let ids = ["{", "}", "{p}", "'", "\"", "\\", "%", "*", "/", "a/b", ":", " ", "p ", "\u{E9}", "e\u{301}", &long];
    for plan in ids {
        lock(&mutex, &key(harness, plan, 1), nonce(), LONG);
        is_held(&mutex, &key(harness, plan, 1));
    }
}

/// Fences rise with each grant of a plan, over its slots.
pub fn fences_rise_over_the_slots_of_a_plan<H: MutexHarness>(harness: &H) {
    let mutex = harness.handle();
    let mut last = Fence::NONE;
    for n in [5, 1, 4, 2, 3, 5] {
        let lease = lock(&mutex, &key(harness, "p", n), nonce(), LONG);
        assert!(lease.fence > last, "{} after {last}", lease.fence);
        last = lease.fence;
        assert_eq!(answer(mutex.unlock(&lease)), Held::Held);
    }
}

/// Holders exclude each other: a counter that is read and written without care loses nothing.
pub fn holders_exclude_each_other<H: MutexHarness>(harness: &H) {
    const THREADS: u64 = 4;
    const TURNS: u64 = 25;
    let counter = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let work = || {
            let (mutex, key) = (harness.handle(), key(harness, "p", 1));
            for _ in 0..TURNS {
                let nonce = nonce();
                let lease = loop {
                    match answer(mutex.try_lock(&key, nonce, LONG)) {
                        Some(lease) => break lease,
                        None => std::thread::yield_now(),
                    }
                };
                let seen = counter.load(Ordering::Relaxed);
                std::thread::yield_now();
                counter.store(seen + 1, Ordering::Relaxed);
                assert_eq!(answer(mutex.unlock(&lease)), Held::Held);
            }
        };
        for _ in 0..THREADS {
            scope.spawn(work);
        }
    });
    assert_eq!(counter.load(Ordering::Relaxed), THREADS * TURNS, "two held it at once");
}
