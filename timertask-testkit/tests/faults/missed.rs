//! Missed runs: deploys, batches, many nodes.

use timertask_core::seam::NotStarted;
use timertask_core::{CatchUp, Plan};
use timertask_testkit::{Call, Cluster};

use super::*;

#[test]
fn fault_23_a_restart_over_the_trigger_point_makes_it_up() {
    let mut cluster = Cluster::builder().instances(3).seed(23).plans([Plan::new("daily", "0 6 * * *")]).build();
    cluster.advance(minutes(6 * 60) - secs(1));
    (0..3).for_each(|i| cluster.stop(i, secs(30)));
    cluster.advance(secs(91));
    (0..3).for_each(|i| cluster.restart(i));
    cluster.advance(minutes(5));
    cluster.expect_each_once("daily", midnight(), cluster.now());
    let start = &cluster.starts()[0];
    let late = start.at.since(minute(360).timestamp());
    // It is made up by the first sweep.
    assert!(late >= secs(90) && late <= secs(110), "{late:?}");
    cluster.check();
}

#[test]
fn fault_23_a_rolling_restart_over_1000_slots_misses_none() {
    let mut cluster = Cluster::builder().instances(3).seed(23).plans([Plan::new("p", "* * * * *")]).build();
    for at in 0..1000_u64 {
        // One restart a minute, gone for half of it; the second at which it happens moves through the minute, and the
        // trigger point is among them.
        let (before, node) = (at * 7 % 60, usize::try_from(at % 3).unwrap());
        cluster.advance(secs(before));
        if at % 2 == 0 {
            cluster.stop(node, secs(30))
        } else {
            cluster.kill(node)
        }
        cluster.advance(secs((60 - before).min(30)));
        cluster.restart(node);
        cluster.advance(secs(60 - before - (60 - before).min(30)));
    }
    cluster.expect_starts("p", 1000);
    cluster.expect_each_once("p", midnight(), cluster.now());
    cluster.check();
}

#[test]
fn fault_29_of_5000_plans_at_one_instant_each_starts() {
    let plans = (0..5000).map(|i| Plan::new(format!("plan-{i:04}"), "2 0 * * *"));
    let job = lasting(Duration::from_millis(20));
    let mut cluster = Cluster::builder().instances(3).seed(29).concurrency(4).plans(plans).job(job).build();
    cluster.advance(minutes(4));
    let starts = cluster.starts();
    assert_eq!(starts.len(), 5000);
    let lag = starts.iter().map(|s| s.at.since(minute(2).timestamp())).max().unwrap();
    // 5,000 × 20 ms on 12 workers.
    assert!(lag >= secs(8) && lag < secs(15), "{lag:?}");
    // In the order of the plans, but for what runs at the same time.
    let mut latest = 0;
    for start in &starts {
        let n: usize = start.plan()["plan-".len()..].parse().unwrap();
        assert!(n + 64 > latest, "{} after plan-{latest}", start.plan());
        latest = latest.max(n);
    }
    let summary = cluster.check();
    assert_eq!((summary.started, summary.pending), (5000, 0));
}

/// The claims of instance 0 in ten minutes, among `n`.
fn claims_among(n: usize) -> (u64, u64) {
    let mut cluster = Cluster::builder().instances(n).seed(30).plans(minute_plans(2)).build();
    cluster.advance(minutes(10));
    (0..2).for_each(|i| cluster.expect_each_once(&format!("plan-{i}"), midnight(), cluster.now()));
    for start in cluster.starts() {
        assert_eq!(start.at, start.slot.at.timestamp(), "{start}");
    }
    cluster.check();
    (cluster.store_of(0).calls(Call::Claim), cluster.store_of(0).calls_in_all())
}

#[test]
fn fault_30_with_more_instances_ticks_come_no_further_apart() {
    let (claims, calls) = claims_among(1);
    for n in [2, 10, 50] {
        let (claims_n, calls_n) = claims_among(n);
        assert!(
            claims_n <= claims.max(20) && calls_n <= calls + 20,
            "{n} instances: {claims_n} claims, {calls_n} calls"
        );
    }
}

#[test]
fn fault_36_a_heavy_job_of_the_night_does_not_start_at_noon() {
    let plan = Plan::new("heavy", "0 3 * * *").start_window(minutes(30)).catch_up(CatchUp::None);
    let mut cluster = Cluster::builder().instances(2).seed(36).plans([plan]).build();
    cluster.advance(minutes(60));
    (0..2).for_each(|i| cluster.kill(i));
    cluster.advance(minutes(11 * 60));
    (0..2).for_each(|i| cluster.restart(i));
    cluster.advance(minutes(10));
    cluster.expect_starts("heavy", 0);
    cluster.expect_not_started("heavy", minute(180), NotStarted::TooLate);
    cluster.advance(minutes(24 * 60));
    cluster.expect_starts("heavy", 1);
    cluster.check();
}
