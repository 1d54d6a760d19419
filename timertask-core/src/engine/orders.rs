//! Runs that operators wait for, in the claimer: before live slots, since people wait and their number is limited.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::candidate::Candidate;
use super::order::{Order, Reply};
use super::shared::{ScribeMail, Shared};
use super::worker::{Finish, Finished};
use crate::run::{RunCell, phase};
use crate::seam::StoreError;

/// The orders that wait for a worker, in the order in which they came.
#[derive(Default)]
pub(super) struct Orders {
    waiting: VecDeque<Candidate>,
    /// Given up, but perhaps granted by a call whose answer was lost.
    pub(super) forsaken: Vec<Candidate>,
}

impl Orders {
    pub(super) fn push(&mut self, candidate: Candidate) {
        self.waiting.push_back(candidate);
    }

    /// Takes those that there are workers for; one that may not wait, only where a worker is free.
    pub(super) fn take(&mut self, shared: &Shared, chosen: &mut Vec<Candidate>) {
        let mono = shared.clock.monotonic();
        let has_room = |candidate: &Candidate, chosen: usize| {
            let may_wait = candidate.order().is_none_or(|order| order.until > mono);
            chosen < shared.pool.room_for_orders(mono, may_wait)
        };
        while self.waiting.front().is_some_and(|candidate| has_room(candidate, chosen.len()))
            && let Some(mut candidate) = self.waiting.pop_front()
        {
            let Some(order) = candidate.order().cloned() else { continue };
            if candidate.plan.is_gone() {
                // Edited meanwhile: the new version runs.
                match shared.registry().get(&candidate.plan.id).filter(|plan| plan.is_active()) {
                    Some(plan) => candidate.plan = plan,
                    None => {
                        order.reply(Reply::NotInstalled);
                        continue;
                    }
                }
            }
            if order.take_up() {
                chosen.push(candidate);
            }
        }
    }

    /// Gives up those for which there was no worker in time.
    pub(super) fn expire(&mut self, mono: Duration) {
        self.waiting.retain(|candidate| {
            let late = candidate.order().filter(|order| order.until <= mono);
            late.inspect(|order| order.reply(Reply::Busy)).is_none()
        });
    }

    /// All get the same reply, and none is claimed.
    pub(super) fn dismiss(&mut self, reply: impl Fn() -> Reply) {
        for candidate in self.waiting.drain(..) {
            if let Some(order) = candidate.order() {
                order.reply(reply());
            }
        }
    }

    /// When the next one gives up.
    pub(super) fn soonest(&self) -> Option<Duration> {
        self.waiting.iter().filter_map(Candidate::order).map(|order| order.until).min()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The store could not be asked: told, and looked up again where the call may have been carried out all the same.
    pub(super) fn fault(&mut self, mut candidate: Candidate, error: &StoreError, look_up: bool) {
        let Some(order) = candidate.order() else { return };
        order.reply(Reply::Fault(copy(error)));
        candidate.unknown |= error.outcome_unknown();
        candidate.given_up = true;
        if candidate.unknown && look_up {
            self.forsaken.push(candidate);
        }
    }
}

/// Gives back what was granted to an order that nobody waits for any more.
pub(super) fn decline(shared: &Shared, cell: Arc<RunCell>) {
    if cell.step(phase::CLAIMED, phase::GIVEN_BACK) {
        shared.scribe.send(ScribeMail::Finished(Finished { cell, what: Finish::GivenBack }));
    }
}

/// Whether a granted run is still wanted by who ordered it; one that nobody ordered is.
pub(super) fn is_wanted(order: Option<&Arc<Order>>, cell: &Arc<RunCell>) -> bool {
    order.is_none_or(|order| order.hand(cell))
}

/// One fault is told to several.
pub(crate) fn copy(error: &StoreError) -> StoreError {
    let what = match std::error::Error::source(error) {
        None => error.what().to_owned(),
        Some(source) => format!("{}: {source}", error.what()),
    };
    let copy = StoreError::new(error.kind(), what);
    if error.outcome_unknown() { copy.unknown_outcome() } else { copy }
}
