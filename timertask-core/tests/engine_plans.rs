//! Plans and reconciling: what is installed, replaced, removed, kept, refused.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use std::sync::Arc;
use std::time::Duration;
use timertask_core::{
    Backoff, BoxError, CatchUp, DropGuard, Dst, Jobs, OnOrphan, Overlap, Plan, PlanError, PlanStatus, RetryBudget, Run,
    Scheduler, SchedulerError, StoreErrorKind,
};
use timertask_testkit::{Call, FakeClock, Fault, Faulty};

fn quiet() -> impl Fn(&Run) -> Result<(), BoxError> + Send + Sync + 'static {
    |_: &Run| Ok(())
}

fn scheduler(clock: &FakeClock) -> Scheduler {
    Scheduler::builder(quiet()).clock(clock.clone()).start().unwrap()
}

#[test]
fn installs_replaces_removes_and_leaves_alone() {
    let clock = FakeClock::new();
    let scheduler = scheduler(&clock);
    let report = scheduler.reconcile([minutely("a"), minutely("b"), minutely("c").enabled(false)]).unwrap();
    assert_eq!(report.to_string(), "2 installed, 0 replaced, 0 removed, 0 unchanged, 0 failed");
    clock.settle();
    let report = scheduler.reconcile([minutely("a"), Plan::new("b", "@hourly"), minutely("c")]).unwrap();
    assert_eq!(report.to_string(), "1 installed, 1 replaced, 0 removed, 1 unchanged, 0 failed");
    assert_eq!(report.replaced[0].next_before.unwrap().to_string(), "2026-01-01 00:01:00 UTC");
    assert_eq!(report.replaced[0].next_after.unwrap().to_string(), "2026-01-01 01:00:00 UTC");
    let report = scheduler.reconcile([minutely("a").enabled(false)]).unwrap();
    assert_eq!(report.to_string(), "0 installed, 0 replaced, 3 removed, 0 unchanged, 0 failed");
    assert!(scheduler.plans().unwrap().is_empty());
}

#[test]
fn a_bad_plan_does_not_stop_the_others_and_its_last_good_version_goes_on() {
    let clock = FakeClock::new();
    let log = Log::default();
    let jobs = Jobs::new().on("job", recorder(&log));
    let scheduler = Scheduler::builder(jobs).clock(clock.clone()).start().unwrap();
    let good = |id: &str| minutely(id).job("job");
    assert_eq!(scheduler.reconcile([good("a"), good("b")]).unwrap().installed.len(), 2);
    for _ in 0..3 {
        let set = [
            Plan::new("a", "61 * * * *").job("job"),
            good("b"),
            Plan::new("new", "nonsense").job("job"),
            good("zone").zone("Mars/Olympus"),
            minutely("job").job("unknown"),
            good("calendar").calendar("none"),
            good("window").start_window(Duration::from_millis(1999)),
            good("never").calendar("none"),
            Plan::new("feb", "0 0 30 2 *").job("job"),
        ];
        let report = scheduler.reconcile(set).unwrap();
        assert_eq!(report.to_string(), "0 installed, 0 replaced, 0 removed, 1 unchanged, 8 failed");
        let kept: Vec<_> = report.failed.iter().filter(|f| f.kept).map(|f| f.id.as_str()).collect();
        assert_eq!(kept, ["a"], "reported each time");
        assert!(matches!(report.failed[2].reason, PlanError::Zone(_)));
        assert!(matches!(report.failed[3].reason, PlanError::Job(_)));
        assert!(matches!(report.failed[4].reason, PlanError::Calendar(_)));
        assert!(matches!(report.failed[5].reason, PlanError::StartWindow(_)));
        clock.advance(secs(60));
    }
    assert_eq!(log.len(), 6, "a and b, three minutes: {:?}", log.lines());
    let view = scheduler.plan("a").unwrap().unwrap();
    assert!(view.why_not.unwrap().contains("61"), "says what is wrong with the new version");
    scheduler.reconcile([Plan::new("a", "*/2 * * * *").job("job"), good("b")]).unwrap();
    clock.settle();
    assert_eq!(scheduler.plan("a").unwrap().unwrap().why_not, None);
}

