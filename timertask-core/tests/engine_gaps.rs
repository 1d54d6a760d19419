//! Missed slots: catch-up with its window after every kind of down time, bounded in time and memory; clocks that step.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use chrono::TimeDelta;
use common::*;
use std::time::Duration;
use timertask_core::key::{Namespace, PlanId, PlanKey};
use timertask_core::seam::{Ledger, PlanOp};
use timertask_core::{CatchUp, MemLedger, Plan, Run, Scheduler};
use timertask_testkit::{Call, Cluster, FakeClock, Fault};

/// Runs `plan` for a minute, is down for `down`, runs for `after`; what ran after that.
fn down(clock: &FakeClock, ledger: &MemLedger, plan: &Plan, down: Duration, after: Duration) -> Vec<String> {
    let log = Log::default();
    let first = start(Scheduler::builder(recorder(&log)), clock, ledger);
    first.reconcile([plan.clone()]).unwrap();
    clock.advance(secs(60));
    first.close(secs(1)).unwrap();
    log.take();
    clock.advance(down);
    let second = start(Scheduler::builder(recorder(&log)), clock, ledger);
    second.reconcile([plan.clone()]).unwrap();
    clock.advance(after);
    second.close(secs(1)).unwrap();
    log.take()
}

#[test]
fn latest_and_none_after_a_second_an_hour_a_day() {
    let plan = || minutely("p");
    for (down_for, latest, none) in [
        (1, vec![], vec![]),
        (65, vec!["p 00:02:00"], vec!["p 00:02:00"]),
        (3600, vec!["p 01:01:00"], vec!["p 01:01:00"]),
        (3665, vec!["p 01:02:00"], vec!["p 01:02:00"]),
        (86_400 + 30, vec!["p 00:01:00"], vec!["p 00:01:00"]),
    ] {
        for (policy, wanted) in [(CatchUp::Latest, &latest), (CatchUp::None, &none)] {
            let clock = FakeClock::new();
            let ledger = ledger(&clock);
            let ran = down(&clock, &ledger, &plan().catch_up(policy), secs(down_for), secs(25));
            assert_eq!(&ran, wanted, "{policy:?} after {down_for} s");
        }
    }
}

#[test]
fn fault_36_a_night_job_does_not_run_at_noon_where_it_does_not_catch_up() {
    // A daily plan with a start window of half an hour, up again nine hours late.
    for (policy, wanted, told) in [
        (CatchUp::Latest, vec!["p 02:00:00"], "02:00:00 succeeded"),
        (CatchUp::None, vec![], "00:00:01..02:00:00 too-late × 1"),
    ] {
        let clock = FakeClock::new();
        let ledger = ledger(&clock);
        let plan = Plan::new("p", "0 2 * * *").start_window(secs(1800)).catch_up(policy);
        assert_eq!(down(&clock, &ledger, &plan, secs(11 * 3600), secs(60)), wanted);
        assert_eq!(story(&ledger, "p"), [told]);
    }
}

#[test]
fn fault_34_after_a_day_off_there_is_one_run_and_one_record() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let plan = Plan::new("p", "*/5 * * * *");
    let ran = down(&clock, &ledger, &plan, secs(86_400 + 120), secs(60));
    assert_eq!(ran, ["p 00:00:00"]);
    assert_eq!(slots(&ledger, "p").len(), 1);
    assert!(story(&ledger, "p").iter().any(|s| s.ends_with("superseded × 287")), "{:?}", story(&ledger, "p"));
}

#[test]
fn outside_the_window_nothing_is_made_up() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let plan = Plan::new("p", "0 2 * * *").catch_up_window(secs(3600));
    assert!(down(&clock, &ledger, &plan, secs(4 * 3600), secs(60)).is_empty());
    assert!(story(&ledger, "p").iter().any(|s| s.contains("outside-window")), "{:?}", story(&ledger, "p"));
    let clock = FakeClock::new();
    let ledger = self::ledger(&clock);
    let plan = Plan::new("p", "0 2 * * *").catch_up_window(secs(3 * 3600));
    assert_eq!(down(&clock, &ledger, &plan, secs(4 * 3600), secs(60)), ["p 02:00:00"]);
    // The default: one period of the plan, where that is longer than a day.
    let clock = FakeClock::new();
    let ledger = self::ledger(&clock);
    let plan = Plan::new("p", "0 2 * * 5");
    assert_eq!(down(&clock, &ledger, &plan, secs(6 * 86_400), secs(60)), ["p 02:00:00"]);
}

