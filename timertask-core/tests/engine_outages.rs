//! Stores that are out of reach for seconds or weeks, and stores that are lost.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use std::sync::Arc;
use std::time::Duration;
use timertask_core::key::PlanKey;
use timertask_core::seam::{
    Claim, ClaimRequest, Durability, EndRequest, Ended, Ledger, Outcome, Page, PlanOp, PlanState, Purged, Query,
    Renewal, Retention, StoreError, Term,
};
use timertask_core::{CatchUp, MemLedger, Plan, Scheduler, StoreErrorKind};
use timertask_testkit::{Call, FakeClock, Fault, Faulty};

#[test]
fn fault_49_an_outage_of_the_store_starts_nothing_and_leaves_nothing_unaccounted() {
    for outage in [40, 600] {
        let clock = FakeClock::new();
        let ledger = ledger(&clock);
        let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
        let log = Log::default();
        let events = Log::default();
        let scheduler = Scheduler::builder(recorder(&log))
            .clock(clock.clone())
            .ledger(faulty.clone())
            .observer(Ear(events.clone()))
            .start()
            .unwrap();
        scheduler.reconcile([Plan::new("p", "*/10 * * * * *"), Plan::new("q", "30 * * * * *")]).unwrap();
        clock.advance(secs(65));
        log.take();
        faulty.cut_off();
        clock.advance(secs(outage));
        assert_eq!(log.len(), 0);
        let health = scheduler.health();
        assert!(!health.store_reachable && health.store_fault.unwrap().contains("refused to work"));
        faulty.heal();
        clock.advance(secs(10));
        assert!(scheduler.health().store_reachable);
        assert!(!log.take().is_empty(), "full service at once");
        clock.advance(secs(90));
        for (id, spec) in [("p", "*/10 * * * * *"), ("q", "30 * * * * *")] {
            let upto = timertask_core::Clock::now(&*clock).saturating_sub(secs(65)).trigger();
            let missing = unaccounted(&ledger, id, spec, t("00:00:00"), upto);
            assert!(missing.is_empty(), "{id} after {outage} s: {missing:?} {:?}", story(&ledger, id));
        }
        if outage == 600 {
            assert!(scheduler.stats().dropped > 50, "an alarm for each: {}", scheduler.stats().dropped);
            let alarms = events.lines().iter().filter(|l| l.ends_with("store fault") && l.starts_with("p ")).count();
            assert_eq!(
                alarms as u64
                    + events.lines().iter().filter(|l| l.ends_with("store fault") && l.starts_with("q ")).count()
                        as u64,
                scheduler.stats().dropped
            );
        }
        assert_eq!(events.lines().iter().filter(|l| *l == "store back").count(), 1);
    }
}

#[test]
fn after_an_outage_inside_the_start_window_the_newest_slot_starts_and_not_the_oldest() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
    let log = Log::default();
    let scheduler =
        Scheduler::builder(worker(&log, secs(5))).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
    scheduler.reconcile([Plan::new("p", "*/10 * * * * *")]).unwrap();
    clock.advance(secs(5));
    faulty.cut_off();
    clock.advance(secs(38));
    faulty.heal();
    clock.advance(secs(4));
    assert_eq!(log.lines(), ["p 00:00:40"]);
    clock.advance(secs(100));
    assert!(unaccounted(&ledger, "p", "*/10 * * * * *", t("00:00:00"), t("00:01:20")).is_empty());
    let tally = tally(&ledger, "p");
    assert_eq!(tally.get("not started (overlap)"), None, "{tally:?}");
}

#[test]
fn after_an_outage_of_lost_requests_the_newest_slot_starts_too() {
    for fault in [Fault::LostRequest, Fault::LostAnswer, Fault::Error(StoreErrorKind::Busy)] {
        let clock = FakeClock::new();
        let ledger = ledger(&clock);
        let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
        let log = Log::default();
        let scheduler =
            Scheduler::builder(worker(&log, secs(5))).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
        scheduler.reconcile([Plan::new("p", "*/10 * * * * *"), minutely("q")]).unwrap();
        clock.advance(secs(5));
        faulty.on_any().always(fault.clone());
        clock.advance(secs(38));
        faulty.heal();
        clock.advance(secs(4));
        // One whose grant had only not been heard of is given back for it.
        assert_eq!(log.lines(), ["p 00:00:40"], "{fault:?}");
        clock.advance(secs(100));
        assert!(unaccounted(&ledger, "p", "*/10 * * * * *", t("00:00:00"), t("00:01:20")).is_empty());
        let tally = tally(&ledger, "p");
        assert_eq!(tally.get("orphaned"), None, "{fault:?} {:?}", story(&ledger, "p"));
    }
}