#[test]
fn empty_double_and_hostile_ids_change_nothing() {
    let clock = FakeClock::new();
    let scheduler = scheduler(&clock);
    scheduler.reconcile([minutely("a")]).unwrap();
    clock.settle();
    let long = "x".repeat(256);
    for bad in ["", "a\nb", "a\u{0}", "tab\t", "\u{85}", &long] {
        let error = scheduler.reconcile([minutely("new"), minutely(bad)]).unwrap_err();
        assert!(matches!(error, SchedulerError::PlanId { index: 1, .. }), "{error}");
        assert!(scheduler.upsert(minutely(bad)).is_err());
    }
    for enabled in [true, false] {
        let error = scheduler.reconcile([minutely("new"), minutely("a"), minutely("a").enabled(enabled)]).unwrap_err();
        assert!(matches!(error, SchedulerError::DuplicatePlan(ref id) if id.as_str() == "a"), "{error}");
        let error = scheduler.reconcile([minutely("n"), minutely("n").enabled(enabled)]).unwrap_err();
        assert!(matches!(error, SchedulerError::DuplicatePlan(ref id) if id.as_str() == "n"), "{error}");
    }
    let ids: Vec<_> = scheduler.plans().unwrap().iter().map(|p| p.id.to_string()).collect();
    assert_eq!(ids, ["a"]);
    // What looks like a separator, a pattern or a path is an id like others; and they are compared byte by byte.
    let odd = ["a:b", "a/b", "../x", "%", "{x}", "'; drop table plans", "é", "e\u{301}", " ", "A"];
    let report = scheduler.reconcile(odd.map(minutely)).unwrap();
    assert_eq!(report.installed.len(), odd.len());
    clock.advance(secs(60));
    assert_eq!(scheduler.stats().succeeded, odd.len() as u64);
}

#[test]
fn each_setter_changes_the_derived_fingerprint_and_an_own_one_stands_for_all() {
    let clock = FakeClock::new();
    let scheduler =
        Scheduler::builder(quiet()).clock(clock.clone()).calendar("cal", |_: chrono::NaiveDate| false).start().unwrap();
    let budget = RetryBudget::default();
    let p = || Plan::new("a", "@every 1m");
    let versions = [
        p(),
        Plan::new("a", "@every 2m"),
        p().job("x"),
        p().payload("x"),
        p().payload(""),
        p().zone("Europe/Berlin"),
        p().dst(Dst::Cron),
        p().calendar("cal"),
        p().anchor("2026-01-01T00:00:07Z".parse().unwrap()),
        p().spread(secs(5)),
        p().retry(budget),
        p().retry(RetryBudget { attempts: 4, ..budget }),
        p().retry(RetryBudget { timeout: secs(1), ..budget }),
        p().retry(RetryBudget { backoff: secs(1).into(), ..budget }),
        p().retry(RetryBudget { slack: secs(1), ..budget }),
        p().retry(RetryBudget { backoff: Backoff::Exponential { first: secs(5), max: secs(5) }, ..budget }),
        p().retry(RetryBudget { backoff: Backoff::Exponential { first: secs(5), max: secs(6) }, ..budget }),
        p().overlap(Overlap::Skip),
        p().overlap(Overlap::Allow(2)),
        p().overlap(Overlap::Allow(3)),
        p().catch_up(CatchUp::None),
        p().catch_up(CatchUp::All { cap: 3 }),
        p().catch_up_window(secs(60)),
        p().start_window(secs(61)),
        p().on_orphan(OnOrphan::Record),
        p().on_orphan(OnOrphan::Rerun { max: 1 }),
    ];
    let mut seen = Vec::new();
    for (n, version) in versions.iter().enumerate() {
        let report = scheduler.reconcile([version.clone()]).unwrap();
        assert_eq!(report.installed.len() + report.replaced.len(), 1, "version {n}: {report}");
        assert_eq!(scheduler.reconcile([version.clone()]).unwrap().unchanged, 1, "version {n}");
        seen.push(scheduler.plan("a").unwrap().unwrap().fingerprint);
        clock.settle();
    }
    let all = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), all, "no two versions share a fingerprint");

    scheduler.reconcile([p().fingerprint("row 7")]).unwrap();
    assert_eq!(scheduler.reconcile([Plan::new("a", "@hourly").fingerprint("row 7")]).unwrap().unchanged, 1);
    assert_eq!(scheduler.reconcile([p().fingerprint("row 8")]).unwrap().replaced.len(), 1);
    // An empty one is none.
    assert_eq!(scheduler.reconcile([p()]).unwrap().replaced.len(), 1);
    assert_eq!(scheduler.reconcile([p().fingerprint("")]).unwrap().unchanged, 1);
}

