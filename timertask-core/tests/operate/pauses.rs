//! Pauses: of a plan and of all, until resumed or until their own end; what becomes of the slots that fell into them.

use std::sync::Arc;

use chrono::TimeDelta;

use super::cancel::{claim, open};
use super::common::*;
use super::{ana, operator, two};
use timertask_core::operate::{Operator, ResumeOutcome, Scope};
use timertask_core::seam::{Claim, ClaimRequest, Ledger, PlanOp};
use timertask_core::{
    Asked, CatchUp, LocalMutex, Namespace, OnOrphan, OperateError, Overlap, PlanStatus, Resume, RunKind, Scheduler,
    SchedulerError, StoreErrorKind,
};
use timertask_testkit::{Call, Cluster, FakeClock, Fault, Faulty};

#[test]
fn a_paused_plan_starts_nothing_and_from_now_makes_nothing_up() {
    let (clock, log) = (FakeClock::new(), Log::default());
    let ledger = ledger(&clock);
    let [a, b] = two(&clock, &ledger, || recorder(&log), &[minutely("p").catch_up(CatchUp::All { cap: 100 })]);
    clock.advance(secs(65));
    let paused = a.pause("p", &ana(), None).unwrap();
    assert_eq!((paused.already, paused.scope, paused.pause.by.as_str()), (false, Scope::Shared, "ana"));
    clock.advance(secs(600));
    assert_eq!(log.take(), ["p 00:01:00"]);
    for scheduler in [&a, &b] {
        let view = scheduler.plan("p").unwrap().unwrap();
        assert_eq!((view.status, view.pause.as_ref()), (PlanStatus::Paused, Some(&paused.pause)));
        let told = "paused by ana since 2026-01-01T00:01:05Z: the database moves";
        assert_eq!(view.why_not.as_deref(), Some(told));
    }
    assert_eq!(story(&ledger, "p"), ["00:01:00 succeeded"], "paused slots wait, and nothing is written about them");
    // Resumed by another process, in the midst of a start window.
    let resumed = operator(&ledger).resume("p", &ana(), Resume::FromNow, Some(&paused.pause)).unwrap();
    assert_eq!(resumed.outcome, ResumeOutcome::Ended(paused.pause));
    clock.advance(secs(90));
    assert_eq!(log.take(), ["p 00:12:00"]);
    assert_eq!(story(&ledger, "p"), ["00:01:00 succeeded", "00:01:01..00:11:05 paused × ?", "00:12:00 succeeded"]);
    assert_eq!(b.plan("p").unwrap().unwrap().status, PlanStatus::Active);
    assert!(unaccounted(&ledger, "p", "* * * * *", t("00:00:00"), t("00:12:00")).is_empty());
}

#[test]
fn catch_up_leaves_the_gap_to_the_plans_policy_and_starts_what_is_live_at_once() {
    let (clock, log) = (FakeClock::new(), Log::default());
    let ledger = ledger(&clock);
    let [a, _b] = two(&clock, &ledger, || recorder(&log), &[minutely("p").catch_up(CatchUp::All { cap: 3 })]);
    clock.advance(secs(65));
    let paused = a.pause("p", &ana(), None).unwrap();
    clock.advance(secs(600));
    log.take();
    // The slot of 00:11:00 is still in its start window.
    operator(&ledger).resume("p", &ana(), Resume::CatchUp, Some(&paused.pause)).unwrap();
    clock.advance(secs(11));
    assert!(log.lines().contains(&"p 00:11:00".to_owned()), "within a sweep: {:?}", log.lines());
    clock.advance(secs(40));
    let told = [
        "00:01:00 succeeded",
        "00:01:01..00:07:00 over-cap × 6",
        "00:08:00 succeeded",
        "00:09:00 succeeded",
        "00:10:00 succeeded",
        "00:11:00 succeeded",
    ];
    assert_eq!(story(&ledger, "p"), told);
}

