//! A lease ends while its run goes on.

use timertask_core::seam::{Ending, SlotState};
use timertask_core::{OnOrphan, Plan, RunOutcome};
use timertask_testkit::{Cluster, FakeClock, Left};

use super::*;

/// A run of three leases' length, whose instance cannot renew and does not listen.
fn outlived(on_orphan: OnOrphan) -> Cluster {
    let clock = FakeClock::seeded(12);
    let job = deaf(&clock, secs(90));
    let plans = [Plan::new("p", "*/10 * * * *").on_orphan(on_orphan)];
    let mut cluster = Cluster::builder().clock(clock).instances(2).plans(plans).job(job).build();
    cluster.advance(minutes(10) + secs(1));
    let runner = cluster.starts()[0].instance;
    cluster.cut_off(runner);
    cluster.advance(secs(85));
    cluster.reconnect(runner);
    cluster.advance(minutes(5));
    cluster
}

#[test]
fn fault_12_a_lease_that_ends_is_no_leave_to_run_again() {
    let cluster = outlived(OnOrphan::Record);
    cluster.expect_starts("p", 1);
    cluster.expect_state("p", minute(10), SlotState::Ended(Ending::Orphaned));
    let start = &cluster.starts()[0];
    assert!(matches!(start.left, Some((_, Left::Succeeded))), "{start}");
    // The late finish is noted, where it happened.
    let noted = cluster.scheduler(start.instance).run_history(None);
    assert!(noted.iter().any(|r| r.slot == start.slot && r.outcome == RunOutcome::LeaseLost), "{noted:?}");
    // Not cluster.check(): the job's own log says that it went well, and the ledger that nobody knows; that is the point.
    let (_, violations) = cluster.violations();
    assert!(violations.is_empty(), "{violations:?}");
}

#[test]
fn fault_12_a_rerun_has_a_higher_fence_and_one_settlement_counts() {
    let cluster = outlived(OnOrphan::Rerun { max: 1 });
    let starts = cluster.starts_of("p");
    assert_eq!(starts.len(), 2, "{starts:?}");
    assert!(starts[1].fence > starts[0].fence && (starts[0].attempt, starts[1].attempt) == (1, 2));
    cluster.expect_state("p", minute(10), SlotState::Ended(Ending::Succeeded));
    let of_first = cluster.scheduler(starts[0].instance).run_history(None);
    let first = of_first.iter().find(|r| r.slot == starts[0].slot && r.fence == starts[0].fence);
    assert_eq!(first.map(|r| r.outcome), Some(RunOutcome::LeaseLost), "{of_first:?}");
    cluster.check();
}

#[test]
fn fault_12_a_long_run_that_renews_keeps_its_lease() {
    let mut cluster =
        Cluster::builder().instances(3).seed(12).plans([Plan::new("p", "0 * * * *")]).job(lasting(minutes(30))).build();
    cluster.advance(minutes(100));
    cluster.expect_each_once("p", midnight(), cluster.now());
    cluster.expect_state("p", minute(60), SlotState::Ended(Ending::Succeeded));
    cluster.check();
}

#[test]
fn fault_14_a_closing_instance_renews_until_its_run_has_ended() {
    let mut cluster = Cluster::builder()
        .instances(2)
        .seed(14)
        .plans([Plan::new("p", "*/10 * * * *")])
        .job(lasting(secs(120)))
        .build();
    cluster.advance(minutes(10) + secs(10));
    let runner = cluster.starts()[0].instance;
    cluster.stop(runner, minutes(5));
    assert_eq!(cluster.now(), minute(12).timestamp(), "it waited for its run, and no longer");
    cluster.expect_state("p", minute(10), SlotState::Ended(Ending::Succeeded));
    cluster.advance(minutes(9));
    cluster.expect_each_once("p", midnight(), cluster.now());
    assert_ne!(cluster.starts()[1].instance, runner);
    cluster.check();
}
