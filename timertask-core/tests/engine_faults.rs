//! Stores that fail, lie, hang: no double start, no slot lost inside its window, everything accounted for afterwards.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use timertask_core::key::PlanKey;
use timertask_core::seam::{
    Answer, Claim, ClaimRequest, Durability, EndRequest, Ended, Ending, Grant, Ledger, Outcome, Page, PlanOp,
    PlanState, Purged, Query, Refusal, Renewal, Retention, StoreError, Term,
};
use timertask_core::{Fence, MemLedger, Plan, Scheduler, StartError, StoreErrorKind};
use timertask_testkit::{Call, FakeClock, Fault, Faulty};

fn faults() -> Vec<Fault> {
    vec![
        Fault::Error(StoreErrorKind::Unreachable),
        Fault::Error(StoreErrorKind::Corrupt),
        Fault::LostAnswer,
        Fault::LostRequest,
        Fault::Straggler(secs(3)),
        Fault::Slow(secs(2)),
        Fault::SlowAnswer(secs(2)),
        Fault::Duplicate,
        Fault::DuplicateLater(secs(4)),
        Fault::Before(Arc::new(|| panic!("a store that panics"))),
        Fault::After(Arc::new(|| panic!("a store that panics late"))),
    ]
}

#[test]
fn each_fault_of_each_call_doubles_nothing_and_loses_nothing() {
    for call in [Call::Claim, Call::End, Call::Renew, Call::Plan, Call::Read] {
        for fault in faults() {
            let clock = FakeClock::seeded(9);
            let ledger = ledger(&clock);
            let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
            let log = Log::default();
            let instances: Vec<_> = (0..2)
                .map(|n| {
                    let view = clock.view(&format!("i{n}"));
                    let handle = faulty.handle(Arc::new(view.clone()));
                    let s =
                        Scheduler::builder(worker(&log, secs(3))).clock(view).ledger(handle.clone()).start().unwrap();
                    s.reconcile([Plan::new("p", "*/20 * * * * *"), Plan::new("q", "30 * * * * *")]).unwrap();
                    (handle, s)
                })
                .collect();
            clock.advance(secs(50));
            for (handle, _) in &instances {
                handle.on(call).next(4, fault.clone());
            }
            clock.advance(secs(550));
            let what = format!("{call} {fault:?}");
            let mut ran = log.lines();
            let all = ran.len();
            ran.sort();
            ran.dedup();
            assert_eq!(ran.len(), all, "{what}: {ran:?}");
            let gone = if matches!(call, Call::Claim) { 3 } else { 1 };
            assert!(all + gone >= 29 + 10, "{what}: {all} {:?}", story(&ledger, "p"));
            for (id, spec) in [("p", "*/20 * * * * *"), ("q", "30 * * * * *")] {
                let missing = unaccounted(&ledger, id, spec, t("00:00:00"), t("00:08:40"));
                assert!(missing.is_empty(), "{what}: {missing:?}");
                assert_eq!(tally(&ledger, id).get("orphaned"), None, "{what} {:?}", story(&ledger, id));
            }
            for (_, s) in &instances {
                assert!(s.health().threads_panicked.is_empty(), "{what}");
                assert!(s.close(secs(10)).unwrap().is_clean(), "{what}");
            }
        }
    }
}