#[test]
fn fault_24_a_year_of_missed_seconds_costs_a_few_calls_and_rows() {
    for policy in [CatchUp::Latest, CatchUp::None] {
        let clock = FakeClock::new();
        let ledger = ledger(&clock);
        let plan = || Plan::new("p", "* * * * * *").catch_up(policy).start_window(secs(5));
        let log = Log::default();
        let first = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
        first.reconcile([plan()]).unwrap();
        clock.advance(secs(10));
        first.close(secs(1)).unwrap();
        let rows = slots(&ledger, "p").len();
        clock.advance(secs(365 * 86_400));
        log.take();
        let second = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
        second.reconcile([plan()]).unwrap();
        let turns = clock.trace().steps;
        clock.advance(secs(10));
        assert!((10..=12).contains(&log.len()), "the next live slots on time: {:?}", log.lines());
        assert!(clock.trace().steps - turns < 400);
        assert!(slots(&ledger, "p").len() < rows + 15);
        assert!(scheduler_calls(&second) < 120, "{}", scheduler_calls(&second));
        clock.advance(secs(60));
        let cursor = row(&ledger, "p").unwrap().cursor;
        assert!(cursor.timestamp().saturating_add(secs(2)) >= timertask_core::Clock::now(&*clock));
    }
}

#[test]
fn no_cap_makes_a_year_of_missed_seconds_long_to_look_through() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let year = secs(365 * 86_400);
    let plan = || Plan::new("p", "* * * * * *").catch_up(CatchUp::All { cap: u32::MAX }).catch_up_window(year * 2);
    let log = Log::default();
    let first = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    first.reconcile([plan()]).unwrap();
    clock.advance(secs(10));
    first.close(secs(1)).unwrap();
    clock.advance(year);
    log.take();
    let second = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    second.reconcile([plan()]).unwrap();
    clock.advance(secs(10));
    assert!(log.len() >= 12, "live slots, and some that are made up: {:?}", log.lines());
    // All but 10,000 of what was missed was dropped, in the first step.
    let cursor = row(&ledger, "p").unwrap().cursor;
    let behind = timertask_core::Clock::now(&*clock).since(cursor.timestamp());
    assert!((secs(9_900)..=secs(10_100)).contains(&behind), "{behind:?}");
}

fn scheduler_calls(scheduler: &Scheduler) -> u64 {
    scheduler.stats().store_calls
}

#[test]
fn many_plans_that_missed_much_are_through_soon_and_in_few_calls() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let plans = || (0..2000).map(|n| Plan::new(format!("p{n:04}"), "@hourly").catch_up(CatchUp::None));
    let log = Log::default();
    let first = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    first.reconcile(plans()).unwrap();
    clock.advance(secs(30));
    first.close(secs(1)).unwrap();
    clock.advance(secs(6 * 3600 + 600));
    let second = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    second.reconcile(plans()).unwrap();
    clock.advance(secs(10));
    assert!(scheduler_calls(&second) < 80, "{}", scheduler_calls(&second));
    for n in [0, 999, 1999] {
        let id = format!("p{n:04}");
        assert!(unaccounted(&ledger, &id, "@hourly", t("00:00:00"), t("06:00:00")).is_empty(), "{id}");
    }
}

#[test]
fn fault_42_a_suspended_host_fires_what_is_due_and_makes_up_the_rest() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let scheduler = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    scheduler.reconcile([minutely("p"), Plan::new("noon", "0 12 * * *")]).unwrap();
    clock.advance(secs(90));
    // Ten hours from 11:50 on.
    clock.advance(secs(11 * 3600 + 50 * 60 - 90));
    log.take();
    clock.suspend(secs(10 * 3600));
    clock.advance(secs(30));
    let mut ran = log.lines();
    ran.sort();
    assert_eq!(ran, ["noon 12:00:00", "p 21:50:00"]);
    clock.advance(secs(60));
    assert!(unaccounted(&ledger, "p", "* * * * *", t("00:00:00"), t("21:50:00")).is_empty());
    scheduler.close(secs(1)).unwrap();
}

