//! What an instance counts, in all and by plan, and that an observer can count the same.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use timertask_core::{
    BoxError, CatchUp, Event, NotStarted, Observer, OnOrphan, Overlap, Plan, RetryBudget, Run, RunOutcome, Scheduler,
    StoreErrorKind,
};
use timertask_testkit::{Call, FakeClock, Fault, Faulty};

/// What somebody counts who knows nothing but the events: by name, plan and outcome.
#[derive(Clone, Default)]
struct Counting(Arc<std::sync::Mutex<BTreeMap<String, u64>>>);

impl Counting {
    fn add(&self, name: &str, plan: &str, n: u64) {
        *self.0.lock().unwrap().entry(format!("{name} {plan}")).or_default() += n;
    }
    fn get(&self, name: &str, plan: &str) -> u64 {
        self.0.lock().unwrap().get(&format!("{name} {plan}")).copied().unwrap_or(0)
    }
}

impl Observer for Counting {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Due { slot } => self.add("due", slot.plan.plan_str(), 1),
            Event::Started { slot, .. } => self.add("started", slot.plan.plan_str(), 1),
            Event::TryFailed { slot, .. } => self.add("tries", slot.plan.plan_str(), 1),
            Event::Record(record) => self.add(&record.outcome.to_string(), record.slot.plan.plan_str(), 1),
            Event::Missed { plan, count, reason } => {
                self.add("missed", plan.as_str(), *count);
                if let Some(reason) = reason {
                    self.add(&RunOutcome::NotStarted(*reason).to_string(), plan.as_str(), *count);
                }
            }
            Event::Orphaned { slot, rerun: false } => self.add("orphaned", slot.plan.plan_str(), 1),
            Event::StoreFault { .. } => self.add("faults", "", 1),
            _ => {}
        }
    }
}

fn assert_same(scheduler: &Scheduler, counting: &Counting, plans: &[&str]) {
    let stats = scheduler.stats();
    let mut sums = BTreeMap::<&str, u64>::new();
    for id in plans {
        let Some(plan) = scheduler.plan_stats(id) else { continue };
        let mut same = |name: &'static str, counted: u64| {
            assert_eq!(counting.get(name, id), counted, "{name} {id}: {plan:?} {:?}", counting.0.lock().unwrap());
            *sums.entry(name).or_default() += counted;
        };
        same("due", plan.due);
        same("started", plan.started);
        same("tries", plan.failed_tries);
        same("succeeded", plan.succeeded);
        same("failed", plan.failed);
        same("cancelled", plan.cancelled);
        same("orphaned", plan.orphaned);
        same("missed", plan.missed);
        same("yielded", plan.yielded);
        same("given back", plan.given_back);
        same("lease lost", plan.lease_lost);
        same("store fault", plan.dropped);
        for (reason, n) in plan.not_started_by.iter() {
            assert_eq!(counting.get(&RunOutcome::NotStarted(reason).to_string(), id), n, "{reason} {id}");
        }
        *sums.entry("not started").or_default() += plan.not_started;
    }
    let all = [
        ("started", stats.started),
        ("tries", stats.failed_tries),
        ("succeeded", stats.succeeded),
        ("failed", stats.failed),
        ("cancelled", stats.cancelled),
        ("orphaned", stats.orphaned),
        ("missed", stats.missed),
        ("yielded", stats.yielded),
        ("given back", stats.given_back),
        ("lease lost", stats.lease_lost),
        ("store fault", stats.dropped),
        ("not started", stats.not_started),
    ];
    for (name, n) in all {
        assert_eq!(sums.get(name).copied().unwrap_or(0), n, "{name}: {stats:?}");
    }
    assert_eq!(stats.not_started_by.iter().map(|(_, n)| n).sum::<u64>(), stats.not_started);
    assert_eq!(counting.get("faults", ""), stats.store_faults);
}

