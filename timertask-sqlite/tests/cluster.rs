//! Schedulers on one SQLite file, each with a handle of its own, under the simulated clock: the clock of a lease is that
//! of the instance which asks, skew included.

mod common;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use common::TempDir;
use timertask_core::clock::Clock;
use timertask_core::operate::{AuditState, CancelOutcome, Operator};
use timertask_core::seam::{Board, Ending, NotStarted, Overlap, PostingKind, Retention, SlotState};
use timertask_core::{
    Asked, Backfill, BoxError, CatchUp, Namespace, Plan, PlanStatus, RequestId, Resume, Run, RunNow, Trigger,
};
use timertask_sqlite::{Sqlite, Synchronous};
use timertask_testkit::simulation::{self, Tally};
use timertask_testkit::{Call, Cluster, ClusterBuilder, Fault};

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// No test here pulls the plug, so none waits for the disk.
fn open(path: PathBuf) -> impl Fn(Arc<dyn Clock>) -> Sqlite + Send + 'static {
    move |clock| {
        let options = Sqlite::options().clock(clock).synchronous(Synchronous::Normal);
        options.open(&path).unwrap_or_else(|error| panic!("{error}"))
    }
}

fn cluster(dir: &TempDir, seed: u64) -> ClusterBuilder {
    Cluster::builder().instances(3).seed(seed).store(open(dir.path("cluster.db")))
}

#[test]
fn an_hour_with_a_kill_a_freeze_a_skew_and_a_restart() {
    let dir = TempDir::new();
    let plans = (0..5).map(|i| Plan::new(format!("plan-{i}"), "* * * * *"));
    let job = |run: &Run| -> Result<(), BoxError> { Ok(run.wait(secs(2))?) };
    let mut cluster = cluster(&dir, 1).plans(plans).job(job).build();
    let start = cluster.now();
    cluster.advance(secs(600));
    cluster.skew(2, TimeDelta::seconds(-3));
    cluster.advance(secs(303));
    cluster.kill(0);
    cluster.advance(secs(600));
    cluster.restart(0);
    cluster.freeze(1);
    cluster.advance(secs(600));
    cluster.thaw(1);
    cluster.stop(2, secs(30));
    cluster.advance(secs(1500));
    for plan in 0..5 {
        cluster.expect_each_once(&format!("plan-{plan}"), start, cluster.now().saturating_sub(secs(10)));
    }
    let summary = cluster.check();
    assert!(summary.started >= 5 * 59, "{summary:?}");
}

#[test]
fn a_crash_between_grant_and_entry_is_orphaned_and_the_file_goes_on() {
    let dir = TempDir::new();
    let mut cluster = cluster(&dir, 2).plans([Plan::new("p", "* * * * *")]).build();
    cluster.cut_off(1);
    cluster.cut_off(2);
    let view = cluster.view(0).clone();
    cluster.store_of(0).on(Call::Claim).nth(1, Fault::after(move || view.kill()));
    cluster.advance(secs(61));
    cluster.expect_starts("p", 0);
    let slot = Trigger::from_secs(cluster.now().trigger().as_secs() - 1);
    cluster.expect_state("p", slot, SlotState::Running);
    cluster.reconnect(1);
    cluster.restart(0);
    cluster.advance(secs(180));
    cluster.expect_state("p", slot, SlotState::Ended(Ending::Orphaned));
    cluster.check();
}

