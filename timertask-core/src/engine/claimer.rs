//! The second room: takes due slots in order, asks the ledger for as many as there are free workers, and hands what is
//! granted to them. Nothing queues between claim and entry, so an instance that is full leaves slots to others.

use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::batch::{Batch, Line};
use super::shared::{LEASE, MARGIN, RENEW_EVERY, ScribeMail, matched};
use super::shelf::Shelf;
use super::stats::Counters;
use super::worker::{Finish, Finished};
use super::{Installed, Shared};
use crate::clock::{Room, Signal, Turn, Until};
use crate::key::{Fence, Nonce, SlotKey};
use crate::record::{RunOutcome, RunRecord};
use crate::run::{NewRun, RunCell, Trust, phase};
use crate::seam::{
    Claim, ClaimRequest, EndOp, EndRequest, Gate, Grant, Query, Refusal, RunKind, SlotRow, SlotState, StoreError,
    StoreErrorKind,
};
use crate::time::{Timestamp, Trigger};

/// With a ledger of this process alone claims run ahead by as many runs,
const RUN_AHEAD: usize = 1024;
/// in calls of at most so many; with any ledger a call holds no more.
const AT_ONCE: usize = 128;
/// How often a waiting slot (full gate) asks again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// The longest back-off after faults of the store.
const BACK_OFF: Duration = Duration::from_secs(2);
/// So many batches are kept before those that are superseded are looked for.
const BATCHES: usize = 256;

/// What reaches the claimer.
pub(crate) enum ClaimerMail {
    /// Slots have fallen due.
    Due(Arc<Line>),
    /// A slot to claim that was found open, or missed.
    Found(Candidate),
    /// A run of this plan has ended here.
    Ended(Arc<Installed>),
}

/// Where a candidate comes from.
pub(crate) enum Origin {
    /// The timer: which trigger point of which line it is.
    Timer(Arc<Line>, u64),
    /// A walk, which waits for the answer.
    Walk,
    /// A sweep, which found it open.
    Sweep,
}

/// A slot that this instance would run.
pub(crate) struct Candidate {
    pub(crate) plan: Arc<Installed>,
    pub(crate) at: Trigger,
    /// The slot before it that has to be accounted for.
    pub(crate) prev: Option<Trigger>,
    /// The trigger point before it.
    pub(crate) from: Option<Trigger>,
    pub(crate) kind: RunKind,
    pub(crate) origin: Origin,
    /// This instance's decision, kept until it is answered for good.
    pub(crate) nonce: Nonce,
    /// Not before this monotonic time.
    pub(crate) not_before: Duration,
    /// Whether it may have been granted already, by a call whose answer was lost.
    unknown: bool,
    /// Whether it was given up here, and is kept only since it may have been granted.
    given_up: bool,
}

impl Candidate {
    pub(crate) fn new(
        shared: &Shared,
        plan: Arc<Installed>,
        at: Trigger,
        prev: Option<Trigger>,
        kind: RunKind,
        origin: Origin,
    ) -> Self {
        Self {
            plan,
            at,
            prev,
            from: prev,
            kind,
            origin,
            nonce: Nonce::random(&*shared.clock),
            not_before: Duration::ZERO,
            unknown: false,
            given_up: false,
        }
    }

    fn due(&self) -> Timestamp {
        self.plan.due(self.at)
    }

    fn is_live(&self) -> bool {
        self.kind == RunKind::Scheduled
    }

    /// Whether it may no longer start as a live slot, or a newer one has taken its place.
    fn is_over(&self, now: Timestamp) -> bool {
        let late = now > self.due().saturating_add(self.plan.policy.start_window);
        let superseded = match &self.origin {
            Origin::Timer(line, number) => line.is_superseded(*number, self.plan.policy.at_once()),
            Origin::Walk | Origin::Sweep => false,
        };
        self.is_live() && (late || superseded)
    }
}

/// A batch in the order of (due, install order of the member it stands at).
struct Pending(Batch, Arc<Line>);

impl Pending {
    fn key(&self) -> (Timestamp, u32) {
        (self.0.due, self.0.members.get(self.0.pos).map_or(u32::MAX, |plan| plan.seq))
    }
}
impl PartialEq for Pending {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl Eq for Pending {}
impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Pending {
    /// Reversed: the earliest is the greatest, for the heap.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.key().cmp(&self.key())
    }
}

pub(crate) struct Claimer {
    shared: Arc<Shared>,
    due: BinaryHeap<Pending>,
    /// How many batches there may be before those that are superseded are looked for.
    batches: usize,
    /// Live slots that were asked for and not answered for good, or were found open: before anything else.
    again: Shelf,
    faults: u32,
    /// No call before this monotonic time.
    hold: Duration,
    /// The newest slot of each plan whose gate was full.
    waiting: Shelf,
    catch_up: Shelf,
}