#[test]
fn two_instances_count_by_plan_and_outcome_and_an_observer_comes_to_the_same() {
    let clock = FakeClock::seeded(7);
    let ledger = ledger(&clock);
    let ids = ["well", "fails", "overlaps", "capped", "stops", "dies"];
    let plans = || {
        let budget = RetryBudget { attempts: 2, timeout: secs(10), backoff: secs(1).into(), slack: secs(9) };
        [
            minutely("well"),
            minutely("fails").retry(budget),
            Plan::new("overlaps", "*/10 * * * * *").overlap(Overlap::Skip).catch_up(CatchUp::None),
            Plan::new("capped", "*/2 * * * *").catch_up(CatchUp::All { cap: 3 }),
            Plan::new("stops", "@hourly"),
            Plan::new("dies", "30 * * * *").on_orphan(OnOrphan::Record),
        ]
    };
    let job = |run: &Run| -> Result<(), BoxError> {
        match run.plan() {
            "fails" => Err("no".into()),
            "overlaps" => Ok(run.wait(secs(25))?),
            "stops" | "dies" => Ok(run.wait(secs(10_000))?),
            _ => Ok(run.wait(secs(2))?),
        }
    };
    let counting: [Counting; 2] = Default::default();
    let views = ["a", "b"].map(|name| clock.view(name));
    let stores = [0, 1].map(|n| Faulty::new(ledger.clone(), Arc::new(views[n].clone())));
    let start = |n: usize| {
        let builder = Scheduler::builder(job).concurrency(6).observer(counting[n].clone());
        let scheduler = builder.clock(views[n].clone()).ledger(stores[n].clone()).start().unwrap();
        scheduler.reconcile(plans()).unwrap();
        scheduler
    };
    let a = start(0);
    clock.advance(secs(1));
    let b = start(1);
    clock.advance(secs(31 * 60));
    // Both are out of reach of the store for a while; one of them stands still for longer.
    stores.iter().for_each(|store| store.cut_off());
    clock.advance(secs(15 * 60));
    stores.iter().for_each(|store| store.heal());
    clock.advance(secs(5 * 60));
    // As a run of 25 seconds begins on it, which therefore outlives its lease.
    let begun = || counting[0].get("started", "overlaps");
    let before = begun();
    while begun() == before {
        clock.advance(secs(1));
    }
    views[0].freeze();
    clock.advance(secs(5 * 60));
    views[0].thaw();
    clock.advance(secs(10 * 60));
    assert_same(&a, &counting[0], &ids);
    assert_same(&b, &counting[1], &ids);
    let both = |f: fn(&timertask_core::Stats) -> u64| f(&a.stats()) + f(&b.stats());
    assert!(both(|s| s.succeeded) > 90 && both(|s| s.failed) > 40, "{:?} {:?}", a.stats(), b.stats());
    assert!(both(|s| s.failed_tries) >= 2 * both(|s| s.failed));
    assert!(both(|s| s.yielded) > 50 && both(|s| s.missed) > 20 && both(|s| s.dropped) > 0);
    assert!(b.stats().orphaned > 0 && a.stats().lease_lost > 0, "{:?} {:?}", a.stats(), b.stats());
    let reason = |reason| a.stats().not_started_by.of(reason) + b.stats().not_started_by.of(reason);
    assert!(reason(NotStarted::Overlap) > 50 && reason(NotStarted::OverCap) > 0 && reason(NotStarted::TooLate) > 0);
    // As many slots as the ledger has on record, each counted by one of them.
    let recorded: usize = ids.iter().map(|id| tally(&ledger, id).get("succeeded").copied().unwrap_or(0)).sum();
    assert_eq!(both(|s| s.succeeded), recorded as u64);
    // The job that nothing stops is told to.
    assert!(a.close(secs(1)).unwrap().is_clean() && b.close(secs(1)).unwrap().is_clean());
    assert_same(&a, &counting[0], &ids);
    assert_same(&b, &counting[1], &ids);
    assert!(both(|s| s.cancelled) > 0);
}

#[test]
fn counters_of_a_plan_go_on_over_edits_and_begin_anew_where_it_was_gone() {
    let clock = FakeClock::new();
    let scheduler = Scheduler::builder(|_: &Run| Ok(())).clock(clock.clone()).start().unwrap();
    scheduler.reconcile([minutely("p"), Plan::new("rare", "@yearly")]).unwrap();
    assert!(scheduler.stats_by_plan().is_empty(), "no slot has fallen due");
    clock.advance(secs(185));
    scheduler.reconcile([minutely("p").payload("edited"), Plan::new("rare", "@yearly")]).unwrap();
    clock.advance(secs(120));
    let stats = scheduler.plan_stats("p").unwrap();
    assert_eq!((stats.due, stats.started, stats.succeeded), (5, 5, 5));
    assert_eq!(stats.last_success_here, Some(t("00:05:00").to_datetime()));
    assert_eq!(scheduler.stats_by_plan(), [stats]);
    assert!(scheduler.plan_stats("rare").is_none() && scheduler.plan_stats("unknown").is_none());
    scheduler.reconcile([]).unwrap();
    assert!(scheduler.plan_stats("p").is_none());
    scheduler.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(60));
    assert_eq!(scheduler.plan_stats("p").unwrap().succeeded, 1);
}

