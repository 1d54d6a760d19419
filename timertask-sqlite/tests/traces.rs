//! Random requests, asked of SQLite and of the ledger in memory alike: the same answers, and the same rows afterwards.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use timertask_core::clock::{Clock, SystemClock};
use timertask_core::key::{Fence, Fingerprint, InstanceId, Namespace, Nonce, PlanId, PlanKey, RequestId, SlotKey};
use timertask_core::memory::MemLedger;
use timertask_core::seam::{
    Asked, Cancel, Claim, ClaimRequest, Cover, EndOp, EndRequest, Ending, Gate, Generation, Ledger, NotStarted,
    Overlap, Page, PlanOp, Query, Retention, RunKind, SlotRow, Term,
};
use timertask_core::time::{Timestamp, Trigger};
use timertask_sqlite::{Sqlite, Synchronous};

/// Where the clock begins.
const START: i64 = 1_000_000;
const STEPS: usize = 250;

#[test]
fn soak_sqlite_answers_as_memory_does() {
    let seconds = std::env::var("TIMERTASK_SOAK_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let end = SystemClock.monotonic() + Duration::from_secs(seconds);
    let mut answers = BTreeSet::new();
    let mut seed = 0;
    while seed < 20 || SystemClock.monotonic() < end {
        trace(seed, &mut answers);
        seed += 1;
    }
    // Traces that don't reach an answer compare nothing of it.
    for expected in [
        "Granted",
        "Held",
        "Ended",
        "Released",
        "NotStarted",
        "Accounted",
        "TooOld",
        "Unknown",
        "Paused",
        "Full",
        "Recorded",
        "AlreadyRecorded",
        "Lost",
        "Done",
        "Unchanged",
        "Conflict",
        "Cancel",
        "deleted",
    ] {
        assert!(answers.contains(expected), "no trace came to {expected}: {answers:?}");
    }
}

fn trace(seed: u64, answers: &mut BTreeSet<String>) {
    let dir = TempDir::new();
    let clock = SetClock::at(START);
    let file = Sqlite::options().clock(clock.clone()).synchronous(Synchronous::Normal).open(dir.path("a.db")).unwrap();
    let memory = MemLedger::with_clock(Arc::new(clock.clone())).keeping(usize::MAX);
    let mut random =
        Random { state: seed, clock, granted: Vec::new(), generations: vec![None; PLANS], answers: BTreeSet::new() };
    for step in 0..STEPS {
        let what = random.step(&file, &memory);
        if step % 10 == 9 {
            let (left, right) = (everything(&file, &random), everything(&memory, &random));
            assert_eq!(left, right, "seed {seed}, step {step}: after {what}");
        }
    }
    answers.extend(random.answers);
}

const PLANS: usize = 3;

struct Random {
    state: u64,
    clock: SetClock,
    /// Terms that were granted, to be renewed, ended and given back; also late and twice.
    granted: Vec<(SlotKey, Nonce, Fence)>,
    generations: Vec<Option<Generation>>,
    /// The names of the answers that came up.
    answers: BTreeSet<String>,
}

impl Random {
    /// SplitMix64.
    fn below(&mut self, n: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % n as u64).unwrap()
    }

    fn one_of<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    /// Notes the names in an answer's text.
    fn note(&mut self, answer: &impl std::fmt::Debug) {
        let text = format!("{answer:?}");
        let names = text.split(|c: char| !c.is_alphanumeric()).filter(|name| name.starts_with(char::is_uppercase));
        for name in names {
            if !self.answers.contains(name) {
                self.answers.insert(name.to_owned());
            }
        }
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn plan(&mut self) -> usize {
        // The last one is opened seldom, so that requests on a plan that nobody knows come up.
        self.below(PLANS)
    }

    fn key(&mut self, plan: usize) -> PlanKey {
        if self.chance(3) {
            return PlanKey::whole(Namespace::default());
        }
        PlanKey::new(Namespace::default(), PlanId::new(format!("plan {plan}")).unwrap())
    }

    fn trigger(&mut self) -> Trigger {
        let now = self.clock.now().trigger().as_secs();
        let offset = i64::try_from(self.below(24)).unwrap() - 16;
        Trigger::from_secs(now + offset)
    }

    fn slot(&mut self) -> SlotKey {
        let plan = self.plan();
        let plan = PlanKey::new(Namespace::default(), PlanId::new(format!("plan {plan}")).unwrap());
        if self.chance(10) {
            // A request is found by its id, whatever instant is named with it.
            let n = self.below(4);
            let at = 7 * n + self.one_of(&[0, 0, 0, 1, 20]);
            let request = Some(RequestId::new(format!("request {n}")).unwrap());
            return SlotKey { plan, at: Trigger::from_secs(START + i64::try_from(at).unwrap()), request };
        }
        SlotKey { plan, at: self.trigger(), request: None }
    }

    fn fingerprint(&mut self) -> Fingerprint {
        Fingerprint::from_bits(u128::try_from(1 + self.below(2)).unwrap())
    }

    fn reason(&mut self) -> NotStarted {
        self.one_of(&NotStarted::ALL)
    }

    fn ttl(&mut self) -> Duration {
        Duration::from_secs(u64::try_from(1 + self.below(8)).unwrap())
    }

    /// One group of requests or one passing of time.
    fn step(&mut self, file: &Sqlite, memory: &MemLedger) -> String {
        match self.below(20) {
            0..8 => {
                let group: Vec<_> = (0..=self.below(3)).map(|_| self.claim()).collect();
                let (left, right) = (file.claim(&group).unwrap(), memory.claim(&group).unwrap());
                assert_eq!(left, right, "{group:#?}");
                self.note(&left.value);
                for (request, answer) in group.iter().zip(left.value) {
                    if let Claim::Granted(grant) = answer {
                        self.granted.push((request.key.clone(), request.nonce, grant.fence));
                    }
                }
                format!("{group:#?}")
            }
            8..12 => {
                let group: Vec<_> = (0..=self.below(2)).filter_map(|_| self.end(memory)).collect();
                let answer = file.end(&group).unwrap();
                assert_eq!(answer, memory.end(&group).unwrap(), "{group:#?}");
                self.note(&answer.value);
                format!("{group:#?}")
            }
            12 => {
                let ttl = self.ttl();
                let group: Vec<_> = (0..=self.below(2)).filter_map(|_| self.term()).collect();
                let answer = file.renew(&group, ttl).unwrap();
                assert_eq!(answer, memory.renew(&group, ttl).unwrap(), "{group:#?}");
                self.note(&answer.value);
                format!("{group:#?}")
            }
            13..17 => {
                let group: Vec<_> = (0..=self.below(2)).map(|_| self.plan_op(memory)).collect();
                let answer = file.plan(&group).unwrap();
                assert_eq!(answer, memory.plan(&group).unwrap(), "{group:#?}");
                answer.value.iter().for_each(|state| self.note(&state.applied));
                format!("{group:#?}")
            }
            17 => {
                let plan = self.plan();
                let (key, at_most) = (self.key(plan), self.below(6));
                let keep = Retention {
                    age: self.chance(50).then(|| Duration::from_secs(60 + 5)),
                    count: self.chance(50).then(|| self.below(5)),
                    keep_last: self.below(4),
                };
                let purged = file.purge(&key, keep, at_most).unwrap();
                assert_eq!(purged, memory.purge(&key, keep, at_most).unwrap(), "{key:?} {keep:?} {at_most}");
                if purged.value.deleted > 0 {
                    self.answers.insert("deleted".to_owned());
                }
                format!("purge of {key:?} {keep:?} {at_most}")
            }
            _ => {
                match self.below(8) {
                    // Far enough for purges by count.
                    0 => self.clock.advance(Duration::from_secs(90_000)),
                    1 => self.clock.step_back(Duration::from_secs(30)),
                    n => self.clock.advance(Duration::from_millis(700 * u64::try_from(n).unwrap())),
                }
                format!("it became {}", self.clock.now())
            }
        }
    }

    fn claim(&mut self) -> ClaimRequest {
        // Now and then one and the same decision asks again.
        let again = self.chance(25).then(|| self.term()).flatten();
        let (key, nonce) = match again {
            Some(term) => (term.key, term.nonce),
            None => (self.slot(), Nonce::from_bits(u128::try_from(self.below(1 << 30)).unwrap())),
        };
        let at = key.at.as_secs();
        let kind = match key.request {
            Some(_) => RunKind::Manual,
            None => self.one_of(&[RunKind::Scheduled, RunKind::Scheduled, RunKind::CatchUp, RunKind::Backfill]),
        };
        let gate = self.one_of(&[
            Gate::Policy(Overlap::Skip),
            Gate::Policy(Overlap::QueueOne),
            Gate::Policy(Overlap::CancelPrevious),
            Gate::Policy(Overlap::Allow(2)),
            Gate::Policy(Overlap::Allow(0)),
            Gate::Force,
        ]);
        ClaimRequest {
            key,
            nonce,
            fingerprint: self.fingerprint(),
            prev: self.one_of(&[None, Some(Trigger::from_secs(at - 1)), Some(Trigger::from_secs(at - 3))]),
            kind,
            asked: self.chance(30).then(|| Arc::new(Asked::new(self.one_of(&["ana", "é'\"%"]), "why; --").unwrap())),
            gate,
            attempts_allowed: self.one_of(&[1, 1, 3]),
            ttl: self.ttl(),
            instance: InstanceId::new(self.one_of(&["a", "b"])).unwrap(),
            version: self.chance(50).then(|| Arc::from("v1")),
        }
    }

    fn term(&mut self) -> Option<Term> {
        let n = self.granted.len().checked_sub(1)?;
        let term = n - self.below(n.min(5) + 1);
        let (key, nonce, fence) = self.granted[term].clone();
        let nonce = if self.chance(10) { Nonce::from_bits(5) } else { nonce };
        let fence = if self.chance(10) { Fence::from_u64(fence.as_u64() + 1) } else { fence };
        Some(Term { key, nonce, fence })
    }

    fn end(&mut self, memory: &MemLedger) -> Option<EndRequest> {
        let term = self.term()?;
        let nonce = term.nonce;
        let op = match self.below(8) {
            0..3 => EndOp::Settle {
                nonce,
                ending: self.one_of(&Ending::ALL),
                started_at: Timestamp::from_micros(i64::try_from(self.below(1_000_000)).unwrap()),
                ended_at: self.clock.now(),
                tries: u32::try_from(self.below(4)).unwrap(),
                detail: self.chance(50).then(|| Arc::from("it said: \u{fffd}\0 and more")),
            },
            3 => EndOp::GiveBack { nonce },
            4..6 => EndOp::Expire { attempts_allowed: self.one_of(&[1, 2, 3]) },
            6 => EndOp::CutLease { max_skew: Duration::from_secs(2) },
            _ => EndOp::Resolve { reason: self.reason() },
        };
        // Of open slots the fence is as good as that of a term.
        let open = if self.chance(30) { unfinished(memory, &term.key.plan) } else { Vec::new() };
        let (key, fence) = match open.first() {
            Some(row) => (row.key.clone(), row.fence),
            None => (term.key, term.fence),
        };
        Some(EndRequest { key, fence, op })
    }

    fn plan_op(&mut self, memory: &MemLedger) -> (PlanKey, PlanOp) {
        let n = self.plan();
        let key = self.key(n);
        let row = memory.plan(&[(key.clone(), PlanOp::Read)]).unwrap().value.remove(0).row;
        let cursor = row.as_ref().map_or(self.clock.now().trigger(), |row| row.cursor);
        let generation = row.as_ref().map(|row| row.generation).or(self.generations[n]);
        self.generations[n] = generation;
        let op = match self.below(12) {
            0..3 => PlanOp::Open {
                fingerprint: self.fingerprint(),
                replaces: if self.chance(70) { generation } else { None },
            },
            3 => match generation {
                Some(generation) => PlanOp::Close { generation },
                None => PlanOp::Read,
            },
            4..8 => {
                let span = i64::try_from(self.below(6)).unwrap();
                let to = Trigger::from_secs(cursor.as_secs() + span);
                let slots: Vec<_> =
                    (1..=span).map(|n| Trigger::from_secs(cursor.as_secs() + n)).filter(|_| self.chance(60)).collect();
                let cover = match self.below(4) {
                    0 => Cover::Nothing,
                    1 => Cover::Rows(slots),
                    2 => Cover::Slots(slots, self.reason()),
                    _ => Cover::Range { count: self.chance(50).then_some(9), reason: self.reason() },
                };
                let from = if self.chance(90) { cursor } else { self.trigger() };
                PlanOp::Account { fingerprint: self.fingerprint(), from, to, cover }
            }
            8 => PlanOp::SetBack { max_skew: Duration::from_secs(2) },
            9 => PlanOp::Pause {
                by: "ops".to_owned(),
                why: "it's \"late\"".to_owned(),
                until: self.chance(50).then(|| self.clock.now().saturating_add(Duration::from_secs(3))),
            },
            10 => match row.and_then(|row| row.pause) {
                Some(pause) => PlanOp::Resume { since: pause.since, lapsed_only: self.chance(30) },
                None => PlanOp::Resume { since: self.clock.now(), lapsed_only: false },
            },
            _ => {
                let slot = self.term().map_or_else(|| self.slot(), |term| term.key);
                let cancel = Cancel { by: "ops".to_owned(), why: "stop".to_owned() };
                return (slot.plan, PlanOp::Cancel { at: slot.at, request: slot.request, cancel });
            }
        };
        (key, op)
    }
}

fn unfinished(ledger: &dyn Ledger, plan: &PlanKey) -> Vec<SlotRow> {
    ledger.read(&Query::Unfinished { plan: plan.clone(), limit: 100 }).unwrap().value.slots
}

/// All that a ledger shows, read by small pages.
fn everything(ledger: &dyn Ledger, random: &Random) -> Vec<Page> {
    let namespace = Namespace::default();
    let mut pages = Vec::new();
    let mut plans = Vec::new();
    let mut after = None;
    loop {
        let query = Query::Plans { namespace: namespace.clone(), after: after.clone(), limit: 2 };
        let page = ledger.read(&query).unwrap().value;
        plans.extend(page.plans);
        if page.more.is_none() {
            break;
        }
        after = plans.last().and_then(|(key, _)| key.plan.clone());
    }
    for (key, _) in &plans {
        let after = Trigger::from_secs(START - 100);
        let query =
            |page| Query::History { plan: key.clone(), after, upto: Trigger::from_secs(i64::MAX), page, limit: 3 };
        pages.push(whole(ledger, query));
        let slots = unfinished(ledger, key);
        pages.push(Page { slots, ..Page::default() });
    }
    let max_skew = Duration::from_secs(2);
    let lapsed = |after| Query::Lapsed { namespace: namespace.clone(), max_skew, after, limit: 2 };
    let mut lapsed = whole(ledger, lapsed);
    // In an order of the store's own.
    lapsed.slots.sort_by(|a, b| a.key.cmp(&b.key));
    pages.push(lapsed);
    let named = random.granted.iter().rev().take(5).map(|(key, ..)| key.clone()).collect();
    pages.push(ledger.read(&Query::Slots(named)).unwrap().value);
    let whole = ledger.plan(&[(PlanKey::whole(namespace), PlanOp::Read)]).unwrap().value.remove(0).row;
    pages.push(Page {
        plans: whole.map(|row| (plan("all"), row)).into_iter().chain(plans).collect(),
        ..Page::default()
    });
    pages
}

/// All pages of a query as one.
fn whole(ledger: &dyn Ledger, query: impl Fn(Option<timertask_core::seam::PageToken>) -> Query) -> Page {
    let mut all = Page::default();
    let mut token = None;
    loop {
        let page = ledger.read(&query(token)).unwrap().value;
        all.plans = page.plans;
        all.slots.extend(page.slots);
        all.ranges.extend(page.ranges);
        token = page.more;
        if token.is_none() {
            return all;
        }
    }
}
