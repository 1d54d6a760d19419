//! The cluster itself: a simulated day, the same run for the same seed, and each fault of machines and networks.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::time::Duration;

use timertask_core::key::PlanKey;
use timertask_core::seam::{
    Claim, ClaimRequest, Durability, EndRequest, Ended, Ending, Ledger, NotStarted, Outcome, Page, PlanOp, PlanState,
    Purged, Query, Renewal, Retention, SlotState, StoreError, Term,
};
use timertask_core::{Backoff, BoxError, CatchUp, MemLedger, OnOrphan, Overlap, Plan, RetryBudget, Run, Trigger};
use timertask_testkit::{Cluster, FakeClock, Left, Trace};

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn minutes(n: u64) -> Duration {
    secs(60 * n)
}

/// `n` plans that fire each minute.
fn minute_plans(n: usize) -> Vec<Plan> {
    (0..n).map(|i| Plan::new(format!("plan-{i}"), "* * * * *")).collect()
}

/// The trigger point `minute` minutes after the cluster's start at midnight.
fn minute(cluster: &Cluster, minute: i64) -> Trigger {
    let midnight = cluster.now().trigger().as_secs().div_euclid(86_400) * 86_400;
    Trigger::from_secs(midnight + 60 * minute)
}

/// A job that waits, and gives up when it is told to stop.
fn lasting(d: Duration) -> impl Fn(&Run) -> Result<(), BoxError> + Send + Sync + 'static {
    move |run| Ok(run.wait(d)?)
}

#[test]
fn a_simulated_day_of_20_minute_plans_on_3_instances() {
    let mut cluster = Cluster::builder().instances(3).seed(1).plans(minute_plans(20)).build();
    let start = cluster.now();
    cluster.advance(minutes(24 * 60));
    let summary = cluster.check();
    assert_eq!((summary.plans, summary.starts, summary.expected), (20, 28_800, 28_800), "{summary:?}");
    assert_eq!((summary.started, summary.pending, summary.not_started), (28_800, 0, 0), "{summary:?}");
    for plan in 0..20 {
        cluster.expect_each_once(&format!("plan-{plan}"), start, cluster.now());
    }
    let by_instance = (0..3).map(|i| cluster.starts().iter().filter(|s| s.instance == i).count());
    assert!(by_instance.clone().all(|n| n > 1000), "{:?}", by_instance.collect::<Vec<_>>());
}

fn eventful_hour(seed: u64) -> (Trace, usize) {
    let job = lasting(secs(20));
    let mut cluster = Cluster::builder().instances(3).seed(seed).plans(minute_plans(5)).job(job).build();
    cluster.advance(minutes(10) + secs(7));
    cluster.kill(0);
    cluster.advance(minutes(5));
    cluster.freeze(1);
    cluster.restart(0);
    cluster.advance(minutes(10));
    cluster.thaw(1);
    cluster.cut_off(2);
    cluster.advance(minutes(10));
    cluster.reconnect(2);
    cluster.stop(0, secs(30));
    cluster.advance(minutes(25));
    let summary = cluster.check();
    (cluster.trace(), summary.starts)
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let (first, starts) = eventful_hour(11);
    assert_eq!((first, starts), eventful_hour(11));
    assert_ne!(eventful_hour(12).0.hash, eventful_hour(11).0.hash);
    assert!(starts > 200, "{starts}");
}

/// A ledger that notes what it is asked, in order.
struct Asked {
    ledger: MemLedger,
    asked: Arc<std::sync::Mutex<Vec<String>>>,
}

impl Asked {
    fn note(&self, call: &str, what: &dyn std::fmt::Debug) {
        self.asked.lock().unwrap().push(format!("{call} {what:?}"));
    }
}

impl Ledger for Asked {
    fn describe(&self) -> Result<Durability, StoreError> {
        self.ledger.describe()
    }
    fn plan(&self, ops: &[(PlanKey, PlanOp)]) -> Outcome<Vec<PlanState>> {
        self.note("plan", &ops);
        self.ledger.plan(ops)
    }
    fn claim(&self, requests: &[ClaimRequest]) -> Outcome<Vec<Claim>> {
        self.note("claim", &requests);
        self.ledger.claim(requests)
    }
    fn renew(&self, terms: &[Term], ttl: Duration) -> Outcome<Vec<Renewal>> {
        self.note("renew", &terms);
        self.ledger.renew(terms, ttl)
    }
    fn end(&self, requests: &[EndRequest]) -> Outcome<Vec<Ended>> {
        self.note("end", &requests);
        self.ledger.end(requests)
    }
    fn read(&self, query: &Query) -> Outcome<Page> {
        self.note("read", &query);
        self.ledger.read(query)
    }
    fn purge(&self, plan: &PlanKey, keep: Retention, at_most: usize) -> Outcome<Purged> {
        self.note("purge", &(plan, at_most));
        self.ledger.purge(plan, keep, at_most)
    }
}

