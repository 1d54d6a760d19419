//! Runners that die, stand still and come back.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use timertask_core::key::{Namespace, PlanId, PlanKey};
use timertask_core::seam::{Cancel, EndOp, EndRequest, Overlap, PlanOp, RunKind, SlotState};
use timertask_core::{BoxError, OnOrphan, Plan, Run, RunOutcome, Stop};
use timertask_testkit::{Cluster, FakeClock, Left};

use super::cluster;
use super::support::*;

fn hourly(on_orphan: OnOrphan) -> Plan {
    Plan::new("p", "0 * * * *").on_orphan(on_orphan)
}

/// Kills whoever runs the latest start.
fn kill_the_runner(cluster: &mut Cluster) -> usize {
    let runner = cluster.starts().last().map(|start| start.instance).unwrap_or_else(|| panic!("nobody runs"));
    cluster.kill(runner);
    runner
}

/// Whoever is left finds it, one of them ends it, and nobody runs it again.
#[test]
fn record_ends_a_dead_run_as_orphaned_once_on_any_instance() {
    for n in 2..=4 {
        for seed in 1..=super::SEEDS {
            let plan = hourly(OnOrphan::Record);
            let mut cluster = cluster(seed).instances(n).plans([plan]).job(lasting(minutes(30))).build();
            cluster.advance(hours(1) + secs(3 * seed));
            let runner = kill_the_runner(&mut cluster);
            let killed = cluster.now();
            // The lease was given or renewed less than ten seconds ago: it is not ended before it has lapsed.
            cluster.advance(secs(20));
            cluster.expect_state("p", minute(60), SlotState::Running);
            cluster.advance(LEASE_AND_SWEEPS - secs(20));
            cluster.expect_state("p", minute(60), ORPHANED);
            let row = &cluster.rows("p")[0];
            assert!(
                row.ended_at.is_some_and(|at| at > killed && row.instance.is_some()),
                "it says who and when: {row:?}"
            );
            let by: u64 = (0..n).filter(|i| *i != runner).map(|i| cluster.scheduler(i).stats().orphaned).sum();
            assert_eq!(by, 1, "by compare-and-set, one sweep ends it");
            cluster.advance(hours(1));
            cluster.expect_each_once("p", minute(59).timestamp(), minute(60).timestamp());
            cluster.check();
        }
    }
}

/// Killed in each of its starts: it is started 1 + max times, each on another instance and under a higher fence, and ends
/// as orphaned then.
#[test]
fn rerun_starts_again_elsewhere_so_often_and_no_more() {
    for max in 0..=3 {
        let plan = hourly(OnOrphan::Rerun { max });
        let mut cluster = cluster(u64::from(max) + 1).instances(4).plans([plan]).job(lasting(minutes(50))).build();
        cluster.advance(hours(1) + secs(5));
        for start in 0..=max {
            assert_eq!(cluster.starts().len(), start as usize + 1, "max {max}");
            kill_the_runner(&mut cluster);
            // A second for the pace at which reruns start.
            cluster.advance(LEASE_AND_SWEEPS + secs(11));
        }
        let starts = cluster.starts();
        assert_eq!(starts.len(), max as usize + 1, "max {max}");
        for (pair, attempt) in starts.windows(2).zip(2..) {
            assert_ne!(pair[0].instance, pair[1].instance, "the dead do not run");
            assert!(pair[0].fence < pair[1].fence && pair[1].attempt == attempt, "{pair:?}");
            assert_eq!(pair[1].kind, RunKind::CatchUp, "as what was missed is");
        }
        if max < 3 {
            cluster.expect_state("p", minute(60), ORPHANED);
            cluster.check();
        }
    }
}

/// The slot that is to run again waits while newer ones run, and is not pushed out by them: neither those that come, nor
/// those that are passed over.
#[test]
fn a_rerun_obeys_overlap_and_newer_slots_do_not_push_it_out() {
    for overlap in [Overlap::Skip, Overlap::QueueOne, Overlap::CancelPrevious] {
        // The first run is killed; the newer ones take up 55 of 60 seconds.
        let job = |run: &Run| -> Result<(), BoxError> { Ok(run.wait(secs(if run.attempt() > 1 { 3 } else { 55 }))?) };
        let plan = Plan::new("p", "* * * * *").overlap(overlap).on_orphan(OnOrphan::Rerun { max: 1 });
        let mut cluster = cluster(50).instances(3).plans([plan]).job(job).build();
        cluster.advance(secs(70));
        kill_the_runner(&mut cluster);
        cluster.advance(minutes(6));
        let starts = cluster.starts_of("p");
        let again: Vec<_> = starts.iter().filter(|start| start.attempt == 2).map(|start| start.slot.at).collect();
        if overlap == Overlap::CancelPrevious {
            // The newer slot, which waited for the dead run, had told it to stop: it takes its place for good.
            assert_eq!(again, []);
            cluster.expect_state("p", minute(1), ORPHANED);
        } else {
            assert_eq!(again, [minute(1)], "{overlap:?}: {starts:?}");
            cluster.expect_state("p", minute(1), SUCCEEDED);
        }
        for (i, start) in starts.iter().enumerate() {
            let running = starts[..i].iter().filter(|other| other.left.as_ref().is_none_or(|(at, _)| *at > start.at));
            assert_eq!(running.count(), 0, "{overlap:?}: {start}");
        }
        cluster.check();
    }
}

