//! The gap audit.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::cancel::{claim, open};
use super::common::*;
use super::{ana, operator, two};
use timertask_core::key::{Fence, PlanKey};
use timertask_core::operate::{Audit, AuditState, Expected, Finding, Operator, Scope, Waits};
use timertask_core::seam::{
    Claim, ClaimRequest, Durability, EndRequest, Ended, Ending, NotStarted, Outcome, Page, PlanOp, PlanState, Purged,
    Query, Renewal, Retention, SlotRow, Term,
};
use timertask_core::{
    CatchUp, Ledger, MemLedger, Namespace, OperateError, Overlap, Plan, Resume, Run, RunKind, Schedule, Scheduler,
    SchedulerError, StoreError,
};
use timertask_testkit::{Call, Cluster, FakeClock, Fault, Faulty};

fn at(text: &str) -> DateTime<Utc> {
    t(text).to_datetime()
}

fn every_minute() -> Expected {
    Expected::new(Schedule::parse("* * * * *").unwrap()).starts_allowed(1)
}

fn states(audit: &Audit) -> Vec<String> {
    audit.slots.iter().map(|slot| format!("{} {}", short(slot.at), slot.state)).collect()
}

#[test]
fn each_expected_slot_has_its_one_state() {
    let (clock, log) = (FakeClock::new(), Log::default());
    let ledger = ledger(&clock);
    let job = || {
        let log = log.clone();
        move |run: &Run| {
            log.add(short(run.slot_key().at));
            match short(run.slot_key().at).as_str() {
                "00:02:00" => Err("no".into()),
                "00:03:00" => Ok(run.wait(secs(90))?),
                "00:06:00" => Ok(run.wait(secs(3600))?),
                _ => Ok(()),
            }
        }
    };
    let [a, _b] = two(&clock, &ledger, job, &[minutely("p").overlap(Overlap::Skip)]);
    clock.advance(secs(5 * 60 + 5));
    a.pause("p", &ana(), None).unwrap();
    clock.advance(secs(10));
    a.resume("p", &ana(), Resume::FromNow, None).unwrap();
    clock.advance(secs(60));
    a.pause("p", &ana(), None).unwrap();
    clock.advance(secs(60));
    let audit = a.audit("p", at("00:00:00"), at("00:09:00")).unwrap();
    let wanted = [
        "00:01:00 succeeded",
        "00:02:00 failed",
        "00:03:00 succeeded",
        "00:04:00 not started (overlap)",
        "00:05:00 succeeded",
        "00:06:00 running",
        "00:07:00 waiting (paused)",
        "00:08:00 not due",
        "00:09:00 not due",
    ];
    assert_eq!(states(&audit), wanted);
    assert_eq!((audit.scope, audit.more, audit.findings.as_slice()), (Scope::Shared, None, [].as_slice()));
    assert_eq!(audit.pause.as_ref().unwrap().by, "ana");
    assert_eq!(audit.slots[1].row.as_ref().unwrap().detail.as_deref(), Some("no"));
    assert_eq!(audit.standing_out().count(), 0);
    // The same by somebody who only knows the expression.
    let other = operator(&ledger).audit("p", &every_minute(), at("00:00:00"), at("00:09:00"));
    assert_eq!(states(&other.unwrap()), wanted);
}

