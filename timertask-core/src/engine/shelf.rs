//! Candidates that are kept until their time: each slot once, found by time and by plan without a search.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::candidate::Candidate;
use crate::time::Trigger;

/// In the order of (not before, due, install order).
#[derive(Default)]
pub(crate) struct Shelf {
    slots: BTreeMap<(u32, Trigger), Candidate>,
    order: BTreeSet<(Duration, Trigger, u32)>,
}

impl Shelf {
    /// Puts in a candidate. Where its slot is there already nothing changes, since that one's nonce counts, and it comes
    /// back.
    pub(crate) fn put(&mut self, candidate: Candidate) -> Option<Candidate> {
        let key = (candidate.plan.seq, candidate.at);
        if self.slots.contains_key(&key) {
            return Some(candidate);
        }
        self.order.insert((candidate.not_before, key.1, key.0));
        self.slots.insert(key, candidate);
        None
    }

    /// Takes the first whose time has come.
    pub(crate) fn pop(&mut self, mono: Duration) -> Option<Candidate> {
        let first = *self.order.first()?;
        if first.0 > mono {
            return None;
        }
        self.order.remove(&first);
        self.slots.remove(&(first.2, first.1))
    }

    /// When the first one's time comes.
    pub(crate) fn soonest(&self) -> Option<Duration> {
        self.order.first().map(|first| first.0)
    }

    /// Takes out all of this plan.
    pub(crate) fn take(&mut self, seq: u32) -> Vec<Candidate> {
        let of_plan = (seq, Trigger::from_secs(i64::MIN))..=(seq, Trigger::from_secs(i64::MAX));
        let keys: Vec<_> = self.slots.range(of_plan).map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| self.remove(*key)).collect()
    }

    fn remove(&mut self, key: (u32, Trigger)) -> Option<Candidate> {
        let candidate = self.slots.remove(&key)?;
        self.order.remove(&(candidate.not_before, key.1, key.0));
        Some(candidate)
    }

    /// The time of all candidates of this plan has come.
    pub(crate) fn hurry(&mut self, seq: u32) {
        for mut candidate in self.take(seq) {
            candidate.not_before = Duration::ZERO;
            self.put(candidate);
        }
    }
}
