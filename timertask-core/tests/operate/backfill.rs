//! Slots of the past: what would be started, what is, each once, and what becomes of it when instances die.

use std::collections::{BTreeMap, HashSet};

use timertask_core::operate::{Backfilling, Expected, Outlook, Prospect};
use timertask_core::seam::{Ending, Overlap, PostingKind, Retention, SlotState, StoreErrorKind};
use timertask_core::{
    Backfill, Board, CatchUp, OnOrphan, OperateError, RequestId, RunKind, Schedule, SchedulerError, Trigger,
};
use timertask_testkit::{Call, Cluster, Fault};

use super::*;

fn id(text: &str) -> RequestId {
    RequestId::new(text).unwrap()
}

fn range(from: &str, to: &str) -> Backfill {
    Backfill::new(t(from).to_datetime(), t(to).to_datetime(), ana())
}

fn outlooks(prospects: &[Prospect]) -> Vec<String> {
    prospects.iter().map(|p| format!("{} {}", short(p.slot.at), p.outlook)).collect()
}

/// The plan `p`, each ten minutes, that makes nothing up by itself, and whose runs take so long.
fn cluster(instances: usize, takes: u64) -> Cluster {
    let job = move |run: &Run| Ok(run.wait(secs(takes))?);
    let plan = Plan::new("p", "*/10 * * * *").catch_up(CatchUp::None);
    Cluster::builder().instances(instances).stagger(secs(3)).plans([plan]).job(job).build()
}

/// Down from 0:25 to 1:05, and on record for it: 0:30 to 1:00 were not started.
fn with_a_gap(instances: usize, takes: u64) -> Cluster {
    let mut cluster = cluster(instances, takes);
    cluster.advance(secs(25 * 60));
    (0..instances).for_each(|i| cluster.kill(i));
    cluster.advance(secs(40 * 60));
    (0..instances).for_each(|i| cluster.restart(i));
    cluster.advance(secs(60));
    cluster
}

fn starts(cluster: &Cluster) -> Vec<String> {
    let backfilled = cluster.starts_of("p").into_iter().filter(|start| start.kind == RunKind::Backfill);
    backfilled.map(|start| short(start.slot.at)).collect()
}

const GAP: [&str; 4] = ["00:30:00", "00:40:00", "00:50:00", "01:00:00"];

#[test]
fn a_dry_run_tells_each_slot_and_the_backfill_starts_those() {
    let mut cluster = with_a_gap(2, 5);
    let whole = range("00:05:00", "01:10:00");
    let prospects = cluster.scheduler(0).dry_run("p", &whole).unwrap();
    assert_eq!(
        outlooks(&prospects),
        [
            "00:10:00 has ended: succeeded",
            "00:20:00 has ended: succeeded",
            "00:30:00 was not started (too-late)",
            "00:40:00 was not started (too-late)",
            "00:50:00 was not started (too-late)",
            "01:00:00 was not started (too-late)",
            "01:10:00 its own time is not over",
        ]
    );
    assert_eq!(
        prospects[2].to_string(),
        "timertask/cron/exec/p/2026-01-01T00:30:00Z: starts: was not started (too-late)"
    );
    assert_eq!(starts(&cluster), [""; 0], "nothing is changed");

    let Backfilling { id, starts: n, .. } = cluster.scheduler(0).backfill("p", &whole).unwrap();
    assert_eq!(n, Some(4));
    cluster.advance(secs(60));
    assert_eq!(starts(&cluster), GAP);
    assert_eq!(cluster.store().list(&Namespace::default(), PostingKind::Request).unwrap().value, [], "{id}");
    for row in cluster.rows("p").iter().filter(|row| row.kind == RunKind::Backfill) {
        assert_eq!((row.state, row.asked.as_deref()), (SlotState::Ended(Ending::Succeeded), Some(&ana())));
    }
    // Once.
    let again = cluster.scheduler(1).backfill("p", &whole).unwrap();
    assert_eq!(again.starts, Some(0));
    cluster.advance(secs(600));
    assert_eq!(starts(&cluster), GAP);
    cluster.check();
}

