//! Retention: on by default, in small batches, and never past what is not ended.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::secs;
use timertask_core::key::{Namespace, PlanKey};
use timertask_core::seam::{
    Claim, ClaimRequest, Durability, EndRequest, Ended, Ledger, Outcome, Page, PlanOp, PlanState, Purged, Query,
    Renewal, Retention, SlotState, Term,
};
use timertask_core::{Builder, MemLedger, Plan, PlanId, Run, Scheduler, StoreError, Trigger};
use timertask_testkit::FakeClock;

/// A ledger in memory that says of itself that it is durable, forgets nothing by itself, and notes its purges.
#[derive(Clone)]
struct Durable {
    inner: MemLedger,
    purges: Arc<AtomicUsize>,
    largest: Arc<AtomicUsize>,
}

impl Durable {
    fn new(clock: &FakeClock) -> Self {
        let inner = MemLedger::with_clock(Arc::new(clock.clone())).keeping(usize::MAX);
        Self { inner, purges: Arc::default(), largest: Arc::default() }
    }

    fn slots(&self, plan: &str) -> Vec<SlotState> {
        let plan = PlanKey::new(Namespace::default(), PlanId::new(plan).unwrap());
        let query = Query::History {
            plan,
            after: Trigger::from_secs(0),
            upto: Trigger::from_secs(i64::MAX / 2_000_000),
            page: None,
            limit: usize::MAX,
        };
        self.inner.read(&query).unwrap().value.slots.into_iter().map(|slot| slot.state).collect()
    }
}

impl Ledger for Durable {
    fn describe(&self) -> Result<Durability, StoreError> {
        Ok(Durability::Durable { synced: true })
    }
    fn plan(&self, requests: &[(PlanKey, PlanOp)]) -> Outcome<Vec<PlanState>> {
        self.inner.plan(requests)
    }
    fn claim(&self, requests: &[ClaimRequest]) -> Outcome<Vec<Claim>> {
        self.inner.claim(requests)
    }
    fn renew(&self, terms: &[Term], ttl: Duration) -> Outcome<Vec<Renewal>> {
        self.inner.renew(terms, ttl)
    }
    fn end(&self, requests: &[EndRequest]) -> Outcome<Vec<Ended>> {
        self.inner.end(requests)
    }
    fn read(&self, query: &Query) -> Outcome<Page> {
        self.inner.read(query)
    }
    fn purge(&self, plan: &PlanKey, keep: Retention, at_most: usize) -> Outcome<Purged> {
        let answer = self.inner.purge(plan, keep, at_most)?;
        self.purges.fetch_add(1, Ordering::Relaxed);
        self.largest.fetch_max(answer.value.deleted, Ordering::Relaxed);
        Ok(answer)
    }
}

fn start(clock: &FakeClock, ledger: &Durable, f: impl FnOnce(Builder) -> Builder) -> Scheduler {
    let job = |run: &Run| {
        if run.plan() == "long" {
            run.wait(secs(40 * 86_400))?;
        }
        Ok(())
    };
    f(Scheduler::builder(job).clock(clock.clone()).ledger(ledger.clone())).start().unwrap()
}

#[test]
fn fault_55_the_default_keeps_the_table_small() {
    let clock = FakeClock::new();
    let ledger = Durable::new(&clock);
    let scheduler = start(&clock, &ledger, |builder| builder);
    scheduler.reconcile([Plan::new("busy", "*/2 * * * *")]).unwrap();
    clock.advance(secs(3 * 86_400));
    let busy = ledger.slots("busy").len();
    assert!((1000..1000 + 100).contains(&busy), "{busy} records of 2,160 are left");
    let default = Retention { age: Some(secs(30 * 86_400)), count: Some(1000), keep_last: 10 };
    assert_eq!(Retention::default(), default);
    assert!(ledger.largest.load(Ordering::Relaxed) <= 200, "batches are small");
}

#[test]
fn a_running_slot_and_what_is_newer_stay() {
    let clock = FakeClock::new();
    let ledger = Durable::new(&clock);
    let keep = Retention { age: Some(secs(3600)), count: None, keep_last: 0 };
    let scheduler = start(&clock, &ledger, |builder| builder.retention(keep));
    // The second slot and all later ones are not started while the first one runs.
    scheduler.reconcile([Plan::new("long", "@hourly"), Plan::new("short", "@hourly")]).unwrap();
    clock.advance(secs(2 * 86_400));
    let states = ledger.slots("long");
    assert_eq!(states.first(), Some(&SlotState::Running));
    assert_eq!(states.len(), 2 * 24);
    let short = ledger.slots("short").len();
    assert!(short <= 4, "{short} records of the last hour");
    assert!(ledger.purges.load(Ordering::Relaxed) > 0);
}

#[test]
fn nothing_is_purged_of_plans_that_are_not_installed_here() {
    let clock = FakeClock::new();
    let ledger = Durable::new(&clock);
    let keep = Retention { age: Some(secs(60)), count: None, keep_last: 0 };
    let scheduler = start(&clock, &ledger, |builder| builder.retention(keep));
    scheduler.reconcile([Plan::new("gone", "@every 10s"), Plan::new("here", "@every 10s")]).unwrap();
    clock.advance(secs(65));
    scheduler.remove("gone").unwrap();
    let before = ledger.slots("gone").len();
    clock.advance(secs(86_400));
    assert_eq!(ledger.slots("gone").len(), before);
    let here = ledger.slots("here").len();
    assert!(here < 100, "{here} of 8,646 records are left");
}
