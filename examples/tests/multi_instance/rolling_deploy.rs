//! A plan is edited instance by instance, as a rolling deploy does: no slot is run twice, and the new version takes over.

use std::time::Duration;

use timertask::Plan;
use timertask_testkit::Cluster;

#[test]
fn a_rolling_deploy_runs_no_slot_twice() {
    let minutes = |n: u64| Duration::from_secs(60 * n);
    let mut cluster = Cluster::builder().instances(3).seed(2).plans([Plan::new("poll", "* * * * *")]).build();
    cluster.advance(minutes(10));
    cluster.expect_starts("poll", 10);

    let edited = || [Plan::new("poll", "*/5 * * * *")];
    for instance in 0..3 {
        cluster.reconcile_on(instance, edited());
        cluster.advance(minutes(1));
    }
    cluster.reconcile(edited());
    let deployed = cluster.now();
    cluster.advance(minutes(30));

    cluster.expect_each_once("poll", deployed, cluster.now());
    cluster.check();
}