#[test]
fn random_runs_break_no_promise() {
    let traces = std::env::var("SIMULATION_RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    let mut tally = Tally::default();
    for seed in 1..=traces {
        let dir = TempDir::new();
        let path = dir.path("chaos.db");
        tally += simulation::run_opened(seed, open(path)).tally;
    }
    println!("{tally}, no violation");
    assert!(tally.expected > 0 && tally.faults > 0, "{tally}");
}

fn ana() -> Asked {
    Asked::new("ana", "the database moves").unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_pause_survives_the_restart_of_all_instances_and_is_ended_by_another_process() {
    let dir = TempDir::new();
    let plan = || Plan::new("p", "* * * * *").catch_up(CatchUp::All { cap: 99 });
    let mut cluster = cluster(&dir, 3).plans([plan()]).build();
    cluster.advance(secs(65));
    let paused = cluster.scheduler(0).pause("p", &ana(), None).unwrap().pause;
    (0..3).for_each(|index| cluster.kill(index));
    cluster.advance(secs(120));
    (0..3).for_each(|index| cluster.restart(index));
    cluster.advance(secs(300));
    cluster.expect_starts("p", 1);
    for index in 0..3 {
        let view = cluster.scheduler(index).plan("p").unwrap().unwrap();
        assert_eq!((view.status, view.pause.as_ref()), (PlanStatus::Paused, Some(&paused)));
        assert!(cluster.scheduler(index).why("p").to_string().contains("paused by ana"));
    }
    // A handle of its own on the file, as a program has it.
    let other = Operator::new(open(dir.path("cluster.db"))(Arc::new(cluster.clock().clone())), Namespace::default());
    other.resume("p", &ana(), Resume::FromNow, Some(&paused)).unwrap();
    cluster.advance(secs(60));
    cluster.expect_starts("p", 2);
    assert_eq!(cluster.ranges("p").iter().map(|range| range.reason).collect::<Vec<_>>(), [NotStarted::Paused]);
    cluster.check();
}

#[test]
fn a_cancel_by_another_process_reaches_the_run_at_its_next_renewal() {
    let dir = TempDir::new();
    let job = |run: &Run| -> Result<(), BoxError> { Ok(run.wait(secs(900))?) };
    let mut cluster = cluster(&dir, 4).plans([Plan::new("p", "* * * * *").overlap(Overlap::QueueOne)]).job(job).build();
    cluster.advance(secs(61));
    let slot = cluster.starts()[0].slot.clone();
    let other = Operator::new(open(dir.path("cluster.db"))(Arc::new(cluster.clock().clone())), Namespace::default());
    assert_eq!(other.cancel(&slot, &ana()).unwrap().outcome, CancelOutcome::Told);
    cluster.advance(secs(11));
    cluster.expect_state("p", slot.at, SlotState::Ended(Ending::Cancelled));
    let again = other.cancel(&slot, &ana()).unwrap().outcome;
    assert_eq!(again, CancelOutcome::Ended(Ending::Cancelled));
}

/// Operators pause and resume while instances die: the promises hold, and the audit counts what an independent check of the
/// whole file counts.
#[test]
fn random_pauses_and_crashes_break_no_promise_and_the_audit_agrees_with_the_file() {
    for seed in 1..=10_u64 {
        let dir = TempDir::new();
        let plans = (0..3).map(|i| Plan::new(format!("p{i}"), "*/20 * * * * *").catch_up(CatchUp::All { cap: 4 }));
        let mut cluster = cluster(&dir, seed).plans(plans).build();
        let start = cluster.now().to_datetime();
        for step in 0..10_u64 {
            let (index, dice) = ((seed * 5 + step) as usize % 3, (seed * 11 + step * 7) % 8);
            if !cluster.lives(index) {
                cluster.restart(index);
            }
            let until = Some(cluster.now().to_datetime() + TimeDelta::seconds(70));
            let scheduler = cluster.scheduler(index);
            match dice {
                0 => drop(scheduler.pause("p0", &ana(), None).unwrap()),
                1 => drop(scheduler.pause_all(&ana(), until).unwrap()),
                2 => drop(scheduler.resume("p0", &ana(), Resume::FromNow, None).unwrap()),
                3 => drop(scheduler.resume_all(&ana(), Resume::CatchUp, None).unwrap()),
                4 => cluster.kill(index),
                _ => {}
            }
            cluster.advance(secs(15 + 20 * (dice % 4)));
        }
        (0..3).filter(|i| !cluster.lives(*i)).collect::<Vec<_>>().into_iter().for_each(|i| cluster.restart(i));
        cluster.advance(secs(5));
        let summary = cluster.check();
        let end = cluster.now().to_datetime();
        let mut counts = [0; 4];
        for id in ["p0", "p1", "p2"] {
            let audit = cluster.scheduler(0).audit(id, start, end).unwrap();
            assert!(audit.findings.is_empty(), "seed {seed}: {:?}", audit.findings);
            for slot in &audit.slots {
                counts[match (slot.state, slot.row.is_some()) {
                    (AuditState::NotStarted(_), true) => 1,
                    (AuditState::NotStarted(_), false) => 2,
                    (_, true) => 0,
                    (_, false) => 3,
                }] += 1;
            }
        }
        assert_eq!(counts, [summary.started, summary.not_started, summary.in_ranges, summary.pending], "seed {seed}");
    }
}

/// Two plans run on for an hour; of one of them the first run never ends.
#[test]
fn old_records_go_but_none_of_what_runs_and_the_audit_says_that_they_are_purged() {
    let dir = TempDir::new();
    let plans = [Plan::new("busy", "*/10 * * * * *"), Plan::new("long", "*/5 * * * *").overlap(Overlap::Skip)];
    let job =
        |run: &Run| -> Result<(), BoxError> { Ok(run.wait(secs(if run.plan() == "long" { 86_400 } else { 0 }))?) };
    let keep = Retention { age: Some(secs(600)), count: None, keep_last: 5 };
    let cluster = cluster(&dir, 5).plans(plans).job(job).configure(move |_, builder| builder.retention(keep));
    let mut cluster = cluster.build();
    let start = cluster.now();
    cluster.advance(secs(3600));
    let busy = cluster.rows("busy").len();
    assert!((60..60 + 3 * 64).contains(&busy), "{busy} records of 360 are left");
    let long: Vec<SlotState> = cluster.rows("long").iter().map(|row| row.state).collect();
    assert_eq!((long.len(), long[0]), (12, SlotState::Running), "a run that goes on, and all that is newer");
    let audit = |plan| cluster.scheduler(0).audit(plan, start.to_datetime(), cluster.now().to_datetime()).unwrap();
    let tally = audit("busy").tally();
    assert_eq!((tally["purged"], tally["succeeded"]), (360 - busy, busy));
    assert_eq!(audit("busy").row.low_water, audit("busy").slots[360 - busy - 1].at);
    assert_eq!(audit("long").tally()["running"], 1);
    cluster.check();
}

/// What operators ask for by the notice board in the file: a run now and slots of an outage, over the death of an instance.
#[test]
fn requests_in_the_file_are_carried_out_once_whoever_dies() {
    for seed in 0..6 {
        let dir = TempDir::new();
        let asked = Asked::new("ana", "the outage; it's \"bad\"").unwrap();
        let plan = Plan::new("p", "*/10 * * * *").catch_up(CatchUp::None);
        let mut cluster =
            Cluster::builder().instances(3).seed(seed).plans([plan]).store(open(dir.path("c.db"))).build();
        let operator = Operator::of_store(cluster.store(), Namespace::default()).clock(cluster.clock().clone());
        cluster.advance(Duration::from_secs(1500));
        let how = RunNow::new(asked.clone()).id(RequestId::new("x").unwrap());
        let first = operator.run_now("p", &how).unwrap();
        (0..3).for_each(|i| cluster.kill(i));
        cluster.advance(Duration::from_secs(2400));
        (0..3).for_each(|i| cluster.restart(i));
        cluster.advance(Duration::from_secs(60));
        let to = cluster.now().to_datetime();
        let what = Backfill::new(to - chrono::TimeDelta::seconds(2400), to, asked.clone());
        assert_eq!(operator.backfill("p", &what).unwrap().starts, Some(4), "seed {seed}");
        cluster.kill(usize::try_from(seed % 3).unwrap());
        cluster.advance(Duration::from_secs(300));
        let rows = cluster.rows("p");
        let asked_for: Vec<_> = rows.iter().filter(|row| row.asked.as_deref() == Some(&asked)).collect();
        assert_eq!(asked_for.len(), 5, "seed {seed}");
        assert!(asked_for.iter().all(|row| matches!(row.state, SlotState::Ended(_))), "seed {seed}");
        assert_eq!(operator.run_now("p", &how).unwrap().slot, first.slot);
        assert_eq!(cluster.store().list(&Namespace::default(), PostingKind::Request).unwrap().value, []);
        cluster.check();
    }
}