/// Plans of every policy, edited and dropped; jobs that fail, come back and do not stop; kills, cuts, steps of the clock.
fn asked_for(seed: u64) -> (Vec<String>, Trace) {
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    let job = |run: &Run| -> Result<(), BoxError> {
        run.wait(secs(1 + u64::from(run.tries()) * 7))?;
        if run.trigger().timestamp() % 3 == 0 { Err("no".into()) } else { Ok(()) }
    };
    let plans = |edit: u64| {
        let backoff = Backoff::Exponential { first: secs(3), max: secs(20) };
        let budget = RetryBudget { attempts: 3, timeout: secs(30), backoff, slack: secs(10) };
        (0..40_u64).filter(move |n| n % 5 != edit % 5).map(move |n| {
            let plan = Plan::new(
                format!("p{n}"),
                ["* * * * *", "*/10 * * * * *", "@every 7s", "30 */2 * * * *"][n as usize % 4],
            );
            let plan = plan.retry(budget).payload(if n % 7 == edit % 7 { "edited" } else { "" });
            match n % 6 {
                0 => plan.overlap(Overlap::QueueOne).catch_up(CatchUp::All { cap: 4 }),
                1 => plan.overlap(Overlap::CancelPrevious),
                2 => plan.overlap(Overlap::Allow(2)).catch_up(CatchUp::None),
                3 => plan.on_orphan(OnOrphan::Rerun { max: 2 }),
                _ => plan.spread(secs(20)),
            }
        })
    };
    let open = move |clock| Asked { ledger: MemLedger::with_clock(clock).keeping(usize::MAX), asked: Arc::clone(&log) };
    let mut cluster =
        Cluster::builder().instances(3).seed(seed).concurrency(3).plans(plans(0)).job(job).ledger(open).build();
    for edit in 1..4 {
        cluster.advance(minutes(3));
        cluster.reconcile(plans(edit));
        cluster.advance(secs(40));
        cluster.kill(0);
        cluster.cut_off(1);
        cluster.advance(minutes(2));
        cluster.reconnect(1);
        cluster.restart(0);
        cluster.advance(secs(30));
        cluster.step_wall(chrono::TimeDelta::seconds(if edit == 2 { -40 } else { 40 }));
    }
    cluster.reconcile([]);
    cluster.advance(minutes(2));
    let trace = cluster.trace();
    drop(cluster);
    let asked = std::mem::take(&mut *asked.lock().unwrap());
    (asked, trace)
}

/// Every map in the process has another order of its own (its hasher is seeded at random), which must show nowhere.
#[test]
fn the_same_seed_asks_the_store_the_same_in_the_same_order() {
    for seed in 0..3 {
        let (first, trace) = asked_for(seed);
        let (second, again) = asked_for(seed);
        assert!(first.len() > 1000, "{}", first.len());
        for (n, (one, two)) in first.iter().zip(&second).enumerate() {
            assert_eq!(one, two, "seed {seed}, call {n}");
        }
        assert_eq!((first.len(), trace), (second.len(), again), "seed {seed}");
    }
}

#[test]
fn a_killed_run_is_orphaned_and_the_next_slots_go_on() {
    let mut cluster =
        Cluster::builder().instances(2).seed(3).plans([Plan::new("p", "* * * * *")]).job(lasting(secs(40))).build();
    cluster.advance(secs(70));
    let runner = cluster.starts()[0].instance;
    cluster.kill(runner);
    assert_eq!(cluster.starts()[0].left.as_ref().map(|(_, left)| left), Some(&Left::Killed));
    let slot = minute(&cluster, 1);
    cluster.expect_state("p", slot, SlotState::Running);
    // Lease and three sweeps.
    cluster.advance(secs(60));
    cluster.expect_state("p", slot, SlotState::Ended(Ending::Orphaned));
    // While the dead run was believed to be alive, its plan counted as running.
    cluster.advance(minutes(10));
    cluster.expect_state("p", minute(&cluster, 2), SlotState::NotStarted(NotStarted::Overlap));
    cluster.expect_each_once("p", minute(&cluster, 2).timestamp(), cluster.now().saturating_sub(secs(60)));
    cluster.check();
}

