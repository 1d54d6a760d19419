//! Plans and reconciling: what is installed, replaced, removed, kept; generations.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use std::sync::Arc;
use std::time::Duration;
use timertask_core::{
    BoxError, CatchUp, DropGuard, Dst, Jobs, OnOrphan, Overlap, Plan, PlanError, PlanStatus, RetryBudget, Run,
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
        p().retry(RetryBudget { backoff: secs(1), ..budget }),
        p().retry(RetryBudget { slack: secs(1), ..budget }),
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
fn edits_back_and_forth_never_fire_the_past() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let scheduler = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    let (a, b) = (|| minutely("p"), || Plan::new("p", "30 0 * * * *"));
    scheduler.reconcile([a()]).unwrap();
    clock.advance(secs(65));
    scheduler.reconcile([b()]).unwrap();
    clock.advance(secs(3595 - 65));
    scheduler.reconcile([a()]).unwrap();
    clock.advance(secs(10));
    assert_eq!(log.lines(), ["p 00:01:00", "p 01:00:00"]);
    let fingerprint = scheduler.plan("p").unwrap().unwrap().fingerprint;
    assert_eq!(row(&ledger, "p").unwrap().generation.fingerprint, fingerprint);
    let told =
        ["00:01:00 succeeded", "00:01:01..00:01:05 edited × ?", "00:01:06..00:59:55 edited × ?", "01:00:00 succeeded"];
    assert_eq!(story(&ledger, "p"), told);
    assert!(unaccounted(&ledger, "p", "* * * * *", t("00:00:00"), t("01:00:00")).is_empty());
}

#[test]
fn disabled_absent_removed_and_back_again_never_fire_the_past() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let scheduler = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    let on = || [minutely("p")];
    let offs: [&dyn Fn(); 3] = [
        &|| drop(scheduler.reconcile([minutely("p").enabled(false)]).unwrap()),
        &|| drop(scheduler.reconcile([]).unwrap()),
        &|| assert!(scheduler.remove("p").unwrap()),
    ];
    for off in offs {
        scheduler.reconcile(on()).unwrap();
        clock.advance(secs(60));
        assert_eq!(log.take().len(), 1);
        off();
        clock.settle();
        assert!(row(&ledger, "p").unwrap().closed, "the generation is closed in the ledger");
        clock.advance(secs(600));
        assert_eq!(log.len(), 0);
    }
    assert!(!scheduler.remove("p").unwrap(), "it was not there");
    scheduler.reconcile(on()).unwrap();
    clock.advance(secs(1));
    assert_eq!(log.len(), 0);
    assert!(
        unaccounted(&ledger, "p", "* * * * *", t("00:00:00"), t("00:33:00")).is_empty(),
        "{:?}",
        story(&ledger, "p")
    );
}

#[test]
fn a_disabled_plan_is_closed_also_where_it_was_not_installed() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let first = start(Scheduler::builder(quiet()), &clock, &ledger);
    first.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(61));
    first.close(secs(1)).unwrap();
    assert!(!row(&ledger, "p").unwrap().closed, "close of a scheduler closes no generation");
    let second = start(Scheduler::builder(quiet()), &clock, &ledger);
    second.reconcile([minutely("p").enabled(false)]).unwrap();
    clock.settle();
    assert!(row(&ledger, "p").unwrap().closed);
}

#[test]
fn a_plan_removed_right_before_close_is_closed_in_the_ledger() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let scheduler = start(Scheduler::builder(quiet()), &clock, &ledger);
    scheduler.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(1));
    scheduler.remove("p").unwrap();
    scheduler.close(secs(1)).unwrap();
    assert!(row(&ledger, "p").unwrap().closed);
}

#[test]
fn a_generation_is_closed_in_spite_of_faults_while_close_waits_for_a_run() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
    let log = Log::default();
    let scheduler =
        Scheduler::builder(worker(&log, secs(30))).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
    scheduler.reconcile([minutely("p"), minutely("q")]).unwrap();
    clock.advance(secs(61));
    faulty.on(Call::Plan).next(10, Fault::Error(StoreErrorKind::Busy));
    scheduler.remove("q").unwrap();
    assert!(scheduler.close(secs(60)).unwrap().is_clean());
    assert!(row(&ledger, "q").unwrap().closed && !row(&ledger, "p").unwrap().closed);
    // With nothing else to wait for, a store that is gone does not hold it up.
    let scheduler = Scheduler::builder(quiet()).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
    scheduler.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(1));
    faulty.cut_off();
    scheduler.remove("p").unwrap();
    let begin = timertask_core::Clock::monotonic(&*clock);
    scheduler.close(secs(60)).unwrap();
    assert_eq!(timertask_core::Clock::monotonic(&*clock), begin);
}

#[test]
fn a_restart_keeps_its_cursor_and_makes_up_the_latest() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let first = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    first.reconcile([Plan::new("p", "@hourly")]).unwrap();
    clock.advance(secs(3601));
    first.close(secs(1)).unwrap();
    clock.advance(secs(3 * 3600 + 600));
    let second = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    second.reconcile([Plan::new("p", "@hourly")]).unwrap();
    clock.advance(secs(60));
    assert_eq!(log.lines(), ["p 01:00:00", "p 04:00:00"]);
    assert_eq!(story(&ledger, "p"), ["01:00:00 succeeded", "01:00:01..03:00:00 superseded × 2", "04:00:00 succeeded"]);
}

