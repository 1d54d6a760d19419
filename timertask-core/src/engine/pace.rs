//! What catches up (missed slots, reruns, backfills) and the pace at which it starts: with permits of its own, at a
//! distance, after live slots, and in the end in spite of them.

use std::time::Duration;

use super::candidate::Candidate;
use super::shared::RENEW_EVERY;
use super::shelf::Shelf;
use crate::plan::Pace;
use crate::time::Timestamp;

/// A slot for which no worker was free for so long, since live slots took them all, goes before them.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two questions of which the first one met a plan that runs, so that a thousand such plans are no storm.
const PROBE: Duration = Duration::from_millis(50);

/// Slots that catch up, old to new.
pub(super) struct Paced {
    shelf: Shelf,
    pace: Pace,
    /// No question before this monotonic time.
    hold: Duration,
    /// Since when one of them could start, but for a worker.
    ready: Option<Duration>,
    /// When those are looked for that are no longer wanted.
    review: Duration,
}

impl Paced {
    pub(super) fn new(pace: Pace) -> Self {
        Self { shelf: Shelf::default(), pace, hold: Duration::ZERO, ready: None, review: Duration::ZERO }
    }

    pub(super) fn len(&self) -> usize {
        self.shelf.len()
    }

    /// See [`Shelf::put`].
    pub(super) fn put(&mut self, candidate: Candidate) -> Option<Candidate> {
        self.shelf.put(candidate)
    }

    /// See [`Shelf::hurry`].
    pub(super) fn hurry(&mut self, seq: u32) {
        self.shelf.hurry(seq);
    }

    /// The next one, where so many `running` leave a permit and its time has come.
    pub(super) fn take(&mut self, running: usize, mono: Duration) -> Option<Candidate> {
        if running >= self.pace.at_once() || mono < self.hold { None } else { self.shelf.pop(mono) }
    }

    /// Whether one has waited for a worker so long that it goes before live slots.
    pub(super) fn is_overdue(&mut self, running: usize, mono: Duration) -> bool {
        let ready = running < self.pace.at_once() && self.shelf.soonest().is_some_and(|at| at <= mono);
        if !ready {
            self.ready = None;
            return false;
        }
        let since = *self.ready.get_or_insert(mono.max(self.hold));
        mono >= since.saturating_add(PATIENCE)
    }

    /// One of them starts.
    pub(super) fn started(&mut self, mono: Duration) {
        self.hold = mono.saturating_add(self.pace.stagger);
        self.ready = None;
    }

    /// One of them was asked for in vain, since its plan runs.
    pub(super) fn refused(&mut self, mono: Duration) {
        self.hold = self.hold.max(mono.saturating_add(PROBE.min(self.pace.stagger)));
    }

    /// Takes out those that are no longer wanted, every now and then.
    pub(super) fn outdated(&mut self, now: Timestamp, mono: Duration) -> Vec<Candidate> {
        if mono < self.review {
            return Vec::new();
        }
        self.review = mono.saturating_add(RENEW_EVERY);
        self.shelf.take_if(|candidate| !candidate.is_wanted(now))
    }

    /// When there is something to do, where so many of them run.
    pub(super) fn soonest(&self, running: usize) -> Option<Duration> {
        let next = self.shelf.soonest()?.max(self.hold);
        Some(if running >= self.pace.at_once() { self.review } else { next.min(self.review) })
    }
}
