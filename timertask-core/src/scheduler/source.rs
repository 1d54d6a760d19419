//! Loops that reconcile with a source of plans, again and again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use super::apply::Guard;
use super::{Inner, Scheduler};
use crate::clock::{Room, Signal, Turn, Until};
use crate::engine::{Counters, Shared};
use crate::error::SchedulerError;
use crate::job::PlanSource;
use crate::observer::Event;
use crate::time::Timestamp;

impl Scheduler {
    /// Reconciles with `source` at once and then every `interval` of the scheduler's clock, until the scheduler closes.
    /// Before that the builder's stale-sweep hook is called. A source that fails or panics, or whose set is refused as a
    /// whole, is logged and counted, leaves all plans as they are, and is asked again at the next interval. An interval
    /// of 0 counts as 1 s.
    ///
    /// # Errors
    /// `Ok` when the scheduler was closed; [`SchedulerError::Cancelled`] by `close_now`, [`SchedulerError::StaleSweep`]
    /// where the hook failed, [`SchedulerError::Stopped`] where the scheduler was stopped before.
    ///
    /// # Blocking
    /// Until the scheduler closes.
    pub fn start_reconcile(&self, interval: Duration, source: impl PlanSource) -> Result<(), SchedulerError> {
        self.inner.running()?;
        self.inner.stale_sweep()?;
        let shared = Arc::clone(&self.inner.shared);
        let mut room = Loop::new(Arc::downgrade(&self.inner), &shared, interval, source);
        while let Turn::Wait(until) = room.turn(shared.clock.now()) {
            let _ = shared.clock.wait(room.signal(), until);
        }
        if shared.closed_now.load(Ordering::Acquire) { Err(SchedulerError::Cancelled) } else { Ok(()) }
    }

    /// As [`start_reconcile`](Self::start_reconcile), on a thread of its own, which ends with the scheduler.
    ///
    /// # Errors
    /// [`SchedulerError::StaleSweep`] where the hook failed, [`SchedulerError::Stopped`] where the scheduler was stopped
    /// before, [`SchedulerError::Thread`] where there was no thread to be had.
    ///
    /// # Blocking
    /// As long as the stale-sweep hook takes.
    pub fn spawn_reconcile(&self, interval: Duration, source: impl PlanSource + 'static) -> Result<(), SchedulerError> {
        self.inner.running()?;
        self.inner.stale_sweep()?;
        let room = Loop::new(Arc::downgrade(&self.inner), &self.inner.shared, interval, source);
        self.inner.rooms.add(&self.inner.shared, Box::new(room)).map_err(SchedulerError::Thread)
    }
}

impl Inner {
    fn stale_sweep(&self) -> Result<(), SchedulerError> {
        let Some(hook) = &self.shared.config.stale_sweep else { return Ok(()) };
        match catch_unwind(AssertUnwindSafe(hook)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(SchedulerError::StaleSweep(error.to_string())),
            Err(panic) => Err(SchedulerError::StaleSweep(crate::engine::panic_text(panic))),
        }
    }
}

struct Loop<S> {
    inner: Weak<Inner>,
    shared: Arc<Shared>,
    interval: Duration,
    source: S,
    next: Duration,
    signal: Signal,
}

impl<S: PlanSource> Loop<S> {
    fn new(inner: Weak<Inner>, shared: &Arc<Shared>, interval: Duration, source: S) -> Self {
        let interval = if interval.is_zero() { Duration::from_secs(1) } else { interval };
        let signal = Signal::new();
        shared.loops.lock().unwrap_or_else(PoisonError::into_inner).push(signal.clone());
        let next = shared.clock.monotonic();
        Self { inner, shared: Arc::clone(shared), interval, source, next, signal }
    }

    fn reconcile(&self) {
        let plans = match catch_unwind(AssertUnwindSafe(|| self.source.plans().map_err(|error| error.to_string()))) {
            Ok(Ok(plans)) => plans,
            Ok(Err(error)) => return self.failed(&error),
            Err(panic) => return self.failed(&format!("panicked: {}", crate::engine::panic_text(panic))),
        };
        let Some(inner) = self.inner.upgrade() else { return };
        match inner.reconcile(&plans, Guard::Ask) {
            Ok(_) | Err(SchedulerError::Stopped) => {}
            Err(error) => self.failed(&error.to_string()),
        }
    }

    fn failed(&self, error: &str) {
        Counters::add(&self.shared.counters.source_failures, 1);
        log::error!(target: "timertask::reconcile", "{}: the source of plans failed: {error}; all plans stay as they are", self.shared.config.instance);
        self.shared.reports.event(&Event::SourceFailed { error });
    }
}

impl<S: PlanSource> Room for Loop<S> {
    fn name(&self) -> &str {
        "timertask-reconcile"
    }

    fn signal(&self) -> &Signal {
        &self.signal
    }

    fn turn(&mut self, _now: Timestamp) -> Turn {
        if self.shared.is_closing() {
            return Turn::Done;
        }
        let mono = self.shared.clock.monotonic();
        if mono >= self.next {
            self.next = mono.saturating_add(self.interval.max(Duration::from_millis(1)));
            self.reconcile();
        }
        if self.shared.is_closing() { Turn::Done } else { Turn::Wait(Some(Until::Monotonic(self.next))) }
    }
}