#[test]
fn it_reaches_back_to_before_the_plan_was_known() {
    let mut cluster = cluster(2, 5);
    cluster.advance(secs(120));
    let from = t("00:00:00").to_datetime() - chrono::TimeDelta::minutes(30);
    let what = Backfill::new(from, t("00:10:00").to_datetime(), ana());
    let prospects = cluster.scheduler(0).dry_run("p", &what).unwrap();
    let nobody = |at: &str| format!("{at} nobody started it");
    let mut expected = ["23:30:00", "23:40:00", "23:50:00", "00:00:00"].map(nobody).to_vec();
    expected.push("00:10:00 its own time is not over".to_owned());
    assert_eq!(outlooks(&prospects), expected);
    cluster.scheduler(0).backfill("p", &what).unwrap();
    cluster.advance(secs(60));
    assert_eq!(starts(&cluster), ["23:30:00", "23:40:00", "23:50:00", "00:00:00"]);
    let windows: Vec<_> = cluster.rows("p").iter().map(|row| row.key.at).collect();
    assert!(windows.is_sorted());
    cluster.check();
}

#[test]
fn one_slot_is_a_range_of_one() {
    let mut cluster = with_a_gap(1, 5);
    let slot = Backfill::slot(t("00:40:00").to_datetime(), ana());
    assert_eq!(cluster.scheduler(0).backfill("p", &slot).unwrap().starts, Some(1));
    cluster.advance(secs(60));
    assert_eq!(starts(&cluster), ["00:40:00"]);
    // No trigger point of the plan.
    let none = Backfill::slot(t("00:41:00").to_datetime(), ana());
    assert_eq!(cluster.scheduler(0).dry_run("p", &none).unwrap(), []);
    let part = Backfill::slot(t("00:50:00").to_datetime() + chrono::TimeDelta::milliseconds(1), ana());
    assert!(matches!(
        cluster.scheduler(0).dry_run("p", &part),
        Err(SchedulerError::Operate(OperateError::EmptyRange { .. }))
    ));
    cluster.check();
}

#[test]
fn a_backfill_of_more_than_its_cap_is_refused_as_a_whole() {
    let mut cluster = with_a_gap(1, 5);
    let s = cluster.scheduler(0).clone();
    let error = s.backfill("p", &range("00:05:00", "01:00:00").cap(3)).unwrap_err();
    assert_eq!(error.to_string(), "it would start 4 slots, and its cap is 3; narrow the range or raise the cap");
    let says = |what: Backfill| s.backfill("p", &what).unwrap_err().to_string();
    assert_eq!(
        says(range("01:00:00", "00:30:00")),
        "a backfill from 2026-01-01T01:00:00Z to 2026-01-01T00:30:00Z: the range is empty"
    );
    assert_eq!(says(range("00:30:00", "01:00:00").cap(0)), "a cap of 0 slots; allowed are 1 to 10000");
    assert_eq!(says(range("00:30:00", "01:00:00").cap(10_001)), "a cap of 10001 slots; allowed are 1 to 10000");
    let long = chrono::TimeDelta::days(80);
    let wide = Backfill::new(t("00:00:00").to_datetime() - long, t("00:00:00").to_datetime(), ana());
    assert_eq!(says(wide), "the range holds more than 10000 trigger points; split it");
    assert!(matches!(s.backfill("q", &range("00:30:00", "01:00:00")), Err(SchedulerError::NotInstalled(_))));
    cluster.advance(secs(100));
    assert_eq!(starts(&cluster), [""; 0]);
    assert_eq!(s.backfill("p", &range("00:05:00", "01:00:00").cap(4)).unwrap().starts, Some(4));
}

#[test]
fn it_waits_while_the_plan_runs_and_passes_a_pause() {
    let mut cluster = with_a_gap(2, 100);
    cluster.scheduler(0).pause("p", &ana(), None).unwrap();
    cluster.scheduler(0).run_now("p", &timertask_core::RunNow::new(ana())).unwrap();
    cluster.scheduler(1).backfill("p", &range("00:30:00", "00:50:00")).unwrap();
    cluster.advance(secs(90));
    assert_eq!(starts(&cluster), [""; 0]);
    cluster.advance(secs(330));
    assert_eq!(starts(&cluster), &GAP[..3]);
    let began: Vec<i64> =
        cluster.starts_of("p").iter().rev().take(3).map(|start| start.at.trigger().as_secs()).collect();
    assert!(began.windows(2).all(|pair| pair[0] - pair[1] >= 100), "one after the other: {began:?}");
    cluster.check();
}