#[test]
fn a_pause_of_all_covers_plans_that_are_added_later_and_lets_every_policy_wait() {
    let (clock, log) = (FakeClock::new(), Log::default());
    let ledger = ledger(&clock);
    let plans = [minutely("none").catch_up(CatchUp::None), minutely("latest"), minutely("own")];
    let [a, b] = two(&clock, &ledger, || recorder(&log), &plans);
    clock.advance(secs(5));
    let paused = b.pause_all(&ana(), None).unwrap();
    assert_eq!((paused.already, paused.scope), (false, Scope::Shared));
    b.pause("own", &Asked::new("bo", "by itself").unwrap(), None).unwrap();
    for scheduler in [&a, &b] {
        scheduler.upsert(minutely("later")).unwrap();
    }
    clock.advance(secs(600));
    assert!(log.is_empty(), "{:?}", log.lines());
    for id in ["none", "latest", "later", "own"] {
        let view = a.plan(id).unwrap().unwrap();
        assert_eq!((view.status, view.pause.unwrap()), (PlanStatus::Paused, Arc::clone(&paused.pause)));
        assert!(story(&ledger, id).is_empty(), "{id}: {:?}", story(&ledger, id));
    }
    assert_eq!(operator(&ledger).all_paused().unwrap(), Some(paused.pause.clone()));
    let resumed = a.resume_all(&ana(), Resume::FromNow, None).unwrap();
    assert_eq!((resumed.outcome, resumed.scope), (ResumeOutcome::Ended(paused.pause), Scope::Shared));
    clock.advance(secs(60));
    let mut ran = log.take();
    ran.sort();
    assert_eq!(ran, ["later 00:11:00", "latest 00:11:00", "none 00:11:00"]);
    for id in ["none", "latest", "later"] {
        let since = if id == "later" { "00:00:06" } else { "00:00:01" };
        assert_eq!(story(&ledger, id)[0], format!("{since}..00:10:05 paused × 10"));
    }
    // One that is paused by itself stays so, and what fell into the pause of all is its own to account for.
    assert_eq!(a.plan("own").unwrap().unwrap().status, PlanStatus::Paused);
    assert!(story(&ledger, "own").is_empty());
    a.resume("own", &ana(), Resume::FromNow, None).unwrap();
    clock.advance(secs(60));
    assert_eq!(story(&ledger, "own"), ["00:00:01..00:11:05 paused × 11", "00:12:00 succeeded"]);
}

#[test]
fn a_pause_that_ends_by_itself_ends_on_time_and_what_fell_into_it_is_not_made_up() {
    for all in [false, true] {
        let (clock, log) = (FakeClock::new(), Log::default());
        let ledger = ledger(&clock);
        let plan = || minutely("p").catch_up(CatchUp::All { cap: 9 }).start_window(secs(2));
        let [a, b] = two(&clock, &ledger, || recorder(&log), &[plan()]);
        clock.advance(secs(65));
        let until = Some(t("00:09:30").to_datetime());
        let paused = if all { a.pause_all(&ana(), until) } else { a.pause("p", &ana(), until) }.unwrap();
        assert_eq!(
            paused.pause.to_string(),
            "paused by ana since 2026-01-01T00:01:05Z until 2026-01-01T00:09:30Z: the database moves"
        );
        clock.advance(secs(9 * 60));
        assert_eq!(log.lines(), ["p 00:01:00", "p 00:10:00"], "all: {all}");
        let range = "00:01:01..00:09:30 paused × 8";
        assert_eq!(story(&ledger, "p"), ["00:01:00 succeeded", range, "00:10:00 succeeded"], "all: {all}");
        clock.advance(secs(10));
        assert!([a, b].iter().all(|s| s.plan("p").unwrap().unwrap().status == PlanStatus::Active));
    }
}

/// Nobody was there when the pause ended: what fell due after its end is not swallowed with it.
#[test]
fn a_pause_that_ended_while_all_were_down_swallows_no_more_than_its_own_slots() {
    for all in [false, true] {
        let (clock, log) = (FakeClock::new(), Log::default());
        let ledger = ledger(&clock);
        let plan = || minutely("p").catch_up(CatchUp::All { cap: 2 });
        let a = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
        a.reconcile([plan()]).unwrap();
        clock.advance(secs(65));
        let until = Some(t("00:03:30").to_datetime());
        if all { a.pause_all(&ana(), until) } else { a.pause("p", &ana(), until) }.unwrap();
        a.close(secs(1)).unwrap();
        clock.advance(secs(300));
        let b = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
        b.reconcile([plan()]).unwrap();
        clock.advance(secs(50));
        let told = [
            "00:01:00 succeeded",
            "00:01:01..00:03:30 paused × 2",
            "00:04:00 succeeded",
            "00:05:00 succeeded",
            "00:06:00 succeeded",
        ];
        assert_eq!(story(&ledger, "p"), told, "all: {all}");
    }
}