/// A plan whose newer runs never leave it free: the rerun waits, is accounted for as such, and runs once they do.
#[test]
fn a_rerun_outlasts_any_number_of_newer_slots() {
    let job = |run: &Run| -> Result<(), BoxError> {
        let first = run.slot_key().at == minute(1);
        Ok(run.wait(if first && run.attempt() > 1 { secs(1) } else { minutes(20) })?)
    };
    let plan = Plan::new("p", "* * * * *").on_orphan(OnOrphan::Rerun { max: 1 });
    let mut cluster = cluster(51).instances(2).plans([plan]).job(job).build();
    cluster.advance(secs(70));
    let runner = kill_the_runner(&mut cluster);
    cluster.restart(runner);
    // The other one may take a newer slot first, and then another: the open one stays.
    cluster.advance(minutes(45));
    let starts = cluster.starts_of("p");
    assert_eq!(starts.iter().filter(|start| start.slot.at == minute(1)).count(), 2, "{starts:?}");
    cluster.expect_state("p", minute(1), SUCCEEDED);
    cluster.check();
}

/// What the jobs saw, in order.
type Seen = Arc<std::sync::Mutex<Vec<String>>>;

/// Its first start does not listen for `first`; then it looks before it writes.
fn looks_before_it_writes(
    clock: &FakeClock,
    first: Duration,
    seen: &Seen,
) -> impl Fn(&Run) -> Result<(), BoxError> + Send + Sync + 'static {
    let (slow, seen) = (deaf(clock, first), Arc::clone(seen));
    move |run| {
        if run.attempt() == 1 {
            slow(run)?;
        }
        let word = format!("start {} {:?}", run.attempt(), run.check());
        seen.lock().unwrap_or_else(PoisonError::into_inner).push(word);
        Ok(run.check()?)
    }
}

/// Frozen or suspended during its run, and thawed long after: the first thing it learns is that it may not write, by the
/// larger of wall and monotonic time; its end is refused and noted; the slot stays as it was.
#[test]
fn a_zombie_knows_as_soon_as_it_wakes_and_its_end_is_refused_and_noted() {
    for n in 2..=4 {
        for suspended in [false, true] {
            for on_orphan in [OnOrphan::Record, OnOrphan::Rerun { max: 1 }] {
                let clock = FakeClock::seeded(n as u64);
                let seen = Seen::default();
                let job = looks_before_it_writes(&clock, secs(20), &seen);
                let mut cluster = cluster(1).clock(clock).instances(n).plans([hourly(on_orphan)]).job(job).build();
                cluster.advance(hours(1) + secs(5));
                let zombie = cluster.starts()[0].instance;
                if suspended {
                    cluster.suspend(zombie);
                } else {
                    cluster.freeze(zombie);
                }
                cluster.advance(minutes(5));
                let rerun = on_orphan != OnOrphan::Record;
                cluster.expect_state("p", minute(60), if rerun { SUCCEEDED } else { ORPHANED });
                cluster.thaw(zombie);
                cluster.advance(secs(30));
                let seen = seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let refused = format!("start 1 {:?}", Err::<(), _>(Stop::LeaseLost));
                let wanted = if rerun { vec!["start 2 Ok(())".to_owned(), refused] } else { vec![refused] };
                assert_eq!(seen, wanted, "{n}, suspended: {suspended}");
                // Its end was refused: the row is the other's, or orphaned for good.
                let row = &cluster.rows("p")[0];
                assert_eq!(row.state, if rerun { SUCCEEDED } else { ORPHANED });
                let starts = cluster.starts();
                assert_eq!(row.fence, starts.last().unwrap().fence);
                if rerun {
                    assert!(starts[0].fence < starts[1].fence, "what it writes to can tell it by its stale fence");
                    assert_ne!(starts[1].instance, zombie);
                }
                assert!(
                    matches!(&starts[0].left, Some((_, Left::Failed(why))) if why.contains("lease")),
                    "{}",
                    starts[0]
                );
                // Noted where it happened, in history and count.
                let history = cluster.scheduler(zombie).run_history(None);
                let noted = history.iter().find(|record| record.fence == starts[0].fence).unwrap();
                assert_eq!(noted.outcome, RunOutcome::LeaseLost);
                assert_eq!(cluster.scheduler(zombie).stats().lease_lost, 1);
                cluster.check();
            }
        }
    }
}

