//! One process, one plan: the smallest service. It ends after three runs.

use std::error::Error;
use std::sync::mpsc;
use std::time::Duration;

use timertask::{Plan, Run, Scheduler};

fn main() -> Result<(), Box<dyn Error>> {
    let (done, runs) = mpsc::channel();

    // A job is a closure. It runs on a worker's thread; an error or a panic fails this run, and nothing else.
    let scheduler = Scheduler::builder(move |run: &Run| {
        println!("{} started {:?} after it was due", run.slot_key(), run.started_at().since(run.due()));
        done.send(run.trigger())?;
        Ok(())
    })
    .start()?;

    // The set of plans that are wanted. What is not in the next set is removed; what is as it was is left alone.
    let report = scheduler.reconcile([Plan::new("heartbeat", "@every 1s"), Plan::new("yearly", "@yearly")])?;
    println!("reconciled: {report}");
    for plan in scheduler.plans()? {
        println!("{} ({}) comes next at {:?}", plan.id, plan.schedule, plan.next);
    }

    let mut triggers = Vec::new();
    while triggers.len() < 3 {
        triggers.push(runs.recv_timeout(Duration::from_secs(10))?);
    }

    // No new starts; runs may end within this time, and their ends are recorded.
    scheduler.close(Duration::from_secs(5))?;

    let stats = scheduler.stats();
    println!("{} runs went well, half of them started within {:?}", stats.succeeded, stats.lateness.percentile(50));
    for record in scheduler.run_history(None) {
        println!("{}: {}", record.slot, record.outcome);
    }

    if !triggers.is_sorted_by(|earlier, later| earlier < later) {
        return Err(format!("a trigger point was run twice, or out of order: {triggers:?}").into());
    }
    println!("ok: three trigger points, each run once");
    Ok(())
}
