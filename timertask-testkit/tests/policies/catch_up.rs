//! Slots that were missed: what is made up, what is recorded, in which order and at which pace.

use std::time::Duration;

use chrono::TimeDelta;
use timertask_core::key::{Namespace, PlanId, PlanKey};
use timertask_core::seam::{NotStarted, Overlap, PlanOp, RunKind};
use timertask_core::{CatchUp, Jobs, Pace, Plan};
use timertask_testkit::{Call, Cluster, ClusterBuilder, Fault, Start};

use super::cluster;
use super::support::*;

const NO_STAGGER: Pace = Pace { at_once: 1, stagger: Duration::ZERO };

fn down(cluster: &mut Cluster, d: Duration) {
    (0..cluster.instances()).for_each(|i| cluster.kill(i));
    cluster.advance(d);
    (0..cluster.instances()).for_each(|i| cluster.restart(i));
}

/// What was made up, in order of entry.
fn made_up(cluster: &Cluster, plan: &str) -> Vec<Start> {
    cluster.starts_of(plan).into_iter().filter(|start| start.kind == RunKind::CatchUp).collect()
}

fn seconds_of(starts: &[Start]) -> Vec<i64> {
    starts.iter().map(|start| start.slot.at.as_secs() - second(0).as_secs()).collect()
}

fn unpaced(seed: u64, n: usize) -> ClusterBuilder {
    cluster(seed).instances(n).configure(|_, builder| builder.catch_up_pace(NO_STAGGER))
}

/// A plan that fires each second, down for a second, a day, a year: no more is done for a year than for a day, and what
/// was dropped is one record.
#[test]
fn fault_24_down_for_a_second_a_day_a_year_with_a_plan_of_each_second() {
    let day = 86_400;
    for (policy, wanted) in [(CatchUp::None, 0), (CatchUp::Latest, 0), (CatchUp::All { cap: 100 }, 100)] {
        let mut costs = Vec::new();
        for away in [1, 101, 10_000, day, 1_000_000, 365 * day] {
            let plan = Plan::new("p", "* * * * * *").catch_up(policy).start_window(secs(5)).overlap(Overlap::Allow(3));
            let mut cluster = unpaced(24, 2).plans([plan]).build();
            cluster.advance(secs(10));
            let (before, steps) = (cluster.starts().len(), cluster.trace().steps);
            down(&mut cluster, secs(away));
            let back = cluster.now();
            cluster.advance(secs(30));
            // With `Latest` it is one of those whose window is open.
            let missed = usize::try_from(away).unwrap().saturating_sub(3);
            let made_up = made_up(&cluster, "p");
            // Those of the newest whose window was open as the cluster came back, and that started live, are among them.
            let least = wanted.min(missed).saturating_sub(5);
            assert!((least..=wanted).contains(&made_up.len()), "{policy:?}, {away} s: {} made up", made_up.len());
            assert!(made_up.windows(2).all(|pair| pair[0].slot.at < pair[1].slot.at), "old to new: {made_up:?}");
            let ranges = cluster.ranges("p");
            // And two at most for those whose window was still open as the cluster came back.
            assert!(ranges.len() <= 3, "one record: {ranges:?}");
            if missed > 1000 {
                let dropped = missed - wanted;
                let count = ranges[0].count.and_then(|n| usize::try_from(n).ok());
                assert!(count.is_none_or(|n| n.abs_diff(dropped) < 15), "{ranges:?}, about {dropped}");
                assert_eq!(count.is_none(), missed > 999_999, "beyond a million the count is left out: {ranges:?}");
            }
            // The next live slots come on time.
            let live = &cluster.starts()[before..];
            for at in 2..30 {
                let due = back.saturating_add(secs(at)).trigger();
                let start = live.iter().find(|start| start.slot.at == due).unwrap();
                assert_eq!(start.at, due.timestamp(), "{policy:?}, {away} s");
            }
            let calls: u64 = (0..2).map(|i| cluster.store_of(i).calls_in_all()).sum();
            costs.push((cluster.trace().steps - steps, calls));
            // The check goes through every second; a day of them is enough.
            if away <= day {
                assert_eq!(cluster.check().pending, 0, "{policy:?}, {away} s");
            }
        }
        // From what is over the cap on, ten times as much costs nothing more.
        let (of_many, of_most) = (costs[2], costs[5]);
        assert!(
            of_most.0 <= of_many.0 + of_many.0 / 4 && of_most.1 <= of_many.1 + of_many.1 / 4,
            "{policy:?}: {costs:?}"
        );
        assert!(of_most.1 < 900, "{policy:?}: {costs:?}");
    }
}

