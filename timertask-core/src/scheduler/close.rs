//! Closing: no new starts at once; runs get their time, then a token, then are left to themselves.

use std::time::Duration;

use super::{Inner, Scheduler};
use crate::clock::{Clock, Until, Wake};
use crate::engine::{Phase, is_inside};
use crate::error::CloseError;
use crate::key::SlotKey;
use crate::record::StillRunning;
use crate::run::{Stop, phase};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// How long runs have after their tokens fired, and the rooms after that to write down what is left.
const GRACE: Duration = Duration::from_secs(1);

/// What was left when a scheduler closed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CloseReport {
    /// Runs that did not return in time. Their threads are left to themselves, and their leases lapse.
    pub still_running: Vec<StillRunning>,
    /// Runs that ended, or were never entered, but whose end could not be written; their leases lapse.
    pub unrecorded: Vec<SlotKey>,
    /// Threads of the engine that panicked; empty unless we have a bug.
    pub threads_panicked: Vec<String>,
}

impl CloseReport {
    /// Whether nothing was left.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.still_running.is_empty() && self.unrecorded.is_empty() && self.threads_panicked.is_empty()
    }
}

impl Scheduler {
    /// Closes: nothing starts any more, and what is claimed but not entered is given back. Runs go on, and so do their
    /// renewals; [`Run::closing`](crate::Run::closing) is true for them. Those that wait for another try end as failed:
    /// an instance that leaves begins none. After `timeout` their tokens fire; one second
    /// later this returns with what still runs. Generations stay open: plans are not closed with the instance.
    ///
    /// A second call waits like the first, or answers at once where all has ended.
    ///
    /// # Errors
    /// [`CloseError::FromInside`] from inside a job or another callback of this scheduler: it is signalled, and does not
    /// wait.
    ///
    /// # Blocking
    /// Until all has ended, at most `timeout` and about two seconds, also where a store or a job hangs.
    pub fn close(&self, timeout: Duration) -> Result<CloseReport, CloseError> {
        self.inner.close(timeout)
    }

    /// Closes and fires the tokens of all runs at once.
    ///
    /// # Errors
    /// As [`close`](Self::close).
    ///
    /// # Blocking
    /// Until all has ended, at most about two seconds.
    pub fn close_now(&self) -> Result<CloseReport, CloseError> {
        self.inner.shared.closed_now.store(true, Ordering::Release);
        self.inner.close(Duration::ZERO)
    }
}

impl Inner {
    fn close(&self, timeout: Duration) -> Result<CloseReport, CloseError> {
        let shared = &self.shared;
        shared.go_to(Phase::Closing);
        let at_once = timeout.is_zero();
        if at_once {
            self.fire_all();
        }
        if is_inside(shared) {
            return Err(CloseError::FromInside);
        }
        let clock: &dyn Clock = &*shared.clock;
        let begin = clock.monotonic();
        let soft = begin.saturating_add(timeout);
        if !self.wait_until(soft) {
            if !at_once {
                self.fire_all();
            }
            let grace = clock.monotonic().saturating_add(GRACE);
            if !self.wait_until(grace) {
                let report = self.left();
                shared.go_to(Phase::Leaving);
                // What has ended by now is written once more, if the store lets us.
                self.wait_until(clock.monotonic().saturating_add(GRACE));
                self.rooms.join_ended();
                return Ok(report.after(&self.left()));
            }
        }
        self.rooms.join_all();
        Ok(self.left())
    }

    /// Waits for the end of all rooms; whether they have ended.
    fn wait_until(&self, end: Duration) -> bool {
        let shared = &self.shared;
        loop {
            if shared.rooms_left.load(Ordering::Acquire) == 0 {
                // Somebody else may be waiting, too.
                shared.progress.notify();
                return true;
            }
            if shared.clock.monotonic() >= end {
                return false;
            }
            match shared.clock.wait(&shared.progress, Some(Until::Monotonic(end))) {
                Wake::Signal | Wake::Time => {}
            }
        }
    }

    fn fire_all(&self) {
        let mono = self.shared.clock.monotonic();
        for cell in self.shared.live.all() {
            cell.fire(Stop::Cancelled, mono);
        }
    }

    fn left(&self) -> CloseReport {
        let mut report = CloseReport {
            threads_panicked: self.shared.pulse.panicked.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            ..CloseReport::default()
        };
        for cell in self.shared.live.all() {
            if cell.phase() == phase::ENTERED {
                report.still_running.push(self.shared.still_running(&cell));
            } else {
                report.unrecorded.push(cell.slot.clone());
            }
        }
        report
    }
}

impl CloseReport {
    /// This report, less what has been settled meanwhile.
    fn after(mut self, later: &Self) -> Self {
        let left = |slot: &SlotKey| {
            later.unrecorded.contains(slot) || later.still_running.iter().any(|running| running.slot == *slot)
        };
        self.still_running.retain(|running| left(&running.slot));
        self.unrecorded.retain(left);
        self.threads_panicked.clone_from(&later.threads_panicked);
        self
    }
}
