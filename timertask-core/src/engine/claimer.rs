//! The second room: takes due slots in order, asks the ledger for as many as there are free workers, and hands what is
//! granted to them. Nothing queues between claim and entry, so an instance that is full leaves slots to others.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::batch::Line;
use super::candidate::{Candidate, Origin, has_own_permit};
use super::due::Due;
use super::order::Reply;
use super::orders::Orders;
use super::pace::Paced;
use super::reports::Reports;
use super::shared::{LEASE, MARGIN, ScribeMail, matched};
use super::shelf::Shelf;
use super::stats::Counters;
use super::worker::{Finish, Finished};
use super::{Installed, Shared};
use crate::clock::{Room, Signal, Turn, Until};
use crate::key::{Fence, SlotKey};
use crate::record::{RunOutcome, RunRecord};
use crate::run::{RunCell, Trust, phase};
use crate::seam::{Asked, ClaimRequest, Gate, RunKind, StoreError};
use crate::time::{Timestamp, Trigger};

/// With any ledger a call holds no more than so many.
const AT_ONCE: usize = 128;
/// How often a waiting slot (full gate) asks again.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(1);
/// The longest back-off after faults of the store.
const BACK_OFF: Duration = Duration::from_secs(2);

/// What reaches the claimer.
pub(crate) enum ClaimerMail {
    /// Slots have fallen due.
    Due(Arc<Line>),
    /// A slot to claim that was found open, or missed.
    Found(Candidate),
    /// A run that an operator waits for.
    Ordered(Candidate),
    /// A run of this plan has ended here.
    Ended(Arc<Installed>),
}

pub(crate) struct Claimer {
    pub(super) shared: Arc<Shared>,
    due: Due,
    /// Live slots that were asked for and not answered for good, or were found open: before anything else.
    again: Shelf,
    faults: u32,
    /// No call before this monotonic time.
    hold: Duration,
    /// The newest slot of each plan whose gate was full.
    pub(super) waiting: Shelf,
    /// Whether the next call begins with one of them.
    pub(super) waiting_first: bool,
    /// Those that waited until a newer one came, and that the ledger has not been told of.
    pub(super) superseded: Vec<Candidate>,
    pub(super) orders: Orders,
    pub(super) catch_up: Paced,
}