#[test]
fn the_drop_guard_refuses_as_a_whole() {
    let clock = FakeClock::new();
    let scheduler = Scheduler::builder(quiet())
        .clock(clock.clone())
        .drop_guard(DropGuard { fraction: 0.3, min_count: 2 })
        .start()
        .unwrap();
    // An empty first answer installs and closes nothing.
    assert!(scheduler.reconcile([]).unwrap().is_quiet());
    let all = || (0..10).map(|n| minutely(&format!("p{n}")));
    scheduler.reconcile(all()).unwrap();
    clock.settle();
    assert_eq!(scheduler.reconcile(all().skip(2)).unwrap().removed.len(), 2, "as many may always go");
    scheduler.reconcile(all()).unwrap();
    assert_eq!(scheduler.reconcile(all().skip(3)).unwrap().removed.len(), 3, "three of ten are not more than 0.3");
    scheduler.reconcile(all()).unwrap();
    let set = || all().skip(4).chain([minutely("new")]);
    let error = scheduler.reconcile(set()).unwrap_err();
    assert!(matches!(error, SchedulerError::DropGuard { dropped: 4, installed: 10, allowed: 3 }), "{error}");
    assert_eq!(error.to_string(), "the set drops 4 of 10 plans; the drop guard allows 3");
    let disabled = || {
        all().map(|p| {
            let off = p.id() < "p5";
            p.enabled(!off)
        })
    };
    assert!(matches!(scheduler.reconcile(disabled()), Err(SchedulerError::DropGuard { dropped: 5, .. })));
    assert_eq!(scheduler.plans().unwrap().len(), 10, "nothing was changed");
    assert_eq!(scheduler.reconcile_anyway(set()).unwrap().removed.len(), 4);
}

#[test]
fn plan_reconcile_tells_and_changes_nothing() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let scheduler = start(Scheduler::builder(quiet()), &clock, &ledger);
    scheduler.reconcile([minutely("a"), minutely("b")]).unwrap();
    clock.advance(secs(1));
    let (views, before) = (scheduler.plans().unwrap(), row(&ledger, "a"));
    let report = scheduler.plan_reconcile([Plan::new("a", "@hourly"), minutely("c"), Plan::new("d", "x")]).unwrap();
    assert_eq!(report.to_string(), "1 installed, 1 replaced, 1 removed, 0 unchanged, 1 failed");
    assert_eq!(report.replaced[0].next_after.unwrap().to_string(), "2026-01-01 01:00:00 UTC");
    clock.advance(secs(1));
    assert_eq!((scheduler.plans().unwrap(), row(&ledger, "a")), (views, before));
    let again = scheduler.reconcile([Plan::new("a", "@hourly"), minutely("c"), Plan::new("d", "x")]).unwrap();
    assert_eq!(again, report);
}

