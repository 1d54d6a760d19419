//! Load, and stopping.

use std::collections::HashMap;

use timertask_core::Plan;
use timertask_core::clock::Clock;
use timertask_testkit::{Call, Cluster, FakeClock, Fault};

use super::*;

#[test]
fn fault_54_spread_plans_start_spread_and_idle_nodes_hardly_ask() {
    let plans = (0..1000).map(|i| Plan::new(format!("plan-{i}"), "0 * * * *").spread(secs(60)));
    let mut cluster = Cluster::builder().instances(3).seed(54).plans(plans).build();
    cluster.advance(minutes(30));
    let idle: Vec<u64> = (0..3).map(|i| cluster.store_of(i).calls_in_all()).collect();
    cluster.advance(minutes(29));
    for (i, before) in idle.iter().enumerate() {
        let calls = cluster.store_of(i).calls_in_all() - before;
        // One sweep each ten seconds: what has lapsed, how the plans stand, what operators ask for.
        assert!(calls <= 3 * (29 * 6 + 1), "instance {i} called the store {calls} times in 29 idle minutes");
    }
    let before: Vec<u64> = (0..3).map(|i| cluster.store_of(i).calls(Call::Claim)).collect();
    cluster.advance(minutes(10));
    let mut by_second: HashMap<i64, usize> = HashMap::new();
    for start in cluster.starts() {
        *by_second.entry(start.at.trigger().as_secs()).or_default() += 1;
    }
    assert_eq!(cluster.starts().len(), 1000);
    let most = by_second.values().max().copied().unwrap_or(0);
    assert!(most < 45, "{most} of 1,000 plans start in one second");
    let claims: u64 = (0..3).map(|i| cluster.store_of(i).calls(Call::Claim) - before[i]).sum();
    assert!(claims <= 3 * 1000, "{claims} claims for 1,000 slots");
    cluster.check();
}

#[test]
fn fault_59_an_idle_scheduler_closes_at_once() {
    let mut cluster = Cluster::builder().seed(59).plans(minute_plans(3)).build();
    cluster.advance(secs(90));
    let before = cluster.now();
    assert!(cluster.scheduler(0).close(secs(30)).unwrap().is_clean());
    assert_eq!(cluster.now(), before);
    assert!(cluster.scheduler(0).close(secs(30)).unwrap().is_clean());
    assert_eq!((cluster.now(), cluster.clock().rooms()), (before, 0));
}

#[test]
fn fault_59_a_hung_job_is_told_to_stop_and_then_named() {
    let clock = FakeClock::seeded(59);
    let job = deaf(&clock, minutes(60));
    let mut cluster = Cluster::builder().clock(clock).plans(minute_plans(1)).job(job).build();
    cluster.advance(secs(90));
    let slot = cluster.starts()[0].slot.clone();
    let before = cluster.now();
    let report = cluster.scheduler(0).close(secs(20)).unwrap();
    assert_eq!(report.still_running.iter().map(|r| &r.slot).collect::<Vec<_>>(), [&slot]);
    let took = cluster.now().since(before);
    assert!(took >= secs(20) && took <= secs(23), "{took:?}");
    // A second call finds the same, and does not begin anew.
    assert_eq!(cluster.scheduler(0).close(Duration::ZERO).unwrap().still_running.len(), 1);
}

#[test]
fn fault_59_a_job_that_listens_is_stopped_at_the_deadline() {
    let mut cluster = Cluster::builder().seed(59).plans(minute_plans(1)).job(lasting(minutes(60))).build();
    cluster.advance(secs(90));
    let before = cluster.now();
    assert!(cluster.scheduler(0).close(secs(20)).unwrap().is_clean());
    assert_eq!(cluster.now().since(before), secs(20));
    cluster.check();
}

#[test]
fn fault_59_a_hung_store_does_not_hold_the_stop() {
    let mut cluster = Cluster::builder().seed(59).plans(minute_plans(1)).build();
    cluster.advance(secs(59));
    cluster.store_of(0).on(Call::End).always(Fault::Stall);
    cluster.advance(secs(2));
    let before = cluster.clock().monotonic();
    let report = cluster.scheduler(0).close(secs(10)).unwrap();
    assert_eq!(report.unrecorded.len(), 1, "{report:?}");
    assert!(cluster.clock().monotonic() - before <= secs(13));
}
