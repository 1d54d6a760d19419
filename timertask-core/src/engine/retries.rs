//! Runs between two tries: with no worker, until their back-off is over.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use crate::run::{RunCell, phase};
use crate::time::micros;

/// In the order in which they go on. A run is in here exactly while its phase is `WAITING`: both change under the lock, so
/// that whoever stops a run either finds it here or is seen by the worker that would put it here.
pub(crate) struct Retries {
    waiting: std::sync::Mutex<BTreeMap<(Duration, usize), Arc<RunCell>>>,
    /// How many were ever put in; tells apart those that go on at the same instant.
    put: AtomicUsize,
    /// When the first one goes on, monotonic microseconds; `u64::MAX` where none waits.
    soonest: AtomicU64,
}

impl Default for Retries {
    fn default() -> Self {
        Self { waiting: std::sync::Mutex::default(), put: AtomicUsize::new(0), soonest: AtomicU64::new(u64::MAX) }
    }
}

type Waiting = BTreeMap<(Duration, usize), Arc<RunCell>>;

impl Retries {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, waiting: &Waiting) {
        let first = waiting.first_key_value().map_or(u64::MAX, |((at, _), _)| micros(*at).unsigned_abs());
        self.soonest.store(first, Ordering::Release);
    }

    /// Puts in a run that goes on at `at`, unless it has been told to stop; whether it is in.
    pub(super) fn put(&self, at: Duration, cell: &Arc<RunCell>) -> bool {
        // In the unit of `soonest`, so that nobody wakes a moment too early for it.
        let at = Duration::from_micros(micros(at).unsigned_abs());
        let mut waiting = self.lock();
        if cell.stopped().is_some() || !cell.step(phase::ENTERED, phase::WAITING) {
            return false;
        }
        waiting.insert((at, self.put.fetch_add(1, Ordering::Relaxed)), Arc::clone(cell));
        self.note(&waiting);
        true
    }

    /// Takes out the first one whose back-off is over; it counts as entered again.
    pub(super) fn pop(&self, mono: Duration) -> Option<Arc<RunCell>> {
        let mut waiting = self.lock();
        let first = waiting.first_entry().filter(|first| first.key().0 <= mono)?;
        let cell = first.remove();
        self.note(&waiting);
        let _ = cell.step(phase::WAITING, phase::ENTERED);
        Some(cell)
    }

    /// Takes out those that `stop` says; they count as returned.
    pub(super) fn take(&self, stop: impl Fn(&RunCell) -> bool) -> Vec<Arc<RunCell>> {
        let mut waiting = self.lock();
        let keys: Vec<_> = waiting.iter().filter(|(_, cell)| stop(cell)).map(|(key, _)| *key).collect();
        let taken: Vec<_> = keys.iter().filter_map(|key| waiting.remove(key)).collect();
        self.note(&waiting);
        for cell in &taken {
            let _ = cell.step(phase::WAITING, phase::RETURNED);
        }
        taken
    }

    /// When the first one goes on.
    pub(super) fn soonest(&self) -> Option<Duration> {
        match self.soonest.load(Ordering::Acquire) {
            u64::MAX => None,
            at => Some(Duration::from_micros(at)),
        }
    }

    /// How many could go on at `mono`.
    pub(super) fn ready(&self, mono: Duration) -> usize {
        if self.soonest().is_none_or(|at| at > mono) {
            return 0;
        }
        self.lock().range(..=(mono, usize::MAX)).count()
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }
}