#[test]
fn upsert_and_remove_hold_until_the_next_reconcile() {
    let clock = FakeClock::new();
    let log = Log::default();
    let scheduler = Scheduler::builder(recorder(&log)).clock(clock.clone()).start().unwrap();
    scheduler.reconcile([minutely("a")]).unwrap();
    assert_eq!(scheduler.upsert(minutely("b")).unwrap().installed.len(), 1);
    assert_eq!(scheduler.upsert(minutely("b")).unwrap().unchanged, 1);
    assert_eq!(scheduler.upsert(Plan::new("b", "@hourly")).unwrap().replaced.len(), 1);
    let error = scheduler.upsert(Plan::new("b", "bad")).unwrap_err();
    assert!(matches!(error, SchedulerError::Plan { .. }), "{error}");
    assert!(scheduler.plan("b").unwrap().unwrap().next.is_some(), "its good version goes on");
    assert_eq!(scheduler.upsert(minutely("b").enabled(false)).unwrap().removed.len(), 1);
    assert!(scheduler.remove("a").unwrap());
    clock.advance(secs(60));
    assert_eq!(log.len(), 0);
    scheduler.reconcile([minutely("a")]).unwrap();
    clock.advance(secs(60));
    assert_eq!(log.lines(), ["a 00:02:00"]);
}

#[test]
fn a_run_in_progress_goes_on_when_its_plan_is_removed_and_an_unstarted_one_is_dropped() {
    let clock = FakeClock::new();
    let log = Log::default();
    let scheduler = Scheduler::builder(worker(&log, secs(30))).concurrency(1).clock(clock.clone()).start().unwrap();
    scheduler.reconcile([minutely("a"), minutely("b")]).unwrap();
    clock.advance(secs(61));
    assert_eq!(log.lines(), ["a 00:01:00"]);
    scheduler.remove("a").unwrap();
    scheduler.remove("b").unwrap();
    clock.advance(secs(40));
    assert_eq!(log.lines(), ["a 00:01:00"]);
    assert!(history(&scheduler).contains(&"a 00:01:00 succeeded".to_owned()), "{:?}", history(&scheduler));
}

#[test]
fn views_tell_how_a_plan_stands() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
    let scheduler = Scheduler::builder(quiet()).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
    faulty.cut_off();
    scheduler.reconcile([minutely("b"), Plan::new("a", "@at 2026-01-01T00:00:30Z")]).unwrap();
    clock.advance(secs(20));
    let views = scheduler.plans().unwrap();
    assert_eq!(
        views.iter().map(|v| (v.id.as_str(), v.status)).collect::<Vec<_>>(),
        [("a", PlanStatus::Pending), ("b", PlanStatus::Pending)]
    );
    assert!(views[0].why_not.is_some() && views[0].previous.is_none());
    // The store is back: they are opened without anybody's help.
    faulty.heal();
    clock.advance(secs(5));
    assert!(scheduler.plans().unwrap().iter().all(|v| v.status == PlanStatus::Active && v.why_not.is_none()));
    clock.advance(secs(40));
    let view = scheduler.plan("b").unwrap().unwrap();
    assert_eq!(view.previous.unwrap().to_string(), "2026-01-01 00:01:00 UTC");
    assert_eq!(view.next.unwrap().to_string(), "2026-01-01 00:02:00 UTC");
    let over = scheduler.plan("a").unwrap().unwrap();
    assert_eq!((over.next, over.why_not.as_deref()), (None, Some("it has no trigger point left")));
    assert!(scheduler.plan("nobody").unwrap().is_none());
}

