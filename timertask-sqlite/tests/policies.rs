//! What happens when things go wrong, policy by policy, on clusters that share a SQLite file: the tests of
//! `timertask-testkit/tests/policies/`, on this store.

#[path = "../../timertask-testkit/tests/policies/catch_up.rs"]
mod catch_up;
mod common;
#[path = "../../timertask-testkit/tests/policies/orphans.rs"]
mod orphans;
#[path = "../../timertask-testkit/tests/policies/overlap.rs"]
mod overlap;
#[path = "../../timertask-testkit/tests/policies/support.rs"]
mod support;

use std::sync::Arc;

use common::TempDir;
use timertask_core::clock::Clock;
use timertask_sqlite::{Sqlite, Synchronous};
use timertask_testkit::{Cluster, ClusterBuilder};

/// So many tries where the instant counts; more of them are made in memory, which is quicker.
const SEEDS: u64 = 1;

/// A cluster on a file of its own, which goes with it. No test here pulls the plug, so none waits for the disk.
fn cluster(seed: u64) -> ClusterBuilder {
    let dir = TempDir::new();
    Cluster::builder().seed(seed).store(move |clock: Arc<dyn Clock>| {
        let options = Sqlite::options().clock(clock).synchronous(Synchronous::Normal);
        options.open(dir.path("cluster.db")).unwrap_or_else(|error| panic!("{error}"))
    })
}
