//! The cost of `MemLedger`: requested bytes a plan, and a claim with its end, in groups of 256.
//!
//! `cargo run --release --bin ledger` prints, for ledgers of 1,000 to 1,000,000 plans, the bytes that a plan costs beyond
//! the text of its id, the nanoseconds that a claim and an end cost, the allocations in them, and beside them the floor of
//! the same run: a hash map of the slots under one lock, one insertion and one removal for each pair, nothing decided.
//! `--check` exits with 1 where a plan costs more than 110 bytes, or a pair a microsecond or more.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use timertask::key::{Fingerprint, InstanceId, Namespace, Nonce, PlanId, PlanKey, SlotKey};
use timertask::memory::MemLedger;
use timertask::seam::{Claim, ClaimRequest, EndOp, EndRequest, Ending, Gate, Ledger, Overlap, PlanOp, RunKind};
use timertask::time::Trigger;

/// Counts what is asked of the system's allocator.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is the system allocator's own, with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        CALLS.fetch_add(1, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const GROUP: usize = 256;
/// Each size runs about so many pairs.
const PAIRS: usize = 3_000_000;

fn main() {
    let check = std::env::args().any(|arg| arg == "--check");
    let mut missed = false;
    println!("bytes a plan; nanoseconds and allocations for a claim with its end; x: times the floor");
    println!(
        "{:>9}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>9}",
        "plans", "bytes", "claim", "end", "pair", "floor", "x", "allocs"
    );
    for plans in [1_000, 10_000, 100_000, 300_000, 1_000_000] {
        let keys: Vec<PlanKey> = (0..plans)
            .map(|n| PlanKey::new(Namespace::default(), PlanId::new(format!("plan-{n:08}")).expect("an id")))
            .collect();
        let before = BYTES.load(Ordering::Relaxed);
        let ledger = open(&keys);
        let bytes = (BYTES.load(Ordering::Relaxed) - before) as f64 / plans as f64;
        let rounds = (PAIRS / plans).clamp(3, 300);
        let (claim, end, allocations) = pairs(&ledger, &keys, rounds);
        let floor = floor(&keys, rounds);
        let pair = claim + end;
        println!(
            "{plans:>9}{bytes:>8.1}{claim:>8.0}{end:>8.0}{pair:>8.0}{floor:>8.0}{:>8.1}{allocations:>9.3}",
            pair / floor
        );
        missed |= bytes > 110.0 || pair >= 1_000.0;
    }
    if check && missed {
        println!("a bound was missed");
        std::process::exit(1);
    }
}

fn open(keys: &[PlanKey]) -> MemLedger {
    let ledger = MemLedger::new();
    for group in keys.chunks(GROUP) {
        let op = PlanOp::Open { fingerprint: Fingerprint::from_bits(7), replaces: None };
        let requests: Vec<_> = group.iter().map(|key| (key.clone(), op.clone())).collect();
        let _ = ledger.plan(&requests).expect("memory does not fail");
    }
    ledger
}

/// Nanoseconds of a claim and of an end, and allocations of both.
fn pairs(ledger: &MemLedger, keys: &[PlanKey], rounds: usize) -> (f64, f64, f64) {
    let instance = InstanceId::new("instance").expect("a label");
    let (mut claiming, mut ending, mut allocations) = (Duration::ZERO, Duration::ZERO, 0);
    let mut nonce = 0;
    let first = ledger.plan(&[]).expect("memory does not fail").now.trigger().as_secs() + 1;
    for at in (first..).take(rounds).map(Trigger::from_secs) {
        for group in keys.chunks(GROUP) {
            let requests: Vec<ClaimRequest> = group
                .iter()
                .map(|plan| {
                    nonce += 1;
                    ClaimRequest {
                        key: SlotKey { plan: plan.clone(), at, request: None },
                        nonce: Nonce::from_bits(nonce),
                        fingerprint: Fingerprint::from_bits(7),
                        prev: None,
                        kind: RunKind::Scheduled,
                        asked: None,
                        gate: Gate::Policy(Overlap::Skip),
                        attempts_allowed: 1,
                        ttl: Duration::from_secs(30),
                        instance: instance.clone(),
                        version: None,
                    }
                })
                .collect();
            let calls = CALLS.load(Ordering::Relaxed);
            let start = Instant::now();
            let claims = ledger.claim(&requests).expect("memory does not fail");
            claiming += start.elapsed();
            allocations += CALLS.load(Ordering::Relaxed) - calls;
            let now = claims.now;
            let ends: Vec<EndRequest> = requests
                .into_iter()
                .zip(claims.value)
                .map(|(request, claim)| {
                    let Claim::Granted(grant) = claim else { panic!("{claim:?}") };
                    let op = EndOp::Settle {
                        nonce: request.nonce,
                        ending: Ending::Succeeded,
                        started_at: now,
                        ended_at: now,
                        tries: 1,
                        detail: None,
                    };
                    EndRequest { key: request.key, fence: grant.fence, op }
                })
                .collect();
            let calls = CALLS.load(Ordering::Relaxed);
            let start = Instant::now();
            let ended = ledger.end(&ends).expect("memory does not fail");
            ending += start.elapsed();
            allocations += CALLS.load(Ordering::Relaxed) - calls;
            assert_eq!(ended.value.len(), ends.len());
        }
    }
    let pairs = (rounds * keys.len()) as f64;
    (claiming.as_nanos() as f64 / pairs, ending.as_nanos() as f64 / pairs, allocations as f64 / pairs)
}

/// Nanoseconds of what any ledger has to do: find a slot by its key, put it there, and take it away again.
fn floor(keys: &[PlanKey], rounds: usize) -> f64 {
    let slots = std::sync::Mutex::new(HashMap::<SlotKey, u64>::new());
    let mut spent = Duration::ZERO;
    for at in (0..).take(rounds).map(Trigger::from_secs) {
        for group in keys.chunks(GROUP) {
            let slot_keys: Vec<_> =
                group.iter().map(|plan| SlotKey { plan: plan.clone(), at, request: None }).collect();
            let start = Instant::now();
            let mut held = slots.lock().expect("nobody panics");
            for key in &slot_keys {
                held.insert(key.clone(), 1);
            }
            drop(held);
            let mut held = slots.lock().expect("nobody panics");
            for key in &slot_keys {
                held.remove(key);
            }
            spent += start.elapsed();
        }
    }
    spent.as_nanos() as f64 / (rounds * keys.len()) as f64
}
