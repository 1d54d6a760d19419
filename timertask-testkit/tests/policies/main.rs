//! What happens when things go wrong, policy by policy, on clusters of two to four instances. The same tests run on
//! SQLite (`timertask-sqlite/tests/policies.rs`).

mod catch_up;
mod orphans;
mod overlap;
mod support;

use timertask_testkit::{Cluster, ClusterBuilder};

/// So many tries where the instant counts.
const SEEDS: u64 = 6;

/// A cluster on the built-in ledger.
fn cluster(seed: u64) -> ClusterBuilder {
    Cluster::builder().seed(seed)
}
