//! The runs that this instance has claimed and not yet recorded as ended: which there are, which are told to stop, which
//! don't.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::{DefaultHashBuilder, HashMap};

use super::shared::ScribeMail;
use super::stats::Counters;
use super::worker::{Finish, Finished};
use super::{PlanCounts, Shared};
use crate::key::Nonce;
use crate::observer::Event;
use crate::record::{FailedTry, StillRunning};
use crate::run::{RunCell, Stop, phase};
use crate::seam::Ending;
use crate::time::Timestamp;

/// A job that has not come back so long after it was told to stop counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// Filled by the claimer, emptied by the scribe, read by `close` and the renewals. The lock covers the map only.
#[derive(Default)]
pub(crate) struct Live(std::sync::Mutex<Cells>);

/// By nonce, which is random already: the cheap hasher does.
type Cells = HashMap<Nonce, Arc<RunCell>, DefaultHashBuilder>;

impl Live {
    fn lock(&self) -> MutexGuard<'_, Cells> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, cells: &[Arc<RunCell>]) {
        let mut map = self.lock();
        for cell in cells {
            map.insert(cell.nonce, Arc::clone(cell));
        }
    }

    pub(crate) fn remove<'a>(&self, nonces: impl IntoIterator<Item = &'a Nonce>) {
        let mut map = self.lock();
        for nonce in nonces {
            map.remove(nonce);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// How many are such.
    pub(crate) fn count(&self, which: impl Fn(&RunCell) -> bool) -> usize {
        self.lock().values().filter(|cell| which(cell)).count()
    }

    /// All of them, in the order of their claims (by fence within a plan, by due across plans).
    pub(crate) fn all(&self) -> Vec<Arc<RunCell>> {
        let mut cells: Vec<_> = self.lock().values().cloned().collect();
        cells.sort_by_key(|cell| (cell.due, cell.plan.seq, cell.grant.fence));
        cells
    }
}

impl Shared {
    /// A try has failed: kept with the run, counted, logged and told.
    pub(crate) fn try_failed(&self, cell: &RunCell, failed: FailedTry, next_in: Option<Duration>) {
        Counters::add(&self.counters.failed_tries, 1);
        PlanCounts::add(&cell.plan.counts().failed_tries);
        if let Some(next_in) = next_in {
            let (instance, slot, number) = (&self.config.instance, &cell.slot, failed.number);
            log::info!(target: "timertask::run", "{instance}: {slot}: try {number} failed; the next one in {next_in:?}");
        }
        if self.reports.observed() {
            self.reports.event(&Event::TryFailed { slot: &cell.slot, failed: &failed, next_in });
        }
        cell.note_failed(failed);
    }

    /// Tells a run to stop: through its token where it is with its job, else by ending it.
    pub(crate) fn stop(&self, cell: &RunCell, stop: Stop) {
        cell.fire(stop, self.clock.monotonic());
        self.end_waiting(|waiting| std::ptr::eq(waiting, cell));
    }

    /// Ends those that wait for another try and that `which` says.
    pub(crate) fn end_waiting(&self, which: impl Fn(&RunCell) -> bool) {
        for cell in self.pool.stop_waiting(which) {
            self.scribe.send(ScribeMail::Finished(self.over(&cell)));
        }
    }

    /// A run that is not tried again: what its last try said stands.
    pub(crate) fn over(&self, cell: &Arc<RunCell>) -> Finished {
        let _ = cell.step(phase::ENTERED, phase::RETURNED);
        // `close_now` may be about to fire its token.
        let told = matches!(cell.stopped(), Some(Stop::Cancelled | Stop::LeaseLost));
        let ending = if told || self.closed_now.load(Ordering::Acquire) { Ending::Cancelled } else { Ending::Failed };
        let what = Finish::Returned { ending, ended_at: self.clock.now(), detail: cell.last_error() };
        Finished { cell: Arc::clone(cell), what }
    }

    /// Whether a run has been with its job for longer than its budget, or the default budget where none is set.
    pub(crate) fn is_long(&self, cell: &RunCell, now: Timestamp) -> bool {
        let since = Timestamp::from_micros(cell.started_at.load(Ordering::Relaxed));
        cell.phase() == phase::ENTERED && now.since(since) > cell.plan.lock_ttl()
    }

    /// Whether a job was told to stop a while ago and has not come back.
    pub(crate) fn is_stuck(&self, cell: &RunCell, mono: Duration) -> bool {
        cell.phase() == phase::ENTERED && cell.told(mono).is_some_and(|at| at.saturating_add(STUCK_AFTER) <= mono)
    }

    /// Where and since when a run is with its job.
    pub(crate) fn still_running(&self, cell: &RunCell) -> StillRunning {
        let mono = self.clock.monotonic();
        let told_ago = cell.told(mono).map(|at| mono.saturating_sub(at));
        StillRunning {
            slot: cell.slot.clone(),
            instance: self.config.instance.clone(),
            worker: super::worker::name_of(cell.worker.load(Ordering::Relaxed)),
            since: Timestamp::from_micros(cell.started_at.load(Ordering::Relaxed)),
            tries: cell.tries.load(Ordering::Relaxed),
            stop: told_ago.and_then(|_| cell.stopped().or(Some(Stop::Deadline))),
            told_ago,
        }
    }
}
