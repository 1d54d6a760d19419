//! Runs claimed and settled per second on one SQLite file, as the engine does it, with 1 and 2 processes.
//!
//! `cargo run --release --bin store [PLANS [SECONDS]]` (20,000 plans each second, 10 s by default); more are due than the
//! store takes, so that the figure is what it takes.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use timertask::sqlite::Sqlite;
use timertask::{Run, Scheduler};
use timertask_bench::{await_active, every_second, measured};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [child, path, plans, seconds] = &args[..]
        && child == "--child"
    {
        instance(path, plans.parse().expect("a number"), seconds.parse().expect("a number"));
        return;
    }
    let plans = args.first().map_or("20000", |arg| arg);
    let seconds = args.get(1).map_or("10", |arg| arg);
    println!("{plans} plans due each second, {seconds} s, synchronous=FULL, 64 workers each");
    println!("{:>10}{:>12}{:>14}{:>16}{:>16}", "processes", "runs / s", "store calls/s", "runs a call", "CPU µs a run");
    for processes in [1, 2] {
        let folder = std::env::temp_dir().join(format!("timertask-bench-{}-{processes}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("jobs.db");
        let children: Vec<_> = (0..processes)
            .map(|_| {
                let program = std::env::current_exe().expect("its own path");
                let mut command = Command::new(program);
                command.arg("--child").arg(&path).args([plans, seconds]).stdout(Stdio::piped());
                command.spawn().expect("a process")
            })
            .collect();
        let mut sum = [0.0; 3];
        for child in children {
            let output = child.wait_with_output().expect("its output");
            let text = String::from_utf8(output.stdout).expect("text");
            for (sum, n) in sum.iter_mut().zip(text.split_whitespace()) {
                *sum += n.parse::<f64>().expect("a number");
            }
        }
        let [runs, calls, micros] = sum;
        let seconds: f64 = seconds.parse().expect("a number");
        println!(
            "{processes:>10}{:>12.0}{:>14.0}{:>16.1}{:>16.0}",
            runs / seconds,
            calls / seconds,
            2.0 * runs / calls,
            micros / runs
        );
        let _ = std::fs::remove_dir_all(folder);
    }
}

/// One process: prints runs, store calls and microseconds of CPU.
fn instance(path: &str, plans: usize, seconds: u64) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let job = move |_: &Run| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    let store = Sqlite::open(path).expect("a file");
    let scheduler = Scheduler::builder(job).concurrency(64).store(store).start().expect("it starts");
    drop(scheduler.reconcile(every_second(plans)).expect("good plans"));
    await_active(&scheduler, &(plans - 1).to_string());
    std::thread::sleep(Duration::from_secs(2));
    let (before, calls) = (runs.load(Ordering::Relaxed), scheduler.stats().store_calls);
    let ((), took) = measured(|| std::thread::sleep(Duration::from_secs(seconds)));
    let (runs, calls) = (runs.load(Ordering::Relaxed) - before, scheduler.stats().store_calls - calls);
    println!("{runs} {calls} {}", took.cpu.as_micros());
    let _ = scheduler.close(Duration::from_secs(10));
}
