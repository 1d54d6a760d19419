//! What these tests are written with.
#![allow(dead_code, reason = "each program that takes it in uses a part of it")]

use std::time::Duration;

use timertask_core::clock::{Clock, Signal, Until};
use timertask_core::seam::{Ending, NotStarted, SlotState};
use timertask_core::{BoxError, Run, Timestamp, Trigger};
use timertask_testkit::{Cluster, FakeClock};

pub(crate) const ORPHANED: SlotState = SlotState::Ended(Ending::Orphaned);
pub(crate) const SUCCEEDED: SlotState = SlotState::Ended(Ending::Succeeded);
pub(crate) const CANCELLED: SlotState = SlotState::Ended(Ending::Cancelled);

/// A lease and three sweeps: so long a dead run blocks its plan at most.
pub(crate) const LEASE_AND_SWEEPS: Duration = Duration::from_secs(60);

pub(crate) fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) fn minutes(n: u64) -> Duration {
    secs(60 * n)
}

pub(crate) fn hours(n: u64) -> Duration {
    minutes(60 * n)
}

/// Midnight of the cluster's first day, where it starts.
pub(crate) fn midnight() -> Timestamp {
    FakeClock::new().now()
}

/// The trigger point so many seconds after it.
pub(crate) fn second(n: i64) -> Trigger {
    Trigger::from_secs(midnight().trigger().as_secs() + n)
}

pub(crate) fn minute(n: i64) -> Trigger {
    second(60 * n)
}

/// A job that waits, and gives up when it is told to stop.
pub(crate) fn lasting(d: Duration) -> impl Fn(&Run) -> Result<(), BoxError> + Send + Sync + 'static {
    move |run| Ok(run.wait(d)?)
}

/// A job that takes so long, whatever it is told.
pub(crate) fn deaf(clock: &FakeClock, d: Duration) -> impl Fn(&Run) -> Result<(), BoxError> + Send + Sync + 'static {
    let clock = clock.clone();
    move |_| {
        let end = clock.monotonic().saturating_add(d);
        let _ = clock.wait(&Signal::new(), Some(Until::Monotonic(end)));
        Ok(())
    }
}

/// What the ledger tells of a plan, old to new: seconds since midnight and a word for each slot and range.
pub(crate) fn story(cluster: &Cluster, plan: &str) -> Vec<String> {
    let since = |at: Trigger| at.as_secs() - midnight().trigger().as_secs();
    let slots = cluster.rows(plan).into_iter().map(|row| (row.key.at, format!("{} {}", since(row.key.at), row.state)));
    let ranges = cluster.ranges(plan).into_iter().map(|range| {
        let count = range.count.map_or("?".to_owned(), |n| n.to_string());
        (range.first, format!("{}..{} {} × {count}", since(range.first), since(range.last), range.reason))
    });
    let mut all: Vec<_> = slots.chain(ranges).collect();
    all.sort();
    all.into_iter().map(|(_, text)| text).collect()
}

/// The slots that the jobs of a plan were entered for, in seconds since midnight, in order of entry.
pub(crate) fn ran(cluster: &Cluster, plan: &str) -> Vec<i64> {
    let midnight = midnight().trigger().as_secs();
    cluster.starts_of(plan).iter().map(|start| start.slot.at.as_secs() - midnight).collect()
}

/// The most runs of a plan at one instant.
pub(crate) fn most_at_once(cluster: &Cluster, plan: &str) -> usize {
    let mut edges = Vec::new();
    for start in cluster.starts_of(plan) {
        edges.push((start.at, 1));
        edges.extend(start.left.map(|(at, _)| (at, -1)));
    }
    // Where one ends as another begins, the end comes first.
    edges.sort_unstable();
    let (mut now, mut most) = (0_i32, 0);
    for (_, change) in edges {
        now += change;
        most = most.max(now);
    }
    usize::try_from(most).unwrap_or(0)
}

/// The slot was not started, for this reason.
pub(crate) fn expect_none(cluster: &Cluster, plan: &str, slots: &[i64], reason: NotStarted) {
    for at in slots {
        cluster.expect_not_started(plan, second(*at), reason);
    }
}
