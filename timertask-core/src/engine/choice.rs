//! Which slots the claimer asks for in one call.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::candidate::Candidate;
use super::claimer::{ASK_AGAIN, Claimer};
use crate::seam::Overlap;
use crate::time::{Timestamp, Trigger};

impl Claimer {
    /// The slots to claim now: what operators wait for, live ones, then at most one that catches up. So that neither what waits for its plan
    /// nor what catches up starves where live slots take all workers, every second call begins with one of the former, and
    /// one of the latter goes first once it has waited long.
    pub(super) fn choose(&mut self, now: Timestamp, mono: Duration, forsaken: &mut Vec<Candidate>) -> Vec<Candidate> {
        let permits = self.permits();
        let mut chosen: Vec<Candidate> = Vec::new();
        forsaken.append(&mut self.orders.forsaken);
        self.orders.take(&self.shared, &mut chosen);
        let running = self.shared.catching_up.load(Ordering::Acquire);
        let overdue = self.catch_up.is_overdue(running, mono);
        if overdue && chosen.len() < permits {
            chosen.extend(self.take_catch_up(running, now, mono, forsaken));
        }
        self.waiting_first = !self.waiting_first;
        if self.waiting_first && chosen.len() < permits {
            self.take_waiting(mono, &mut chosen);
        }
        while chosen.len() + forsaken.len() < permits {
            let before = forsaken.len();
            match self.take_live(now, mono, forsaken) {
                Some(candidate) => chosen.push(candidate),
                None if forsaken.len() > before => {}
                None => break,
            }
        }
        while chosen.len() < permits && self.take_waiting(mono, &mut chosen) {}
        if chosen.len() < permits && !overdue {
            chosen.extend(self.take_catch_up(running, now, mono, forsaken));
        }
        self.only_the_newest(&mut chosen);
        chosen
    }

    /// Takes a slot that waits for its plan and whose time to ask again has come; whether there was one.
    fn take_waiting(&mut self, mono: Duration, chosen: &mut Vec<Candidate>) -> bool {
        let Some(candidate) = self.waiting.pop(mono) else { return false };
        if !candidate.plan.is_gone() {
            chosen.push(candidate);
        }
        true
    }

    /// Of the live slots of a plan that lets them wait, only the newest is asked for.
    fn only_the_newest(&mut self, chosen: &mut Vec<Candidate>) {
        let mut newest: BTreeMap<u32, Trigger> = BTreeMap::new();
        let queues = |candidate: &Candidate| {
            let overlap = candidate.plan.policy.overlap;
            candidate.is_live() && !candidate.unknown && matches!(overlap, Overlap::QueueOne | Overlap::CancelPrevious)
        };
        for candidate in chosen.iter().filter(|candidate| queues(candidate)) {
            let at = newest.entry(candidate.plan.seq).or_insert(candidate.at);
            *at = candidate.at.max(*at);
        }
        let older = |candidate: &mut Candidate| queues(candidate) && candidate.at < newest[&candidate.plan.seq];
        self.superseded.extend(chosen.extract_if(.., older));
    }

    fn take_catch_up(
        &mut self,
        running: usize,
        now: Timestamp,
        mono: Duration,
        forsaken: &mut Vec<Candidate>,
    ) -> Option<Candidate> {
        while let Some(candidate) = self.catch_up.take(running, mono) {
            if candidate.is_wanted(now) {
                return Some(candidate);
            }
            self.leave_out(candidate, mono, forsaken);
        }
        None
    }

    /// A slot is not made up, or not now; a walk decides anew.
    pub(super) fn leave_out(&mut self, candidate: Candidate, mono: Duration, forsaken: &mut Vec<Candidate>) {
        // A lock lapses by itself.
        if candidate.unknown && self.shared.mutex.is_none() {
            forsaken.push(candidate);
        } else {
            // Not at once: it judges by the store's clock, which may be behind this one.
            self.go_on(candidate, mono + ASK_AGAIN);
        }
    }
}
