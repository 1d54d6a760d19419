//! How many claims a second this machine's disk takes: one by one, in groups, from several threads.
//!
//! `cargo run --release -p timertask-sqlite --example claims [path of a file that does not exist yet]`

use std::path::PathBuf;
use std::time::Duration;

use timertask_core::clock::{Clock, SystemClock};
use timertask_core::key::{Fingerprint, InstanceId, Namespace, Nonce, PlanId, PlanKey, SlotKey};
use timertask_core::seam::{Claim, ClaimRequest, Gate, Ledger, PlanOp, RunKind};
use timertask_core::time::Trigger;
use timertask_sqlite::{Sqlite, Synchronous};

type Failed = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failed> {
    let folder = std::env::temp_dir();
    let path = std::env::args().nth(1).map_or_else(|| folder.join("timertask-claims.db"), PathBuf::from);
    println!(
        "{:>7} {:>7} {:>9} {:>10} {:>9} {:>9} {:>9}",
        "sync", "callers", "per call", "claims/s", "p50 µs", "p99 µs", "max µs"
    );
    for (name, synchronous) in [("full", Synchronous::Full), ("normal", Synchronous::Normal)] {
        for (callers, group) in [(1, 1), (1, 100), (4, 1), (32, 1)] {
            let _ = std::fs::remove_file(&path);
            let store = Sqlite::options().synchronous(synchronous).open(&path)?;
            let total = if group > 1 || callers > 8 { 64_000 } else { 16_000 };
            let begin = SystemClock.monotonic();
            let mut calls = all(&store, callers, group, total)?;
            let elapsed = SystemClock.monotonic().saturating_sub(begin);
            calls.sort_unstable();
            let at = |part: usize| calls[(calls.len() * part / 1000).min(calls.len() - 1)].as_micros();
            let rate = total as f64 / elapsed.as_secs_f64();
            let (p50, p99, max) = (at(500), at(990), at(1000));
            println!("{name:>7} {callers:>7} {group:>9} {rate:>10.0} {p50:>9} {p99:>9} {max:>9}");
        }
    }
    Ok(std::fs::remove_file(&path)?)
}

/// Claims `total` slots from so many threads, `group` a call; how long each call took.
fn all(store: &Sqlite, callers: usize, group: usize, total: usize) -> Result<Vec<Duration>, Failed> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..callers).map(|caller| scope.spawn(move || one(store, caller, group, total / callers))).collect();
        let mut calls = Vec::new();
        for thread in threads {
            calls.extend(thread.join().map_err(|_| "a caller panicked")??);
        }
        Ok(calls)
    })
}

fn one(store: &Sqlite, caller: usize, group: usize, total: usize) -> Result<Vec<Duration>, Failed> {
    let fingerprint = Fingerprint::from_bits(1);
    let plans = (0..group).map(|n| PlanId::new(format!("caller {caller} plan {n}")));
    let plans = plans.map(|id| Ok(PlanKey::new(Namespace::default(), id?))).collect::<Result<Vec<_>, Failed>>()?;
    let open = |plan: &PlanKey| (plan.clone(), PlanOp::Open { fingerprint, replaces: None });
    let _ = store.plan(&plans.iter().map(open).collect::<Vec<_>>())?;
    let (instance, first) = (InstanceId::new("claims")?, SystemClock.now().trigger().as_secs() + 1);
    let mut calls = Vec::new();
    for n in 0..total / group {
        let at = first + i64::try_from(n)?;
        let request = |plan: &PlanKey| ClaimRequest {
            key: SlotKey { plan: plan.clone(), at: Trigger::from_secs(at), request: None },
            nonce: Nonce::random(&SystemClock),
            fingerprint,
            prev: Some(Trigger::from_secs(at - 1)),
            kind: RunKind::Scheduled,
            // Skip, as most plans have it, would let nothing start while the slot before runs; nothing is ended here.
            gate: Gate::Force,
            attempts_allowed: 1,
            ttl: Duration::from_secs(30),
            instance: instance.clone(),
            version: None,
        };
        let requests: Vec<_> = plans.iter().map(request).collect();
        let begin = SystemClock.monotonic();
        let answers = store.claim(&requests)?.value;
        calls.push(SystemClock.monotonic().saturating_sub(begin));
        if !answers.iter().all(|answer| matches!(answer, Claim::Granted(_))) {
            return Err("a claim was not granted".into());
        }
    }
    Ok(calls)
}