#[test]
fn what_is_due_and_has_no_record_waits_and_then_stands_out() {
    let clock = FakeClock::new();
    let (ledger, log) = (ledger(&clock), Log::default());
    let a = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    a.reconcile([minutely("p").on_orphan(timertask_core::OnOrphan::Rerun { max: 1 })]).unwrap();
    clock.advance(secs(30));
    // An instance that claims a slot, and one that gave one back; then nobody is left.
    open(&ledger, &a, t("00:03:00"));
    let claimed = claim(&a, t("00:02:00"));
    assert!(matches!(ledger.claim(&[claimed]).unwrap().value[0], Claim::Granted(_)));
    a.close(secs(1)).unwrap();
    clock.advance(secs(6 * 60 - 30 + 20));
    let state = |at: &str| {
        let audit = operator(&ledger).audit("p", &every_minute(), self::at("00:00:00"), self::at("00:09:00")).unwrap();
        audit.slots.iter().find(|slot| slot.at == t(at)).unwrap().state
    };
    assert_eq!(state("00:02:00"), AuditState::Running);
    assert_eq!(state("00:03:00"), AuditState::Waiting(Waits::Sweep));
    // While a slot is open, what is behind it may be waiting for it.
    assert_eq!(state("00:04:00"), AuditState::Waiting(Waits::Plan));
    assert_eq!(state("00:06:00"), AuditState::Waiting(Waits::Start));
    assert_eq!(state("00:07:00"), AuditState::NotDue);
    let operator = operator(&ledger);
    let paused = operator.pause("p", &ana(), None).unwrap();
    assert_eq!(state("00:03:00"), AuditState::Waiting(Waits::Pause));
    assert_eq!(state("00:05:00"), AuditState::Waiting(Waits::Pause));
    operator.resume("p", &ana(), Resume::CatchUp, Some(&paused.pause)).unwrap();
    // Both are laid to rest; the gap is left.
    let b = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    b.reconcile([Plan::new("other", "@hourly")]).unwrap();
    clock.advance(secs(90));
    b.close(secs(1)).unwrap();
    assert_eq!(state("00:02:00"), AuditState::Ended(Ending::Orphaned));
    let unfinished = Query::Unfinished { plan: key("p"), limit: 9 };
    for row in ledger.read(&unfinished).unwrap().value.slots {
        let op = timertask_core::seam::EndOp::Resolve { reason: NotStarted::TooLate };
        let _ = ledger.end(&[EndRequest { key: row.key, fence: row.fence, op }]).unwrap();
    }
    assert_eq!(state("00:03:00"), AuditState::NotStarted(NotStarted::TooLate));
    assert_eq!(state("00:04:00"), AuditState::Overdue);
    assert!(state("00:04:00").stands_out());
    assert_eq!(state("00:06:00"), AuditState::Waiting(Waits::CatchUp));
    assert_eq!(state("00:07:00"), AuditState::Waiting(Waits::Start));
}

#[test]
fn purged_slots_earlier_generations_closed_plans_and_manual_runs() {
    let clock = FakeClock::new();
    let (ledger, log) = (ledger(&clock), Log::default());
    let a = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    a.reconcile([Plan::new("p", "*/30 * * * * *")]).unwrap();
    clock.advance(secs(61));
    a.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(240));
    let manual = ClaimRequest {
        key: timertask_core::SlotKey {
            request: Some(timertask_core::RequestId::new("again").unwrap()),
            ..claim(&a, t("00:03:07")).key
        },
        prev: None,
        kind: RunKind::Manual,
        asked: Some(Arc::new(ana())),
        ..claim(&a, t("00:03:07"))
    };
    assert!(matches!(ledger.claim(&[manual]).unwrap().value[0], Claim::Granted(_)));
    let audit = a.audit("p", at("00:00:00"), at("00:05:00")).unwrap();
    let earlier: Vec<String> = audit.earlier.iter().map(|row| short(row.key.at)).collect();
    assert_eq!(earlier, ["00:00:30", "00:01:00"]);
    let n = |text: &str| format!("{text} succeeded");
    assert_eq!(states(&audit), [n("00:02:00"), n("00:03:00"), n("00:04:00"), n("00:05:00")]);
    assert_eq!(audit.tally(), [("succeeded".to_owned(), 4)].into());
    assert_eq!(audit.manual.len(), 1);
    assert_eq!(audit.manual[0].asked.as_ref().unwrap().by(), "ana");
    assert_eq!(audit.ranges.len(), 1, "what the edit jumped over");
    // Purged, as far as the run that still goes on lets it.
    let keep = Retention { age: Some(secs(60)), count: None, keep_last: 0 };
    clock.advance(secs(600));
    let _ = ledger.purge(&key("p"), keep, 100).unwrap();
    let audit = a.audit("p", at("00:00:00"), at("00:05:00")).unwrap();
    assert_eq!(states(&audit)[0], "00:02:00 purged");
    assert!(audit.row.low_water >= t("00:02:00") && audit.findings.is_empty());
    // Removed: what comes after belongs to nobody.
    let (last, end) = (at("00:14:00"), at("00:16:00"));
    a.remove("p").unwrap();
    clock.advance(secs(120));
    let refused = a.audit("p", last, end).unwrap_err();
    assert!(matches!(&refused, SchedulerError::NotInstalled(id) if id == "p"), "{refused}");
    let audit = operator(&ledger).audit("p", &every_minute(), last, end).unwrap();
    assert_eq!(states(&audit), ["00:15:00 succeeded", "00:16:00 closed"]);
    let unknown = operator(&ledger).audit("q", &every_minute(), last, end).unwrap_err();
    assert!(matches!(&unknown, OperateError::Unknown(id) if id.as_str() == "q"), "{unknown}");
}

