//! A simulated day: 20 minute-plans on 3 instances that share a ledger in memory, under the fake clock.
//!
//! `cargo run --release --example day [DAYS]` (1 by default). An example, since the testkit is a dev-dependency everywhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use timertask::{Plan, Run, Scheduler};
use timertask_bench::{Verdict, measured, ms};
use timertask_testkit::{FakeClock, MemLedger};

const PLANS: usize = 20;
const ROUNDS: usize = 5;

fn main() {
    let days: usize = std::env::args().nth(1).map_or(1, |days| days.parse().expect("a number"));
    let slots = days * 1_440 * PLANS;
    println!("{days} simulated day(s), {PLANS} minute-plans, 3 instances: {slots} slots");
    println!("{:>8}{:>10}{:>10}{:>12}", "round", "wall ms", "CPU ms", "ns a slot");
    let mut wall = Vec::new();
    for round in 1..=ROUNDS {
        let (started, took) = measured(|| day(days));
        assert_eq!(started, slots, "each slot is started once");
        println!(
            "{round:>8}{:>10.0}{:>10.0}{:>12.0}",
            ms(took.wall),
            ms(took.cpu),
            took.cpu.as_secs_f64() * 1e9 / slots as f64
        );
        wall.push(took.wall);
    }
    wall.sort_unstable();
    let median = wall[ROUNDS / 2] / u32::try_from(days).expect("few days");
    let mut verdict = Verdict::default();
    verdict.must(median <= Duration::from_secs(1), &format!("{:.0} ms a day, at most 1,000", ms(median)));
    verdict.end();
}

fn day(days: usize) -> usize {
    let clock = FakeClock::new();
    let ledger = MemLedger::with_clock(Arc::new(clock.clone()));
    let started = Arc::new(AtomicUsize::new(0));
    let schedulers: Vec<Scheduler> = (0..3)
        .map(|i| {
            let started = Arc::clone(&started);
            let job = move |_: &Run| {
                started.fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            let label = format!("instance-{i}");
            let builder = Scheduler::builder(job).concurrency(2).instance(label.clone());
            let scheduler = builder.clock(clock.view(&label)).ledger(ledger.clone()).start().expect("it starts");
            scheduler.reconcile((0..PLANS).map(|p| Plan::new(format!("plan-{p}"), "* * * * *"))).expect("good plans");
            scheduler
        })
        .collect();
    clock.settle();
    // The slot of the first minute lies before the plans; that of the last second does not.
    clock.advance(Duration::from_secs(days as u64 * 86_400));
    for scheduler in schedulers {
        scheduler.close(Duration::from_secs(5)).expect("it closes");
    }
    started.load(Ordering::Relaxed)
}
