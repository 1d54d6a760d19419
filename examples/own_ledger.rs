//! A ledger of your own, in an afternoon: `own_ledger/ledger.rs` keeps rows, the published rules decide. Two schedulers
//! share it here, on the simulated clock of the testkit, and a day goes by.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use timertask::seam::Ledger;
use timertask::{Plan, Run, Scheduler};
use timertask_testkit::FakeClock;

#[path = "own_ledger/ledger.rs"]
mod ledger;

use ledger::OwnLedger;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn main() -> Result<(), Box<dyn Error>> {
    // Whose turn it is when both want the same slot is decided by the seed; with the same one, a run is the same again.
    let clock = FakeClock::seeded(7);
    let ledger = Arc::new(OwnLedger::new(Arc::new(clock.clone())));
    println!("the ledger says of itself: {:?}", ledger.describe()?);

    let runs: Arc<std::sync::Mutex<BTreeMap<String, Vec<String>>>> = Arc::default();
    let mut schedulers = Vec::new();
    for name in ["a", "b"] {
        let runs = Arc::clone(&runs);
        let job = move |run: &Run| {
            let mut runs = runs.lock().unwrap_or_else(PoisonError::into_inner);
            runs.entry(run.slot_key().to_string()).or_default().push(run.instance().to_string());
            Ok(())
        };
        let scheduler =
            Scheduler::builder(job).instance(name).clock(clock.view(name)).ledger(Arc::clone(&ledger)).start()?;
        scheduler.reconcile([Plan::new("hourly", "@hourly"), Plan::new("lunch", "0 12 * * *")])?;
        schedulers.push(scheduler);
    }

    clock.advance(DAY);
    for scheduler in &schedulers {
        scheduler.close(Duration::from_secs(1))?;
    }

    let runs = runs.lock().unwrap_or_else(PoisonError::into_inner);
    for (slot, by) in runs.iter() {
        println!("{slot} by {}", by.join(" and "));
    }
    let twice = runs.values().filter(|by| by.len() > 1).count();
    if (runs.len(), twice) != (25, 0) {
        return Err(format!("expected 25 slots, none of them twice; {} and {twice}", runs.len()).into());
    }
    println!("ok: 24 hours and a lunch, each run by one of the two");
    Ok(())
}
