//! How many claims and ends a second this machine's disk takes: one by one, in groups, from several threads.
//!
//! `cargo run --release -p timertask-sqlite --example claims [PATH [CALLERS GROUP]]`; the file at PATH is overwritten.

use std::path::PathBuf;
use std::time::Duration;

use timertask_core::clock::{Clock, SystemClock};
use timertask_core::key::{Fingerprint, InstanceId, Namespace, Nonce, PlanId, PlanKey, SlotKey};
use timertask_core::seam::{Claim, ClaimRequest, EndOp, EndRequest, Ending, Gate, Ledger, Overlap, PlanOp, RunKind};
use timertask_core::time::Trigger;
use timertask_sqlite::{Sqlite, Synchronous};

type Failed = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failed> {
    let folder = std::env::temp_dir();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = args.first().map_or_else(|| folder.join("timertask-claims.db"), PathBuf::from);
    let cases = match &args[..] {
        [_, callers, group, ..] => vec![(callers.parse()?, group.parse()?)],
        _ => vec![(1, 1), (1, 100), (4, 1), (32, 1)],
    };
    println!(
        "{:>7} {:>7} {:>9} {:>9} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8}",
        "sync", "callers", "per call", "claims/s", "p50 µs", "p99 µs", "max µs", "ends/s", "p50 µs", "p99 µs"
    );
    for (name, synchronous) in [("full", Synchronous::Full), ("normal", Synchronous::Normal)] {
        for &(callers, group) in &cases {
            let _ = std::fs::remove_file(&path);
            let store = Sqlite::options().synchronous(synchronous).open(&path)?;
            let total = if group > 1 || callers > 8 { 32_000 } else { 8_000 };
            let (claims, ends) = all(&store, callers, group, total)?;
            let (claims, ends) = (Figures::of(claims, callers, group), Figures::of(ends, callers, group));
            println!(
                "{name:>7} {callers:>7} {group:>9} {:>9.0} {:>8} {:>8} {:>8} {:>9.0} {:>8} {:>8}",
                claims.rate, claims.p50, claims.p99, claims.max, ends.rate, ends.p50, ends.p99
            );
        }
    }
    Ok(std::fs::remove_file(&path)?)
}

/// What calls come to: slots a second while all callers call, and microseconds a call.
struct Figures {
    rate: f64,
    p50: u128,
    p99: u128,
    max: u128,
}

impl Figures {
    fn of(mut calls: Vec<Duration>, callers: usize, group: usize) -> Self {
        calls.sort_unstable();
        let at = |part: usize| calls[(calls.len() * part / 1000).min(calls.len() - 1)].as_micros();
        let spent: f64 = calls.iter().map(Duration::as_secs_f64).sum();
        let rate = (calls.len() * group * callers) as f64 / spent;
        Self { rate, p50: at(500), p99: at(990), max: at(1000) }
    }
}

/// How long each call took, of claims and of ends.
type Calls = (Vec<Duration>, Vec<Duration>);

/// Claims and ends `total` slots from so many threads, `group` a call.
fn all(store: &Sqlite, callers: usize, group: usize, total: usize) -> Result<Calls, Failed> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..callers).map(|caller| scope.spawn(move || one(store, caller, group, total / callers))).collect();
        let mut all = Calls::default();
        for thread in threads {
            let (claims, ends) = thread.join().map_err(|_| "a caller panicked")??;
            all.0.extend(claims);
            all.1.extend(ends);
        }
        Ok(all)
    })
}

fn one(store: &Sqlite, caller: usize, group: usize, total: usize) -> Result<Calls, Failed> {
    let fingerprint = Fingerprint::from_bits(1);
    let plans = (0..group).map(|n| PlanId::new(format!("caller {caller} plan {n}")));
    let plans = plans.map(|id| Ok(PlanKey::new(Namespace::default(), id?))).collect::<Result<Vec<_>, Failed>>()?;
    let open = |plan: &PlanKey| (plan.clone(), PlanOp::Open { fingerprint, replaces: None });
    let _ = store.plan(&plans.iter().map(open).collect::<Vec<_>>())?;
    let (instance, first) = (InstanceId::new("claims")?, SystemClock.now().trigger().as_secs() + 1);
    let mut calls = Calls::default();
    for n in 0..total / group {
        let at = first + i64::try_from(n)?;
        let request = |plan: &PlanKey| ClaimRequest {
            key: SlotKey { plan: plan.clone(), at: Trigger::from_secs(at), request: None },
            nonce: Nonce::random(&SystemClock),
            fingerprint,
            prev: Some(Trigger::from_secs(at - 1)),
            kind: RunKind::Scheduled,
            asked: None,
            gate: Gate::Policy(Overlap::Skip),
            attempts_allowed: 1,
            ttl: Duration::from_secs(30),
            instance: instance.clone(),
            version: None,
        };
        let requests: Vec<_> = plans.iter().map(request).collect();
        let begin = SystemClock.monotonic();
        let answers = store.claim(&requests)?.value;
        calls.0.push(SystemClock.monotonic().saturating_sub(begin));
        let now = SystemClock.now();
        let mut ends = Vec::new();
        for (request, answer) in requests.into_iter().zip(answers) {
            let Claim::Granted(grant) = answer else { return Err("a claim was not granted".into()) };
            let (nonce, ending) = (request.nonce, Ending::Succeeded);
            let op = EndOp::Settle { nonce, ending, started_at: now, ended_at: now, tries: 1, detail: None };
            ends.push(EndRequest { key: request.key, fence: grant.fence, op });
        }
        let begin = SystemClock.monotonic();
        let _ = store.end(&ends)?;
        calls.1.push(SystemClock.monotonic().saturating_sub(begin));
    }
    Ok(calls)
}