#[test]
fn in_a_rolling_deploy_each_slot_starts_once() {
    let clock = FakeClock::seeded(3);
    let ledger = ledger(&clock);
    let log = Log::default();
    let old = start(Scheduler::builder(recorder(&log)), &clock.view("old"), &ledger);
    let plan = |v: &str| minutely("p").fingerprint(v);
    old.reconcile([plan("1")]).unwrap();
    clock.advance(secs(150));
    let new = start(Scheduler::builder(recorder(&log)), &clock.view("new"), &ledger);
    for _ in 0..20 {
        // Both reconcile on and on, each with its own version.
        new.reconcile([plan("2")]).unwrap();
        clock.advance(secs(20));
        old.reconcile([plan("1")]).unwrap();
        clock.advance(secs(10));
    }
    let mut ran = log.lines();
    let all = ran.len();
    ran.dedup();
    assert_eq!(ran.len(), all, "{ran:?}");
    // An edit never fires the past, so only a slot at the very instant of a flip may fall to it.
    assert!(all >= 11, "{ran:?} {:?}", story(&ledger, "p"));
    old.close(secs(1)).unwrap();
    clock.advance(secs(120));
    let view = new.plan("p").unwrap().unwrap();
    new.reconcile([plan("2")]).unwrap();
    clock.advance(secs(30));
    new.reconcile([plan("2")]).unwrap();
    clock.advance(secs(30));
    assert_eq!(row(&ledger, "p").unwrap().generation.fingerprint, view.fingerprint);
    assert!(unaccounted(&ledger, "p", "* * * * *", t("00:00:00"), t("00:13:00")).is_empty());
}

#[test]
fn a_generation_that_another_instance_closed_is_opened_again_after_two_reconciles() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let a = start(Scheduler::builder(recorder(&log)), &clock.view("a"), &ledger);
    let b = start(Scheduler::builder(recorder(&log)), &clock.view("b"), &ledger);
    a.reconcile([minutely("p")]).unwrap();
    b.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(5));
    b.remove("p").unwrap();
    clock.settle();
    assert!(row(&ledger, "p").unwrap().closed);
    for _ in 0..3 {
        a.reconcile([minutely("p")]).unwrap();
        clock.advance(secs(15));
    }
    assert!(!row(&ledger, "p").unwrap().closed);
    log.take();
    let yielded = a.stats().yielded;
    clock.advance(secs(60));
    assert_eq!((log.len(), a.stats().yielded), (1, yielded), "and asked for once");
}

#[test]
fn the_first_window_after_an_edit_begins_where_the_accounted_ones_ended() {
    let clock = FakeClock::new();
    let log = Log::default();
    let inner = log.clone();
    let job = move |run: &Run| {
        let window = run.window();
        inner.add(format!("{}..{}", window.from.format("%T"), window.to.format("%T")));
        Ok(())
    };
    let scheduler = Scheduler::builder(job).clock(clock.clone()).start().unwrap();
    scheduler.reconcile([Plan::new("p", "*/10 * * * *")]).unwrap();
    clock.advance(secs(601));
    scheduler.reconcile([Plan::new("p", "25,45 * * * *")]).unwrap();
    clock.advance(secs(45 * 60));
    assert_eq!(log.lines(), ["00:00:00..00:10:00", "00:10:00..00:25:00", "00:25:00..00:45:00"]);
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
    assert!(matches!(error, SchedulerError::DropGuard { dropped: 4, installed: 10 }), "{error}");
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
fn edits_while_the_store_is_down_come_through_in_order_and_do_not_pile_up() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
    let log = Log::default();
    let scheduler = Scheduler::builder(recorder(&log)).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
    scheduler.reconcile([minutely("p"), minutely("gone")]).unwrap();
    clock.advance(secs(1));
    faulty.cut_off();
    for n in 0..3000 {
        let set: Vec<_> = if n % 3 == 0 { vec![] } else { vec![minutely("p").fingerprint(n.to_string())] };
        scheduler.reconcile(set).unwrap();
    }
    clock.advance(secs(30));
    let calls = faulty.calls(Call::Plan);
    faulty.heal();
    clock.advance(secs(5));
    assert!(faulty.calls(Call::Plan) - calls < 20, "{} calls", faulty.calls(Call::Plan) - calls);
    assert!(row(&ledger, "gone").unwrap().closed);
    let view = scheduler.plan("p").unwrap().unwrap();
    assert_eq!(row(&ledger, "p").unwrap().generation.fingerprint, view.fingerprint);
    clock.advance(secs(60));
    assert_eq!(log.lines(), ["p 00:01:00"]);
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
fn fault_57_what_another_version_knows_is_not_deleted() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let old = start(Scheduler::builder(recorder(&log)), &clock.view("old"), &ledger);
    let new = start(Scheduler::builder(recorder(&log)), &clock.view("new"), &ledger);
    for _ in 0..5 {
        old.reconcile([minutely("both"), minutely("before")]).unwrap();
        new.reconcile([minutely("both"), minutely("after")]).unwrap();
        clock.advance(secs(20));
    }
    for id in ["both", "before", "after"] {
        assert!(!row(&ledger, id).unwrap().closed, "{id} is nobody's to close who does not know it");
    }
    log.take();
    clock.advance(secs(60));
    assert_eq!(log.len(), 3);
    // A rename is one plan less and one more; the history of the old name stays.
    old.close(secs(1)).unwrap();
    new.reconcile([minutely("renamed"), minutely("after")]).unwrap();
    log.take();
    clock.advance(secs(60));
    assert_eq!(log.len(), 2);
    assert!(row(&ledger, "both").unwrap().closed);
    assert!(tally(&ledger, "both")["succeeded"] >= 2);
    assert!(!row(&ledger, "before").unwrap().closed, "left over, and listed by the ledger until an operator purges it");
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