#[test]
fn fault_34_after_a_day_off_as_many_run_as_the_cap_allows_one_after_the_other_and_live_slots_are_on_time() {
    for (policy, wanted) in [(CatchUp::Latest, 1), (CatchUp::All { cap: 20 }, 20)] {
        let plans = [Plan::new("p", "*/5 * * * *").catch_up(policy), Plan::new("other", "*/10 * * * * *")];
        let job = Jobs::new().on("p", lasting(Duration::from_millis(100))).on("other", lasting(secs(1)));
        let mut cluster = cluster(34).concurrency(2).plans(plans).job(job).build();
        cluster.advance(minutes(2));
        let before = cluster.starts_of("other").len();
        down(&mut cluster, hours(24));
        cluster.advance(minutes(2));
        let made_up = made_up(&cluster, "p");
        assert_eq!(made_up.len(), wanted, "{policy:?}");
        for pair in made_up.windows(2) {
            assert!(pair[0].slot.at < pair[1].slot.at, "old to new");
            assert!(pair[1].at.since(pair[0].at) >= secs(1), "a second apart: {} and {}", pair[0], pair[1]);
        }
        assert_eq!(cluster.ranges("p").len(), 1, "{:?}", cluster.ranges("p"));
        for start in cluster.starts_of("other")[before..].iter().filter(|s| s.kind == RunKind::Scheduled).skip(1) {
            assert!(start.at.since(start.slot.at.timestamp()) <= Duration::from_millis(100), "{start}");
        }
        cluster.check();
    }
}

/// A thousand plans, each with something to make up, on an instance that comes back: no more than one of them at a time
/// and in a second, and those that are due now are on time.
#[test]
fn fault_34_a_thousand_plans_that_come_back_after_a_day_are_no_storm() {
    let daily = (0..1000).map(|i| Plan::new(format!("daily-{i:03}"), "0 6 * * *"));
    let live = (0..4).map(|i| Plan::new(format!("live-{i}"), "* * * * *"));
    let plans: Vec<Plan> = daily.chain(live).collect();
    let mut cluster = cluster(34).concurrency(8).plans(plans).job(lasting(Duration::from_millis(300))).build();
    cluster.advance(minutes(1));
    let before = cluster.starts().len();
    down(&mut cluster, hours(24));
    let back = cluster.now();
    cluster.advance(minutes(20));
    let starts = cluster.starts();
    let (late, live): (Vec<_>, Vec<_>) = starts[before..].iter().partition(|start| start.plan().starts_with("daily"));
    assert_eq!(late.len(), 1000);
    for pair in late.windows(2) {
        assert!(pair[1].at.since(pair[0].at) >= secs(1) && pair[0].left.as_ref().unwrap().0 <= pair[1].at);
    }
    assert!(late[999].at.since(back) <= secs(1010), "and no slower than that: {}", late[999]);
    for start in live.iter().filter(|start| start.slot.at > back.trigger()) {
        assert_eq!(start.at, start.slot.at.timestamp(), "{start}");
    }
    let calls = cluster.store_of(0).calls_in_all();
    assert!(calls <= 6 * 1000, "{calls} calls for 1,000 slots made up, their walks, ends and renewals");
    cluster.check();
}

#[test]
fn the_pace_can_be_set_and_each_instance_has_one() {
    for (at_once, stagger, n) in [(3, 0, 1), (2, 5, 1), (1, 2, 3)] {
        let plans = (0..30).map(|i| Plan::new(format!("p{i:02}"), "0 6 * * *"));
        let pace = Pace { at_once, stagger: secs(stagger) };
        let mut cluster = cluster(35)
            .instances(n)
            .concurrency(8)
            .configure(move |_, builder| builder.catch_up_pace(pace))
            .plans(plans)
            .job(lasting(secs(4)))
            .build();
        cluster.advance(minutes(1));
        down(&mut cluster, hours(24));
        cluster.advance(minutes(5));
        let starts = cluster.starts();
        assert_eq!(starts.len(), 30, "{pace:?}");
        for i in 0..n {
            let of_one: Vec<_> = starts.iter().filter(|start| start.instance == i).collect();
            assert!(of_one.len() >= 30 / n - 2, "{pace:?}: each takes part");
            for (k, start) in of_one.iter().enumerate() {
                let running = of_one[..k].iter().filter(|other| other.left.as_ref().unwrap().0 > start.at).count();
                assert!(running < at_once, "{pace:?}: {running} run as {start} begins");
                assert!(k == 0 || start.at.since(of_one[k - 1].at) >= secs(stagger), "{pace:?}: {start}");
            }
        }
        cluster.check();
    }
}

