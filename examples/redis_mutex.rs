//! Redis as a mutex alone: instances share a lock for each slot, and nothing else.
//!
//! Each instance keeps a ledger of its own in memory, which knows only what this process did. So catch-up reaches no
//! farther than the start window; overlap, pauses and history are those of one process (`Scheduler::scope` says so); and a
//! slot is run once only as long as its lock outlasts everybody's interest in it:
//! `spread + start_window + 2 × max_skew < lock_ttl`, by default 0 + 60 s + 2 × 5 s < 220 s. `start` and `reconcile` refuse
//! what breaks that. A server that forgets its locks, as one without an append-only file does when it restarts, frees them.
//! Where all instances reach one server anyway, `store(redis)` gives the whole contract, and is the better choice.
//!
//! It starts a `redis-server` of its own, and stops it at the end.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use timertask::redis::Redis;
use timertask::{Plan, PlanError, RetryBudget, Run, Scheduler, Scope, StartError};
use timertask_examples::RedisServer;

fn main() -> Result<(), Box<dyn Error>> {
    let server = RedisServer::start()?;
    refused(&server.url())?;

    let (line, lines) = channel();
    let instances = ["a", "b"].map(|name| -> Result<Scheduler, Box<dyn Error>> {
        let line = line.clone();
        let job = move |run: &Run| Ok(line.send((run.slot_key().to_string(), run.instance().to_string()))?);
        // On many hosts each has its own connection; here too.
        let mutex = Redis::connect(&server.url())?;
        let scheduler = Scheduler::builder(job).instance(name).mutex(mutex).start()?;
        scheduler.reconcile([Plan::new("tick", "@every 1s"), Plan::new("tock", "* * * * * *")])?;
        Ok(scheduler)
    });
    let instances = instances.into_iter().collect::<Result<Vec<_>, _>>()?;
    let runs = watch(&lines, 10)?;
    for instance in instances {
        assert_eq!(instance.scope(), Scope::Process, "what this instance knows of the others is nothing");
        instance.close(Duration::from_secs(5))?;
    }
    if let Some((slot, by)) = runs.iter().find(|(_, by)| by.len() > 1) {
        return Err(format!("{slot} was run by {by:?}").into());
    }
    println!("ok: {} slots, each of them run once; what the lock could not keep apart was refused", runs.len());
    Ok(())
}

/// What would let a slot run twice is not accepted.
fn refused(url: &str) -> Result<(), Box<dyn Error>> {
    let builder =
        || -> Result<_, Box<dyn Error>> { Ok(Scheduler::builder(|_: &Run| Ok(())).mutex(Redis::connect(url)?)) };
    // Three tries of two seconds: the lock would be gone while a slot may still be started.
    let short = RetryBudget { timeout: Duration::from_secs(2), ..RetryBudget::default() };
    let error = builder()?.retry_budget(short).start().err().ok_or("a lock that is too short")?;
    println!("refused: {error}");
    let too_short = matches!(error, StartError::LockTooShort { .. });
    // The same by a start window that is too wide, and, for one plan, by its spread.
    let error = builder()?.start_window(Duration::from_secs(300)).start().err().ok_or("a window too wide")?;
    println!("refused: {error}");
    let too_wide = matches!(error, StartError::LockTooShort { .. });
    let scheduler = builder()?.start()?;
    let report = scheduler.reconcile([Plan::new("spread", "@hourly").spread(Duration::from_secs(600))])?;
    scheduler.close(Duration::from_secs(5))?;
    let failure = report.failed.first().ok_or("a spread too wide")?;
    println!("refused: {failure}");
    match failure.reason {
        PlanError::LockTooShort { .. } if too_short && too_wide => Ok(()),
        _ => Err("refused for another reason".into()),
    }
}

/// Takes `count` runs, and notes who ran which slot.
fn watch(lines: &Receiver<(String, String)>, count: usize) -> Result<BTreeMap<String, Vec<String>>, Box<dyn Error>> {
    let mut runs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for _ in 0..count {
        let (slot, instance) = lines.recv_timeout(Duration::from_secs(10))?;
        println!("{slot} by {instance}");
        runs.entry(slot).or_default().push(instance);
    }
    Ok(runs)
}