impl Claimer {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            due: Due::default(),
            again: Shelf::default(),
            faults: 0,
            hold: Duration::ZERO,
            waiting: Shelf::default(),
            waiting_first: false,
            superseded: Vec::new(),
            orders: Orders::default(),
            catch_up: Paced::new(shared.config.catch_up_pace),
            shared,
        }
    }

    /// How many runs there is room for.
    pub(super) fn permits(&self) -> usize {
        self.shared.pool.room(self.shared.clock.monotonic()).min(AT_ONCE)
    }

    /// The next slot whose time has come, if there is one. Those that are given up, but may have been granted, go to
    /// `forsaken`.
    pub(super) fn take_live(
        &mut self,
        now: Timestamp,
        mono: Duration,
        forsaken: &mut Vec<Candidate>,
    ) -> Option<Candidate> {
        while let Some(mut candidate) = self.again.pop(mono) {
            let gone = candidate.plan.is_gone();
            if !gone && !candidate.is_over(now) && !candidate.given_up {
                return Some(candidate);
            }
            if !gone && !candidate.given_up {
                self.out_of_reach(&candidate.plan, candidate.at, candidate.kind, now);
                self.shared.want_walk(&candidate.plan);
            }
            candidate.given_up = true;
            // A lock lapses by itself.
            if candidate.unknown && self.shared.mutex.is_none() {
                forsaken.push(candidate);
                return None;
            }
        }
        if !self.next_is_live(now) {
            return None;
        }
        self.due.take(&self.shared)
    }

    /// Whether there is a slot that is due and may be started.
    fn next_is_live(&mut self, now: Timestamp) -> bool {
        let mut late = Vec::new();
        let live = self.due.next_is_live(&self.shared, now, |plan, at| {
            if self.faults > 0 {
                late.push((Arc::clone(plan), at));
            }
        });
        for (plan, at) in late {
            self.out_of_reach(&plan, at, RunKind::Scheduled, now);
        }
        live
    }

    /// The store was out of reach until the slot's time was over: an alarm, and a gap.
    fn out_of_reach(&self, plan: &Installed, at: Trigger, kind: RunKind, now: Timestamp) {
        log::debug!(target: "timertask::store", "{}: plan {:?}, slot {at}: the store was out of reach through its start window", self.shared.config.instance, plan.id);
        self.record_slot(plan, self.shared.slot_key(&plan.id, at), kind, None, RunOutcome::StoreFault, now);
    }

    /// Puts on record what became of a candidate that is not run here.
    pub(super) fn record(&self, candidate: &Candidate, outcome: RunOutcome, now: Timestamp) {
        let slot = candidate.slot_key(&self.shared);
        self.record_slot(&candidate.plan, slot, candidate.kind, candidate.asked.clone(), outcome, now);
    }

    fn record_slot(
        &self,
        plan: &Installed,
        slot: SlotKey,
        kind: RunKind,
        asked: Option<Arc<Asked>>,
        outcome: RunOutcome,
        now: Timestamp,
    ) {
        let due = plan.due_of(&slot);
        let record = RunRecord {
            slot,
            kind,
            asked,
            instance: self.shared.config.instance.clone(),
            version: self.shared.config.version.clone(),
            attempt: 0,
            fence: Fence::NONE,
            due,
            started_at: None,
            ended_at: now,
            tries: 0,
            failed_tries: Vec::new(),
            outcome,
            detail: None,
        };
        self.shared.counters.record(plan.counts(), &record);
        Reports::log(&record);
        if self.shared.reports.wanted() {
            self.shared.reports.records(vec![record]);
        }
    }

    /// A walk or backfill that waits for this candidate goes on at `then`.
    pub(super) fn go_on(&self, candidate: Candidate, then: Duration) {
        match candidate.origin {
            Origin::Walk => self.shared.scribe.send(ScribeMail::CaughtUp(candidate.plan, then)),
            Origin::Backfill(errand) => self.shared.scribe.send(ScribeMail::Backfilled(errand.number, then)),
            Origin::Timer(..) | Origin::Sweep | Origin::Order(_) => {}
        }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Another instance has it.
    pub(super) fn yielded(&self, candidate: Candidate) {
        self.record(&candidate, RunOutcome::Yielded, self.shared.clock.now());
        self.go_on(candidate, Duration::ZERO);
    }

    pub(super) fn request(&self, candidate: &Candidate, ttl: Duration) -> ClaimRequest {
        ClaimRequest {
            key: candidate.slot_key(&self.shared),
            nonce: candidate.nonce,
            fingerprint: candidate.plan.fingerprint,
            prev: candidate.prev,
            kind: candidate.kind,
            asked: candidate.asked.clone(),
            gate: match candidate.order() {
                Some(order) if order.force => Gate::Force,
                _ => Gate::Policy(candidate.plan.policy.overlap),
            },
            attempts_allowed: candidate.plan.policy.on_orphan.attempts_allowed(),
            ttl,
            instance: self.shared.config.instance.clone(),
            version: self.shared.config.version.clone(),
        }
    }

    /// Asks for these, each with a permit.
    fn claim(&mut self, mut candidates: Vec<Candidate>, mono: Duration) {
        let shared = Arc::clone(&self.shared);
        let permits = shared.pool.reserve(candidates.len(), mono);
        // A run that came back for another try was faster.
        candidates.split_off(permits).into_iter().for_each(|candidate| self.keep(candidate));
        if permits > 0 {
            Counters::add(&shared.counters.claimed, permits);
            let granted = if shared.mutex.is_some() { self.ask_one_by_one(candidates) } else { self.ask(candidates) };
            shared.pool.give_back(permits - granted, &*shared.clock);
        }
    }

    /// How many were granted.
    fn ask_one_by_one(&mut self, candidates: Vec<Candidate>) -> usize {
        let (faults, mut granted) = (self.faults, 0);
        for candidate in candidates {
            if self.faults > faults {
                // The others are not asked for while the store does not answer.
                self.keep(candidate);
            } else {
                granted += usize::from(self.claim_under_mutex(candidate));
            }
        }
        granted
    }

    /// How many were granted.
    fn ask(&mut self, candidates: Vec<Candidate>) -> usize {
        let requests: Vec<_> = candidates.iter().map(|c| self.request(c, LEASE)).collect();
        let (wall, mono) = (self.shared.clock.now(), self.shared.clock.monotonic());
        let answer = self.shared.store("claim", |ledger| matched("claim", requests.len(), ledger.claim(&requests)?));
        match answer {
            Err(error) => {
                self.fault(candidates, &error);
                0
            }
            Ok(answer) => {
                self.faults = 0;
                let trust = Trust { wall, mono, span: Some(LEASE.saturating_sub(MARGIN)) };
                let mut granted = Vec::new();
                for ((candidate, request), claim) in candidates.into_iter().zip(requests).zip(answer.value) {
                    if let Some(cell) = self.answered(candidate, request.key, claim, trust, answer.now) {
                        granted.push(cell);
                    }
                }
                let n = granted.len();
                self.hand_over(granted);
                n
            }
        }
    }

    /// The store answers.
    pub(super) fn answers(&mut self) {
        self.faults = 0;
    }

    /// A call has failed: its slots are asked for again with the same nonces, after a while. Operators are told.
    pub(super) fn fault(&mut self, candidates: Vec<Candidate>, error: &StoreError) {
        self.faults = self.faults.saturating_add(1);
        let ceiling = BACK_OFF.min(Duration::from_millis(50) * (1 << self.faults.min(6)));
        // Half fixed, half at random, so that instances do not come back together.
        let jitter = self.shared.clock.entropy() % (ceiling.as_micros() as u64 / 2).max(1);
        self.hold = self.shared.clock.monotonic() + ceiling / 2 + Duration::from_micros(jitter);
        for mut candidate in candidates {
            if candidate.order().is_some() {
                // A lock lapses by itself.
                self.orders.fault(candidate, error, self.shared.mutex.is_none());
                continue;
            }
            candidate.unknown |= error.outcome_unknown();
            candidate.not_before = Duration::ZERO;
            self.keep(candidate);
        }
    }

    /// Puts a candidate where it is asked for again.
    pub(super) fn keep(&mut self, candidate: Candidate) {
        if candidate.order().is_some() {
            return self.orders.push(candidate);
        }
        let paced = has_own_permit(candidate.kind);
        let double = if paced { self.catch_up.put(candidate) } else { self.again.put(candidate) };
        if let Some(double) = double {
            let then = self.shared.clock.monotonic() + ASK_AGAIN;
            self.go_on(double, then);
        }
    }

    /// Hands granted runs to the workers.
    pub(super) fn hand_over(&self, cells: Vec<Arc<RunCell>>) {
        if cells.is_empty() {
            return;
        }
        let shared = &self.shared;
        shared.live.insert(&cells);
        if let Some(first) = cells.iter().filter_map(|cell| cell.term_end).min() {
            shared.note_deadline(first);
        }
        shared.pool.hand_over(cells);
    }

    /// Gives back what no worker has taken, and ends what waits for another try, once the scheduler closes. A worker may
    /// be doing the same.
    fn leave(&mut self) {
        self.orders.dismiss(|| Reply::Stopped);
        self.shared.end_waiting(|_| true);
        while let Some(cell) = self.shared.pool.take_back() {
            if cell.step(phase::CLAIMED, phase::GIVEN_BACK) {
                if let Some(order) = &cell.order {
                    order.reply(Reply::Stopped);
                }
                self.shared.scribe.send(ScribeMail::Finished(Finished { cell, what: Finish::GivenBack }));
            }
        }
    }

    fn read_mail(&mut self) {
        while let Some(mail) = self.shared.claimer.try_recv() {
            match mail {
                ClaimerMail::Due(line) => self.due.take_in(&line),
                ClaimerMail::Found(candidate) => self.keep(candidate),
                ClaimerMail::Ordered(candidate) => self.orders.push(candidate),
                ClaimerMail::Ended(plan) => {
                    self.waiting.hurry(plan.seq);
                    self.catch_up.hurry(plan.seq);
                }
            }
        }
    }

    /// Tells how much waits here.
    fn note_depth(&self) {
        let depth = &self.shared.counters.depth;
        depth.due.store(self.due.len() + self.again.len(), Ordering::Relaxed);
        depth.gate.store(self.waiting.len(), Ordering::Relaxed);
        depth.catch_up.store(self.catch_up.len(), Ordering::Relaxed);
    }

    /// When there is something to do again, without a signal.
    fn next_turn(&mut self, now: Timestamp, mono: Duration) -> Option<Until> {
        let orders = self.orders.soonest().map(Until::Monotonic);
        let forsaken = (!self.orders.forsaken.is_empty()).then_some(Until::Monotonic(self.hold));
        let slots = self.next_slots(now, mono);
        [orders, forsaken, slots].into_iter().flatten().min_by_key(|until| match until {
            Until::Monotonic(at) => at.saturating_sub(mono),
            Until::Wall(at) => at.since(now),
        })
    }

    fn next_slots(&mut self, now: Timestamp, mono: Duration) -> Option<Until> {
        if self.permits() == 0 {
            // A worker that gets free wakes us. Until then slots are only dropped as their windows close.
            let closes = if self.next_is_live(now) { self.due.closes() } else { None };
            return closes.map(|at| Until::Wall(at.saturating_add(Duration::from_micros(1))));
        }
        let live = self.next_is_live(now);
        let soonest = [
            live.then_some(Duration::ZERO),
            self.again.soonest(),
            self.waiting.soonest(),
            self.catch_up.soonest(self.shared.catching_up.load(Ordering::Acquire)),
        ];
        soonest.into_iter().flatten().min().map(|at| Until::Monotonic(at.max(self.hold).max(mono)))
    }
}

