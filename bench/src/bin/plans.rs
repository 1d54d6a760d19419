//! What plans cost that only wait: installing them, adding and removing one among many, idle CPU.
//!
//! `cargo run --release --bin plans [SECONDS]` (idle for 20 s by default)

use std::time::Duration;

use timertask::{Plan, Run, Scheduler};
use timertask_bench::{Took, Verdict, await_active, cpu, measured, spread_over_the_day};

/// How many single plans are added and removed.
const SINGLE: usize = 2_000;

fn main() {
    let idle = std::env::args().nth(1).map_or(20, |n| n.parse().expect("a number"));
    let mut verdict = Verdict::default();
    println!("CPU time; 1,440 schedules");
    println!(
        "{:>10}{:>16}{:>16}{:>12}{:>12}{:>14}",
        "plans", "reconcile µs", "and opened µs", "add µs", "remove µs", "idle ms / s"
    );
    let mut single = Vec::new();
    for n in [1_000, 100_000, 1_000_000] {
        let scheduler = Scheduler::builder(|_: &Run| Ok(())).concurrency(2).start().expect("it starts");
        let plans = spread_over_the_day(n, false);
        let last = plans[n - 1].id().to_owned();
        let (report, reconciled) = measured(|| scheduler.reconcile(plans).expect("good plans"));
        drop(report);
        let ((), opened) = measured(|| await_active(&scheduler, &last));
        // The first sweep has looked at the ledger's plans by then.
        std::thread::sleep(Duration::from_secs(8));

        let (mut add, mut remove) = (Duration::MAX, Duration::MAX);
        for _ in 0..5 {
            let ((), took) = measured(|| {
                for i in 0..SINGLE {
                    scheduler.upsert(Plan::new(format!("one-{i}"), "0 3 * * *").job("report")).expect("a good plan");
                }
                await_active(&scheduler, &format!("one-{}", SINGLE - 1));
            });
            add = add.min(took.cpu);
            let ((), took) = measured(|| {
                for i in 0..SINGLE {
                    assert!(scheduler.remove(&format!("one-{i}")).expect("it runs"));
                }
                std::thread::sleep(Duration::from_millis(200));
            });
            remove = remove.min(took.cpu);
        }
        let each = |d: Duration, n: usize| d.as_secs_f64() * 1e6 / n as f64;
        std::thread::sleep(Duration::from_secs(12));
        let before = cpu();
        std::thread::sleep(Duration::from_secs(idle));
        let waited = (cpu() - before).as_secs_f64() * 1e3 / idle as f64;
        let with_opening = |a: Took, b: Took| each(a.cpu + b.cpu, n);
        println!(
            "{n:>10}{:>16.2}{:>16.2}{:>12.1}{:>12.1}{waited:>14.3}",
            each(reconciled.cpu, n),
            with_opening(reconciled, opened),
            each(add, SINGLE),
            each(remove, SINGLE)
        );
        single.push((add, remove));
        scheduler.close(Duration::from_secs(5)).expect("it closes");
    }
    let ratio = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64();
    let (few, many) = (single[0], single[2]);
    let (add, remove) = (ratio(many.0, few.0), ratio(many.1, few.1));
    verdict.must(add < 3.0 && remove < 3.0, &format!("one among 1M against 1k: add {add:.1}×, remove {remove:.1}×"));
    verdict.end();
}