#[test]
fn all_down_and_up_again_catches_up_with_the_latest() {
    let mut cluster = Cluster::builder().instances(3).seed(5).plans(minute_plans(3)).build();
    cluster.advance(minutes(5));
    for i in 0..3 {
        cluster.kill(i);
    }
    cluster.advance(minutes(30) + secs(30));
    for i in 0..3 {
        cluster.restart(i);
    }
    cluster.advance(minutes(5));
    cluster.check();
    for plan in ["plan-0", "plan-1", "plan-2"] {
        // Five before, the latest missed one, five after: at 35 the window was still open when they came up.
        cluster.expect_each_once(plan, minute(&cluster, 34).timestamp(), cluster.now());
        cluster.expect_starts(plan, 5 + 1 + 5);
    }
    assert_eq!(cluster.check().pending, 0);
}

#[test]
fn a_zombie_learns_that_its_lease_is_lost_and_its_end_is_refused() {
    let job = |run: &Run| -> Result<(), BoxError> {
        run.wait(secs(20))?;
        Ok(())
    };
    let mut cluster = Cluster::builder().instances(2).seed(2).plans([Plan::new("p", "*/10 * * * *")]).job(job).build();
    cluster.advance(minutes(10) + secs(5));
    let zombie = cluster.starts()[0].instance;
    cluster.freeze(zombie);
    cluster.advance(minutes(5));
    cluster.expect_state("p", minute(&cluster, 10), SlotState::Ended(Ending::Orphaned));
    cluster.thaw(zombie);
    cluster.advance(secs(60));
    assert!(
        matches!(&cluster.starts()[0].left, Some((_, Left::Failed(why))) if why.contains("lease")),
        "{:?}",
        cluster.starts()[0]
    );
    cluster.expect_state("p", minute(&cluster, 10), SlotState::Ended(Ending::Orphaned));
    cluster.advance(minutes(20));
    cluster.expect_each_once("p", minute(&cluster, 0).timestamp(), cluster.now());
    cluster.check();
}

#[test]
fn a_cut_off_instance_starts_nothing_and_the_others_do() {
    let mut cluster = Cluster::builder().instances(2).seed(4).plans(minute_plans(4)).build();
    cluster.advance(minutes(5));
    cluster.cut_off(0);
    let before = cluster.starts().len();
    cluster.advance(minutes(30));
    assert!(cluster.starts()[before..].iter().all(|s| s.instance == 1));
    cluster.reconnect(0);
    cluster.advance(minutes(30));
    let since = before + 4 * 30;
    assert!(cluster.starts()[since..].iter().any(|s| s.instance == 0));
    let (from, now) = (minute(&cluster, 0), cluster.now());
    (0..4).for_each(|plan| cluster.expect_each_once(&format!("plan-{plan}"), from.timestamp(), now));
    cluster.check();
}

#[test]
fn a_suspended_host_makes_up_for_nothing_that_others_ran() {
    let mut cluster = Cluster::builder().instances(2).seed(9).plans(minute_plans(2)).build();
    cluster.advance(minutes(3));
    cluster.suspend(0);
    cluster.advance(minutes(60));
    cluster.thaw(0);
    cluster.advance(minutes(10));
    let from = minute(&cluster, 0).timestamp();
    (0..2).for_each(|plan| cluster.expect_each_once(&format!("plan-{plan}"), from, cluster.now()));
    cluster.check();
}

/// The same engine on its real threads, which wait on the same clock: what happens between two waits is up to the
/// system.
#[test]
fn on_real_threads_every_slot_starts_once_too() {
    let clock = FakeClock::threaded();
    let job = lasting(secs(5));
    let mut cluster = Cluster::builder().clock(clock).instances(3).plans(minute_plans(5)).job(job).build();
    let start = cluster.now();
    cluster.advance(minutes(30));
    cluster.kill(0);
    cluster.advance(minutes(10));
    cluster.restart(0);
    cluster.freeze(1);
    cluster.advance(minutes(10));
    cluster.thaw(1);
    cluster.stop(2, secs(30));
    cluster.advance(minutes(10));
    let end = cluster.now().saturating_sub(secs(10));
    (0..5).for_each(|i| cluster.expect_each_once(&format!("plan-{i}"), start, end));
    cluster.check();
}

#[test]
#[should_panic(expected = "\"plan-0\" was started 3 times, not 4 (at 2026-01-01T00:03:00Z, seed 6)")]
fn a_failed_expectation_names_slots_instances_and_seed() {
    let mut cluster = Cluster::builder().seed(6).plans(minute_plans(1)).build();
    cluster.advance(minutes(3));
    cluster.expect_starts("plan-0", 4);
}
