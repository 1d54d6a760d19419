//! What the store was asked and answered, seen where it happens: below all injected faults, so that a grant whose answer
//! was lost, or that came late, is seen too. Checks at once what only the order of events can show.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use timertask_core::key::{Fence, InstanceId, Namespace, Nonce, PlanKey, SlotKey};
use timertask_core::seam::{
    Applied, Board, Claim, ClaimRequest, Durability, EndOp, EndRequest, Ended, Ending, Generation, Ledger, Outcome,
    Page, PlanOp, PlanRow, PlanState, Posting, PostingKind, Purged, Query, Renewal, Retention, RunKind, SlotState,
    StoreError, StoreErrorKind, Term,
};
use timertask_core::time::{Timestamp, Trigger};

use super::check::{Promise, Violation};

/// What was seen of a plan.
#[derive(Clone, Default)]
pub(super) struct SeenPlan {
    /// The last fence granted.
    fence: Fence,
    /// Its generations, in the order in which the ledger opened them.
    pub(super) generations: Vec<Generation>,
    /// When it was last paused, or resumed.
    pub(super) paused_at: Option<Timestamp>,
    /// Cursor and low water, as last told.
    marks: (Trigger, Trigger),
}

/// What was seen of a slot.
#[derive(Clone, Default)]
pub(super) struct SeenSlot {
    /// Its grants, in order.
    pub(super) grants: Vec<SeenGrant>,
    ended: Option<Ending>,
    /// Why it was asked for last.
    kind: Option<RunKind>,
    /// When its end was recorded, by the store's clock.
    pub(super) settled_at: Option<Timestamp>,
    /// Whether the store has lost some of this since: then nothing can keep it from starting again.
    pub(super) lost: bool,
    /// The most starts that any asker allowed.
    pub(super) allowed: u32,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct SeenGrant {
    pub(super) nonce: Nonce,
    pub(super) fence: Fence,
    pub(super) attempt: u32,
    pub(super) instance: InstanceId,
    pub(super) given_back: bool,
}

/// All of it.
#[derive(Clone, Default)]
pub(super) struct Seen {
    pub(super) plans: HashMap<PlanKey, SeenPlan>,
    pub(super) slots: HashMap<SlotKey, SeenSlot>,
    pub(super) violations: Vec<Violation>,
    /// Whether the store was set back.
    rewound: bool,
}

#[derive(Clone, Default)]
pub(super) struct Witness {
    seen: Arc<std::sync::Mutex<Seen>>,
    /// Held over each call that decides, so that what is seen has the order of what was decided also where instances run
    /// on threads. Nothing below waits on the fake clock.
    order: Arc<std::sync::Mutex<()>>,
}

impl Witness {
    pub(super) fn read<T>(&self, f: impl FnOnce(&Seen) -> T) -> T {
        f(&self.seen())
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store was set back to what it held when this was `saved`.
    pub(super) fn rewind(&self, saved: &Seen) {
        self.seen().rewind(saved);
    }

    pub(super) fn order(&self) -> std::sync::MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    /// When a run of the plan last ended.
    pub(super) fn ended_at(&self, plan: &PlanKey) -> Option<Timestamp> {
        self.slots.iter().filter(|(key, _)| key.plan == *plan).filter_map(|(_, slot)| slot.settled_at).max()
    }

    /// When a run that takes a permit of its own last ended, of whatever plan.
    pub(super) fn permit_since(&self) -> Option<Timestamp> {
        let permitted = |slot: &&SeenSlot| slot.kind.is_some_and(|kind| kind != RunKind::Scheduled);
        self.slots.values().filter(permitted).filter_map(|slot| slot.settled_at).max()
    }

    /// When the plan was last paused or resumed, by itself or with all.
    pub(super) fn paused_at(&self, plan: &PlanKey) -> Option<Timestamp> {
        let whole = PlanKey::whole(plan.namespace.clone());
        [plan, &whole].iter().filter_map(|key| self.plans.get(key)?.paused_at).max()
    }

    fn complain(&mut self, promise: Promise, slot: &SlotKey, text: String) {
        self.violations.push(Violation::of_slot(promise, slot, text));
    }

    /// What happened after `saved` is unknown to the store, though not undone.
    fn rewind(&mut self, saved: &Self) {
        self.rewound = true;
        let fresh = SeenSlot::default();
        for (key, slot) in &mut self.slots {
            let before = saved.slots.get(key).unwrap_or(&fresh);
            slot.lost |= slot.ended != before.ended || slot.grants != before.grants;
            (slot.ended, slot.settled_at) = (before.ended, before.settled_at);
        }
        for (key, plan) in &mut self.plans {
            let before = saved.plans.get(key).cloned().unwrap_or_default();
            (plan.generations, plan.marks) = (before.generations, before.marks);
        }
    }

    fn claimed(&mut self, request: &ClaimRequest, claim: &Claim, now: Timestamp) {
        // A repeated request may name another instant than its run has.
        let key = match claim {
            Claim::Granted(grant) => &SlotKey { at: grant.at, ..request.key.clone() },
            Claim::Held | Claim::Refused(_) | Claim::Ended(_) => &request.key,
        };
        if request.key.request.is_some() && !matches!(claim, Claim::Granted(_)) {
            return;
        }
        let slot = self.slots.entry(key.clone()).or_default();
        slot.allowed = slot.allowed.max(request.attempts_allowed);
        slot.kind = Some(request.kind);
        let grant = match claim {
            Claim::Held | Claim::Refused(_) => return,
            Claim::Ended(how) => return self.ended(key, *how),
            Claim::Granted(grant) => grant,
        };
        let lost = slot.lost;
        let (ended, allowed) = (slot.ended, slot.allowed);
        let starts = slot.grants.iter().filter(|g| !g.given_back).count();
        let same = |g: &&SeenGrant| g.nonce == request.nonce && g.fence == grant.fence;
        if let Some(known) = slot.grants.iter().find(same).or(slot.grants.iter().find(|g| g.nonce == request.nonce)) {
            match (known.fence == grant.fence && known.attempt == grant.attempt, known.given_back) {
                (true, false) => return,
                _ if lost => {}
                (same, back) => {
                    let text = format!("one nonce, two grants (same: {same}, given back: {back}): {grant:?}");
                    return self.complain(Promise::AtMostOneStart, key, text);
                }
            }
        }
        slot.settled_at = None;
        slot.grants.push(SeenGrant {
            nonce: request.nonce,
            fence: grant.fence,
            attempt: grant.attempt,
            instance: request.instance.clone(),
            given_back: false,
        });
        let plan = self.plans.entry(key.plan.clone()).or_default();
        let before = plan.fence;
        plan.fence = before.max(grant.fence);
        // Where the counter was lost the clock stands in for it, as long as it is ahead of it.
        let behind = i128::from(now.as_micros()) <= i128::from(before.as_u64());
        if grant.fence <= before && !(self.rewound && behind) {
            let text = format!("granted under fence {}, after {before}", grant.fence);
            self.complain(Promise::BoundedRestarts, key, text);
        }
        if grant.attempt > request.attempts_allowed.max(1) {
            let text = format!("granted as start {}, where {} are allowed", grant.attempt, request.attempts_allowed);
            self.complain(Promise::BoundedRestarts, key, text);
        }
        if lost {
            return;
        }
        if let Some(how) = ended {
            self.complain(Promise::EndedIsFinal, key, format!("had ended ({how}), and was granted again"));
        }
        if starts >= allowed as usize {
            let promise = if allowed == 1 { Promise::AtMostOneStart } else { Promise::BoundedRestarts };
            self.complain(promise, key, format!("granted {} times; allowed: {allowed}", starts + 1));
        }
    }

    fn ended(&mut self, key: &SlotKey, how: Ending) {
        let slot = self.slots.entry(key.clone()).or_default();
        let lost = slot.lost;
        match slot.ended.replace(how) {
            Some(before) if before != how && !lost => {
                self.complain(Promise::EndedIsFinal, key, format!("had ended ({before}), and then {how}"));
            }
            _ => {}
        }
    }

    fn settled(&mut self, request: &EndRequest, ended: Ended, now: Timestamp) {
        match ended {
            Ended::Recorded(SlotState::Ended(how)) => {
                if self.slots.get(&request.key).is_some_and(|slot| slot.ended.is_some() && !slot.lost) {
                    self.complain(Promise::BoundedRestarts, &request.key, format!("settled twice, now as {how}"));
                }
                self.ended(&request.key, how);
                self.slots.entry(request.key.clone()).or_default().settled_at = Some(now);
            }
            Ended::Recorded(SlotState::Open) => {
                if let EndOp::GiveBack { nonce } = &request.op
                    && let Some(slot) = self.slots.get_mut(&request.key)
                {
                    let this = |g: &&mut SeenGrant| g.nonce == *nonce && g.fence == request.fence;
                    slot.grants.iter_mut().filter(this).for_each(|g| g.given_back = true);
                }
            }
            Ended::Recorded(SlotState::Running | SlotState::NotStarted(_)) => {}
            Ended::AlreadyRecorded | Ended::Lost(_) => {}
        }
    }

    /// Cursor and low water move as the contract says, or slots get lost between them.
    fn moved(&mut self, key: &PlanKey, op: &PlanOp, applied: Applied, row: &PlanRow, now: Timestamp) {
        let plan = self.plans.entry(key.clone()).or_default();
        let (cursor, low_water) = std::mem::replace(&mut plan.marks, (row.cursor, row.low_water));
        let mut complain = |text| self.violations.push(Violation::of_plan(Promise::Accounted, key, text));
        if row.cursor < cursor && !matches!(op, PlanOp::SetBack { .. }) {
            complain(format!("the cursor went back from {cursor} to {}", row.cursor));
        }
        if row.low_water < low_water {
            complain(format!("low water sank from {low_water} to {}", row.low_water));
        }
        if matches!(op, PlanOp::Account { .. }) && applied == Applied::Done && row.cursor.timestamp() > now {
            complain(format!("accounted up to {}, at {now}", row.cursor));
        }
    }

    fn planned(&mut self, key: &PlanKey, op: &PlanOp, state: &PlanState, now: Timestamp) {
        if let PlanOp::Pause { .. } | PlanOp::Resume { .. } = op {
            self.plans.entry(key.clone()).or_default().paused_at = Some(now);
        }
        if let Some(row) = &state.row {
            self.moved(key, op, state.applied, row, now);
        }
        // Whatever the request was: the answer tells the generation, and the clock rule moves it, too.
        if let (PlanOp::Open { .. } | PlanOp::SetBack { .. } | PlanOp::Read, Some(row)) = (op, &state.row) {
            let plan = self.plans.entry(key.clone()).or_default();
            if plan.generations.last() != Some(&row.generation) {
                plan.generations.push(row.generation);
            }
        }
    }
}

/// A ledger with the witness beside it.
pub(super) struct Witnessed {
    pub(super) ledger: Arc<dyn Ledger>,
    pub(super) board: Option<Arc<dyn Board>>,
    pub(super) witness: Witness,
}

impl Ledger for Witnessed {
    fn describe(&self) -> Result<Durability, StoreError> {
        self.ledger.describe()
    }

