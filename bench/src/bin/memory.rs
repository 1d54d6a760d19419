//! Bytes per plan, and what a reconcile of an unchanged set costs.
//!
//! `cargo run --release --bin memory [PLANS]` (1,000,000 by default)

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use timertask::{Plan, Run, Scheduler};
use timertask_bench::{Allocated, Counting, Verdict, await_active, measured, ms, percentile, spread_over_the_day};

#[global_allocator]
static COUNTING: Counting = Counting;

/// Plans that fire each second while the others are reconciled.
const FIRING: usize = 100;
const ROUNDS: usize = 8;

fn main() {
    let n = std::env::args().nth(1).map_or(1_000_000, |n| n.parse().expect("a number"));
    let mut verdict = Verdict::default();
    println!("{n} plans over 1,440 schedules; requested bytes, beyond the text of ids and payloads");
    for with_payload in [false, true] {
        let bytes = bytes_per_plan(n, with_payload);
        let what = if with_payload { "with a payload of 16 bytes" } else { "without payload" };
        verdict.must(bytes <= 250.0, &format!("{bytes:.1} bytes a plan {what}, at most 250"));
    }
    reconcile(n, &mut verdict);
    verdict.end();
}

fn bytes_per_plan(n: usize, with_payload: bool) -> f64 {
    let before = settled();
    let scheduler = Scheduler::builder(|_: &Run| Ok(())).concurrency(2).start().expect("it starts");
    let plans = spread_over_the_day(n, with_payload);
    let text: usize = plans.iter().map(|plan| plan.id().len() + if with_payload { 16 } else { 0 }).sum();
    let last = plans[n - 1].id().to_owned();
    drop(scheduler.reconcile(plans).expect("good plans"));
    await_active(&scheduler, &last);
    // The first sweep looks at the plans of the ledger; what it needs for that counts, too.
    std::thread::sleep(Duration::from_secs(7));
    let bytes = (Allocated::now().bytes - before.bytes - text) as f64 / n as f64;
    scheduler.close(Duration::from_secs(5)).expect("it closes");
    bytes
}

/// What the process has once what was there before is gone.
fn settled() -> Allocated {
    loop {
        let before = Allocated::now();
        std::thread::sleep(Duration::from_millis(500));
        if Allocated::now().bytes == before.bytes {
            return before;
        }
    }
}

fn reconcile(n: usize, verdict: &mut Verdict) {
    let late = Arc::new(std::sync::Mutex::new(Vec::with_capacity(1 << 20)));
    let lateness = Arc::clone(&late);
    let on = Arc::new(AtomicBool::new(false));
    let counts = Arc::clone(&on);
    let job = move |run: &Run| {
        if run.job() == "tick" && counts.load(Ordering::Relaxed) {
            let micros = run.started_at().since(run.due()).as_micros();
            lateness.lock().expect("no panic").push(u64::try_from(micros).unwrap_or(u64::MAX));
        }
        Ok(())
    };
    let scheduler = Scheduler::builder(job).concurrency(2).start().expect("it starts");
    let plans = {
        let mut plans = spread_over_the_day(n, false);
        plans.extend((0..FIRING).map(|i| Plan::new(format!("tick-{i}"), "* * * * * *").job("tick")));
        plans
    };
    let last = plans[plans.len() - 1].id().to_owned();
    let (report, install) = measured(|| scheduler.reconcile(plans.iter().cloned()).expect("good plans"));
    drop(report);
    let ((), opened) = measured(|| await_active(&scheduler, &last));
    println!(
        "\ninstall: {:.2} µs of CPU a plan until reconcile returned; opened {:.0} ms later",
        install.cpu.as_secs_f64() * 1e6 / n as f64,
        ms(opened.wall)
    );
    std::thread::sleep(Duration::from_secs(7));

    // The same set in the same order, and a bare look-up of the same ids in a hash map.
    let map: std::collections::HashMap<Arc<str>, usize> =
        plans.iter().enumerate().map(|(i, plan)| (Arc::from(plan.id()), i)).collect();
    let ids: Vec<Arc<str>> = plans.iter().map(|plan| Arc::from(plan.id())).collect();
    let mut best = [f64::MAX; 2];
    let mut calls = usize::MAX;
    for _ in 0..ROUNDS {
        let set = plans.clone();
        let before = Allocated::now().calls;
        let (report, took) = measured(|| scheduler.reconcile(set).expect("good plans"));
        calls = calls.min(Allocated::now().calls - before);
        assert_eq!(report.unchanged, plans.len());
        best[0] = best[0].min(took.cpu.as_secs_f64() * 1e9 / n as f64);
        let (found, took) = measured(|| ids.iter().filter(|id| map.contains_key(*id)).count());
        assert_eq!(found, ids.len());
        best[1] = best[1].min(took.cpu.as_secs_f64() * 1e9 / n as f64);
    }
    println!(
        "unchanged: {:.0} ns of CPU a plan, a bare hash map's look-up {:.0} ns: {:.1}×",
        best[0],
        best[1],
        best[0] / best[1]
    );
    verdict.must(calls < 100, &format!("{calls} allocations by the reconcile of {n} unchanged plans"));

    println!("\nlateness of {FIRING} plans a second, µs       p50       p99       max");
    let mut quantiles = Vec::new();
    for reconciling in [false, true, false, true] {
        let until = std::time::Instant::now() + Duration::from_secs(8);
        late.lock().expect("no panic").clear();
        on.store(true, Ordering::Relaxed);
        let mut rounds = 0;
        while std::time::Instant::now() < until {
            if reconciling {
                drop(scheduler.reconcile(plans.iter().cloned()).expect("good plans"));
                rounds += 1;
            } else {
                // The same load beside it, without touching the scheduler.
                let set = plans.clone();
                std::hint::black_box(ids.iter().filter(|id| map.contains_key(*id)).count());
                drop(set);
            }
        }
        on.store(false, Ordering::Relaxed);
        let mut late = late.lock().expect("no panic").clone();
        let [p50, p99, max] = [50.0, 99.0, 100.0].map(|p| percentile(&mut late, p));
        let what = if reconciling { format!("{rounds} reconciles") } else { "as much other work".to_owned() };
        println!("{what:<40}{p50:>10}{p99:>10}{max:>10}   ({} starts)", late.len());
        quantiles.push((late.len(), p99));
    }
    let (alone, beside) = (quantiles[0].1.max(quantiles[2].1), quantiles[1].1.max(quantiles[3].1));
    verdict.must(
        beside < alone * 2 + 20_000,
        &format!(
            "p99 {:.1} ms with reconciles, {:.1} ms beside as much other work",
            beside as f64 / 1e3,
            alone as f64 / 1e3
        ),
    );
    scheduler.close(Duration::from_secs(5)).expect("it closes");
}
