//! What the ledger's answers mean to the claimer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::candidate::{Candidate, Origin, has_own_permit};
use super::claimer::{ASK_AGAIN, Claimer};
use super::order::Reply;
use super::orders::{decline, is_wanted};
use super::shared::{RENEW_EVERY, ScribeMail, matched};
use crate::key::{Fence, Nonce, SlotKey};
use crate::record::RunOutcome;
use crate::run::{NewRun, RunCell, Trust};
use crate::seam::{
    Applied, Claim, Cover, EndOp, EndRequest, Grant, NotStarted, PlanOp, Query, Refusal, RunKind, SlotRow, SlotState,
    StoreError, StoreErrorKind,
};
use crate::time::Timestamp;

impl Claimer {
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
                self.fault(vec![candidate], &error.unknown_outcome());
                return None;
            }
            Claim::Granted(grant) => {
                let cell = self.granted(candidate, slot, grant, trust);
                if is_wanted(cell.order.as_ref(), &cell) {
                    return Some(cell);
                }
                decline(&self.shared, cell);
                return None;
            }
            claim if candidate.order().is_some() => {
                self.answer_order(candidate, claim);
                return None;
            }
            Claim::Held | Claim::Ended(_) => {
                self.record(&candidate, RunOutcome::Yielded, now);
            }
            Claim::Refused(Refusal::NotStarted(reason)) => {
                self.record(&candidate, RunOutcome::NotStarted(reason), now);
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
                    candidate.waited = Some(self.shared.clock.now());
                    self.wait(candidate);
                } else {
                    if has_own_permit(candidate.kind) {
                        self.catch_up.refused(mono);
                    }
                    self.keep(candidate);
                }
                return None;
            }
            // It waits for the plan to be resumed, and a walk looks whether it is.
            Claim::Refused(Refusal::Paused) => {
                self.shared.want_walk(&candidate.plan);
                then = mono + RENEW_EVERY;
            }
            // Somebody accounted for it, or it is too old to know.
            Claim::Refused(_) => then = mono + ASK_AGAIN,
        }
        self.go_on(candidate, then);
        None
    }

    /// An operator is told; nothing is kept.
    fn answer_order(&mut self, mut candidate: Candidate, claim: Claim) {
        let Some(order) = candidate.order().cloned() else { return };
        order.reply(match claim {
            Claim::Ended(ending) => Reply::Ended(ending),
            Claim::Refused(Refusal::Released) => {
                candidate.nonce = Nonce::random(&*self.shared.clock);
                return self.orders.push(candidate);
            }
            Claim::Refused(refusal) => {
                if refusal == Refusal::Unknown {
                    self.shared.scribe.send(ScribeMail::Unknown(Arc::clone(&candidate.plan)));
                }
                Reply::Refused(refusal)
            }
            Claim::Held | Claim::Granted(_) => Reply::Held,
        });
    }

    /// The newest slot waits; an older one that waited is superseded.
    fn wait(&mut self, candidate: Candidate) {
        let seq = candidate.plan.seq;
        let mut all = self.waiting.take(seq);
        all.push(candidate);
        all.sort_by_key(|candidate| candidate.at);
        if let Some(newest) = all.pop() {
            self.waiting.put(newest);
        }
        self.superseded.append(&mut all);
    }

    /// Accounts for slots in whose place newer ones wait, each by compare-and-set from the slot before it. What fails is
    /// left to a walk.
    pub(super) fn account_superseded(&mut self) {
        let mut older = std::mem::take(&mut self.superseded);
        // An open slot has a row, which the sweep sees to.
        older.retain(|candidate| matches!(candidate.origin, Origin::Timer(..)) && !candidate.plan.is_gone());
        if older.is_empty() {
            return;
        }
        older.sort_by_key(|candidate| (candidate.plan.seq, candidate.at));
        let reason = NotStarted::Superseded;
        let op = |candidate: &Candidate| {
            let Candidate { plan, at, prev, .. } = candidate;
            let (from, cover) = (prev.unwrap_or(*at), Cover::Slots(vec![*at], reason));
            (self.shared.plan_key(&plan.id), PlanOp::Account { fingerprint: plan.fingerprint, from, to: *at, cover })
        };
        let requests: Vec<_> = older.iter().map(op).collect();
        let answer = self.shared.store("plan", |ledger| matched("plan", requests.len(), ledger.plan(&requests)?));
        let (states, now) = answer.map_or((Vec::new(), self.shared.clock.now()), |answer| (answer.value, answer.now));
        let applied = states.into_iter().map(|state| state.applied).chain(std::iter::repeat(Applied::Conflict));
        for (candidate, applied) in older.iter().zip(applied) {
            if applied == Applied::Done {
                self.record(candidate, RunOutcome::NotStarted(reason), now);
            } else {
                self.shared.want_walk(&candidate.plan);
            }
        }
    }

    pub(super) fn granted(&mut self, candidate: Candidate, slot: SlotKey, grant: Grant, trust: Trust) -> Arc<RunCell> {
        let start_by = candidate.closes();
        let Candidate { plan, prev, from, kind, asked, nonce, origin, .. } = candidate;
        // A repeated `run_now` has the instant of its first acceptance.
        let slot = SlotKey { at: grant.at, ..slot };
        let at = slot.at;
        plan.counts().saw_success(grant.last_success);
        if kind == RunKind::Scheduled && prev.is_some_and(|prev| grant.cursor < prev) {
            self.shared.want_walk(&plan);
        }
        if has_own_permit(kind) {
            self.catch_up.started(self.shared.clock.monotonic());
            self.shared.catching_up.fetch_add(1, Ordering::AcqRel);
        }
        let order = match origin {
            Origin::Walk => {
                self.shared.missed(&plan, 1, None);
                self.shared.scribe.send(ScribeMail::CaughtUp(Arc::clone(&plan), Duration::ZERO));
                None
            }
            Origin::Backfill(errand) => {
                self.shared.scribe.send(ScribeMail::Backfilled(errand.number, Duration::ZERO));
                None
            }
            Origin::Order(order) => Some(order),
            Origin::Timer(..) | Origin::Sweep => None,
        };
        // A backfill may reach back to what was before the plan's current version.
        let first = at > plan.effective_from() && from.is_none_or(|from| from <= plan.effective_from());
        let window_from = match (first, grant.window_from, from) {
            (true, Some(from), _) => from.min(at),
            (_, _, Some(from)) => from,
            (_, _, None) => plan.effective_from().min(at),
        };
        let term_end = plan.policy.retry.map(|budget| trust.mono.saturating_add(budget.lock_ttl()));
        let due = plan.due_of(&slot);
        let new = NewRun { plan, slot, nonce, grant, kind, asked, due, start_by, window_from, term_end, trust, order };
        Arc::new(RunCell::new(new))
    }

    /// Slots that nobody here wants any more, but that may have been granted by a call whose answer was lost. Left alone
    /// they would block their plans until their leases lapse, and end as orphaned; so they are looked up and given back.
    /// Whether that was done.
    pub(super) fn give_back_forsaken(&mut self, forsaken: Vec<Candidate>) -> bool {
        if forsaken.is_empty() {
            return true;
        }
        let shared = Arc::clone(&self.shared);
        let slot = |candidate: &Candidate| candidate.slot_key(&shared);
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
            Err(error) => {
                self.fault(forsaken, &error.unknown_outcome());
                false
            }
        }
    }
}