#[test]
fn fault_40_a_step_forth_and_back_is_followed_and_no_slot_starts_twice() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let scheduler = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    scheduler.reconcile([minutely("p"), Plan::new("every", "@every 20s")]).unwrap();
    clock.advance(secs(61));
    clock.step_wall(TimeDelta::hours(2));
    clock.advance(secs(61));
    clock.step_wall(TimeDelta::hours(-2));
    log.take();
    clock.advance(secs(60));
    let ran = log.take();
    assert!(ran.contains(&"p 00:03:00".to_owned()), "{ran:?}");
    assert_eq!(ran.len(), 4, "{ran:?}");
    // Through all that was ahead: what ran there does not run again.
    clock.advance(secs(2 * 3600));
    let p: Vec<_> = log.lines().into_iter().filter(|l| l.starts_with("p ")).collect();
    assert!(!p.contains(&"p 02:01:00".to_owned()) && !p.contains(&"p 02:02:00".to_owned()), "{p:?}");
    let mut once = p.clone();
    once.dedup();
    assert_eq!(once, p);
    assert!(p.contains(&"p 01:59:00".to_owned()) && p.contains(&"p 02:03:00".to_owned()), "{:?}", &p[p.len() - 6..]);
}

#[test]
fn small_steps_back_and_forth_lose_nothing_and_double_nothing() {
    let clock = FakeClock::seeded(11);
    let ledger = ledger(&clock);
    let log = Log::default();
    let scheduler = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    scheduler.reconcile([Plan::new("p", "*/5 * * * * *")]).unwrap();
    for n in 0..60_i64 {
        clock.advance(secs(7));
        clock.step_wall(TimeDelta::milliseconds(if n % 2 == 0 { 900 } else { -900 }));
    }
    clock.advance(secs(70));
    let ran = log.lines();
    let mut once = ran.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), ran.len());
    let upto = timertask_core::Clock::now(&*clock).saturating_sub(secs(61)).trigger();
    assert!(unaccounted(&ledger, "p", "*/5 * * * * *", t("00:00:00"), upto).is_empty());
    assert!(ran.len() >= 95, "{}", ran.len());
}

#[test]
fn fault_33_a_held_engine_and_overruns_never_starve_a_plan() {
    // Runs take fifteen minutes on a five-minute plan.
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let plan = Plan::new("p", "*/5 * * * *").start_window(secs(150));
    let scheduler = start(Scheduler::builder(worker(&log, secs(899))), &clock, &ledger);
    scheduler.reconcile([plan]).unwrap();
    clock.advance(secs(3 * 3600));
    assert!(log.len() >= 11, "{:?}", log.lines());
    assert!(unaccounted(&ledger, "p", "*/5 * * * *", t("00:00:00"), t("02:55:00")).is_empty());
    // A frozen process of ten intervals goes on with what is due then.
    let view = clock.view("frozen");
    let log = Log::default();
    let frozen = start(Scheduler::builder(recorder(&log)), &view, &ledger);
    frozen.reconcile([minutely("q")]).unwrap();
    clock.advance(secs(125));
    log.take();
    view.freeze();
    clock.advance(secs(600));
    view.thaw();
    clock.advance(secs(60));
    assert!((2..=3).contains(&log.len()), "{:?}", log.lines());
    assert!(frozen.plan("q").unwrap().unwrap().next.unwrap() > timertask_core::Clock::now(&*clock).to_datetime());
}

#[test]
fn fault_26_an_interval_survives_restarts() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    for _ in 0..30 {
        let scheduler = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
        scheduler.reconcile([Plan::new("p", "@every 168h")]).unwrap();
        clock.advance(secs(86_400));
        scheduler.close(secs(1)).unwrap();
    }
    assert_eq!(log.len(), 4, "{:?}", log.lines());
}

#[test]
fn fault_03_a_node_whose_clock_is_behind_sees_that_the_slot_has_ended() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let (log_a, log_b) = (Log::default(), Log::default());
    let a = start(Scheduler::builder(recorder(&log_a)), &clock.view("a"), &ledger);
    let behind = clock.view("b");
    behind.set_skew(TimeDelta::seconds(-20));
    let b = start(Scheduler::builder(recorder(&log_b)).max_skew(secs(60)), &behind, &ledger);
    a.reconcile([minutely("p")]).unwrap();
    b.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(600));
    assert_eq!((log_a.len(), log_b.len()), (10, 0));
    assert_eq!(b.stats().yielded, 9);
}