/// Live slots take every worker, without end. What was missed is made up all the same: one at a time, half a minute after
/// the last one at the latest.
#[test]
fn catching_up_goes_on_where_live_slots_take_all_workers() {
    for workers in [1, 2] {
        let mut plans: Vec<Plan> =
            (0..20).map(|i| Plan::new(format!("busy-{i:02}"), "*/10 * * * * *").catch_up(CatchUp::None)).collect();
        plans.push(Plan::new("p", "*/10 * * * *").catch_up(CatchUp::All { cap: 6 }));
        let mut cluster = cluster(36).concurrency(workers).plans(plans).job(lasting(secs(2))).build();
        cluster.advance(minutes(5));
        down(&mut cluster, hours(2));
        let back = cluster.now();
        cluster.advance(minutes(4));
        let made_up = made_up(&cluster, "p");
        assert_eq!(made_up.len(), 6, "{workers} workers: {made_up:?}");
        let mut last = back;
        for start in &made_up {
            // Half a minute of patience, the run that is under way, the one before it, and the record of its end.
            assert!(start.at.since(last) <= secs(30 + 2 + 2 + 1), "{workers} workers: {start}");
            last = start.at;
        }
        // And live slots have the rest.
        let live = cluster.starts().iter().filter(|s| s.plan() != "p" && s.at > back).count();
        assert!(live >= workers * 110 - 6, "{live}");
        cluster.check();
    }
}

/// A slot that is to be made up as the latest, and finds no worker or permit until a newer one is due, is the latest no more.
#[test]
fn what_was_to_be_made_up_as_the_latest_is_superseded_by_the_next_one() {
    let plans = [
        Plan::new("long", "0 6 * * *"),
        Plan::new("hourly", "30 * * * *"),
        Plan::new("all", "30 * * * *").catch_up(CatchUp::All { cap: 2 }),
    ];
    let job = Jobs::new().on("long", lasting(hours(3))).on("hourly", lasting(secs(1))).on("all", lasting(secs(1)));
    let mut cluster = cluster(37).plans(plans).job(job).build();
    cluster.advance(minutes(1));
    // Up again at ten past nine. The long one has the only permit until ten past twelve.
    down(&mut cluster, hours(9) + minutes(9));
    cluster.advance(minutes(25));
    assert_eq!(ran(&cluster, "hourly"), [9 * 3600 + 1800], "the live one");
    cluster.expect_not_started("hourly", second(8 * 3600 + 1800), NotStarted::Superseded);
    cluster.advance(hours(3));
    assert_eq!(ran(&cluster, "hourly").len(), 4);
    // Where all are wanted they wait, old to new.
    assert_eq!(seconds_of(&made_up(&cluster, "all")), [7 * 3600 + 1800, 8 * 3600 + 1800]);
    cluster.check();
}

/// Two hundred plans with a gap each, all of which run already: they are not asked for all the time.
#[test]
fn what_waits_for_its_plan_does_not_ask_without_end() {
    let plans: Vec<_> =
        (0..200).map(|i| Plan::new(format!("p{i:03}"), "*/10 * * * *").catch_up(CatchUp::All { cap: 2 })).collect();
    let mut cluster = cluster(38).concurrency(201).plans(plans).job(lasting(minutes(9))).build();
    cluster.advance(minutes(1));
    down(&mut cluster, minutes(59));
    cluster.advance(secs(90));
    let before = cluster.store_of(0).calls(Call::Claim);
    cluster.advance(minutes(5));
    let calls = cluster.store_of(0).calls(Call::Claim) - before;
    assert!(calls <= 21 * 300, "{calls} claims in 300 s, at most twenty a second");
    assert!(calls > 100, "they do ask: {calls}");
    cluster.check();
}