#[test]
fn it_goes_on_elsewhere_when_its_instance_dies() {
    for (seed, on_orphan) in
        (0..30).map(|n| (n, if n % 2 == 0 { OnOrphan::Record } else { OnOrphan::Rerun { max: 1 } }))
    {
        let job = |run: &Run| Ok(run.wait(secs(7))?);
        let plan = Plan::new("p", "*/10 * * * *").catch_up(CatchUp::None).on_orphan(on_orphan);
        let mut cluster = Cluster::builder().instances(3).seed(seed).plans([plan]).job(job).build();
        cluster.advance(secs(25 * 60));
        (0..3).for_each(|i| cluster.kill(i));
        cluster.advance(secs(40 * 60));
        (0..3).for_each(|i| cluster.restart(i));
        cluster.advance(secs(60));
        let call = [Call::Claim, Call::End, Call::Post, Call::Take, Call::Read][usize::try_from(seed % 5).unwrap()];
        let view = cluster.view(0).clone();
        cluster.store_of(0).on(call).nth(1 + seed / 5 % 3, Fault::before(move || view.kill()));
        // The call itself may be the one at which it dies.
        let asks = cluster.scheduler(1).clone();
        asks.backfill("p", &range("00:30:00", "01:00:00")).unwrap();
        cluster.advance(secs(9));
        cluster.kill(1);
        cluster.advance(secs(500));
        for at in GAP {
            let row = cluster.rows("p").into_iter().find(|row| row.key.at == t(at)).unwrap();
            assert!(matches!(row.state, SlotState::Ended(_)), "seed {seed}: {at} is {}", row.state);
        }
        assert_eq!(cluster.store().list(&Namespace::default(), PostingKind::Request).unwrap().value, [], "seed {seed}");
        cluster.check();
    }
}

#[test]
fn faults_of_the_store_hold_it_up_and_start_nothing_twice() {
    let faults = [
        Fault::Error(StoreErrorKind::Busy),
        Fault::LostAnswer,
        Fault::LostRequest,
        Fault::Straggler(secs(40)),
        Fault::Duplicate,
    ];
    for call in [Call::Claim, Call::Read, Call::List, Call::Post, Call::Take, Call::End] {
        for fault in &faults {
            let mut cluster = with_a_gap(2, 5);
            cluster.scheduler(0).backfill("p", &range("00:30:00", "01:00:00").id(id("b"))).unwrap();
            for i in 0..2 {
                cluster.store_of(i).on(call).next(3, fault.clone());
            }
            cluster.advance(secs(500));
            let mut found = starts(&cluster);
            found.sort();
            assert_eq!(found, GAP, "{call:?} {fault:?}");
            cluster.check();
        }
    }
}

#[test]
fn without_a_board_it_ends_with_its_instance() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let plan = || Plan::new("p", "*/10 * * * *").catch_up(CatchUp::None);
    let s = start(Scheduler::builder(worker(&log, secs(50))), &clock, &ledger);
    s.reconcile([plan()]).unwrap();
    s.close(secs(1)).unwrap();
    clock.advance(secs(3700));
    let s = start(Scheduler::builder(worker(&log, secs(50))), &clock, &ledger);
    s.reconcile([plan()]).unwrap();
    clock.advance(secs(70));
    s.backfill("p", &range("00:10:00", "00:50:00")).unwrap();
    clock.advance(secs(70));
    assert_eq!(log.take(), ["p 00:10:00", "p 00:20:00"]);
    s.close(secs(60)).unwrap();
    let s = start(Scheduler::builder(worker(&log, secs(50))), &clock, &ledger);
    s.reconcile([plan()]).unwrap();
    clock.advance(secs(200));
    assert_eq!(log.take(), [""; 0]);
    assert_eq!(tally(&ledger, "p")["succeeded"], 2);
}

