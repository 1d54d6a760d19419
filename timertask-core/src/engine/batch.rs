//! Trigger points on their way from the timer to the claimer: bounded by the number of groups, however long the claimer
//! is stuck in a store.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use super::Installed;
use crate::time::{Timestamp, Trigger};

/// A trigger point of a group that has fallen due, for its members from `pos` on.
pub(crate) struct Batch {
    pub(crate) at: Trigger,
    pub(crate) prev: Option<Trigger>,
    pub(crate) due: Timestamp,
    /// Its number among the trigger points that the group has handed on.
    pub(crate) number: u64,
    pub(crate) members: Arc<Vec<Arc<Installed>>>,
    pub(crate) pos: usize,
}

/// What a group shares with the claimer.
#[derive(Default)]
pub(crate) struct Line {
    /// How many trigger points were handed on.
    handed: AtomicU64,
    /// The most slots of one plan that a member lets run at once.
    widest: AtomicUsize,
    waiting: std::sync::Mutex<Vec<Batch>>,
}

impl Line {
    fn waiting(&self) -> MutexGuard<'_, Vec<Batch>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many trigger points were handed on, `more` of them from now on.
    pub(crate) fn hand_on(&self, more: usize) -> u64 {
        self.handed.fetch_add(more as u64, Ordering::AcqRel) + more as u64
    }

    pub(crate) fn widest(&self) -> usize {
        self.widest.load(Ordering::Relaxed).max(1)
    }

    pub(crate) fn widen(&self, at_once: usize) {
        self.widest.fetch_max(at_once, Ordering::Relaxed);
    }

    /// Whether trigger point `number` has so many newer ones that a plan which lets `at_once` run at a time has no use for
    /// it any more.
    pub(crate) fn is_superseded(&self, number: u64, at_once: usize) -> bool {
        self.handed.load(Ordering::Acquire).saturating_sub(number) >= at_once as u64
    }

    /// Puts in a batch and takes out what is superseded for all members; whether the claimer has to be told.
    pub(crate) fn put(&self, batch: Batch) -> bool {
        let widest = self.widest();
        let mut waiting = self.waiting();
        let news = waiting.is_empty();
        waiting.push(batch);
        if waiting.len() > 2 * widest {
            waiting.retain(|batch| !self.is_superseded(batch.number, widest));
        }
        news
    }

    /// All that waits.
    pub(crate) fn take(&self) -> Vec<Batch> {
        std::mem::take(&mut *self.waiting())
    }
}
