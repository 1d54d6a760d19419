//! A deploy sends SIGTERM: nothing new starts, what runs comes to its end, the end is recorded, the process leaves.
//!
//! With `--self-test` the job sends the signal itself, so that the example ends by itself.

use std::error::Error;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use timertask::seam::Ending;
use timertask::{Plan, Run, RunOutcome, Scheduler};

fn main() -> Result<(), Box<dyn Error>> {
    // Before anything starts, so that no signal goes by.
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let self_test = std::env::args().any(|argument| argument == "--self-test");

    let scheduler = Scheduler::builder(move |run: &Run| {
        println!("{} started", run.slot_key());
        if self_test {
            signal_hook::low_level::raise(SIGTERM)?;
        }
        for step in 1..=20 {
            // An error once the run has to stop: an operator's wish, its deadline, or `close` out of patience.
            run.wait(Duration::from_millis(100))?;
            if run.closing() {
                println!("the scheduler is closing: stopping early, after step {step}");
                break;
            }
        }
        Ok(())
    })
    .start()?;
    scheduler.reconcile([Plan::new("long", "@every 3s")])?;
    println!("process {}: waiting for SIGTERM or Ctrl-C", std::process::id());

    let signal = signals.forever().next().ok_or("no more signals")?;
    println!("signal {signal}: closing");
    // Runs have ten seconds; then they are told to stop.
    let report = scheduler.close(Duration::from_secs(10))?;

    let history = scheduler.run_history(None);
    for record in &history {
        println!("{}: {}", record.slot, record.outcome);
    }
    let all_well = history.iter().all(|record| record.outcome == RunOutcome::Ended(Ending::Succeeded));
    if !report.is_clean() || !all_well || (self_test && history.is_empty()) {
        return Err(format!("not all was well: {report:?}").into());
    }
    println!("ok: closed, with {} run(s) on record", history.len());
    Ok(())
}