#[test]
fn a_backfill_that_is_withdrawn_starts_nothing_more() {
    for by_operator in [false, true] {
        let mut cluster = with_a_gap(2, 50);
        let id = cluster.scheduler(0).backfill("p", &range("00:30:00", "01:00:00")).unwrap().id;
        cluster.advance(secs(60));
        let before = starts(&cluster);
        assert_eq!(before, &GAP[..2]);
        if by_operator {
            let operator = Operator::of_store(cluster.store(), Namespace::default());
            assert!(operator.withdraw("p", &id, &ana()).unwrap());
            assert!(!operator.withdraw("p", &id, &ana()).unwrap());
        } else {
            cluster.scheduler(0).withdraw("p", &id, &ana()).unwrap();
        }
        cluster.advance(secs(400));
        assert_eq!(starts(&cluster), before);
        cluster.check();
    }
}

#[test]
fn another_process_asks_for_a_backfill_and_is_told_what_comes_of_it() {
    let mut cluster = with_a_gap(2, 5);
    let operator = Operator::of_store(cluster.store(), Namespace::default()).clock(cluster.clock().clone());
    let error = operator.backfill("p", &range("00:30:00", "01:00:00").cap(2)).unwrap_err();
    assert!(matches!(&error, OperateError::Refused(why) if why.contains("would start 4 slots")), "{error:?}");
    let expected = Expected::new(Schedule::parse("*/10 * * * *").unwrap());
    let wanted = range("00:20:00", "01:00:00");
    let prospects = operator.dry_run("p", &expected, &wanted).unwrap();
    assert_eq!(prospects, cluster.scheduler(0).dry_run("p", &wanted).unwrap());
    assert_eq!(prospects.iter().filter(|p| p.starts()).count(), 4);
    let going = operator.backfill("p", &wanted.id(id("b"))).unwrap();
    assert_eq!((going.id, going.starts), (id("b"), Some(4)));
    cluster.advance(secs(60));
    assert_eq!(starts(&cluster), GAP);
    cluster.check();
}

#[test]
fn a_backfill_waits_on_the_board_for_an_instance_that_has_the_plan() {
    let mut cluster = with_a_gap(1, 5);
    cluster.kill(0);
    let operator = Operator::of_store(cluster.store(), Namespace::default()).clock(cluster.clock().clone());
    let going = operator.backfill("p", &range("00:30:00", "01:00:00")).unwrap();
    assert_eq!(going.starts, None);
    cluster.advance(secs(3600));
    cluster.restart(0);
    cluster.advance(secs(120));
    assert_eq!(starts(&cluster), GAP);
    cluster.check();
}

#[test]
fn it_goes_on_under_the_new_version_of_an_edited_plan_and_waits_for_one_that_is_away() {
    let mut cluster = with_a_gap(1, 50);
    cluster.scheduler(0).backfill("p", &range("00:30:00", "01:00:00")).unwrap();
    cluster.advance(secs(20));
    cluster.reconcile([]);
    cluster.advance(secs(100));
    assert_eq!(starts(&cluster), &GAP[..1]);
    // Of the slots that are left this one has one.
    cluster.reconcile([Plan::new("p", "0 * * * *").catch_up(CatchUp::None)]);
    cluster.advance(secs(200));
    assert_eq!(starts(&cluster), ["00:30:00", "01:00:00"]);
    cluster.check();
}

#[test]
fn what_retention_has_taken_is_too_old() {
    let keep = Retention { age: Some(secs(3600)), count: None, keep_last: 1 };
    let plan = Plan::new("p", "*/10 * * * *").catch_up(CatchUp::None);
    let mut cluster = Cluster::builder().plans([plan]).build();
    cluster.advance(secs(3600));
    let _ = cluster.ledger().purge(&key("p"), Retention { age: Some(secs(1200)), ..keep }, 100).unwrap();
    let prospects = cluster.scheduler(0).dry_run("p", &range("00:10:00", "00:50:00")).unwrap();
    assert_eq!(prospects.iter().filter(|p| p.outlook == Outlook::TooOld).count(), 3, "{prospects:?}");
    assert!(prospects.iter().all(|p| !p.starts()));
    assert_eq!(cluster.scheduler(0).backfill("p", &range("00:10:00", "00:50:00")).unwrap().starts, Some(0));
}