#[test]
fn skew_beyond_its_bound_stops_starting_and_accounting_and_comes_back() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let events = Log::default();
    let view = clock.view("a");
    let scheduler = start(Scheduler::builder(recorder(&log)).observer(Ear(events.clone())), &view, &ledger);
    scheduler.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(61));
    assert_eq!(log.take().len(), 1);
    view.set_skew(TimeDelta::seconds(90));
    clock.advance(secs(15));
    let health = scheduler.health();
    assert!(health.skewed && health.skew_micros < -89_000_000, "{health:?}");
    clock.advance(secs(300));
    assert_eq!(log.len(), 0);
    assert_eq!(scheduler.plan("p").unwrap().unwrap().why_not.as_deref(), Some("the clock is too far off the store's"));
    let cursor = row(&ledger, "p").unwrap().cursor;
    assert!(cursor <= t("00:03:00"), "accounts for nothing: {cursor}");
    view.set_skew(TimeDelta::seconds(2));
    clock.advance(secs(62));
    assert!(!scheduler.health().skewed);
    assert!(!log.is_empty(), "{:?}", log.lines());
    let skew: Vec<_> = events.lines().into_iter().filter(|l| l.starts_with("skew")).collect();
    assert_eq!(skew, ["skew beyond true", "skew beyond false"]);
    clock.advance(secs(120));
    assert!(unaccounted(&ledger, "p", "* * * * *", t("00:00:00"), t("00:08:00")).is_empty());
}

#[test]
fn fault_38_four_nodes_with_skews_start_each_slot_once() {
    let clock = FakeClock::seeded(38);
    let ledger = ledger(&clock);
    let log = Log::default();
    let schedulers: Vec<_> = [-90, -4, 4, 90]
        .into_iter()
        .map(|skew| {
            let view = clock.view(&format!("skew{skew}"));
            view.set_skew(TimeDelta::seconds(skew));
            let scheduler = start(Scheduler::builder(recorder(&log)), &view, &ledger);
            scheduler.reconcile([minutely("p")]).unwrap();
            scheduler
        })
        .collect();
    clock.advance(secs(30 * 60));
    let mut ran = log.lines();
    let all = ran.len();
    ran.sort();
    ran.dedup();
    assert_eq!(ran.len(), all);
    assert!(all >= 29, "{all}");
    let beyond: Vec<_> = schedulers.iter().map(|s| s.health().skewed).collect();
    assert_eq!(beyond, [true, false, false, true]);
}

#[test]
fn a_made_up_run_covers_the_window_of_its_slot() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let inner = log.clone();
    let job = move |run: &Run| {
        let window = run.window();
        inner.add(format!("{:?} {}..{}", run.kind(), window.from.format("%T"), window.to.format("%T")));
        Ok(())
    };
    let first = start(Scheduler::builder(job.clone()), &clock, &ledger);
    first.reconcile([Plan::new("p", "30 * * * *")]).unwrap();
    clock.advance(secs(10));
    first.close(secs(1)).unwrap();
    clock.advance(secs(1800 + 300));
    let second = start(Scheduler::builder(job), &clock, &ledger);
    second.reconcile([Plan::new("p", "30 * * * *")]).unwrap();
    clock.advance(secs(3600));
    // As if it had run on time: the trigger point before is that of the day before.
    assert_eq!(log.lines(), ["CatchUp 23:30:00..00:30:00", "Scheduled 00:30:00..01:30:00"]);
}

/// The cursor goes back between two calls of a walk, wherever in it: what lies between is not passed over.
#[test]
fn a_clock_set_back_and_forth_within_a_walk_loses_no_slot() {
    let mut times = 0;
    for nth in 1..=12 {
        let clock = FakeClock::new();
        let plans = [Plan::new("p", "*/5 * * * *")];
        let mut cluster = Cluster::builder().clock(clock.clone()).plans(plans).build();
        cluster.advance(secs(301));
        cluster.freeze(0);
        cluster.advance(secs(1870));
        let store = cluster.store_of(0).clone();
        let jump = move || {
            clock.step_wall(TimeDelta::minutes(-20));
            let key = PlanKey::new(Namespace::default(), PlanId::new("p").unwrap());
            let _ = store.plan(&[(key, PlanOp::SetBack { max_skew: secs(5) })]).unwrap();
            clock.step_wall(TimeDelta::minutes(20));
        };
        cluster.store_of(0).on(Call::Plan).nth(nth, Fault::before(jump));
        cluster.thaw(0);
        cluster.advance(secs(600));
        let summary = cluster.check();
        assert_eq!((summary.expected, summary.pending), (9, 0), "{nth}: {summary:?}");
        times += cluster.store_of(0).faults(Call::Plan);
    }
    assert!(times >= 4, "a walk has so many calls");
}
