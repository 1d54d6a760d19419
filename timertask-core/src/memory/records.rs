//! The records of plans: slot rows, in order and by state, and range records.

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::chunked::Slab;
use crate::key::RequestId;
use crate::seam::{Pause, RangeRow, SlotRow, SlotState};
use crate::time::Trigger;

/// What a plan has besides its row. Plans without any share none of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Records {
    pub(super) pause: Option<Arc<Pause>>,
    /// The numbers of its slots, by trigger point and request. New ones mostly come last, old ones go first.
    pub(super) slots: VecDeque<u32>,
    /// Those that have a request: it finds them, whatever their instant.
    requests: BTreeMap<RequestId, u32>,
    /// Those that are running or open, in no order.
    unfinished: Vec<u32>,
    /// How many are running.
    pub(super) running: usize,
    /// By time; they never overlap.
    pub(super) ranges: VecDeque<RangeRow>,
}

impl Records {
    pub(super) fn is_empty(&self) -> bool {
        self.pause.is_none() && self.slots.is_empty() && self.ranges.is_empty()
    }
}

#[derive(Clone, Debug)]
struct Place {
    /// `None`: free.
    row: Option<SlotRow>,
    /// The plan's number.
    plan: u32,
    /// Counts the rows that stood here, so that a note about one is not taken for one about the next.
    term: u32,
    /// Where it stands among the unfinished ones of its plan.
    unfinished: usize,
}

/// All slot rows.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    places: Slab<Place>,
    /// A bit for each number: whether a running or open row stands there, so that a sweep looks at no finished ones.
    unfinished: Vec<u64>,
}

/// A slot row of a moment; void once that row is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Note {
    slot: u32,
    term: u32,
}

impl Slots {
    pub(super) const fn new() -> Self {
        Self { places: Slab::new(), unfinished: Vec::new() }
    }

    pub(super) fn used(&self) -> usize {
        self.places.used()
    }

    /// The numbers from `from` on at which a running or open row stands, rising.
    pub(super) fn unfinished_from(&self, from: u32) -> impl Iterator<Item = u32> {
        let first = from / 64;
        let words = self.unfinished.iter().zip(0..).skip(first as usize);
        words.flat_map(move |(word, at): (&u64, u32)| {
            let mut left = if at == first { word & (u64::MAX << (from % 64)) } else { *word };
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(at * 64 + bit)
            })
        })
    }

    fn mark(&mut self, slot: u32, unfinished: bool) {
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        if word >= self.unfinished.len() {
            self.unfinished.resize(word + 1, 0);
        }
        if unfinished {
            self.unfinished[word] |= bit;
        } else {
            self.unfinished[word] &= !bit;
        }
    }

    /// The plan and the row at a number; `None` where it is free.
    pub(super) fn get(&self, slot: u32) -> Option<(u32, &SlotRow)> {
        let place = self.places.get(slot);
        place.row.as_ref().map(|row| (place.plan, row))
    }

    fn row(&self, slot: u32) -> Option<&SlotRow> {
        self.places.get(slot).row.as_ref()
    }

    pub(super) fn note(&self, slot: u32) -> Note {
        Note { slot, term: self.places.get(slot).term }
    }

    /// The plan and the row that `note` was about, where it still stands.
    pub(super) fn noted(&self, note: Note) -> Option<(u32, &SlotRow)> {
        if self.places.get(note.slot).term == note.term { self.get(note.slot) } else { None }
    }

    fn compare(&self, slot: u32, at: Trigger, request: Option<&RequestId>) -> Ordering {
        self.row(slot).map_or(Ordering::Less, |row| (row.key.at, row.key.request.as_ref()).cmp(&(at, request)))
    }

    /// Where the slot stands among those of its plan, or would.
    pub(super) fn place(&self, of: &Records, at: Trigger, request: Option<&RequestId>) -> Result<usize, usize> {
        match of.slots.back().map(|last| self.compare(*last, at, request)) {
            None => Err(0),
            Some(Ordering::Less) => Err(of.slots.len()),
            Some(Ordering::Equal) => Ok(of.slots.len() - 1),
            Some(Ordering::Greater) => of.slots.binary_search_by(|slot| self.compare(*slot, at, request)),
        }
    }

    /// The number of a slot; that of a `run_now` is found by its request, whatever its instant.
    pub(super) fn find(&self, of: &Records, at: Trigger, request: Option<&RequestId>) -> Option<u32> {
        match request {
            Some(request) => of.requests.get(request).copied(),
            None => self.place(of, at, None).ok().map(|i| of.slots[i]),
        }
    }

    /// The rows of a plan, by trigger point and request.
    pub(super) fn rows<'a>(&'a self, of: &'a Records) -> impl DoubleEndedIterator<Item = &'a SlotRow> {
        of.slots.iter().filter_map(|slot| self.row(*slot))
    }

    /// The running and open rows of a plan, in no order.
    pub(super) fn unfinished<'a>(&'a self, of: &'a Records) -> impl Iterator<Item = &'a SlotRow> {
        of.unfinished.iter().filter_map(|slot| self.row(*slot))
    }

    /// Writes a row, which has the number `slot` where it is there already; its number, and by how much the finished
    /// rows became more.
    pub(super) fn put(&mut self, of: &mut Records, plan: u32, slot: Option<u32>, row: SlotRow) -> (u32, isize) {
        let is = row.state;
        let slot = match slot {
            Some(slot) => slot,
            None => {
                let place = self.place(of, row.key.at, row.key.request.as_ref());
                let slot = self.places.take(|| Place { row: None, plan, term: 0, unfinished: 0 });
                let (Ok(i) | Err(i)) = place;
                if i == of.slots.len() {
                    of.slots.push_back(slot)
                } else {
                    of.slots.insert(i, slot)
                }
                if let Some(request) = &row.key.request {
                    of.requests.insert(request.clone(), slot);
                }
                slot
            }
        };
        let to = self.places.get_mut(slot);
        let was = to.row.replace(row).map(|row| row.state);
        to.plan = plan;
        if was.is_some_and(unfinished) {
            if !unfinished(is) {
                self.leave_unfinished(of, slot);
            }
        } else if unfinished(is) {
            to.unfinished = of.unfinished.len();
            of.unfinished.push(slot);
        }
        self.mark(slot, unfinished(is));
        of.running += usize::from(is == SlotState::Running);
        of.running -= usize::from(was == Some(SlotState::Running));
        let finished = |state: SlotState| isize::from(!unfinished(state));
        (slot, finished(is) - was.map_or(0, finished))
    }

    fn leave_unfinished(&mut self, of: &mut Records, slot: u32) {
        let i = self.places.get(slot).unfinished;
        of.unfinished.swap_remove(i);
        if let Some(moved) = of.unfinished.get(i) {
            self.places.get_mut(*moved).unfinished = i;
        }
    }

    /// Deletes the plan's `n` oldest rows, all finished.
    pub(super) fn delete_oldest(&mut self, of: &mut Records, n: usize) {
        for slot in of.slots.drain(..n) {
            let place = self.places.get_mut(slot);
            if let Some(request) = place.row.take().and_then(|row| row.key.request) {
                of.requests.remove(&request);
            }
            place.term = place.term.wrapping_add(1);
            self.places.leave(slot);
        }
    }
}

/// Whether a slot in `state` is running or open.
pub(super) fn unfinished(state: SlotState) -> bool {
    matches!(state, SlotState::Running | SlotState::Open)
}