/// Random pasts: instances that come and go, runs that overlap, edits. What a dry run says is what the backfill then does.
#[test]
fn a_dry_run_is_what_the_backfill_does() {
    let mut kinds = HashSet::new();
    for seed in 0..60_u64 {
        let dice = FakeClock::seeded(seed ^ 0xbac);
        let below = |n: u64| timertask_core::Clock::entropy(&dice) % n;
        let overlap = [Overlap::Skip, Overlap::QueueOne, Overlap::Allow(2), Overlap::CancelPrevious];
        let catch_up = [CatchUp::None, CatchUp::Latest, CatchUp::All { cap: 2 }];
        let spec = |n: u64| ["*/2 * * * *", "*/3 * * * *", "@every 90s"][usize::try_from(n).unwrap()];
        let pick = |n: usize| usize::try_from(below(n as u64)).unwrap();
        let (overlap, catch_up) = (overlap[pick(4)], catch_up[pick(3)]);
        let plan = |n| Plan::new("p", spec(n)).overlap(overlap).catch_up(catch_up);
        let clock = FakeClock::seeded(seed);
        let inner = clock.clone();
        let job = move |run: &Run| match timertask_core::Clock::entropy(&inner) % 4 {
            0 => Ok(run.wait(secs(200))?),
            1 => Err("failed".into()),
            _ => Ok(run.wait(secs(20))?),
        };
        let mut cluster = Cluster::builder().instances(2).clock(clock).plans([plan(below(3))]).job(job).build();
        for _ in 0..6 {
            cluster.advance(secs(below(400)));
            let i = pick(2);
            match below(5) {
                0 if cluster.lives(i) => cluster.kill(i),
                1 | 2 if !cluster.lives(i) => cluster.restart(i),
                3 => cluster.reconcile([plan(below(3))]),
                _ => {}
            }
        }
        (0..2).filter(|i| !cluster.lives(*i)).collect::<Vec<_>>().into_iter().for_each(|i| cluster.restart(i));
        // At rest, so that nothing else moves the slots: what ran has ended, what was missed is accounted for.
        cluster.advance(secs(900));
        let upto = cluster.now().trigger();
        let (a, b) = (below(2000), below(2000));
        let at = |back: u64| Trigger::from_secs(upto.as_secs() - i64::try_from(back).unwrap()).to_datetime();
        let what = Backfill::new(at(a.max(b)), at(a.min(b)), ana()).cap(10_000);
        let s = cluster.scheduler(pick(2)).clone();
        let prospects = s.dry_run("p", &what).unwrap();
        for prospect in &prospects {
            kinds.insert(std::mem::discriminant(&prospect.outlook));
        }
        let settled: Vec<&Prospect> = prospects.iter().filter(|p| p.outlook != Outlook::Ahead).collect();
        let wanted: Vec<Trigger> = settled.iter().filter(|p| p.starts()).map(|p| p.slot.at).collect();
        assert_eq!(s.backfill("p", &what).unwrap().starts, Some(wanted.len()), "seed {seed}");
        let before: BTreeMap<Trigger, SlotState> = cluster.rows("p").into_iter().map(|r| (r.key.at, r.state)).collect();
        cluster.advance(secs(300 * (1 + wanted.len() as u64)));
        let rows = cluster.rows("p");
        let mut backfilled: Vec<Trigger> =
            rows.iter().filter(|row| row.kind == RunKind::Backfill).map(|row| row.key.at).collect();
        backfilled.sort();
        assert_eq!(backfilled, wanted, "seed {seed}");
        for prospect in settled.iter().filter(|p| !p.starts() && p.outlook != Outlook::Running) {
            let row = rows.iter().find(|row| row.key.at == prospect.slot.at).map(|row| row.state);
            assert_eq!(row, before.get(&prospect.slot.at).copied(), "seed {seed}: {prospect}");
        }
        cluster.check();
    }
    assert!(kinds.len() >= 4, "the pasts are all alike: {kinds:?}");
}
