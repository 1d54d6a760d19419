//! The second room: takes due slots in order, asks the ledger for as many as there are free workers, and hands what is
//! granted to them. Nothing queues between claim and entry, so an instance that is full leaves slots to others.

use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::shared::{LEASE, MARGIN, ScribeMail, matched};
use super::stats::Counters;
use super::timer::Batch;
use super::worker::{Finish, Finished};
use super::{Installed, Shared};
use crate::clock::{Room, Signal, Turn, Until};
use crate::key::{Fence, Nonce, SlotKey};
use crate::record::{RunOutcome, RunRecord};
use crate::run::{NewRun, RunCell, Trust, phase};
use crate::seam::{Claim, ClaimRequest, Gate, Grant, Refusal, RunKind, StoreError, StoreErrorKind};
use crate::time::{Timestamp, Trigger};

/// With a ledger of this process alone claims run ahead by as many runs,
const RUN_AHEAD: usize = 1024;
/// in calls of at most so many; with any ledger a call holds no more.
const AT_ONCE: usize = 128;
/// How often a waiting slot (full gate) asks again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// The longest back-off after faults of the store.
const BACK_OFF: Duration = Duration::from_secs(2);

/// What reaches the claimer.
pub(crate) enum ClaimerMail {
    /// Slots have fallen due.
    Due(Batch),
    /// A slot to claim that was found open, or missed.
    Found(Candidate),
    /// A run of this plan has ended here.
    Ended(Arc<Installed>),
}

/// A slot that this instance would run.
pub(crate) struct Candidate {
    pub(crate) plan: Arc<Installed>,
    pub(crate) at: Trigger,
    pub(crate) prev: Option<Trigger>,
    pub(crate) kind: RunKind,
    /// This instance's decision, kept until it is answered for good.
    pub(crate) nonce: Nonce,
    /// Not before this monotonic time.
    pub(crate) not_before: Duration,
}

impl Candidate {
    pub(crate) fn new(
        shared: &Shared,
        plan: Arc<Installed>,
        at: Trigger,
        prev: Option<Trigger>,
        kind: RunKind,
    ) -> Self {
        Self { plan, at, prev, kind, nonce: Nonce::random(&*shared.clock), not_before: Duration::ZERO }
    }

    fn due(&self) -> Timestamp {
        self.plan.due(self.at)
    }

    fn is_live(&self) -> bool {
        self.kind == RunKind::Scheduled
    }

    /// Whether it may no longer start as a live slot.
    fn too_late(&self, now: Timestamp) -> bool {
        self.is_live() && now > self.due().saturating_add(self.plan.policy.start_window)
    }
}

/// A batch in the order of (due, install order of the member it stands at).
struct Pending(Batch);

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
    /// Asked for, answered by a fault: asked again with the same nonce, before anything else.
    again: VecDeque<Candidate>,
    faults: u32,
    /// No call before this monotonic time.
    hold: Duration,
    /// The newest slot of a plan whose gate was full; by the plan's install number.
    waiting: HashMap<u32, Candidate>,
    catch_up: VecDeque<Candidate>,
}