#[test]
fn a_pause_survives_a_restart_and_names_who_and_why() {
    let (clock, log) = (FakeClock::new(), Log::default());
    let ledger = ledger(&clock);
    let a = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    a.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(1));
    a.pause("p", &ana(), None).unwrap();
    a.close(secs(1)).unwrap();
    clock.advance(secs(300));
    let b = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    b.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(300));
    assert!(log.is_empty());
    assert_eq!(b.plan("p").unwrap().unwrap().pause.unwrap().why, "the database moves");
    assert_eq!(operator(&ledger).paused("p").unwrap().unwrap().by, "ana");
}

/// Opening happens in the background; a pause right after a reconcile does not depend on who is first.
#[test]
fn a_plan_can_be_paused_in_the_moment_in_which_it_is_installed() {
    for wait in [false, true] {
        let (clock, log) = (FakeClock::new(), Log::default());
        let ledger = ledger(&clock);
        let a = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
        a.reconcile([minutely("p"), minutely("q")]).unwrap();
        if wait {
            clock.advance(secs(1));
        }
        a.pause("p", &ana(), None).unwrap();
        clock.advance(secs(70));
        assert_eq!(log.lines(), ["q 00:01:00"], "waited: {wait}");
        assert_eq!(a.plan("p").unwrap().unwrap().status, PlanStatus::Paused);
        a.resume("p", &ana(), Resume::FromNow, None).unwrap();
        clock.advance(secs(60));
        assert!(log.lines().contains(&"p 00:02:00".to_owned()));
    }
}

#[test]
fn a_slot_that_was_given_back_before_the_pause_waits_and_is_not_started_from_now() {
    for how in [Resume::FromNow, Resume::CatchUp] {
        for all in [false, true] {
            let (clock, log) = (FakeClock::new(), Log::default());
            let ledger = ledger(&clock);
            let plan = minutely("p").catch_up(CatchUp::All { cap: 9 });
            let [a, _b] = two(&clock, &ledger, || recorder(&log), &[plan]);
            clock.advance(secs(30));
            open(&ledger, &a, t("00:01:00"));
            if all { a.pause_all(&ana(), None) } else { a.pause("p", &ana(), None) }.unwrap();
            clock.advance(secs(300));
            assert_eq!(story(&ledger, "p"), ["00:01:00 open"], "{how:?}, all: {all}");
            if all { a.resume_all(&ana(), how, None) } else { a.resume("p", &ana(), how, None) }.unwrap();
            clock.advance(secs(80));
            let first = if how == Resume::FromNow { "00:01:00 not started (paused)" } else { "00:01:00 succeeded" };
            let told = story(&ledger, "p");
            assert!(told.iter().any(|line| line == first), "{how:?}, all: {all}: {told:?}");
        }
    }
}

/// Whatever the plan's policy would say of a slot whose start window has closed: under a pause it waits.
#[test]
fn under_a_pause_no_policy_lays_an_open_slot_to_rest() {
    for policy in [CatchUp::None, CatchUp::Latest, CatchUp::All { cap: 9 }] {
        for all in [false, true] {
            let (clock, log) = (FakeClock::new(), Log::default());
            let ledger = ledger(&clock);
            let a = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
            a.reconcile([minutely("p").catch_up(policy)]).unwrap();
            clock.advance(secs(30));
            open(&ledger, &a, t("00:01:00"));
            if all { a.pause_all(&ana(), None) } else { a.pause("p", &ana(), None) }.unwrap();
            clock.advance(secs(600));
            assert_eq!(story(&ledger, "p"), ["00:01:00 open"], "{policy:?}, all: {all}");
        }
    }
}

/// A run that had begun before the pause goes on, and where its owner dies it is run again after the pause, as its policy
/// says.
#[test]
fn what_was_started_before_the_pause_is_not_paused_slots() {
    let (clock, log) = (FakeClock::new(), Log::default());
    let ledger = ledger(&clock);
    let a = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    a.reconcile([minutely("p").on_orphan(OnOrphan::Rerun { max: 1 })]).unwrap();
    clock.advance(secs(30));
    let dead = ClaimRequest { attempts_allowed: 2, ..claim(&a, t("00:01:00")) };
    assert!(matches!(ledger.claim(&[dead]).unwrap().value[0], Claim::Granted(_)));
    a.pause("p", &ana(), None).unwrap();
    clock.advance(secs(300));
    assert_eq!(story(&ledger, "p"), ["00:01:00 open"]);
    a.resume("p", &ana(), Resume::FromNow, None).unwrap();
    clock.advance(secs(15));
    assert_eq!(story(&ledger, "p")[0], "00:01:00 succeeded");
    assert_eq!(log.lines(), ["p 00:01:00"]);
}