#[test]
fn after_a_store_was_lost_nothing_of_the_past_fires_and_plans_are_opened_again() {
    let clock = FakeClock::new();
    let log = Log::default();
    let store = Arc::new(std::sync::Mutex::new(ledger(&clock)));
    let scheduler = Scheduler::builder(recorder(&log))
        .clock(clock.clone())
        .ledger(Replaceable(Arc::clone(&store)))
        .start()
        .unwrap();
    scheduler.reconcile([minutely("p"), Plan::new("q", "30 * * * * *")]).unwrap();
    clock.advance(secs(185));
    log.take();
    let empty = ledger(&clock);
    *store.lock().unwrap() = empty.clone();
    clock.advance(secs(180));
    let ran = log.lines();
    let mut once = ran.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), ran.len());
    assert!(ran.len() >= 4, "{ran:?}");
    assert!(row(&empty, "p").unwrap().generation.effective_from > t("00:03:05"));
    assert_eq!(scheduler.stats().yielded, 0, "no slot was asked for twice");
}

/// A ledger whose store can be lost.
struct Replaceable(Arc<std::sync::Mutex<MemLedger>>);

impl Replaceable {
    fn now(&self) -> MemLedger {
        self.0.lock().unwrap().clone()
    }
}

impl Ledger for Replaceable {
    fn describe(&self) -> Result<Durability, StoreError> {
        self.now().describe()
    }
    fn plan(&self, requests: &[(PlanKey, PlanOp)]) -> Outcome<Vec<PlanState>> {
        self.now().plan(requests)
    }
    fn claim(&self, requests: &[ClaimRequest]) -> Outcome<Vec<Claim>> {
        self.now().claim(requests)
    }
    fn renew(&self, terms: &[Term], ttl: Duration) -> Outcome<Vec<Renewal>> {
        self.now().renew(terms, ttl)
    }
    fn end(&self, requests: &[EndRequest]) -> Outcome<Vec<Ended>> {
        self.now().end(requests)
    }
    fn read(&self, query: &Query) -> Outcome<Page> {
        self.now().read(query)
    }
    fn purge(&self, plan: &PlanKey, keep: Retention, at_most: usize) -> Outcome<Purged> {
        self.now().purge(plan, keep, at_most)
    }
}

#[test]
fn a_lost_answer_of_a_claim_is_asked_for_again_whatever_has_become_of_the_slot() {
    // The claim is carried out, its answer lost, and the store is gone until the start window has closed.
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
    let log = Log::default();
    let scheduler = Scheduler::builder(recorder(&log)).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
    scheduler.reconcile([Plan::new("p", "@hourly").start_window(secs(10))]).unwrap();
    clock.advance(secs(3599));
    faulty.on(Call::Claim).nth(1, Fault::LostAnswer);
    clock.settle();
    clock.advance(Duration::from_millis(1001));
    faulty.cut_off();
    clock.advance(secs(15));
    assert_eq!(log.len(), 0);
    faulty.heal();
    clock.advance(secs(25));
    // It was given back as too late and is made up; it did not end as orphaned without having run.
    assert_eq!(log.lines(), ["p 01:00:00"]);
    assert_eq!(tally(&ledger, "p"), [("succeeded".to_owned(), 1)].into());
}

#[test]
fn weeks_of_outage_and_of_a_hanging_store_grow_nothing() {
    for hang in [false, true] {
        let clock = FakeClock::new();
        let ledger = ledger(&clock);
        let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
        let log = Log::default();
        let scheduler = Scheduler::builder(recorder(&log)).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
        let second = Plan::new("second", "* * * * * *").start_window(secs(40 * 86_400)).catch_up(CatchUp::None);
        let long =
            Plan::new("long", "5 * * * * *").start_window(secs(40 * 86_400)).overlap(timertask_core::Overlap::Allow(3));
        scheduler.reconcile([second, long]).unwrap();
        clock.advance(secs(2));
        log.take();
        if hang {
            faulty.on_any().always(Fault::Stall);
        } else {
            faulty.on_any().always(Fault::Error(StoreErrorKind::Unreachable));
        }
        clock.advance(secs(6 * 3600));
        assert_eq!(log.len(), 0);
        faulty.heal();
        clock.advance(secs(1));
        let begun = log.take();
        assert!(begun.len() <= 8, "the newest of each, not a day's worth: {begun:?}");
        clock.advance(secs(120));
        assert!(log.len() >= 120);
    }
}
