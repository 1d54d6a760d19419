//! Candidates that are kept until their time: each slot once, found by time and by plan without a search.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::candidate::Candidate;
use crate::key::RequestId;
use crate::time::Trigger;

/// Install order of the plan, trigger point, and the request of a `run_now`.
type Key = (u32, Trigger, Option<RequestId>);

fn place(not_before: Duration, (seq, at, request): Key) -> (Duration, Trigger, u32, Option<RequestId>) {
    (not_before, at, seq, request)
}

/// In the order of (not before, due, install order).
#[derive(Default)]
pub(crate) struct Shelf {
    slots: BTreeMap<Key, Candidate>,
    order: BTreeSet<(Duration, Trigger, u32, Option<RequestId>)>,
}

impl Shelf {
    /// Puts in a candidate. Where its slot is there already nothing changes, since that one's nonce counts, and it comes
    /// back.
    pub(crate) fn put(&mut self, candidate: Candidate) -> Option<Candidate> {
        let key = (candidate.plan.seq, candidate.at, candidate.request.clone());
        if self.slots.contains_key(&key) {
            return Some(candidate);
        }
        self.order.insert(place(candidate.not_before, key.clone()));
        self.slots.insert(key, candidate);
        None
    }

    /// Takes the first whose time has come.
    pub(crate) fn pop(&mut self, mono: Duration) -> Option<Candidate> {
        if self.order.first()?.0 > mono {
            return None;
        }
        let (_, at, seq, request) = self.order.pop_first()?;
        self.slots.remove(&(seq, at, request))
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// When the first one's time comes.
    pub(crate) fn soonest(&self) -> Option<Duration> {
        self.order.first().map(|first| first.0)
    }

    /// Takes out all of this plan.
    pub(crate) fn take(&mut self, seq: u32) -> Vec<Candidate> {
        let first = (seq, Trigger::from_secs(i64::MIN), None);
        let keys: Vec<Key> =
            self.slots.range(first..).map(|(key, _)| key.clone()).take_while(|key| key.0 == seq).collect();
        keys.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    /// Takes out all of which this holds.
    pub(crate) fn take_if(&mut self, holds: impl Fn(&Candidate) -> bool) -> Vec<Candidate> {
        let keys: Vec<_> =
            self.slots.iter().filter(|(_, candidate)| holds(candidate)).map(|(key, _)| key.clone()).collect();
        keys.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    fn remove(&mut self, key: Key) -> Option<Candidate> {
        let candidate = self.slots.remove(&key)?;
        self.order.remove(&place(candidate.not_before, key));
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