#[test]
fn fault_10_no_answer_but_a_grant_enters_a_job() {
    let answers: Vec<(&str, Claim)> = vec![
        ("held", Claim::Held),
        ("ended", Claim::Ended(Ending::Succeeded)),
        ("released", Claim::Refused(Refusal::Released)),
        ("not started", Claim::Refused(Refusal::NotStarted(timertask_core::NotStarted::TooLate))),
        ("accounted", Claim::Refused(Refusal::Accounted)),
        ("too old", Claim::Refused(Refusal::TooOld)),
        ("unknown", Claim::Refused(Refusal::Unknown)),
        ("paused", Claim::Refused(Refusal::Paused)),
        ("full", Claim::Refused(Refusal::Full)),
        ("no fence", Claim::Granted(grant(0, 1))),
        ("no attempt", Claim::Granted(grant(5, 0))),
    ];
    for (what, answer) in answers {
        let clock = FakeClock::new();
        let faulty = Faulty::new(ledger(&clock), Arc::new(clock.clone()));
        faulty.twist_claims(move |_, claims| claims.iter().map(|_| answer.clone()).collect());
        let log = Log::default();
        let s = Scheduler::builder(recorder(&log)).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
        s.reconcile([Plan::new("p", "*/5 * * * * *")]).unwrap();
        let turns = clock.trace().steps;
        clock.advance(secs(300));
        assert_eq!((log.len(), s.stats().started), (0, 0), "{what}");
        let turns = clock.trace().steps - turns;
        assert!(turns < 6_000, "{what}: {turns} turns in five minutes");
        assert!(s.close(secs(1)).unwrap().is_clean(), "{what}");
    }
}

fn grant(fence: u64, attempt: u32) -> Grant {
    Grant {
        at: t("00:00:00"),
        fence: Fence::from_u64(fence),
        attempt,
        lease_end: t("23:59:59").timestamp(),
        cursor: t("00:00:00"),
        last_success: None,
        window_from: None,
    }
}

/// A ledger that answers nonsense in the way that `mode` says.
struct Nonsense {
    inner: MemLedger,
    mode: &'static str,
    calls: AtomicUsize,
}

impl Nonsense {
    fn every_other(&self) -> bool {
        self.calls.fetch_add(1, Ordering::SeqCst).is_multiple_of(2)
    }

    fn twist<T: Clone>(&self, outcome: Outcome<Vec<T>>) -> Outcome<Vec<T>> {
        let Answer { now, mut value } = outcome?;
        // Every other call, so that there is something to go on with.
        if self.every_other() {
            match self.mode {
                "few" => drop(value.pop()),
                "many" => value.extend(value.clone()),
                "none" => value.clear(),
                "panic" => panic!("nonsense"),
                _ => {}
            }
        }
        Ok(Answer { now, value })
    }
}

impl Ledger for Nonsense {
    fn describe(&self) -> Result<Durability, StoreError> {
        assert!(self.mode != "describe", "not even that");
        Ok(Durability::Durable { synced: true })
    }
    fn plan(&self, requests: &[(PlanKey, PlanOp)]) -> Outcome<Vec<PlanState>> {
        let answer = self.inner.plan(requests)?;
        if self.mode == "rowless" && self.every_other() {
            let value = answer.value.into_iter().map(|state| PlanState { row: None, ..state }).collect();
            return Ok(Answer { now: answer.now, value });
        }
        self.twist(Ok(answer))
    }
    fn claim(&self, requests: &[ClaimRequest]) -> Outcome<Vec<Claim>> {
        self.twist(self.inner.claim(requests))
    }
    fn renew(&self, terms: &[Term], ttl: Duration) -> Outcome<Vec<Renewal>> {
        self.twist(self.inner.renew(terms, ttl))
    }
    fn end(&self, requests: &[EndRequest]) -> Outcome<Vec<Ended>> {
        self.twist(self.inner.end(requests))
    }
    fn read(&self, query: &Query) -> Outcome<Page> {
        let mut answer = self.inner.read(query)?;
        if self.mode == "endless" {
            answer.value.more = Some(timertask_core::seam::PageToken("0".to_owned()));
        }
        assert!(self.mode != "panic" || self.every_other(), "nonsense");
        Ok(answer)
    }
    fn purge(&self, _: &PlanKey, _: Retention, _: usize) -> Outcome<Purged> {
        let now = self.inner.plan(&[])?.now;
        Ok(Answer { now, value: Purged { deleted: usize::MAX, low_water: t("00:00:00"), more: true } })
    }
}