#[test]
fn after_close_every_call_answers_stopped() {
    let clock = FakeClock::new();
    let scheduler = scheduler(&clock);
    scheduler.reconcile([minutely("a")]).unwrap();
    clock.advance(secs(61));
    scheduler.close(secs(1)).unwrap();
    let stopped = |result: Result<(), SchedulerError>| assert!(matches!(result, Err(SchedulerError::Stopped)));
    stopped(scheduler.reconcile([]).map(drop));
    stopped(scheduler.reconcile_anyway([]).map(drop));
    stopped(scheduler.plan_reconcile([]).map(drop));
    stopped(scheduler.upsert(minutely("a")).map(drop));
    stopped(scheduler.remove("a").map(drop));
    stopped(scheduler.plans().map(drop));
    stopped(scheduler.plan("a").map(drop));
    stopped(scheduler.spawn_reconcile(secs(1), || Ok(vec![])));
    stopped(scheduler.start_reconcile(secs(1), || Ok(vec![])));
    assert_eq!((scheduler.run_history(None).len(), scheduler.stats().succeeded), (1, 1));
    assert!(scheduler.health().closing);
}

#[test]
fn reconcile_close_and_views_from_inside_a_job_do_not_hang() {
    let clock = FakeClock::new();
    let log = Log::default();
    let handle: Arc<std::sync::OnceLock<Scheduler>> = Arc::default();
    let (inner, lines) = (Arc::clone(&handle), log.clone());
    let job = move |run: &Run| -> Result<(), BoxError> {
        let scheduler = inner.get().unwrap();
        match run.plan() {
            "edits" => {
                scheduler.reconcile([minutely("closes"), minutely("edits")])?;
                scheduler.upsert(minutely("other"))?;
                scheduler.remove("other")?;
                lines.add(format!("{} plans, {} running", scheduler.plans()?.len(), scheduler.stats().running));
            }
            _ => lines.add(format!("{:?} then closing {}", scheduler.close(secs(60)), run.closing())),
        }
        Ok(())
    };
    let scheduler = Scheduler::builder(job).concurrency(1).clock(clock.clone()).start().unwrap();
    assert!(handle.set(scheduler.clone()).is_ok());
    scheduler.reconcile([minutely("edits")]).unwrap();
    clock.advance(secs(125));
    assert_eq!(log.lines()[0], "2 plans, 1 running");
    assert!(log.lines().contains(&"Err(FromInside) then closing true".to_owned()), "{:?}", log.lines());
    assert!(scheduler.close(secs(5)).unwrap().is_clean(), "it was signalled");
}

#[test]
fn fault_37_new_plans_fire_nothing_at_once() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    clock.advance(secs(3 * 3600 + 17));
    let log = Log::default();
    let scheduler = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    let specs = ["@yearly", "@daily", "@hourly", "0 0 29 2 *", "@every 1h", "30 2 * * *"];
    scheduler
        .reconcile((0..1000).map(|n| Plan::new(format!("p{n}"), specs[n % specs.len()]).spread(secs(n as u64 % 7))))
        .unwrap();
    clock.advance(secs(120));
    assert_eq!((log.len(), scheduler.stats().started), (0, 0));
}

#[test]
fn a_store_that_fails_at_each_plan_call_opens_in_the_end() {
    for fault in [Fault::Error(StoreErrorKind::Busy), Fault::LostAnswer, Fault::LostRequest, Fault::Duplicate] {
        let clock = FakeClock::new();
        let ledger = ledger(&clock);
        let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
        let log = Log::default();
        let scheduler = Scheduler::builder(recorder(&log)).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
        faulty.on(Call::Plan).next(5, fault.clone());
        scheduler.reconcile([minutely("a")]).unwrap();
        clock.advance(secs(61));
        assert_eq!(log.lines(), ["a 00:01:00"], "{fault:?}");
    }
}

#[test]
fn counted_from_the_install_the_first_run_comes_one_period_later() {
    let clock = FakeClock::new();
    let log = Log::default();
    let scheduler = Scheduler::builder(recorder(&log)).every_from_install().clock(clock.clone()).start().unwrap();
    let plan = |text: &str| Plan::new("a", "@every 1m").payload(text);
    clock.advance(secs(17));
    scheduler.reconcile([plan("one")]).unwrap();
    clock.advance(secs(130));
    assert_eq!(log.take(), ["a 00:01:17", "a 00:02:17"]);
    // A reconcile that changes nothing moves nothing; an edit is installed anew.
    scheduler.reconcile([plan("one")]).unwrap();
    clock.advance(secs(53));
    assert_eq!(log.take(), ["a 00:03:17"]);
    scheduler.reconcile([plan("two")]).unwrap();
    clock.advance(secs(60));
    assert_eq!(log.take(), ["a 00:04:20"]);
}