#[test]
fn resume_accounts_before_it_resumes_and_can_be_repeated_after_any_crash() {
    for all in [false, true] {
        let mut calls = 0;
        for nth in 1.. {
            for lost in [false, true] {
                let (clock, log) = (FakeClock::new(), Log::default());
                let ledger = ledger(&clock);
                let plan = || minutely("p").catch_up(CatchUp::All { cap: 99 });
                let [a, _b] = two(&clock, &ledger, || recorder(&log), &[plan()]);
                clock.advance(secs(65));
                if all { a.pause_all(&ana(), None) } else { a.pause("p", &ana(), None) }.unwrap();
                clock.advance(secs(600));
                log.take();
                let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
                let operator = Operator::new(faulty.clone(), Namespace::default());
                let resume = || {
                    if all {
                        operator.resume_all(&ana(), Resume::FromNow, None)
                    } else {
                        operator.resume("p", &ana(), Resume::FromNow, None)
                    }
                };
                let fault = if lost { Fault::LostAnswer } else { Fault::Error(StoreErrorKind::Unreachable) };
                faulty.on(Call::Plan).nth(nth, fault);
                let first = resume();
                if first.is_ok() {
                    calls = nth;
                    break;
                }
                let resumed = row(&ledger, "p").unwrap().pause.is_none() && operator.all_paused().unwrap().is_none();
                assert!(!resumed || lost, "all: {all}, call {nth}");
                clock.advance(secs(120));
                assert!(resumed || log.is_empty(), "nothing starts while it is paused: {:?}", log.lines());
                resume().unwrap();
                clock.advance(secs(60));
                let made_up = log.lines().iter().filter(|line| line.as_str() < "p 00:12:00").count();
                assert_eq!(made_up, 0, "all: {all}, call {nth}, lost: {lost}: {:?}", log.lines());
                assert!(log.lines().contains(&"p 00:14:00".to_owned()), "{:?}", log.lines());
                assert!(unaccounted(&ledger, "p", "* * * * *", t("00:00:00"), t("00:13:00")).is_empty());
            }
            if calls > 0 {
                break;
            }
        }
        assert!(calls > 3, "read, account, resume: {calls}");
    }
}

#[test]
fn a_cursor_that_moves_meanwhile_is_followed() {
    let (clock, log) = (FakeClock::new(), Log::default());
    let ledger = ledger(&clock);
    let a = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    a.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(5));
    a.pause("p", &ana(), None).unwrap();
    clock.advance(secs(600));
    let backfill = ClaimRequest { kind: RunKind::Backfill, ..claim(&a, t("00:01:00")) };
    let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
    let inner = ledger.clone();
    let claims =
        move || assert!(matches!(inner.claim(std::slice::from_ref(&backfill)).unwrap().value[0], Claim::Granted(_)));
    faulty.on(Call::Plan).nth(2, Fault::before(claims));
    Operator::new(faulty, Namespace::default()).resume("p", &ana(), Resume::FromNow, None).unwrap();
    assert_eq!(story(&ledger, "p"), ["00:01:00 running", "00:01:01..00:10:05 paused × ?"]);
}

#[test]
fn a_resume_ends_the_pause_that_was_seen_and_no_other() {
    let (clock, log) = (FakeClock::new(), Log::default());
    let ledger = ledger(&clock);
    let a = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    a.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(1));
    assert_eq!(a.resume("p", &ana(), Resume::FromNow, None).unwrap().outcome, ResumeOutcome::NotPaused);
    assert_eq!(a.resume_all(&ana(), Resume::FromNow, None).unwrap().outcome, ResumeOutcome::NotPaused);
    let first = a.pause("p", &ana(), None).unwrap().pause;
    assert!(a.pause("p", &Asked::new("bo", "too").unwrap(), None).unwrap().already);
    a.resume("p", &ana(), Resume::FromNow, Some(&first)).unwrap();
    clock.advance(secs(1));
    let second = a.pause("p", &Asked::new("bo", "again").unwrap(), None).unwrap().pause;
    let refused = a.resume("p", &ana(), Resume::FromNow, Some(&first)).unwrap().outcome;
    assert_eq!(refused, ResumeOutcome::Another(Arc::clone(&second)));
    assert_eq!(row(&ledger, "p").unwrap().pause, Some(second));
    let before = a.pause("p", &ana(), Some(t("00:00:01").to_datetime() - TimeDelta::seconds(1)));
    assert!(matches!(before, Err(SchedulerError::Operate(OperateError::Until { .. }))), "{before:?}");
    let unknown = a.pause("q", &ana(), None).unwrap_err();
    assert_eq!(unknown.to_string(), "the ledger does not know the plan \"q\"");
    assert!(matches!(a.pause("", &ana(), None), Err(SchedulerError::Operate(OperateError::Id(_)))));
    a.close(secs(1)).unwrap();
    assert!(matches!(a.pause("p", &ana(), None), Err(SchedulerError::Stopped)));
    assert!(matches!(a.resume_all(&ana(), Resume::FromNow, None), Err(SchedulerError::Stopped)));
}

