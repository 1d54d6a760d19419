//! A slot falls due while another of its plan runs, maybe on another instance.

use timertask_core::seam::{NotStarted, Overlap};
use timertask_core::{CatchUp, Plan};
use timertask_testkit::{Call, Cluster, FakeClock, Fault, Left};

use super::cluster;
use super::support::*;

const EACH: [Overlap; 4] = [Overlap::Skip, Overlap::QueueOne, Overlap::CancelPrevious, Overlap::Allow(2)];

fn minutely(overlap: Overlap) -> Plan {
    Plan::new("p", "* * * * *").overlap(overlap)
}

/// Ten minutes and a half of a minutely plan whose runs take a little more than two minutes and a half.
fn overrun(n: usize, plan: Plan) -> Cluster {
    let mut cluster = cluster(n as u64).instances(n).plans([plan]).job(lasting(secs(155))).build();
    cluster.advance(secs(630));
    cluster
}

#[test]
fn skip_passes_over_what_falls_due_during_a_run_whoever_runs_it() {
    for n in 2..=4 {
        let cluster = overrun(n, minutely(Overlap::Skip));
        assert_eq!(ran(&cluster, "p"), [60, 240, 420, 600]);
        expect_none(&cluster, "p", &[120, 180, 300, 360, 480, 540], NotStarted::Overlap);
        assert_eq!(most_at_once(&cluster, "p"), 1);
        // It is on record once, with whoever asked first; the others heard the same.
        let told: u64 = (0..n).map(|i| cluster.scheduler(i).stats().not_started).sum();
        assert_eq!(told, 6 * n as u64);
        cluster.check();
    }
}

#[test]
fn allow_lets_so_many_run_at_once_over_all_instances() {
    for n in 2..=4 {
        let cluster = overrun(n, minutely(Overlap::Allow(2)));
        // Two run from 120 s on, until the first one ends at 215 s.
        assert_eq!(ran(&cluster, "p"), [60, 120, 240, 300, 420, 480, 600]);
        expect_none(&cluster, "p", &[180, 360, 540], NotStarted::Overlap);
        assert_eq!(most_at_once(&cluster, "p"), 2);
        let starts = cluster.starts();
        assert!(starts.windows(2).all(|pair| pair[0].fence < pair[1].fence), "fences rise per plan: {starts:?}");
        cluster.check();
        // As many as that, and none is held up.
        let cluster = overrun(n, minutely(Overlap::Allow(3)));
        assert_eq!(ran(&cluster, "p").len(), 10);
        assert_eq!(most_at_once(&cluster, "p"), 3);
        cluster.check();
    }
}

/// A start window of ten seconds: the slot waits three times as long, since its window begins when the plan is free.
#[test]
fn queue_one_starts_the_newest_as_soon_as_the_plan_is_free_and_accounts_for_older_ones() {
    for n in 2..=4 {
        for catch_up in [CatchUp::None, CatchUp::Latest, CatchUp::All { cap: 9 }] {
            let plan = minutely(Overlap::QueueOne).start_window(secs(10)).catch_up(catch_up);
            let mut cluster = cluster(n as u64).instances(n).plans([plan]).job(lasting(secs(155))).build();
            cluster.advance(secs(185));
            // It is accounted for at once, while the run goes on.
            expect_none(&cluster, "p", &[120], NotStarted::Superseded);
            assert_eq!(story(&cluster, "p").len(), 2, "the newest has no row yet: {:?}", story(&cluster, "p"));
            cluster.advance(secs(445));
            assert_eq!(ran(&cluster, "p"), [60, 180, 360, 480], "{n}, {catch_up:?}");
            expect_none(&cluster, "p", &[120, 240, 300, 420], NotStarted::Superseded);
            for (start, free) in cluster.starts().iter().zip([60, 215, 370, 525]) {
                let late = start.at.since(second(free).timestamp());
                assert!(start.at >= second(free).timestamp() && late <= secs(2), "free at {free} s: {start}");
            }
            assert_eq!(most_at_once(&cluster, "p"), 1);
            assert_eq!(cluster.check().pending, 1, "that of 600 s waits");
        }
    }
}

#[test]
fn queue_one_waits_on_every_instance_so_that_any_may_die() {
    for n in 2..=4 {
        let plan = minutely(Overlap::QueueOne).start_window(secs(10)).catch_up(CatchUp::None);
        let mut cluster = cluster(40 + n as u64).instances(n).plans([plan]).job(lasting(secs(155))).build();
        cluster.advance(secs(190));
        // All but one that does not run it.
        let runner = cluster.starts()[0].instance;
        let left = (runner + 1) % n;
        (0..n).filter(|i| *i != left && *i != runner).for_each(|i| cluster.kill(i));
        cluster.stop(runner, minutes(5));
        cluster.advance(secs(5));
        assert_eq!(ran(&cluster, "p"), [60, 180]);
        assert_eq!(cluster.starts()[1].instance, left);
        cluster.check();
    }
}

/// The store is out of reach as the plan becomes free: the slot starts once it is back, as its start window is open.
#[test]
fn queue_one_outlasts_faults_of_the_store_inside_its_start_window() {
    let plan = minutely(Overlap::QueueOne).start_window(secs(30)).catch_up(CatchUp::None);
    let mut cluster = cluster(7).instances(2).plans([plan]).job(lasting(secs(155))).build();
    cluster.advance(secs(205));
    for i in 0..2 {
        cluster.store_of(i).on(Call::Claim).always(Fault::LostAnswer);
    }
    cluster.advance(secs(20));
    (0..2).for_each(|i| cluster.store_of(i).heal());
    cluster.advance(secs(10));
    assert_eq!(ran(&cluster, "p"), [60, 180], "{:?}", story(&cluster, "p"));
    cluster.advance(minutes(10));
    assert_eq!(most_at_once(&cluster, "p"), 1);
    cluster.check();
}

