//! Schedulers on one SQLite file, each with a handle of its own, under the simulated clock: the clock of a lease is that
//! of the instance which asks, skew included.

#[path = "../../timertask-testkit/tests/chaos/run.rs"]
mod chaos;
mod common;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use common::TempDir;
use timertask_core::clock::Clock;
use timertask_core::seam::{Ending, SlotState};
use timertask_core::{BoxError, Plan, Run, Trigger};
use timertask_sqlite::{Sqlite, Synchronous};
use timertask_testkit::{Call, Cluster, ClusterBuilder, Fault};

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// No test here pulls the plug, so none waits for the disk.
fn open(path: PathBuf) -> impl Fn(Arc<dyn Clock>) -> Sqlite + Send + 'static {
    move |clock| {
        let options = Sqlite::options().clock(clock).synchronous(Synchronous::Normal);
        options.open(&path).unwrap_or_else(|error| panic!("{error}"))
    }
}

fn cluster(dir: &TempDir, seed: u64) -> ClusterBuilder {
    Cluster::builder().instances(3).seed(seed).store(open(dir.path("cluster.db")))
}

#[test]
fn an_hour_with_a_kill_a_freeze_a_skew_and_a_restart() {
    let dir = TempDir::new();
    let plans = (0..5).map(|i| Plan::new(format!("plan-{i}"), "* * * * *"));
    let job = |run: &Run| -> Result<(), BoxError> { Ok(run.wait(secs(2))?) };
    let mut cluster = cluster(&dir, 1).plans(plans).job(job).build();
    let start = cluster.now();
    cluster.advance(secs(600));
    cluster.skew(2, TimeDelta::seconds(-3));
    cluster.advance(secs(303));
    cluster.kill(0);
    cluster.advance(secs(600));
    cluster.restart(0);
    cluster.freeze(1);
    cluster.advance(secs(600));
    cluster.thaw(1);
    cluster.stop(2, secs(30));
    cluster.advance(secs(1500));
    for plan in 0..5 {
        cluster.expect_each_once(&format!("plan-{plan}"), start, cluster.now().saturating_sub(secs(10)));
    }
    let summary = cluster.check();
    assert!(summary.started >= 5 * 59, "{summary:?}");
}

#[test]
fn a_crash_between_grant_and_entry_is_orphaned_and_the_file_goes_on() {
    let dir = TempDir::new();
    let mut cluster = cluster(&dir, 2).plans([Plan::new("p", "* * * * *")]).build();
    cluster.cut_off(1);
    cluster.cut_off(2);
    let view = cluster.view(0).clone();
    cluster.store_of(0).on(Call::Claim).nth(1, Fault::after(move || view.kill()));
    cluster.advance(secs(61));
    cluster.expect_starts("p", 0);
    let slot = Trigger::from_secs(cluster.now().trigger().as_secs() - 1);
    cluster.expect_state("p", slot, SlotState::Running);
    cluster.reconnect(1);
    cluster.restart(0);
    cluster.advance(secs(180));
    cluster.expect_state("p", slot, SlotState::Ended(Ending::Orphaned));
    cluster.check();
}

#[test]
fn random_traces_break_no_promise() {
    let traces = std::env::var("CHAOS_TRACES").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    for seed in 1..=traces {
        let dir = TempDir::new();
        let path = dir.path("chaos.db");
        chaos::trace_opened(seed, open(path));
    }
}