#[test]
fn who_missed_a_slot_and_who_makes_it_up_does_not_matter() {
    let plan = || Plan::new("p", "0 * * * *").catch_up(CatchUp::All { cap: 5 });
    let mut cluster = unpaced(39, 3).plans([plan()]).build();
    cluster.kill(2);
    cluster.advance(minutes(10));
    (0..2).for_each(|i| cluster.kill(i));
    cluster.advance(hours(3));
    // Only the one comes back that was not there.
    cluster.restart(2);
    cluster.advance(minutes(1));
    assert_eq!(ran(&cluster, "p"), [3600, 7200, 10_800]);
    assert!(cluster.starts().iter().all(|start| start.instance == 2));
    cluster.check();
}

#[test]
fn a_plan_that_never_ran_is_made_up_like_any_other() {
    for policy in [CatchUp::None, CatchUp::Latest, CatchUp::All { cap: 2 }] {
        let mut cluster = unpaced(40, 2).plans([Plan::new("p", "0 2 * * *").catch_up(policy)]).build();
        cluster.advance(minutes(5));
        down(&mut cluster, hours(51));
        cluster.advance(minutes(2));
        let day = 86_400;
        let (wanted, story_wanted): (Vec<i64>, Vec<&str>) = match policy {
            CatchUp::None => (vec![], vec!["301..180000 too-late × 3"]),
            // The window is a day: the one of two o'clock yesterday is out of it.
            CatchUp::Latest => (vec![2 * day + 7200], vec![]),
            CatchUp::All { .. } => (vec![2 * day + 7200], vec![]),
        };
        assert_eq!(ran(&cluster, "p"), wanted, "{policy:?}: {:?}", story(&cluster, "p"));
        let _ = story_wanted;
        assert_eq!(cluster.ranges("p").len(), 1, "{:?}", story(&cluster, "p"));
        cluster.check();
    }
}

/// Nothing of the past fires after a first registration, an edit (there and back), a disable and enable, a removal.
#[test]
fn fault_37_nothing_is_made_up_after_a_first_registration_an_edit_or_an_enable() {
    let plan = |spec: &str| Plan::new("p", spec).catch_up(CatchUp::All { cap: 50 });
    let mut cluster = unpaced(41, 3).plans([]).build();
    cluster.advance(hours(30));
    cluster.reconcile([plan("0 * * * *")]);
    cluster.advance(minutes(10));
    assert_eq!(ran(&cluster, "p"), [0; 0], "a first registration");
    for (away, next) in [("15 * * * *", "0 * * * *"), ("45 * * * *", "0 * * * *")] {
        // Edited while nobody is there, so that what the old one missed is the new one's past.
        (0..3).for_each(|i| cluster.kill(i));
        cluster.advance(hours(3));
        cluster.reconcile([plan(away)]);
        (0..3).for_each(|i| cluster.restart(i));
        cluster.advance(secs(30));
        cluster.reconcile([plan(next)]);
        cluster.advance(minutes(2));
        assert_eq!(ran(&cluster, "p"), [0; 0], "an edit, and back");
    }
    cluster.reconcile([plan("0 * * * *").enabled(false)]);
    cluster.advance(hours(3));
    cluster.reconcile([plan("0 * * * *")]);
    cluster.advance(minutes(2));
    assert_eq!(ran(&cluster, "p"), [0; 0], "an enable");
    cluster.reconcile([]);
    cluster.advance(hours(3));
    cluster.reconcile([plan("0 * * * *")]);
    cluster.advance(minutes(2));
    assert_eq!(ran(&cluster, "p"), [0; 0], "a removal");
    cluster.advance(hours(2));
    assert_eq!(ran(&cluster, "p").len(), 2, "and live it goes on");
    cluster.check();
}