impl Room for Claimer {
    fn name(&self) -> &str {
        "timertask-claimer"
    }

    fn signal(&self) -> &Signal {
        self.shared.claimer.signal()
    }

    fn turn(&mut self, now: Timestamp) -> Turn {
        if self.shared.is_closing() {
            self.read_mail();
            self.leave();
            return Turn::Done;
        }
        self.read_mail();
        let mono = self.shared.clock.monotonic();
        if self.shared.is_skewed() {
            self.orders.dismiss(|| Reply::Skewed);
            // The scribe measures each second; it wakes us when the clocks agree.
            return Turn::Wait(None);
        }
        if mono >= self.hold {
            let mut forsaken = Vec::new();
            for candidate in self.catch_up.outdated(now, mono) {
                self.leave_out(candidate, mono, &mut forsaken);
            }
            let candidates = self.choose(now, mono, &mut forsaken);
            self.account_superseded();
            if !self.give_back_forsaken(forsaken) {
                candidates.into_iter().for_each(|candidate| self.keep(candidate));
            } else {
                self.claim(candidates, mono);
                self.account_superseded();
            }
        }
        self.note_depth();
        let (now, mono) = (self.shared.clock.now(), self.shared.clock.monotonic());
        self.orders.expire(mono);
        self.shared.pool.orders_wait(self.orders.len());
        Turn::Wait(self.next_turn(now, mono))
    }
}