#[test]
fn another_version_in_the_ledger_is_told_and_not_judged_by_the_wrong_schedule() {
    let clock = FakeClock::new();
    let (ledger, log) = (ledger(&clock), Log::default());
    let old = start(Scheduler::builder(recorder(&log)), &clock.view("old"), &ledger);
    old.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(70));
    let new = start(Scheduler::builder(recorder(&log)), &clock.view("new"), &ledger);
    new.reconcile([Plan::new("p", "*/5 * * * *")]).unwrap();
    clock.advance(secs(5));
    let refused = old.audit("p", at("00:00:00"), at("00:05:00")).unwrap_err();
    assert!(matches!(&refused, SchedulerError::Operate(OperateError::OtherVersion(_))), "{refused}");
    assert_eq!(states(&new.audit("p", at("00:00:00"), at("00:05:00")).unwrap()), ["00:05:00 not due"]);
}

#[test]
fn a_long_interval_is_answered_in_parts() {
    let clock = FakeClock::new();
    let (ledger, log) = (ledger(&clock), Log::default());
    let a = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    a.reconcile([Plan::new("p", "* * * * * *")]).unwrap();
    clock.advance(secs(11_000));
    a.close(secs(1)).unwrap();
    clock.advance(secs(4_000));
    let expected = Expected::new(Schedule::parse("* * * * * *").unwrap());
    let (mut after, upto, mut seen) = (at("00:00:00"), at("04:00:00"), Vec::new());
    let mut parts = 0;
    loop {
        let audit = operator(&ledger).audit("p", &expected, after, upto).unwrap();
        assert!(audit.slots.len() <= 10_000);
        assert!(audit.findings.is_empty(), "{:?}", audit.findings);
        seen.extend(audit.slots.iter().map(|slot| (slot.at.as_secs(), slot.state)));
        parts += 1;
        match audit.more {
            Some(more) => after = more,
            None => break,
        }
    }
    assert_eq!((parts, seen.len()), (2, 4 * 3600));
    assert!(seen.windows(2).all(|pair| pair[1].0 == pair[0].0 + 1));
    assert_eq!(seen.iter().filter(|(_, state)| *state == AuditState::Ended(Ending::Succeeded)).count(), 11_000);
    assert_eq!(seen.last().unwrap().1, AuditState::Overdue);
}

/// A ledger that has lost or doubled what it was given.
struct Damaged(MemLedger, fn(&mut Vec<SlotRow>));

impl Ledger for Damaged {
    fn describe(&self) -> Result<Durability, StoreError> {
        self.0.describe()
    }
    fn plan(&self, requests: &[(PlanKey, PlanOp)]) -> Outcome<Vec<PlanState>> {
        self.0.plan(requests)
    }
    fn claim(&self, requests: &[ClaimRequest]) -> Outcome<Vec<Claim>> {
        self.0.claim(requests)
    }
    fn renew(&self, terms: &[Term], ttl: Duration) -> Outcome<Vec<Renewal>> {
        self.0.renew(terms, ttl)
    }
    fn end(&self, requests: &[EndRequest]) -> Outcome<Vec<Ended>> {
        self.0.end(requests)
    }
    fn read(&self, query: &Query) -> Outcome<Page> {
        let mut answer = self.0.read(query)?;
        if let Query::History { .. } = query {
            self.1(&mut answer.value.slots);
        }
        Ok(answer)
    }
    fn purge(&self, plan: &PlanKey, keep: Retention, at_most: usize) -> Outcome<Purged> {
        self.0.purge(plan, keep, at_most)
    }
}

#[test]
fn a_slot_without_a_record_and_one_with_two_starts_are_found() {
    let clock = FakeClock::new();
    let (ledger, log) = (ledger(&clock), Log::default());
    let a = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    a.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(185));
    let findings = |damage| {
        let operator = Operator::new(Damaged(ledger.clone(), damage), Namespace::default());
        let audit = operator.audit("p", &every_minute(), at("00:00:00"), at("00:03:00")).unwrap();
        (states(&audit).remove(1), audit.findings)
    };
    let slot = |text: &str| claim(&a, t(text)).key;
    let (state, found) = findings(|_| {});
    assert_eq!((state.as_str(), found), ("00:02:00 succeeded", vec![]));
    let (state, found) = findings(|rows| drop(rows.remove(1)));
    assert_eq!((state.as_str(), found), ("00:02:00 no record", vec![Finding::NoRecord(slot("00:02:00"))]));
    let (_, found) = findings(|rows| rows.insert(1, rows[1].clone()));
    assert_eq!(found, [Finding::TwoRecords(slot("00:02:00"))]);
    let (_, found) = findings(|rows| rows[1].attempt = 2);
    assert_eq!(found, [Finding::TooManyStarts { slot: slot("00:02:00"), starts: 2, allowed: 1 }]);
    let (_, found) = findings(|rows| rows.iter_mut().for_each(|row| row.fence = Fence::from_u64(7)));
    let [Finding::TwoOfOneFence { fence, slots }, _] = &found[..] else { panic!("{found:?}") };
    assert_eq!((fence.as_u64(), slots.clone()), (7, [slot("00:01:00"), slot("00:02:00")]));
    for finding in found {
        assert!(finding.to_string().contains("under one fence, 7"), "{finding}");
    }
}