/// A zombie that does not look finishes late, as if all were well: that is refused and noted, too.
#[test]
fn a_late_finish_of_an_orphan_is_refused_and_noted() {
    for on_orphan in [OnOrphan::Record, OnOrphan::Rerun { max: 1 }] {
        let clock = FakeClock::seeded(9);
        let job = deaf(&clock, minutes(4));
        let mut cluster = cluster(1).clock(clock).instances(3).plans([hourly(on_orphan)]).job(job).build();
        cluster.advance(hours(1) + secs(5));
        let cut = cluster.starts()[0].instance;
        cluster.cut_off(cut);
        cluster.advance(minutes(5));
        cluster.reconnect(cut);
        cluster.advance(minutes(5));
        let first = &cluster.starts()[0];
        assert!(matches!(first.left, Some((_, Left::Succeeded))), "the job believes that it went well: {first}");
        let history = cluster.scheduler(cut).run_history(None);
        let noted = history.iter().find(|record| record.fence == first.fence).unwrap();
        assert_eq!(noted.outcome, RunOutcome::LeaseLost, "{on_orphan:?}");
        let (_, violations) = cluster.violations();
        assert!(violations.is_empty(), "{violations:?}");
        let row = &cluster.rows("p")[0];
        assert_eq!(row.state, if on_orphan == OnOrphan::Record { ORPHANED } else { SUCCEEDED });
    }
}

/// The runner dies, and the plan is edited to fewer starts than the slot has had: it ends as orphaned, whether the edit
/// comes before the sweep or while the slot is open and waits for its plan.
#[test]
fn an_edit_that_lowers_max_ends_what_has_had_its_starts() {
    let plan = |max: Option<u32>| {
        let on_orphan = max.map_or(OnOrphan::Record, |max| OnOrphan::Rerun { max });
        Plan::new("p", "* * * * *").fingerprint(if max.is_some() { "one" } else { "two" }).on_orphan(on_orphan)
    };
    for open in [false, true] {
        let mut cluster = cluster(60).instances(3).plans([plan(Some(2))]).job(lasting(secs(50))).build();
        cluster.advance(secs(70));
        let dead = cluster.starts()[0].clone();
        kill_the_runner(&mut cluster);
        // Its lease has lapsed, and no sweep has looked twice.
        cluster.advance(secs(31));
        cluster.expect_state("p", dead.slot.at, SlotState::Running);
        if open {
            let op = EndOp::Expire { attempts_allowed: 3 };
            let request = EndRequest { key: dead.slot.clone(), fence: dead.fence, op };
            let _ = cluster.ledger().end(&[request]).unwrap();
            cluster.expect_state("p", dead.slot.at, SlotState::Open);
        }
        cluster.reconcile([plan(None)]);
        cluster.advance(minutes(3));
        cluster.expect_state("p", dead.slot.at, ORPHANED);
        let starts = cluster.starts_of("p");
        assert_eq!(starts.iter().filter(|start| start.slot.at == dead.slot.at).count(), 1, "open: {open}");
        assert!(starts.len() >= 3, "and the plan goes on: {starts:?}");
        cluster.check();
    }
}

/// Told to stop, and dead before it heard: an operator's word is not run over by a rerun.
#[test]
fn what_was_told_to_stop_does_not_run_again() {
    let mut cluster =
        cluster(61).instances(3).plans([hourly(OnOrphan::Rerun { max: 3 })]).job(lasting(minutes(30))).build();
    cluster.advance(hours(1) + secs(2));
    kill_the_runner(&mut cluster);
    let key = PlanKey::new(Namespace::default(), PlanId::new("p").unwrap());
    let cancel = Cancel { by: "ann".into(), why: "wrong month".into() };
    let _ = cluster.ledger().plan(&[(key, PlanOp::Cancel { at: minute(60), request: None, cancel })]).unwrap();
    cluster.advance(minutes(20));
    cluster.expect_starts("p", 1);
    cluster.expect_state("p", minute(60), ORPHANED);
    cluster.check();
}
