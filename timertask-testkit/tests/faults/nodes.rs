//! Duplicate runs across nodes.

use std::collections::HashSet;
use std::sync::PoisonError;

use timertask_core::seam::{Durability, Ledger};
use timertask_core::{MemLedger, Plan, Scheduler};
use timertask_testkit::{Call, Cluster, FakeClock, Fault};

use super::*;

/// Node A stops between its decision to claim and the claim; B runs the whole firing meanwhile, or not, as the seed
/// has it. Whatever A's claim then finds, the slot starts once.
#[test]
fn fault_01_a_claim_that_comes_after_the_whole_run_finds_it_ended() {
    let mut beaten = 0;
    for seed in 1..=200 {
        let mut cluster =
            Cluster::builder().instances(2).seed(seed).plans(minute_plans(1)).job(lasting(secs(1))).build();
        // Before its third claim, so that there is a steady state before.
        let view = cluster.view(0).clone();
        cluster.store_of(0).on(Call::Claim).nth(3, Fault::before(move || view.freeze()));
        cluster.advance(minutes(3) + secs(seed % 40));
        assert!(cluster.view(0).is_frozen());
        beaten += cluster.starts().iter().filter(|s| s.slot.at == minute(3) && s.instance == 1).count();
        cluster.thaw(0);
        cluster.advance(minutes(3));
        cluster.expect_each_once("plan-0", midnight(), cluster.now());
        cluster.check();
    }
    assert_eq!(beaten, 200, "the other node ran the slot while this one stood");
}

/// The same with the network's help: the request itself is late, and comes after the run.
#[test]
fn fault_01_a_late_request_is_no_second_start() {
    for seed in 1..=50 {
        let mut cluster = Cluster::builder().instances(2).seed(seed).plans(minute_plans(1)).build();
        cluster.store_of(0).on(Call::Claim).always(Fault::Straggler(secs(1 + seed % 50)));
        cluster.advance(minutes(10));
        cluster.store_of(0).heal();
        cluster.advance(minutes(5));
        for at in 1..=14 {
            let starts = cluster.starts().iter().filter(|s| s.slot.at == minute(at)).count();
            // A straggler may be granted to nobody: then the slot is orphaned, and not started.
            assert!(starts <= 1, "seed {seed}, minute {at}");
        }
        cluster.check();
    }
}

#[test]
fn fault_02_an_interval_is_the_same_on_nodes_that_started_apart() {
    let plans = [Plan::new("every", "@every 1m")];
    let mut cluster = Cluster::builder().instances(3).seed(2).stagger(secs(7)).plans(plans).build();
    let from = cluster.now();
    cluster.advance(minutes(60));
    cluster.expect_starts("every", 60);
    cluster.expect_each_once("every", from, cluster.now());
    let next: HashSet<_> = (0..3).map(|i| cluster.scheduler(i).plan("every").unwrap().unwrap().next).collect();
    assert_eq!(next.len(), 1, "all nodes wait for the same slot: {next:?}");
    cluster.check();
}

#[test]
fn fault_06_equal_labels_are_two_owners() {
    let mut cluster = Cluster::builder().instances(2).seed(6).labels(|_| "host".into()).plans(minute_plans(5)).build();
    cluster.advance(minutes(60));
    (0..5).for_each(|i| cluster.expect_each_once(&format!("plan-{i}"), midnight(), cluster.now()));
    assert!((0..2).all(|i| cluster.starts().iter().any(|s| s.instance == i)), "both took part");
    let nonces: HashSet<_> = cluster.starts().iter().map(|s| s.nonce).collect();
    assert_eq!(nonces.len(), cluster.starts().len(), "each run has a nonce of its own");
    cluster.check();
}

/// What was logged by anybody in this test program.
static LOGGED: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

struct Logger;

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        LOGGED.lock().unwrap_or_else(PoisonError::into_inner).push(record.args().to_string());
    }
    fn flush(&self) {}
}

#[test]
fn fault_07_one_start_with_a_store_and_a_word_of_warning_without() {
    let mut cluster = Cluster::builder().instances(3).seed(7).plans(minute_plans(2)).build();
    cluster.advance(minutes(10));
    (0..2).for_each(|i| cluster.expect_starts(&format!("plan-{i}"), 10));
    cluster.check();

    log::set_logger(&Logger).map(|()| log::set_max_level(log::LevelFilter::Info)).unwrap();
    let alone = FakeClock::new();
    let scheduler = Scheduler::builder(|_: &Run| Ok(())).clock(alone.clone()).instance("lonely").start().unwrap();
    let logged = LOGGED.lock().unwrap().clone();
    assert!(
        logged.iter().any(|l| l.contains("lonely") && l.contains("nothing is promised across processes")),
        "{logged:?}"
    );
    assert_eq!(MemLedger::new().describe().unwrap(), Durability::Volatile);
    scheduler.close(secs(1)).unwrap();
}