impl Claimer {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            due: BinaryHeap::new(),
            again: VecDeque::new(),
            faults: 0,
            hold: Duration::ZERO,
            waiting: HashMap::new(),
            catch_up: VecDeque::new(),
        }
    }

    /// How many runs there is room for.
    fn permits(&self) -> usize {
        if self.shared.config.exclusive {
            return RUN_AHEAD.saturating_sub(self.shared.queued.load(Ordering::Acquire)).min(AT_ONCE);
        }
        self.shared.config.concurrency.saturating_sub(self.shared.busy.load(Ordering::Acquire)).min(AT_ONCE)
    }

    /// Goes past due slots that nobody here will start, and tells whether one is left at the top.
    fn next_is_live(&mut self, now: Timestamp) -> bool {
        while let Some(mut top) = self.due.peek_mut() {
            let batch = &top.0;
            let Some(plan) = batch.members.get(batch.pos) else {
                PeekMut::pop(top);
                continue;
            };
            // Due only in the time to come: the clock stepped back, and the timer has armed it anew.
            if now < batch.due {
                PeekMut::pop(top);
                continue;
            }
            let runs_at_once = plan.policy.at_once();
            let superseded = runs_at_once == 1 && batch.newest.load(Ordering::Acquire) > batch.at.as_secs();
            let wanted = plan.is_active() && batch.at > plan.start() && batch.rank < runs_at_once;
            let late = now > batch.due.saturating_add(plan.policy.start_window);
            if wanted && !superseded && !late {
                return true;
            }
            if wanted {
                // What nobody starts shows as a gap once its window has closed.
                self.shared.scribe.send(ScribeMail::Walk(Arc::clone(plan)));
            }
            top.0.pos += 1;
        }
        false
    }

    /// The next slot whose time has come, if there is one.
    fn take_live(&mut self, now: Timestamp, mono: Duration) -> Option<Candidate> {
        while let Some(candidate) = self.again.pop_front() {
            if candidate.not_before > mono {
                self.again.push_front(candidate);
                break;
            }
            if candidate.plan.is_gone() {
                continue;
            }
            if candidate.too_late(now) {
                self.gave_up(candidate, now);
                continue;
            }
            return Some(candidate);
        }
        if !self.next_is_live(now) {
            return None;
        }
        let mut top = self.due.peek_mut()?;
        let batch = &mut top.0;
        let plan = Arc::clone(&batch.members[batch.pos]);
        let (at, prev) = (batch.at, batch.prev);
        batch.pos += 1;
        drop(top);
        Some(Candidate::new(&self.shared, plan, at, prev, RunKind::Scheduled))
    }

    /// The store was out of reach until the slot's start window had closed: an alarm, and a gap.
    fn gave_up(&self, candidate: Candidate, now: Timestamp) {
        let text = "the store could not be reached inside the start window";
        log::error!(target: "timertask::store", "{}: {text}: plan {:?}, slot {}", self.shared.config.instance, candidate.plan.id, candidate.at);
        self.record(&candidate, RunOutcome::StoreFault, now);
        self.shared.scribe.send(ScribeMail::Walk(candidate.plan));
    }

    fn record(&self, candidate: &Candidate, outcome: RunOutcome, now: Timestamp) {
        let record = RunRecord {
            slot: self.shared.slot_key(&candidate.plan.id, candidate.at),
            kind: candidate.kind,
            instance: self.shared.config.instance.clone(),
            version: self.shared.config.version.clone(),
            attempt: 0,
            fence: Fence::NONE,
            due: candidate.due(),
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
    fn choose(&mut self, now: Timestamp, mono: Duration) -> Vec<Candidate> {
        let permits = self.permits();
        let mut chosen = Vec::new();
        while chosen.len() < permits {
            match self.take_live(now, mono) {
                Some(candidate) => chosen.push(candidate),
                None => break,
            }
        }
        let waiting: Vec<u32> = self.waiting.iter().filter(|(_, c)| c.not_before <= mono).map(|(k, _)| *k).collect();
        for key in waiting {
            if chosen.len() >= permits {
                break;
            }
            // A newer slot of the plan, asked for in this call, takes its place.
            if let Some(candidate) = self.waiting.remove(&key)
                && !candidate.plan.is_gone()
                && !chosen.iter().any(|c| Arc::ptr_eq(&c.plan, &candidate.plan))
            {
                chosen.push(candidate);
            }
        }
        if chosen.len() < permits && self.shared.catching_up.load(Ordering::Acquire) == 0 {
            let place = self.catch_up.iter().position(|c| c.not_before <= mono);
            if let Some(candidate) = place.and_then(|place| self.catch_up.remove(place)) {
                if candidate.plan.is_gone() {
                    self.shared.scribe.send(ScribeMail::CaughtUp(candidate.plan));
                } else {
                    chosen.push(candidate);
                }
            }
        }
        chosen
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Another instance has it.
    pub(super) fn yielded(&self, candidate: Candidate) {
        self.record(&candidate, RunOutcome::Yielded, self.shared.clock.now());
        if !candidate.is_live() {
            self.shared.scribe.send(ScribeMail::CaughtUp(candidate.plan));
        }
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
            for candidate in candidates {
                self.claim_under_mutex(candidate);
            }
            return;
        }
        let requests: Vec<_> = candidates.iter().map(|c| self.request(c, LEASE)).collect();
        let (wall, mono) = (self.shared.clock.now(), self.shared.clock.monotonic());
        let answer = self.shared.store("claim", |ledger| matched("claim", requests.len(), ledger.claim(&requests)?));
        match answer {
            Err(_) => self.fault(candidates),
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

    /// Nothing of it was started, as far as anybody here knows: asked again with the same nonces, after a while.
    pub(super) fn fault(&mut self, candidates: Vec<Candidate>) {
        self.faults = self.faults.saturating_add(1);
        let ceiling = BACK_OFF.min(Duration::from_millis(50) * (1 << self.faults.min(6)));
        // Half fixed, half at random, so that instances do not come back together.
        let jitter = self.shared.clock.entropy() % (ceiling.as_micros() as u64 / 2).max(1);
        self.hold = self.shared.clock.monotonic() + ceiling / 2 + Duration::from_micros(jitter);
        for candidate in candidates.into_iter().rev() {
            if candidate.is_live() {
                self.again.push_front(candidate);
            } else {
                self.catch_up.push_front(candidate);
            }
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
        let live = candidate.is_live();
        match claim {
            Claim::Granted(grant) if grant.fence == Fence::NONE || grant.attempt == 0 => {
                let error = StoreError::new(StoreErrorKind::Internal, "a grant without a fence");
                self.shared.note_fault("claim", &error);
                self.fault(vec![candidate]);
                return None;
            }
            Claim::Granted(grant) => return Some(self.granted(candidate, slot, grant, trust)),
            Claim::Held | Claim::Ended(_) => self.record(&candidate, RunOutcome::Yielded, now),
            Claim::Refused(Refusal::NotStarted(reason)) => {
                self.record(&candidate, RunOutcome::NotStarted(reason), now);
            }
            Claim::Refused(Refusal::Released) => {
                candidate.nonce = Nonce::random(&*self.shared.clock);
                candidate.not_before = self.shared.clock.monotonic() + ASK_AGAIN;
                if live {
                    self.again.push_back(candidate)
                } else {
                    self.catch_up.push_back(candidate)
                }
                return None;
            }
            Claim::Refused(Refusal::Unknown) => {
                self.shared.scribe.send(ScribeMail::Unknown(Arc::clone(&candidate.plan)));
            }
            Claim::Refused(Refusal::Full) => {
                candidate.not_before = self.shared.clock.monotonic() + ASK_AGAIN;
                if live {
                    self.wait(candidate);
                } else {
                    self.catch_up.push_back(candidate);
                }
                return None;
            }
            // Somebody accounted for it, or it is too old to know, or it waits for the plan to be resumed.
            Claim::Refused(_) => {}
        }
        if !live {
            self.shared.scribe.send(ScribeMail::CaughtUp(candidate.plan));
        }
        None
    }

    /// The newest slot waits; an older one that waited is left to the ledger, which knows it as superseded once the
    /// newer one has started.
    fn wait(&mut self, candidate: Candidate) {
        let older = match self.waiting.get(&candidate.plan.seq) {
            Some(there) if there.at >= candidate.at => Some(candidate),
            _ => self.waiting.insert(candidate.plan.seq, candidate),
        };
        if let Some(older) = older {
            self.shared.scribe.send(ScribeMail::Walk(older.plan));
        }
    }

    pub(super) fn granted(&self, candidate: Candidate, slot: SlotKey, grant: Grant, trust: Trust) -> Arc<RunCell> {
        let Candidate { plan, prev, kind, nonce, at, .. } = candidate;
        if kind == RunKind::Scheduled && prev.is_some_and(|prev| grant.cursor < prev) {
            self.shared.scribe.send(ScribeMail::Walk(Arc::clone(&plan)));
        }
        if kind != RunKind::Scheduled {
            self.shared.catching_up.fetch_add(1, Ordering::AcqRel);
            self.shared.scribe.send(ScribeMail::CaughtUp(Arc::clone(&plan)));
        }
        let first = prev.is_none_or(|prev| prev <= plan.effective_from());
        let window_from = match (first, grant.window_from, prev) {
            (true, Some(from), _) => from.min(at),
            (_, _, Some(prev)) => prev,
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
                ClaimerMail::Due(batch) => self.due.push(Pending(batch)),
                ClaimerMail::Found(candidate) if candidate.is_live() => self.again.push_back(candidate),
                ClaimerMail::Found(candidate) => self.catch_up.push_back(candidate),
                ClaimerMail::Ended(plan) => {
                    if let Some(candidate) = self.waiting.get_mut(&plan.seq) {
                        candidate.not_before = Duration::ZERO;
                    }
                    for candidate in self.catch_up.iter_mut().filter(|c| Arc::ptr_eq(&c.plan, &plan)) {
                        candidate.not_before = Duration::ZERO;
                    }
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
            self.again.front().map(|c| c.not_before),
            self.waiting.values().map(|c| c.not_before).min(),
            if catching_up { None } else { self.catch_up.iter().map(|c| c.not_before).min() },
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
            let candidates = self.choose(now, mono);
            if !candidates.is_empty() {
                Counters::add(&self.shared.counters.claimed, candidates.len());
                self.claim(candidates);
            }
        }
        let (now, mono) = (self.shared.clock.now(), self.shared.clock.monotonic());
        Turn::Wait(self.next_turn(now, mono))
    }
}
