//! The slots that have fallen due and that nobody has asked for yet, in order.

use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::sync::Arc;

use super::batch::{Batch, Line};
use super::candidate::{Candidate, Origin};
use super::{Installed, Shared};
use crate::seam::RunKind;
use crate::time::{Timestamp, Trigger};

/// So many batches are kept before those that are superseded are looked for.
const BATCHES: usize = 256;

/// A batch in the order of (due, install order of the member it stands at).
struct Pending(Batch, Arc<Line>);

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

/// How many slots of a batch are still to be looked at.
fn left(batch: &Batch) -> usize {
    batch.members.len().saturating_sub(batch.pos)
}

/// A heap of batches.
pub(super) struct Due {
    heap: BinaryHeap<Pending>,
    /// How many batches there may be before those that are superseded are looked for.
    batches: usize,
    /// How many slots wait in them.
    slots: usize,
}

impl Default for Due {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), batches: BATCHES, slots: 0 }
    }
}

impl Due {
    /// Takes in what fell due. Batches of which nobody has a use any more don't pile up behind one that has a long start
    /// window.
    pub(super) fn take_in(&mut self, line: &Arc<Line>) {
        let batches = line.take();
        self.slots += batches.iter().map(left).sum::<usize>();
        self.heap.extend(batches.into_iter().map(|batch| Pending(batch, Arc::clone(line))));
        if self.heap.len() <= self.batches {
            return;
        }
        self.heap.retain(|Pending(batch, line)| !line.is_superseded(batch.number, line.widest()));
        self.batches = BATCHES.max(2 * self.heap.len());
        self.slots = self.heap.iter().map(|Pending(batch, _)| left(batch)).sum();
    }

    /// How many slots wait here.
    pub(super) fn len(&self) -> usize {
        self.slots
    }

    /// Goes past due slots that nobody here will start, and tells whether one is left at the top. `too_late` hears of those
    /// whose start window has closed. Those that are superseded show as a gap when the newer slot is answered; an instance
    /// that cannot keep up goes past them in one step, since it has no time for a walk of each.
    pub(super) fn next_is_live(
        &mut self,
        shared: &Shared,
        now: Timestamp,
        mut too_late: impl FnMut(&Arc<Installed>, Trigger),
    ) -> bool {
        loop {
            let Some(mut top) = self.heap.peek_mut() else { return false };
            let Pending(batch, line) = &*top;
            let plan = match batch.members.get(batch.pos) {
                // One that is due only in the time to come: the clock stepped back, and the timer has armed it anew.
                Some(plan) if now >= batch.due => plan,
                _ => {
                    self.slots -= left(&PeekMut::pop(top).0);
                    continue;
                }
            };
            let late = now > batch.due.saturating_add(plan.policy.start_window);
            if !late && line.is_superseded(batch.number, line.widest()) {
                self.slots -= left(&PeekMut::pop(top).0);
                continue;
            }
            let wanted = plan.is_active() && batch.at > plan.start();
            let superseded = line.is_superseded(batch.number, plan.policy.at_once());
            if wanted && !superseded && !late {
                return true;
            }
            let passed = (wanted && late).then(|| (Arc::clone(plan), batch.at));
            top.0.pos += 1;
            drop(top);
            self.slots -= 1;
            if let Some((plan, at)) = passed {
                shared.fell_due(&plan, at);
                // What nobody starts shows as a gap once its window has closed.
                shared.want_walk(&plan);
                too_late(&plan, at);
            }
        }
    }

    /// Takes the slot at the top.
    pub(super) fn take(&mut self, shared: &Shared) -> Option<Candidate> {
        let mut top = self.heap.peek_mut()?;
        let Pending(batch, line) = &mut *top;
        let plan = Arc::clone(batch.members.get(batch.pos)?);
        let origin = Origin::Timer(Arc::clone(line), batch.number);
        let (at, prev) = (batch.at, batch.prev);
        batch.pos += 1;
        drop(top);
        self.slots -= 1;
        shared.fell_due(&plan, at);
        Some(Candidate::new(shared, plan, at, prev, RunKind::Scheduled, origin))
    }

    /// When the start window of the slot at the top closes.
    pub(super) fn closes(&self) -> Option<Timestamp> {
        let Pending(batch, _) = self.heap.peek()?;
        let plan = batch.members.get(batch.pos)?;
        Some(batch.due.saturating_add(plan.policy.start_window))
    }
}
