//! What the store was asked and answered, seen where it happens: below all injected faults, so that a grant whose answer
//! was lost, or that came late, is seen too. Checks at once what only the order of events can show.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use timertask_core::key::{Fence, InstanceId, Namespace, Nonce, PlanKey, SlotKey};
use timertask_core::seam::{
    Board, Claim, ClaimRequest, Durability, EndOp, EndRequest, Ended, Ending, Generation, Ledger, Outcome, Page,
    PlanOp, PlanState, Posting, PostingKind, Purged, Query, Renewal, Retention, SlotState, StoreError, StoreErrorKind,
    Term,
};

use super::check::{Promise, Violation};

/// What was seen of a plan.
#[derive(Default)]
pub(super) struct SeenPlan {
    /// The last fence granted.
    fence: Fence,
    /// Its generations, in the order in which the ledger opened them.
    pub(super) generations: Vec<Generation>,
}

/// What was seen of a slot.
#[derive(Default)]
pub(super) struct SeenSlot {
    /// Its grants, in order.
    pub(super) grants: Vec<SeenGrant>,
    ended: Option<Ending>,
    /// The most starts that any asker allowed.
    pub(super) allowed: u32,
}

pub(super) struct SeenGrant {
    pub(super) nonce: Nonce,
    pub(super) fence: Fence,
    pub(super) attempt: u32,
    pub(super) instance: InstanceId,
    pub(super) given_back: bool,
}

/// All of it.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) plans: HashMap<PlanKey, SeenPlan>,
    pub(super) slots: HashMap<SlotKey, SeenSlot>,
    pub(super) violations: Vec<Violation>,
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
}

impl Witness {
    fn order(&self) -> std::sync::MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn complain(&mut self, promise: Promise, slot: &SlotKey, text: String) {
        self.violations.push(Violation::of_slot(promise, slot, text));
    }

    fn claimed(&mut self, request: &ClaimRequest, claim: &Claim) {
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
        match claim {
            Claim::Held | Claim::Refused(_) => {}
            Claim::Ended(how) => self.ended(key, *how),
            Claim::Granted(grant) => {
                let again = slot.grants.iter().find(|g| g.nonce == request.nonce);
                let repeated = again.map(|g| (g.fence == grant.fence && g.attempt == grant.attempt, g.given_back));
                let (ended, allowed) = (slot.ended, slot.allowed);
                let starts = slot.grants.iter().filter(|g| !g.given_back).count();
                match repeated {
                    Some((true, false)) => return,
                    Some((same, back)) => {
                        let text = format!("one nonce, two grants (same: {same}, given back: {back}): {grant:?}");
                        return self.complain(Promise::AtMostOneStart, key, text);
                    }
                    None => {}
                }
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
                if grant.fence <= before {
                    let text = format!("granted under fence {}, after {before}", grant.fence);
                    self.complain(Promise::BoundedRestarts, key, text);
                }
                if let Some(how) = ended {
                    self.complain(Promise::EndedIsFinal, key, format!("had ended ({how}), and was granted again"));
                }
                if starts >= allowed as usize {
                    let promise = if allowed == 1 { Promise::AtMostOneStart } else { Promise::BoundedRestarts };
                    self.complain(promise, key, format!("granted {} times; allowed: {allowed}", starts + 1));
                }
            }
        }
    }

    fn ended(&mut self, key: &SlotKey, how: Ending) {
        let slot = self.slots.entry(key.clone()).or_default();
        match slot.ended.replace(how) {
            Some(before) if before != how => {
                self.complain(Promise::EndedIsFinal, key, format!("had ended ({before}), and then {how}"));
            }
            _ => {}
        }
    }

    fn settled(&mut self, request: &EndRequest, ended: Ended) {
        match ended {
            Ended::Recorded(SlotState::Ended(how)) => {
                if self.slots.get(&request.key).is_some_and(|slot| slot.ended.is_some()) {
                    self.complain(Promise::BoundedRestarts, &request.key, format!("settled twice, now as {how}"));
                }
                self.ended(&request.key, how);
            }
            Ended::Recorded(SlotState::Open) => {
                if let EndOp::GiveBack { nonce } = &request.op
                    && let Some(slot) = self.slots.get_mut(&request.key)
                {
                    slot.grants.iter_mut().filter(|g| g.nonce == *nonce).for_each(|g| g.given_back = true);
                }
            }
            Ended::Recorded(SlotState::Running | SlotState::NotStarted(_)) => {}
            Ended::AlreadyRecorded | Ended::Lost(_) => {}
        }
    }

    fn planned(&mut self, key: &PlanKey, op: &PlanOp, state: &PlanState) {
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
        requests.iter().zip(&answer.value).for_each(|((key, op), state)| seen.planned(key, op, state));
        Ok(answer)
    }

    fn claim(&self, requests: &[ClaimRequest]) -> Outcome<Vec<Claim>> {
        let _order = self.witness.order();
        let answer = self.ledger.claim(requests)?;
        let mut seen = self.witness.seen();
        requests.iter().zip(&answer.value).for_each(|(request, claim)| seen.claimed(request, claim));
        Ok(answer)
    }

    fn renew(&self, terms: &[Term], ttl: Duration) -> Outcome<Vec<Renewal>> {
        self.ledger.renew(terms, ttl)
    }

    fn end(&self, requests: &[EndRequest]) -> Outcome<Vec<Ended>> {
        let _order = self.witness.order();
        let answer = self.ledger.end(requests)?;
        let mut seen = self.witness.seen();
        requests.iter().zip(&answer.value).for_each(|(request, ended)| seen.settled(request, *ended));
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