    fn plan(&self, requests: &[(PlanKey, PlanOp)]) -> Outcome<Vec<PlanState>> {
        let _order = self.witness.order();
        let answer = self.ledger.plan(requests)?;
        let mut seen = self.witness.seen();
        requests.iter().zip(&answer.value).for_each(|((key, op), state)| seen.planned(key, op, state, answer.now));
        Ok(answer)
    }

    fn claim(&self, requests: &[ClaimRequest]) -> Outcome<Vec<Claim>> {
        let _order = self.witness.order();
        let answer = self.ledger.claim(requests)?;
        let mut seen = self.witness.seen();
        let (answers, now) = (&answer.value, answer.now);
        requests.iter().zip(answers).for_each(|(request, claim)| seen.claimed(request, claim, now));
        Ok(answer)
    }

    fn renew(&self, terms: &[Term], ttl: Duration) -> Outcome<Vec<Renewal>> {
        self.ledger.renew(terms, ttl)
    }

    fn end(&self, requests: &[EndRequest]) -> Outcome<Vec<Ended>> {
        let _order = self.witness.order();
        let answer = self.ledger.end(requests)?;
        let mut seen = self.witness.seen();
        let (answers, now) = (&answer.value, answer.now);
        requests.iter().zip(answers).for_each(|(request, ended)| seen.settled(request, *ended, now));
        Ok(answer)
    }

    fn read(&self, query: &Query) -> Outcome<Page> {
        self.ledger.read(query)
    }

    fn purge(&self, plan: &PlanKey, keep: Retention, at_most: usize) -> Outcome<Purged> {
        self.ledger.purge(plan, keep, at_most)
    }
}

impl Witnessed {
    fn board(&self) -> Result<&dyn Board, StoreError> {
        let none = || StoreError::new(StoreErrorKind::Misconfigured, "the cluster's store has no notice board");
        self.board.as_deref().ok_or_else(none)
    }
}

impl Board for Witnessed {
    fn post(&self, posting: &Posting) -> Outcome<()> {
        self.board()?.post(posting)
    }

    fn list(&self, namespace: &Namespace, kind: PostingKind) -> Outcome<Vec<Posting>> {
        self.board()?.list(namespace, kind)
    }

    fn take(&self, namespace: &Namespace, kind: PostingKind, key: &str) -> Outcome<Option<Posting>> {
        self.board()?.take(namespace, kind, key)
    }
}