#[test]
fn a_ledger_that_answers_nonsense_takes_nothing_down_and_doubles_nothing() {
    for mode in ["few", "many", "none", "panic", "rowless", "endless"] {
        let clock = FakeClock::new();
        let inner = ledger(&clock);
        let nonsense = Nonsense { inner: inner.clone(), mode, calls: AtomicUsize::new(0) };
        let log = Log::default();
        let s = Scheduler::builder(worker(&log, secs(15))).clock(clock.clone()).ledger(nonsense).start().unwrap();
        s.reconcile([minutely("p"), Plan::new("q", "30 * * * * *")]).unwrap();
        let turns = clock.trace().steps;
        clock.advance(secs(600));
        let turns = clock.trace().steps - turns;
        assert!(turns < 20_000, "{mode}: {turns} turns");
        let mut ran = log.lines();
        let all = ran.len();
        ran.sort();
        ran.dedup();
        assert_eq!(ran.len(), all, "{mode}");
        assert!(all >= 12, "{mode}: {ran:?}");
        assert_eq!(s.health().threads_alive, 7, "{mode}: timer, claimer, scribe, four workers");
        assert!(s.health().threads_panicked.is_empty(), "{mode}");
        s.close(secs(5)).unwrap();
    }
}

#[test]
fn a_ledger_that_cannot_be_asked_refuses_the_start() {
    let clock = FakeClock::new();
    let faulty = Faulty::new(ledger(&clock), Arc::new(clock.clone()));
    faulty.on(Call::Describe).next(1, Fault::Error(StoreErrorKind::Auth));
    let job = |_: &timertask_core::Run| Ok(());
    let error = Scheduler::builder(job).clock(clock.clone()).ledger(faulty).start().unwrap_err();
    assert!(matches!(error, StartError::Store(_)));
    let nonsense = Nonsense { inner: ledger(&clock), mode: "describe", calls: AtomicUsize::new(0) };
    let error = Scheduler::builder(job).clock(clock.clone()).ledger(nonsense).start().unwrap_err();
    assert!(matches!(error, StartError::Store(_)));
    let durable = Nonsense { inner: ledger(&clock), mode: "", calls: AtomicUsize::new(0) };
    let mutex = timertask_core::LocalMutex::with_clock(Arc::new(clock.clone()));
    let error = Scheduler::builder(job).clock(clock.clone()).ledger(durable).mutex(mutex).start().unwrap_err();
    assert!(matches!(error, StartError::MutexAndLedger));
    assert_eq!(clock.rooms(), 0, "nothing is left running");
}

#[test]
fn a_stalled_claim_delays_no_renewal_and_no_end() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
    let log = Log::default();
    let s = Scheduler::builder(worker(&log, secs(200))).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
    s.reconcile([Plan::new("p", "5 0 * * * *"), minutely("q")]).unwrap();
    clock.advance(secs(10));
    faulty.on(Call::Claim).next(1, Fault::Stall);
    clock.advance(secs(300));
    assert_eq!(faulty.stalled(), 1);
    assert!(faulty.calls(Call::Renew) > 15);
    assert_eq!(tally(&ledger, "p"), [("succeeded".to_owned(), 1)].into());
    faulty.release();
    clock.advance(secs(90));
    assert!(log.len() >= 2, "{:?}", log.lines());
    assert!(
        unaccounted(&ledger, "q", "* * * * *", t("00:00:00"), t("00:05:00")).is_empty(),
        "{:?}",
        story(&ledger, "q")
    );
}

#[test]
fn ends_are_written_in_groups_and_until_they_are_recorded() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
    let log = Log::default();
    let s =
        Scheduler::builder(recorder(&log)).concurrency(64).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
    s.reconcile((0..64).map(|n| minutely(&format!("p{n}")))).unwrap();
    clock.advance(secs(30));
    faulty.on(Call::End).next(10, Fault::Error(StoreErrorKind::Busy));
    clock.advance(secs(45));
    assert_eq!(log.len(), 64);
    assert_eq!(s.stats().succeeded, 64);
    assert_eq!(s.stats().running, 0);
    assert!(faulty.calls(Call::End) < 40, "{}", faulty.calls(Call::End));
    for n in 0..64 {
        assert_eq!(tally(&ledger, &format!("p{n}")), [("succeeded".to_owned(), 1)].into());
    }
}