impl Claimer {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            due: BinaryHeap::new(),
            batches: BATCHES,
            again: Shelf::default(),
            faults: 0,
            hold: Duration::ZERO,
            waiting: Shelf::default(),
            catch_up: Shelf::default(),
        }
    }

    /// How many runs there is room for.
    fn permits(&self) -> usize {
        if self.shared.config.exclusive {
            return RUN_AHEAD.saturating_sub(self.shared.queued.load(Ordering::Acquire)).min(AT_ONCE);
        }
        self.shared.config.concurrency.saturating_sub(self.shared.busy.load(Ordering::Acquire)).min(AT_ONCE)
    }

    /// Takes in what fell due. Batches of which nobody has a use any more don't pile up behind one that has a long start
    /// window.
    fn take_in(&mut self, line: &Arc<Line>) {
        self.due.extend(line.take().into_iter().map(|batch| Pending(batch, Arc::clone(line))));
        if self.due.len() <= self.batches {
            return;
        }
        let shared = &self.shared;
        self.due.retain(|Pending(batch, line)| {
            let superseded = line.is_superseded(batch.number, line.widest());
            if superseded {
                let left = batch.members.iter().skip(batch.pos);
                left.filter(|plan| plan.is_active() && batch.at > plan.start()).for_each(|plan| shared.want_walk(plan));
            }
            !superseded
        });
        self.batches = BATCHES.max(2 * self.due.len());
    }

    /// Goes past due slots that nobody here will start, and tells whether one is left at the top.
    fn next_is_live(&mut self, now: Timestamp) -> bool {
        loop {
            let Some(mut top) = self.due.peek_mut() else { return false };
            let Pending(batch, line) = &*top;
            let plan = match batch.members.get(batch.pos) {
                // One that is due only in the time to come: the clock stepped back, and the timer has armed it anew.
                Some(plan) if now >= batch.due => plan,
                _ => {
                    PeekMut::pop(top);
                    continue;
                }
            };
            let wanted = plan.is_active() && batch.at > plan.start();
            let superseded = line.is_superseded(batch.number, plan.policy.at_once());
            let late = now > batch.due.saturating_add(plan.policy.start_window);
            if wanted && !superseded && !late {
                return true;
            }
            let passed = wanted.then(|| (Arc::clone(plan), batch.at));
            top.0.pos += 1;
            drop(top);
            if let Some((plan, at)) = passed {
                // What nobody starts shows as a gap once its window has closed.
                self.shared.want_walk(&plan);
                if late && self.faults > 0 {
                    self.out_of_reach(&plan, at, RunKind::Scheduled, now);
                }
            }
        }
    }

    /// The next slot whose time has come, if there is one. Those that are given up, but may have been granted, go to
    /// `forsaken`.
    fn take_live(&mut self, now: Timestamp, mono: Duration, forsaken: &mut Vec<Candidate>) -> Option<Candidate> {
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
        let mut top = self.due.peek_mut()?;
        let Pending(batch, line) = &mut *top;
        let plan = Arc::clone(&batch.members[batch.pos]);
        let origin = Origin::Timer(Arc::clone(line), batch.number);
        let (at, prev) = (batch.at, batch.prev);
        batch.pos += 1;
        drop(top);
        Some(Candidate::new(&self.shared, plan, at, prev, RunKind::Scheduled, origin))
    }

    /// The store was out of reach until the slot's time was over: an alarm, and a gap.
    fn out_of_reach(&self, plan: &Installed, at: Trigger, kind: RunKind, now: Timestamp) {
        log::debug!(target: "timertask::store", "{}: plan {:?}, slot {at}: the store was out of reach through its start window", self.shared.config.instance, plan.id);
        self.record(plan, at, kind, RunOutcome::StoreFault, now);
    }

    fn record(&self, plan: &Installed, at: Trigger, kind: RunKind, outcome: RunOutcome, now: Timestamp) {
        let record = RunRecord {
            slot: self.shared.slot_key(&plan.id, at),
            kind,
            instance: self.shared.config.instance.clone(),
            version: self.shared.config.version.clone(),
            attempt: 0,
            fence: Fence::NONE,
            due: plan.due(at),
            started_at: None,
            ended_at: now,
            tries: 0,
            outcome,
            detail: None,
        };
        self.shared.counters.record(&record);
        if self.shared.reports.wanted() {
            self.shared.reports.records(vec![record]);
        }
    }

    /// The slots to claim now: live ones first, then at most one that catches up.
    fn choose(&mut self, now: Timestamp, mono: Duration, forsaken: &mut Vec<Candidate>) -> Vec<Candidate> {
        let permits = self.permits();
        let mut chosen: Vec<Candidate> = Vec::new();
        while chosen.len() + forsaken.len() < permits {
            let before = forsaken.len();
            match self.take_live(now, mono, forsaken) {
                Some(candidate) => chosen.push(candidate),
                None if forsaken.len() > before => {}
                None => break,
            }
        }
        while chosen.len() < permits
            && let Some(candidate) = self.waiting.pop(mono)
        {
            // A newer slot of the plan, asked for in this call, takes its place.
            if !candidate.plan.is_gone() && !chosen.iter().any(|c| Arc::ptr_eq(&c.plan, &candidate.plan)) {
                chosen.push(candidate);
            }
        }
        if chosen.len() < permits && self.shared.catching_up.load(Ordering::Acquire) == 0 {
            while let Some(candidate) = self.catch_up.pop(mono) {
                if !candidate.plan.is_gone() {
                    chosen.push(candidate);
                    break;
                }
                if candidate.unknown && self.shared.mutex.is_none() {
                    forsaken.push(candidate);
                    break;
                }
                self.go_on(candidate, mono);
            }
        }
        chosen
    }

    /// Slots that nobody here wants any more, but that may have been granted by a call whose answer was lost. Left alone
    /// they would block their plans until their leases lapse, and end as orphaned; so they are looked up and given back.
    /// Whether that was done.
    fn give_back_forsaken(&mut self, forsaken: Vec<Candidate>) -> bool {
        if forsaken.is_empty() {
            return true;
        }
        let shared = Arc::clone(&self.shared);
        let slot = |candidate: &Candidate| shared.slot_key(&candidate.plan.id, candidate.at);
        let query = Query::Slots(forsaken.iter().map(slot).collect());
        let done = shared.store("read", |ledger| ledger.read(&query)).and_then(|answer| {
            let ours = |row: &&SlotRow| {
                row.state == SlotState::Running && forsaken.iter().any(|c| c.nonce == row.nonce && slot(c) == row.key)
            };
            let rows = answer.value.slots.iter().filter(ours);
            let give_back = |row: &SlotRow| EndRequest {
                key: row.key.clone(),
                fence: row.fence,
                op: EndOp::GiveBack { nonce: row.nonce },
            };
            let requests: Vec<_> = rows.map(give_back).collect();
            if requests.is_empty() {
                return Ok(());
            }
            shared.store("end", |ledger| matched("end", requests.len(), ledger.end(&requests)?)).map(drop)
        });
        match done {
            Ok(()) => {
                let mono = self.shared.clock.monotonic();
                forsaken.into_iter().for_each(|candidate| self.go_on(candidate, mono));
                true
            }
            Err(_) => {
                self.fault(forsaken, true);
                false
            }
        }
    }

    /// A walk that waits for this candidate goes on at `then`.
    fn go_on(&self, candidate: Candidate, then: Duration) {
        if let Origin::Walk = candidate.origin {
            self.shared.scribe.send(ScribeMail::CaughtUp(candidate.plan, then));
        }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Another instance has it.
    pub(super) fn yielded(&self, candidate: Candidate) {
        self.record(&candidate.plan, candidate.at, candidate.kind, RunOutcome::Yielded, self.shared.clock.now());
        self.go_on(candidate, Duration::ZERO);
    }

    pub(super) fn request(&self, candidate: &Candidate, ttl: Duration) -> ClaimRequest {
        ClaimRequest {
            key: self.shared.slot_key(&candidate.plan.id, candidate.at),
            nonce: candidate.nonce,
            fingerprint: candidate.plan.fingerprint,
            prev: candidate.prev,
            kind: candidate.kind,
            gate: Gate::Policy(candidate.plan.policy.overlap),
            attempts_allowed: candidate.plan.policy.on_orphan.attempts_allowed(),
            ttl,
            instance: self.shared.config.instance.clone(),
            version: self.shared.config.version.clone(),
        }
    }

    fn claim(&mut self, candidates: Vec<Candidate>) {
        if self.shared.mutex.is_some() {
            let faults = self.faults;
            for candidate in candidates {
                if self.faults > faults {
                    // The others are not asked for while the store does not answer.
                    self.keep(candidate);
                } else {
                    self.claim_under_mutex(candidate);
                }
            }
            return;
        }
        let requests: Vec<_> = candidates.iter().map(|c| self.request(c, LEASE)).collect();
        let (wall, mono) = (self.shared.clock.now(), self.shared.clock.monotonic());
        let answer = self.shared.store("claim", |ledger| matched("claim", requests.len(), ledger.claim(&requests)?));
        match answer {
            Err(error) => self.fault(candidates, error.outcome_unknown()),
            Ok(answer) => {
                self.faults = 0;
                let trust = Trust { wall, mono, span: Some(LEASE.saturating_sub(MARGIN)) };
                let mut granted = Vec::new();
                for ((candidate, request), claim) in candidates.into_iter().zip(requests).zip(answer.value) {
                    if let Some(cell) = self.answered(candidate, request.key, claim, trust, answer.now) {
                        granted.push(cell);
                    }
                }
                self.hand_over(granted);
            }
        }
    }

    /// The store answers.
    pub(super) fn answers(&mut self) {
        self.faults = 0;
    }

    /// A call has failed: its slots are asked for again with the same nonces, after a while. `unknown`: they may have been
    /// granted.
    pub(super) fn fault(&mut self, candidates: Vec<Candidate>, unknown: bool) {
        self.faults = self.faults.saturating_add(1);
        let ceiling = BACK_OFF.min(Duration::from_millis(50) * (1 << self.faults.min(6)));
        // Half fixed, half at random, so that instances do not come back together.
        let jitter = self.shared.clock.entropy() % (ceiling.as_micros() as u64 / 2).max(1);
        self.hold = self.shared.clock.monotonic() + ceiling / 2 + Duration::from_micros(jitter);
        for mut candidate in candidates {
            candidate.unknown |= unknown;
            candidate.not_before = Duration::ZERO;
            self.keep(candidate);
        }
    }

    /// Puts a candidate where it is asked for again.
    fn keep(&mut self, candidate: Candidate) {
        let shelf = if candidate.is_live() { &mut self.again } else { &mut self.catch_up };
        if let Some(double) = shelf.put(candidate) {
            let then = self.shared.clock.monotonic() + ASK_AGAIN;
            self.go_on(double, then);
        }
    }

    /// What an answer means; the cell of the run where it was granted.
    pub(super) fn answered(
        &mut self,
        mut candidate: Candidate,
        slot: SlotKey,
        claim: Claim,
        trust: Trust,
        now: Timestamp,
    ) -> Option<Arc<RunCell>> {
        let mono = self.shared.clock.monotonic();
        let mut then = mono;
        match claim {
            Claim::Granted(grant) if grant.fence == Fence::NONE || grant.attempt == 0 => {
                let error = StoreError::new(StoreErrorKind::Internal, "a grant without a fence");
                self.shared.note_fault("claim", &error);
                self.fault(vec![candidate], true);
                return None;
            }
            Claim::Granted(grant) => return Some(self.granted(candidate, slot, grant, trust)),
            Claim::Held | Claim::Ended(_) => {
                self.record(&candidate.plan, candidate.at, candidate.kind, RunOutcome::Yielded, now);
            }
            Claim::Refused(Refusal::NotStarted(reason)) => {
                self.record(&candidate.plan, candidate.at, candidate.kind, RunOutcome::NotStarted(reason), now);
            }
            Claim::Refused(Refusal::Released) => {
                candidate.nonce = Nonce::random(&*self.shared.clock);
                candidate.unknown = false;
                candidate.not_before = mono + ASK_AGAIN;
                self.keep(candidate);
                return None;
            }
            Claim::Refused(Refusal::Unknown) => {
                self.shared.scribe.send(ScribeMail::Unknown(Arc::clone(&candidate.plan)));
            }
            Claim::Refused(Refusal::Full) => {
                candidate.unknown = false;
                candidate.not_before = mono + ASK_AGAIN;
                if candidate.is_live() {
                    self.wait(candidate);
                } else {
                    self.keep(candidate);
                }
                return None;
            }
            // It waits for the plan to be resumed.
            Claim::Refused(Refusal::Paused) => then = mono + RENEW_EVERY,
            // Somebody accounted for it, or it is too old to know.
            Claim::Refused(_) => then = mono + ASK_AGAIN,
        }
        self.go_on(candidate, then);
        None
    }

    /// The newest slot waits; an older one that waited is left to the ledger, which knows it as superseded once the
    /// newer one has started.
    fn wait(&mut self, candidate: Candidate) {
        let seq = candidate.plan.seq;
        let mut all = self.waiting.take(seq);
        all.push(candidate);
        all.sort_by_key(|candidate| candidate.at);
        if let Some(newest) = all.pop() {
            self.waiting.put(newest);
        }
        all.iter().for_each(|older| self.shared.want_walk(&older.plan));
    }

    pub(super) fn granted(&self, candidate: Candidate, slot: SlotKey, grant: Grant, trust: Trust) -> Arc<RunCell> {
        let Candidate { plan, prev, from, kind, nonce, at, origin, .. } = candidate;
        if kind == RunKind::Scheduled && prev.is_some_and(|prev| grant.cursor < prev) {
            self.shared.want_walk(&plan);
        }
        if kind != RunKind::Scheduled {
            self.shared.catching_up.fetch_add(1, Ordering::AcqRel);
        }
        if let Origin::Walk = origin {
            self.shared.scribe.send(ScribeMail::CaughtUp(Arc::clone(&plan), Duration::ZERO));
        }
        let first = from.is_none_or(|from| from <= plan.effective_from());
        let window_from = match (first, grant.window_from, from) {
            (true, Some(from), _) => from.min(at),
            (_, _, Some(from)) => from,
            (_, _, None) => plan.effective_from().min(at),
        };
        let term_end = plan.policy.retry.map(|budget| trust.mono.saturating_add(budget.lock_ttl()));
        let due = plan.due(at);
        Arc::new(RunCell::new(NewRun { plan, slot, nonce, grant, kind, due, window_from, term_end, trust }))
    }

    /// Hands granted runs to the workers.
    pub(super) fn hand_over(&self, cells: Vec<Arc<RunCell>>) {
        if cells.is_empty() {
            return;
        }
        let shared = &self.shared;
        shared.live.insert(&cells);
        shared.busy.fetch_add(cells.len(), Ordering::AcqRel);
        shared.queued.fetch_add(cells.len(), Ordering::AcqRel);
        if let Some(first) = cells.iter().filter_map(|cell| cell.term_end).min() {
            shared.note_deadline(first);
        }
        let n = cells.len();
        for cell in cells {
            shared.work.send(cell);
        }
        shared.wake_workers(n);
    }

    /// Gives back what no worker has taken, once the scheduler closes. A worker may be doing the same.
    fn leave(&self) {
        while let Some(cell) = self.shared.work.try_recv() {
            self.shared.queued.fetch_sub(1, Ordering::AcqRel);
            self.shared.busy.fetch_sub(1, Ordering::AcqRel);
            if cell.step(phase::CLAIMED, phase::GIVEN_BACK) {
                self.shared.scribe.send(ScribeMail::Finished(Finished { cell, what: Finish::GivenBack }));
            }
        }
    }

    fn read_mail(&mut self) {
        while let Some(mail) = self.shared.claimer.try_recv() {
            match mail {
                ClaimerMail::Due(line) => self.take_in(&line),
                ClaimerMail::Found(candidate) => self.keep(candidate),
                ClaimerMail::Ended(plan) => {
                    self.waiting.hurry(plan.seq);
                    self.catch_up.hurry(plan.seq);
                }
            }
        }
    }

    /// When there is something to do again, without a signal.
    fn next_turn(&mut self, now: Timestamp, mono: Duration) -> Option<Until> {
        if self.permits() == 0 {
            // A worker that gets free wakes us. Until then slots are only dropped as their windows close.
            let late = self.next_is_live(now).then(|| self.due.peek())?;
            return late.and_then(|pending| {
                let plan = pending.0.members.get(pending.0.pos)?;
                let closes = pending.0.due.saturating_add(plan.policy.start_window);
                Some(Until::Wall(closes.saturating_add(Duration::from_micros(1))))
            });
        }
        let live = self.next_is_live(now);
        let catching_up = self.shared.catching_up.load(Ordering::Acquire) > 0;
        let soonest = [
            live.then_some(Duration::ZERO),
            self.again.soonest(),
            self.waiting.soonest(),
            if catching_up { None } else { self.catch_up.soonest() },
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
            self.leave();
            return Turn::Done;
        }
        self.read_mail();
        let mono = self.shared.clock.monotonic();
        if self.shared.is_skewed() {
            // The scribe measures each second; it wakes us when the clocks agree.
            return Turn::Wait(None);
        }
        if mono >= self.hold {
            let mut forsaken = Vec::new();
            let candidates = self.choose(now, mono, &mut forsaken);
            if !self.give_back_forsaken(forsaken) {
                candidates.into_iter().for_each(|candidate| self.keep(candidate));
            } else if !candidates.is_empty() {
                Counters::add(&self.shared.counters.claimed, candidates.len());
                self.claim(candidates);
            }
        }
        let (now, mono) = (self.shared.clock.now(), self.shared.clock.monotonic());
        Turn::Wait(self.next_turn(now, mono))
    }
}