/// Any sequence of sets: what a reconcile reports is the difference, what did not change is left alone, and a plan that
/// was edited to nonsense goes on as it was.
#[test]
fn any_sequence_of_sets_is_told_as_the_difference_and_leaves_the_last_good_versions() {
    const SPECS: [&str; 6] = ["* * * * *", "*/5 * * * *", "@every 90s", "61 * * * *", "no spec", "0 0 30 2 *"];
    let good = |spec: &str| spec.parse::<timertask_core::Schedule>().is_ok();
    for seed in 1..=200 {
        let clock = FakeClock::seeded(seed);
        let dice = FakeClock::seeded(!seed);
        let below = |n: usize| usize::try_from(timertask_core::Clock::entropy(&dice) % n as u64).unwrap();
        let scheduler = scheduler(&clock);
        let mut installed = std::collections::BTreeMap::<String, &str>::new();
        for step in 0..12 {
            let mut set = Vec::new();
            let (mut wanted, mut failed) = (std::collections::BTreeMap::new(), Vec::new());
            for id in ["a", "b", "c", "d", "e"].into_iter().filter(|_| below(4) > 0) {
                let (spec, enabled) = (SPECS[below(SPECS.len())], below(5) > 0);
                set.push(Plan::new(id, spec).enabled(enabled));
                if enabled && good(spec) {
                    wanted.insert(id.to_owned(), spec);
                } else if enabled {
                    failed.push(id.to_owned());
                    // Its last good version stays.
                    wanted.extend(installed.get(id).map(|last| (id.to_owned(), *last)));
                }
            }
            let at = format!("seed {seed}, step {step}: {installed:?} to {set:?}");
            let empty_first = installed.is_empty() && set.is_empty();
            let report = scheduler.reconcile(set.clone()).unwrap();
            let ids = |changes: &[timertask_core::PlanChange]| {
                let mut ids: Vec<String> = changes.iter().map(|change| change.id.to_string()).collect();
                ids.sort();
                ids
            };
            let new = |id: &&String| !installed.contains_key(*id);
            let edited = |id: &&String| installed.get(*id).is_some_and(|before| *before != wanted[*id]);
            assert_eq!(ids(&report.installed), wanted.keys().filter(new).cloned().collect::<Vec<_>>(), "{at}");
            assert_eq!(ids(&report.replaced), wanted.keys().filter(edited).cloned().collect::<Vec<_>>(), "{at}");
            let gone = installed.keys().filter(|id| !wanted.contains_key(*id)).cloned();
            assert_eq!(ids(&report.removed), gone.collect::<Vec<_>>(), "{at}");
            let mut failures: Vec<String> = report.failed.iter().map(|failure| failure.id.to_string()).collect();
            failures.sort();
            assert_eq!(failures, failed, "{at}");
            assert!(!empty_first || report.is_quiet(), "{at}");
            let view: Vec<String> = scheduler.plans().unwrap().iter().map(|view| view.id.to_string()).collect();
            let mut view: Vec<String> = view.into_iter().filter(|id| wanted.contains_key(id)).collect();
            view.sort();
            assert_eq!(view, wanted.keys().cloned().collect::<Vec<_>>(), "{at}");
            installed = wanted;
            clock.advance(secs(below(200) as u64));
            // The same set again changes nothing.
            let again = scheduler.reconcile(set).unwrap();
            assert!(
                again.installed.is_empty() && again.replaced.is_empty() && again.removed.is_empty(),
                "{at}: {again}"
            );
        }
    }
}
