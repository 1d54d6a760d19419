//! Another master in the middle of a run: the run goes on, and so do all plans, where the new one is.

use std::time::Duration;

use timertask_core::clock::SystemClock;
use timertask_redis::{Options, Redis};

use crate::common::nodes::{Nodes, Watched, info, named_by, prompt};
use crate::common::*;
use crate::service::*;

/// Each claim and each end is on a replica before it counts, so that the failover loses none.
fn replicated() -> Options {
    prompt().min_replicas(1, Duration::from_secs(1))
}

/// Two instances go through a failover with a run at work. What the jobs saw is what is on record afterwards.
fn go_through(connect: impl Fn() -> Redis, fail_over: impl FnOnce()) {
    let journal = Journal::default();
    let [a, b] = [(); 2].map(|()| instance(connect(), &journal, SystemClock));
    journal.until_held();
    journal.until_more_than(3);
    fail_over();
    journal.until_more_than(journal.len() + 3);
    journal.release();
    let store = connect();
    until_settled(&store);
    close(&a);
    close(&b);
    journal.is_recorded(&store);
    assert_eq!(a.stats().orphaned + b.stats().orphaned, 0);
}

#[test]
fn a_run_goes_on_through_a_promotion() {
    let watched = Watched::start();
    watched.until_known();
    let connect = || until(|| replicated().connect(&watched.url()).ok());
    go_through(connect, || {
        let _: redis::Value = watched.sentinels[0].tell(&["SENTINEL", "FAILOVER", "main"]);
        until(|| (named_by(&watched.sentinels[0]) == watched.replica.port()).then_some(()));
    });
    assert_eq!(info(&watched.replica, "role").unwrap(), "master");
}

#[test]
fn a_run_goes_on_through_the_failover_of_a_clusters_master() {
    let nodes = Nodes::with_replicas(1, &[]);
    let connect = || until(|| replicated().connect(&nodes.url()).ok());
    go_through(connect, || {
        // The masters of both plans.
        let mut masters = [TICK, HELD].map(|plan| nodes.owner(&bucket(&plan_key(plan))).0).to_vec();
        masters.dedup();
        for n in masters {
            let replica = &nodes.servers[nodes.masters + n];
            let () = replica.tell(&["CLUSTER", "FAILOVER"]);
            until(|| (info(replica, "role")? == "master").then_some(()));
        }
    });
}
