//! Claims where a mutex is the only part that instances share: the lock first, then the process's own ledger.

use std::sync::Arc;

use super::candidate::Candidate;
use super::claimer::Claimer;
use super::order::Reply;
use super::shared::{Shared, matched};
use crate::run::Trust;
use crate::seam::{Applied, Cover, Held, Lease, Mutex, NotStarted, PlanOp, RunKind};

impl Claimer {
    /// Takes the slot's lock, then claims it. The lock is left to lapse after a run, so that nobody else can take the
    /// slot inside its start window; a lock whose claim was not granted is given back. Whether it was granted.
    pub(super) fn claim_under_mutex(&mut self, candidate: Candidate) -> bool {
        let shared = Arc::clone(self.shared());
        let Some(mutex) = &shared.mutex else { return false };
        let ttl = candidate.plan.lock_ttl();
        let request = self.request(&candidate, ttl);
        let (wall, mono) = (shared.clock.now(), shared.clock.monotonic());
        let lease = match shared.contained("try_lock", || mutex.try_lock(&request.key, request.nonce, ttl)) {
            Ok(Some(lease)) => lease,
            Ok(None) => {
                if let Some(order) = candidate.order() {
                    order.reply(Reply::Held);
                    return false;
                }
                // What operators ask for leaves the cursor alone.
                if !matches!(candidate.kind, RunKind::Manual | RunKind::Backfill) {
                    yielded(&shared, &candidate);
                }
                self.yielded(candidate);
                return false;
            }
            Err(error) => {
                self.fault(vec![candidate], &error);
                return false;
            }
        };
        self.answers();
        // Inside the start window nobody else can take the slot, after it nobody asks; so trust ends with a set budget only.
        let span = candidate.plan.policy.retry.is_some().then_some(ttl);
        let trust = Trust { wall, mono, span };
        let requests = [request];
        let answer = shared.store("claim", |ledger| matched("claim", 1, ledger.claim(&requests)?));
        let [request] = requests;
        let granted = match answer {
            Ok(mut answer) => match answer.value.pop() {
                Some(claim) => self.answered(candidate, request.key, claim, trust, answer.now),
                None => None,
            },
            Err(error) => {
                self.fault(vec![candidate], &error);
                None
            }
        };
        match granted {
            Some(cell) => {
                cell.set_lease(lease);
                self.hand_over(vec![cell]);
                true
            }
            None => {
                unlock(&shared, &lease);
                false
            }
        }
    }
}

/// Gives a lock back whose slot was not entered, so that another instance may take it. One that cannot be given back
/// lapses.
pub(super) fn unlock(shared: &Shared, lease: &Lease) {
    let Some(mutex) = &shared.mutex else { return };
    match shared.contained("unlock", || mutex.unlock(lease)) {
        Ok(Held::Held | Held::Lost) | Err(_) => {}
    }
}

/// Accounts the slot in the process's own ledger as left to another instance.
fn yielded(shared: &Shared, candidate: &Candidate) {
    let plan = &candidate.plan;
    let key = shared.plan_key(&plan.id);
    let read = shared.store("plan", |ledger| matched("plan", 1, ledger.plan(&[(key.clone(), PlanOp::Read)])?));
    let Some(row) = read.ok().and_then(|mut answer| answer.value.pop()).and_then(|state| state.row) else { return };
    if candidate.prev.is_some_and(|prev| row.cursor < prev) || row.cursor >= candidate.at {
        shared.want_walk(plan);
        return;
    }
    let op = PlanOp::Account {
        fingerprint: plan.fingerprint,
        from: row.cursor,
        to: candidate.at,
        cover: Cover::Slots(vec![candidate.at], NotStarted::Yielded),
    };
    let done = shared.store("plan", |ledger| matched("plan", 1, ledger.plan(&[(key, op)])?));
    let applied = done.ok().and_then(|mut answer| answer.value.pop()).map(|state| state.applied);
    if applied != Some(Applied::Done) {
        shared.want_walk(plan);
    }
}