#[test]
fn with_a_mutex_alone_a_pause_is_this_processes_own_and_says_so() {
    let (clock, log) = (FakeClock::new(), Log::default());
    let mutex = LocalMutex::with_clock(Arc::new(clock.clone()));
    let each = ["a", "b"].map(|name| {
        let builder = Scheduler::builder(recorder(&log)).instance(name).clock(clock.view(name)).mutex(mutex.clone());
        let scheduler = builder.start().unwrap();
        scheduler.reconcile([minutely("p")]).unwrap();
        scheduler
    });
    clock.advance(secs(5));
    assert_eq!(each[0].pause("p", &ana(), None).unwrap().scope, Scope::Process);
    clock.advance(secs(60));
    assert_eq!(log.take(), ["p 00:01:00"], "the other one is not paused");
    assert_eq!((each[0].stats().started, each[1].stats().started), (0, 1));
    assert_eq!(each[0].resume("p", &ana(), Resume::FromNow, None).unwrap().scope, Scope::Process);
    assert_eq!(
        each[0].audit("p", t("00:00:00").to_datetime(), t("00:01:00").to_datetime()).unwrap().scope,
        Scope::Process
    );
}

/// Whoever pauses and resumes, and whatever befalls the instances: the promises hold, and from now on nothing is made up.
#[test]
fn under_random_pauses_and_crashes_every_promise_holds() {
    for seed in 1..=30_u64 {
        let plans =
            (0..3).map(|i| minutely(&format!("p{i}")).catch_up(CatchUp::All { cap: 5 }).overlap(Overlap::QueueOne));
        let mut cluster = Cluster::builder().instances(3).seed(seed).plans(plans).build();
        for step in 0..12_u64 {
            let (index, dice) = ((seed * 5 + step) as usize % 3, (seed * 11 + step * 7) % 9);
            if !cluster.lives(index) {
                cluster.restart(index);
            }
            let scheduler = cluster.scheduler(index);
            let until = Some(cluster.now().to_datetime() + TimeDelta::seconds(70));
            match dice {
                0 => drop(scheduler.pause("p0", &ana(), None).unwrap()),
                1 => drop(scheduler.pause("p1", &ana(), until).unwrap()),
                2 => drop(scheduler.pause_all(&ana(), until).unwrap()),
                3 => drop(scheduler.resume("p0", &ana(), Resume::FromNow, None).unwrap()),
                4 => drop(scheduler.resume_all(&ana(), Resume::CatchUp, None).unwrap()),
                5 => drop(scheduler.resume("p0", &ana(), Resume::CatchUp, None).unwrap()),
                6 => cluster.kill(index),
                _ => {}
            }
            cluster.advance(secs(20 + 20 * (dice % 4)));
        }
        (0..3).filter(|i| !cluster.lives(*i)).collect::<Vec<_>>().into_iter().for_each(|i| cluster.restart(i));
        cluster.scheduler(0).resume("p0", &ana(), Resume::FromNow, None).unwrap();
        cluster.scheduler(0).resume_all(&ana(), Resume::FromNow, None).unwrap();
        cluster.advance(secs(300));
        let summary = cluster.check();
        assert!(summary.in_ranges > 0 && summary.started > 9, "seed {seed}: {summary:?}");
        for plan in cluster.ledger().plan(&[(key("p0"), PlanOp::Read), (key("p1"), PlanOp::Read)]).unwrap().value {
            assert!(plan.row.unwrap().pause.is_none());
        }
    }
}