#[test]
fn fault_17_a_kill_at_every_write_leaves_each_slot_ended_or_claimable() {
    for call in [Call::Plan, Call::Claim, Call::Renew, Call::End] {
        for nth in 1..=4 {
            for before in [true, false] {
                let clock = FakeClock::seeded(17);
                let ledger = ledger(&clock);
                let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
                let log = Log::default();
                let view = clock.view("dying");
                let handle = faulty.handle(Arc::new(view.clone()));
                let dying = Scheduler::builder(worker(&log, secs(15)))
                    .clock(view.clone())
                    .ledger(handle.clone())
                    .start()
                    .unwrap();
                let killed = view.clone();
                let kill = move || killed.kill();
                handle.on(call).nth(nth, if before { Fault::before(kill) } else { Fault::after(kill) });
                dying.reconcile([minutely("p")]).unwrap();
                clock.advance(secs(200));
                let what = format!("{call} {nth} before {before}");
                if view.is_alive() {
                    view.kill();
                }
                let next = start(Scheduler::builder(worker(&log, secs(15))), &clock.view("next"), &ledger);
                next.reconcile([minutely("p")]).unwrap();
                clock.advance(secs(300));
                let mut ran = log.lines();
                let all = ran.len();
                ran.dedup();
                assert_eq!(ran.len(), all, "{what}: {ran:?}");
                assert!(all >= 4, "{what}: the plan goes on: {ran:?}");
                let tally = tally(&ledger, "p");
                assert!(
                    tally.get("running").copied().unwrap_or(0) <= 1 && !tally.contains_key("open"),
                    "{what}: {tally:?}"
                );
                let from = row(&ledger, "p").unwrap().generation.effective_from;
                let missing = unaccounted(&ledger, "p", "* * * * *", from, t("00:06:00"));
                assert!(missing.is_empty(), "{what}: {missing:?} {:?}", story(&ledger, "p"));
                next.close(secs(60)).unwrap();
                drop(dying);
            }
        }
    }
}

#[test]
fn fault_30_with_any_number_of_instances_no_slot_is_missed_and_calls_are_few() {
    for n in [1, 5, 50] {
        let clock = FakeClock::seeded(30);
        let ledger = ledger(&clock);
        let log = Log::default();
        let all: Vec<_> = (0..n)
            .map(|n| {
                let s = start(Scheduler::builder(recorder(&log)), &clock.view(&format!("i{n}")), &ledger);
                s.reconcile([minutely("p")]).unwrap();
                s
            })
            .collect();
        clock.advance(secs(61));
        let calls = |all: &[Scheduler]| all.iter().map(|s| s.stats().store_calls).sum::<u64>();
        let before = calls(&all);
        clock.advance(secs(600));
        assert_eq!(log.len(), 11);
        // A claim a slot and instance, an end a slot, two reads a sweep and instance.
        let each = (calls(&all) - before) / n as u64;
        assert!(each <= 10 + 10 + 2 * 61, "{each} calls of each of {n}");
    }
}

#[test]
fn fault_54_spread_bounds_starts_a_second_and_idle_calls_are_few() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let inner = log.clone();
    let job = move |run: &timertask_core::Run| {
        inner.add(short(run.due().trigger()));
        assert!(run.due() <= run.started_at());
        Ok(())
    };
    let s = start(Scheduler::builder(job), &clock, &ledger);
    s.reconcile((0..1000).map(|n| Plan::new(format!("p{n}"), "@hourly").spread(secs(60)))).unwrap();
    clock.advance(secs(3599));
    let idle = s.stats().store_calls;
    assert!(idle <= 2 * 361 + 10, "{idle}");
    clock.advance(secs(65));
    let mut per_second = std::collections::BTreeMap::new();
    for second in log.lines() {
        *per_second.entry(second).or_insert(0) += 1;
    }
    assert_eq!(log.len(), 1000);
    assert!(per_second.len() >= 58 && per_second.values().all(|n| *n <= 40), "{per_second:?}");
}