#[test]
fn the_last_success_is_that_of_this_instance_and_that_of_any_as_the_ledger_tells() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    // The first one alone has a worker for it most of the time.
    let first = start(Scheduler::builder(|_: &Run| Ok(())), &clock.view("a"), &ledger);
    first.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(61));
    let failing = |_: &Run| -> Result<(), BoxError> { Err("no".into()) };
    let view = clock.view("b");
    let second = start(Scheduler::builder(failing), &view, &ledger);
    second.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(240));
    first.close(secs(1)).unwrap();
    clock.advance(secs(60));
    let at = |text: &str| Some(t(text).to_datetime());
    let (a, b) = (first.plan_stats("p").unwrap(), second.plan_stats("p").unwrap());
    assert!(a.succeeded >= 1 && b.failed >= 1, "{a:?} {b:?}");
    assert_eq!((b.last_success_here, b.last_success), (None, a.last_success_here));
    assert!(a.last_success_here >= at("00:01:00"));
    assert_eq!(first.stats().last_success.map(|t| t.trigger().to_datetime()), a.last_success_here);
    assert_eq!(second.stats().last_success, None);
}

#[test]
fn stats_tell_how_much_waits_and_for_what() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let job = |run: &Run| -> Result<(), BoxError> {
        match run.plan() {
            "fails" => Err("no".into()),
            _ => Ok(run.wait(secs(600))?),
        }
    };
    let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
    let scheduler = Scheduler::builder(job).concurrency(3).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
    let waiting = |scheduler: &Scheduler| {
        let s = scheduler.stats();
        let busy = (s.workers, s.in_jobs, s.running, s.stuck);
        (busy, (s.due_waiting, s.queued, s.retries_waiting, s.gate_waiting, s.catch_up_waiting))
    };
    let budget = RetryBudget { attempts: 2, timeout: secs(700), backoff: secs(700).into(), slack: secs(9) };
    let mut plans = vec![
        Plan::new("fails", "1 1 * * * *").retry(budget),
        Plan::new("queues", "2,12 1 * * * *").overlap(Overlap::QueueOne),
    ];
    scheduler.reconcile(plans.clone()).unwrap();
    clock.advance(secs(65));
    assert_eq!(waiting(&scheduler), ((3, 1, 2, 0), (0, 0, 1, 0, 0)), "a retry waits, one runs");
    clock.advance(secs(10));
    assert_eq!(waiting(&scheduler), ((3, 1, 2, 0), (0, 0, 1, 1, 0)), "a slot waits for its plan");
    plans.extend((0..7).map(|n| Plan::new(format!("many-{n}"), "30 1 * * * *")));
    scheduler.reconcile(plans.clone()).unwrap();
    clock.advance(secs(20));
    assert_eq!(waiting(&scheduler), ((3, 3, 4, 0), (5, 0, 1, 1, 0)), "five wait for a worker");
    // Once their windows have closed they were missed.
    clock.advance(secs(80));
    let ((.., in_jobs, _, _), (due, .., catch_up)) = waiting(&scheduler);
    assert_eq!((in_jobs, due, catch_up), (3, 0, 5), "{:?}", scheduler.stats());
    scheduler.close_now().unwrap();
    assert_eq!(waiting(&scheduler).0, (3, 0, 0, 0));
}

#[test]
fn histograms_tell_how_late_and_how_long() {
    let clock = FakeClock::new();
    let faulty = Faulty::new(ledger(&clock), Arc::new(clock.clone()));
    let job =
        |run: &Run| -> Result<(), BoxError> { Ok(run.wait(secs(if run.plan() == "long" { 5 * 3600 } else { 3 }))?) };
    let scheduler = Scheduler::builder(job).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
    scheduler.reconcile([minutely("p"), Plan::new("long", "30 0 0 * * *")]).unwrap();
    assert_eq!(scheduler.stats().duration.percentile(50), None);
    clock.advance(secs(6 * 3600 + 10));
    let stats = scheduler.stats();
    assert_eq!((stats.duration.count(), stats.lateness.count()), (361, 361));
    assert_eq!(stats.duration.sum(), secs(360 * 3 + 5 * 3600));
    let p50 = stats.duration.percentile(50).unwrap();
    assert!((secs(3)..secs(6)).contains(&p50), "{p50:?}");
    let most = stats.duration.percentile(100).unwrap();
    assert!((secs(5 * 3600)..secs(10 * 3600)).contains(&most), "{most:?}");
    assert_eq!(stats.lateness.sum(), Duration::ZERO);
    let p = scheduler.plan_stats("p").unwrap();
    assert_eq!(p.duration, secs(3) * u32::try_from(p.succeeded).unwrap());
    faulty.on(Call::Claim).next(1, Fault::Error(StoreErrorKind::Busy));
    clock.advance(secs(60));
    assert_eq!(scheduler.stats().store_faults, 1);
}