#[test]
fn cancel_previous_stops_the_older_run_within_a_renewal_and_starts_the_newer_when_it_has_ended() {
    for n in 2..=4 {
        let mut cluster = cluster(n as u64)
            .instances(n)
            .plans([minutely(Overlap::CancelPrevious).start_window(secs(5))])
            .job(lasting(minutes(60)))
            .build();
        cluster.advance(secs(630));
        let starts = cluster.starts();
        assert_eq!(ran(&cluster, "p"), (1..=10).map(|n| 60 * n).collect::<Vec<_>>());
        for pair in starts.windows(2) {
            let Some((ended, Left::Failed(why))) = &pair[0].left else { panic!("{}", pair[0]) };
            assert!(why.contains("cancel"), "{why}");
            let due = pair[1].slot.at.timestamp();
            assert!(*ended >= due && ended.since(due) <= secs(10), "the next renewal tells it: {}", pair[0]);
            assert!(pair[1].at >= *ended && pair[1].at.since(*ended) <= secs(1), "{} after {}", pair[1], pair[0]);
            cluster.expect_state("p", pair[0].slot.at, CANCELLED);
        }
        assert_eq!(most_at_once(&cluster, "p"), 1);
        let row = &cluster.rows("p")[0];
        let cancel = row.cancel.as_ref().unwrap();
        assert!(cancel.why.contains("newer"), "it says why: {cancel:?}");
        cluster.check();
    }
}

#[test]
fn cancel_previous_waits_for_a_run_that_does_not_listen() {
    for n in 2..=4 {
        let clock = FakeClock::seeded(n as u64);
        let job = deaf(&clock, secs(155));
        let plan = minutely(Overlap::CancelPrevious).start_window(secs(5)).catch_up(CatchUp::None);
        let mut cluster = cluster(1).clock(clock).instances(n).plans([plan]).job(job).build();
        cluster.advance(secs(400));
        assert_eq!(ran(&cluster, "p"), [60, 180, 360]);
        expect_none(&cluster, "p", &[120, 240, 300], NotStarted::Superseded);
        // It did its work to the end, and that counts.
        cluster.expect_state("p", second(60), SUCCEEDED);
        assert_eq!(most_at_once(&cluster, "p"), 1);
        cluster.check();
    }
}

/// Killed at some instant of its run, for each policy: the plan goes on within a lease and three sweeps, on any instance.
#[test]
fn fault_19_a_dead_run_blocks_for_a_lease_and_three_sweeps_at_most() {
    for overlap in EACH {
        for seed in 1..=2 * super::SEEDS {
            let n = 2 + usize::try_from(seed % 3).unwrap();
            let plan = Plan::new("p", "*/10 * * * * *").overlap(overlap).start_window(secs(5));
            let mut cluster = cluster(seed).instances(n).plans([plan]).job(lasting(minutes(60))).build();
            cluster.advance(secs(11) + std::time::Duration::from_millis(700 * seed));
            let runners: Vec<usize> = cluster.starts().iter().map(|start| start.instance).collect();
            // Where several run the next one may have come meanwhile; all that run are killed, and one instance is left.
            let killed = cluster.now();
            let left = (0..n).find(|i| !runners.contains(i)).unwrap_or(0);
            let before = cluster.starts().len();
            (0..n).filter(|i| *i != left || runners.contains(i)).for_each(|i| cluster.kill(i));
            if runners.contains(&left) {
                cluster.restart(left);
            }
            cluster.advance(minutes(2));
            let next = &cluster.starts()[before];
            let blocked = next.at.since(killed);
            // A slot that is passed over costs up to a period more.
            assert!(blocked <= LEASE_AND_SWEEPS + secs(10), "{overlap:?}, seed {seed}: {blocked:?}");
            for row in cluster.rows("p").iter().filter(|row| row.key.at.timestamp() < killed && row.attempt > 0) {
                assert_eq!(row.state, ORPHANED, "{overlap:?}, seed {seed}");
            }
            cluster.check();
        }
    }
}

/// The waiting slot of an instance that cannot keep up with its live slots gets a worker, too.
#[test]
fn queue_one_does_not_starve_behind_the_live_slots_of_other_plans() {
    let mut plans = vec![Plan::new("p", "*/5 * * * *").overlap(Overlap::QueueOne).start_window(secs(5))];
    plans.extend((0..40).map(|i| Plan::new(format!("busy-{i}"), "*/20 * * * * *")));
    let job = timertask_core::Jobs::new();
    let job = (0..40).fold(job, |job, i| job.on(format!("busy-{i}"), lasting(secs(2))));
    let job = job.on("p", lasting(secs(320)));
    let mut cluster = cluster(3).concurrency(2).plans(plans).job(job).build();
    // The first run ends at 620 s; the slot of 600 s waits from then on behind a queue that never ends.
    cluster.advance(secs(700));
    assert_eq!(ran(&cluster, "p")[..2], [300, 600]);
    let second = &cluster.starts_of("p")[1];
    assert!(second.at.since(super::support::second(620).timestamp()) <= secs(5), "{second}");
    cluster.check();
}