/// What happens between its calls does not make it find what isn't so.
#[test]
fn a_purge_and_an_edit_in_the_midst_of_it_are_no_findings() {
    let clock = FakeClock::new();
    let (ledger, log) = (ledger(&clock), Log::default());
    let a = start(Scheduler::builder(recorder(&log)), &clock, &ledger);
    a.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(305));
    let audit = |f: fn(&MemLedger)| {
        let (faulty, inner) = (Faulty::new(ledger.clone(), Arc::new(clock.clone())), ledger.clone());
        // Between the plan's row and its history.
        faulty.on(Call::Read).nth(1, Fault::before(move || f(&inner)));
        let operator = Operator::new(faulty, Namespace::default());
        operator.audit("p", &every_minute(), at("00:00:00"), at("00:05:00")).unwrap()
    };
    let purged = audit(|ledger| {
        let keep = Retention { age: Some(secs(120)), count: None, keep_last: 0 };
        assert!(ledger.purge(&key("p"), keep, 100).unwrap().value.deleted > 0);
    });
    assert_eq!((purged.findings.as_slice(), purged.tally()["purged"]), ([].as_slice(), 3));
    let edited = audit(|ledger| {
        let open = PlanOp::Open { fingerprint: timertask_core::Fingerprint::from_bits(7), replaces: None };
        let _ = ledger.plan(&[(key("p"), open)]).unwrap();
    });
    // The new version began after them.
    assert_eq!((edited.findings.as_slice(), edited.slots.as_slice()), ([].as_slice(), [].as_slice()));
    assert_eq!(edited.earlier.len(), 2);
}

/// Whatever befalls the instances, the audit counts what an independent check of the whole store counts, and neither
/// finds a slot without a record.
#[test]
fn the_audit_agrees_with_an_independent_check_of_the_store() {
    for seed in 1..=40_u64 {
        let plans = [
            Plan::new("skip", "*/20 * * * * *"),
            Plan::new("all", "*/30 * * * * *").catch_up(CatchUp::All { cap: 3 }).overlap(Overlap::QueueOne),
            Plan::new("none", "@every 45s").catch_up(CatchUp::None).overlap(Overlap::Allow(2)).spread(secs(20)),
        ];
        let job = |run: &Run| Ok(run.wait(secs(run.slot_key().at.as_secs() as u64 % 47))?);
        let mut cluster = Cluster::builder().instances(2).seed(seed).plans(plans).job(job).concurrency(2).build();
        for step in 0..8 {
            let (index, dice) = ((seed + step) as usize % 2, (seed * 7 + step * 13) % 6);
            match dice {
                0 if cluster.lives(index) => cluster.kill(index),
                1 if !cluster.lives(index) => cluster.restart(index),
                2 if cluster.lives(index) => drop(cluster.scheduler(index).pause_all(&ana(), None).unwrap()),
                3 if cluster.lives(index) => {
                    drop(cluster.scheduler(index).resume_all(&ana(), Resume::FromNow, None).unwrap());
                }
                _ => {}
            }
            cluster.advance(secs(40 + 25 * dice));
        }
        (0..2).filter(|i| !cluster.lives(*i)).collect::<Vec<_>>().into_iter().for_each(|i| cluster.restart(i));
        cluster.advance(secs(5));
        let summary = cluster.check();
        let mut counts = [0; 5];
        for id in ["skip", "all", "none"] {
            let end = cluster.now().to_datetime();
            let audit = cluster.scheduler(0).audit(id, at("00:00:00"), end).unwrap();
            assert!(audit.findings.is_empty(), "seed {seed}: {:?}", audit.findings);
            for slot in &audit.slots {
                let of_row = slot.row.is_some();
                counts[match slot.state {
                    AuditState::Running | AuditState::Ended(_) | AuditState::Waiting(Waits::Sweep) => 0,
                    AuditState::Waiting(Waits::Pause) if of_row => 0,
                    AuditState::NotStarted(_) if of_row => 1,
                    AuditState::NotStarted(_) => 2,
                    AuditState::Purged => 3,
                    _ => 4,
                }] += 1;
            }
        }
        let wanted = [summary.started, summary.not_started, summary.in_ranges, summary.purged, summary.pending];
        assert_eq!(counts, wanted, "seed {seed}");
        assert!(counts.iter().sum::<usize>() > 30, "seed {seed}: {counts:?}");
    }
}
