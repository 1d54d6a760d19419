//! Faults that users of other schedulers met (`scripts/faults.txt`), tried on clusters. Each test names its row.

mod crashes;
mod leases;
mod load;
mod missed;
mod nodes;

use std::time::Duration;

use timertask_core::clock::{Clock, Signal, Until};
use timertask_core::{BoxError, Plan, Run, Timestamp, Trigger};
use timertask_testkit::FakeClock;

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn minutes(n: u64) -> Duration {
    secs(60 * n)
}

/// `n` plans that fire each minute.
fn minute_plans(n: usize) -> Vec<Plan> {
    (0..n).map(|i| Plan::new(format!("plan-{i}"), "* * * * *")).collect()
}

/// Midnight of the cluster's first day, where it starts.
fn midnight() -> Timestamp {
    FakeClock::new().now()
}

/// The trigger point so many minutes after it.
fn minute(n: i64) -> Trigger {
    Trigger::from_secs(midnight().trigger().as_secs() + 60 * n)
}

/// A job that waits, and gives up when it is told to stop.
fn lasting(d: Duration) -> impl Fn(&Run) -> Result<(), BoxError> + Send + Sync + 'static {
    move |run| Ok(run.wait(d)?)
}

/// A job that takes so long, whatever it is told.
fn deaf(clock: &FakeClock, d: Duration) -> impl Fn(&Run) -> Result<(), BoxError> + Send + Sync + 'static {
    let clock = clock.clone();
    move |_| {
        let end = clock.monotonic().saturating_add(d);
        let _ = clock.wait(&Signal::new(), Some(Until::Monotonic(end)));
        Ok(())
    }
}