/// While a plan, or all, are paused, a walk neither accounts for slots nor makes them up; they wait.
#[test]
fn slots_of_a_pause_wait_for_its_end() {
    for whole in [false, true] {
        let plan = Plan::new("p", "* * * * *").catch_up(CatchUp::All { cap: 3 });
        let mut cluster = unpaced(42, 3).plans([plan]).build();
        cluster.advance(secs(90));
        let namespace = Namespace::default();
        let key = if whole { PlanKey::whole(namespace) } else { PlanKey::new(namespace, PlanId::new("p").unwrap()) };
        let pause = PlanOp::Pause { by: "ann".into(), why: "looking into it".into(), until: None };
        let paused = cluster.ledger().plan(&[(key.clone(), pause)]).unwrap().value.pop().unwrap().row.unwrap();
        cluster.advance(minutes(30));
        assert_eq!(ran(&cluster, "p"), [60]);
        assert_eq!(story(&cluster, "p").len(), 1, "{:?}", story(&cluster, "p"));
        // And a restart changes nothing.
        cluster.restart(1);
        cluster.advance(minutes(5));
        assert_eq!(ran(&cluster, "p"), [60]);
        assert_eq!(story(&cluster, "p").len(), 1, "{:?}", story(&cluster, "p"));
        let resume = PlanOp::Resume { since: paused.pause.unwrap().since, lapsed_only: false };
        let _ = cluster.ledger().plan(&[(key, resume)]).unwrap();
        cluster.advance(minutes(3));
        // What the pause left is a gap like any other; the one whose window is open starts live.
        assert_eq!(seconds_of(&made_up(&cluster, "p")), [33 * 60, 34 * 60, 35 * 60]);
        assert!(cluster.starts().iter().any(|s| s.slot.at == minute(36) && s.kind == RunKind::Scheduled));
        cluster.check();
    }
}

#[test]
fn a_fault_of_the_store_inside_the_start_window_costs_nothing_and_one_over_it_is_a_gap() {
    for (outage, kind) in [(50, RunKind::Scheduled), (90, RunKind::CatchUp)] {
        let mut cluster = cluster(43).instances(3).plans([Plan::new("p", "*/10 * * * *")]).build();
        cluster.advance(minutes(10) - secs(5));
        for i in 0..3 {
            cluster.store_of(i).on_any().always(Fault::Error(timertask_core::StoreErrorKind::Unreachable));
        }
        cluster.advance(secs(5 + outage));
        cluster.expect_starts("p", 0);
        (0..3).for_each(|i| cluster.store_of(i).heal());
        cluster.advance(secs(20));
        cluster.expect_starts("p", 1);
        assert_eq!(cluster.starts()[0].kind, kind, "after {outage} s");
        cluster.check();
    }
}

#[test]
fn fault_42_after_a_suspend_or_a_step_of_the_clock_slots_follow_within_a_second_and_the_rest_is_made_up() {
    for stepped in [false, true] {
        let plan = |id: &str| Plan::new(id, "*/10 * * * *");
        let plans = [
            plan("latest"),
            plan("all").catch_up(CatchUp::All { cap: 3 }),
            plan("none").catch_up(CatchUp::None),
            Plan::new("due", "0 10 * * *"),
        ];
        let mut cluster = unpaced(44, 2).plans(plans).build();
        cluster.advance(secs(30));
        // Over to ten o'clock and a few seconds.
        let away = hours(10) - secs(20);
        if stepped {
            cluster.step_wall(TimeDelta::from_std(away).unwrap());
        } else {
            cluster.suspend_all(away);
        }
        cluster.advance(secs(1));
        let ten = second(36_000);
        for plan in ["latest", "all", "none", "due"] {
            let starts = cluster.starts_of(plan);
            assert!(starts.iter().any(|s| s.slot.at == ten && s.kind == RunKind::Scheduled), "{plan}: {starts:?}");
        }
        cluster.advance(minutes(2));
        assert_eq!(seconds_of(&made_up(&cluster, "all")), [34_200, 34_800, 35_400], "old to new");
        for plan in ["latest", "none", "due"] {
            assert_eq!(made_up(&cluster, plan).len(), 0, "{plan}");
        }
        expect_none(&cluster, "none", &[600, 35_400], NotStarted::TooLate);
        expect_none(&cluster, "latest", &[600, 35_400], NotStarted::Superseded);
        expect_none(&cluster, "all", &[600, 33_600], NotStarted::OverCap);
        for plan in ["latest", "all", "none"] {
            assert_eq!(cluster.ranges(plan).len(), 1, "{plan}");
        }
        cluster.check();
    }
}

/// The same seed, the same order of everything, with many plans that wait, catch up and are superseded.
#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let plans = (0..30).map(|i| {
            let overlap = [Overlap::QueueOne, Overlap::CancelPrevious, Overlap::Skip][i % 3];
            Plan::new(format!("p{i}"), "* * * * *").overlap(overlap).catch_up(CatchUp::All { cap: 3 })
        });
        let mut cluster = cluster(seed).instances(3).plans(plans).job(lasting(secs(70))).build();
        cluster.advance(minutes(4));
        down(&mut cluster, minutes(8));
        cluster.advance(minutes(10));
        (cluster.trace().hash, cluster.starts().len())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).0, run(2).0);
}
