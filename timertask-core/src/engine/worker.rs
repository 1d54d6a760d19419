//! The third room, as many as `concurrency` says: runs jobs. No lock of ours is held over user code, and a panic is an
//! outcome.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Shared;
use super::shared::{Phase, ScribeMail};
use super::stats::Counters;
use crate::clock::{Room, Signal, Turn, Until};
use crate::job::{BoxError, Permanent};
use crate::observer::Event;
use crate::run::{Run, RunCell, Stop, phase};
use crate::seam::{Ending, RunKind, SlotRow};
use crate::time::Timestamp;

/// A run that a worker is done with.
pub(crate) struct Finished {
    pub(crate) cell: Arc<RunCell>,
    pub(crate) what: Finish,
}

/// How a worker was done with it.
pub(crate) enum Finish {
    /// Not entered.
    GivenBack,
    /// The job returned.
    Returned { ending: Ending, ended_at: Timestamp, detail: Option<Arc<str>> },
}

pub(crate) struct Worker {
    shared: Arc<Shared>,
    number: usize,
    name: String,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, number: usize) -> Self {
        Self { shared, number, name: format!("timertask-worker-{number}") }
    }

    /// Runs `cell`, or gives it back if it is too late for that.
    fn run(&self, cell: &Arc<RunCell>, now: Timestamp) -> Option<Finished> {
        let mono = self.shared.clock.monotonic();
        let plan = &cell.plan;
        let late = cell.kind == RunKind::Scheduled && now > cell.due.saturating_add(plan.policy.start_window);
        let dropped = cell.kind != RunKind::Manual && plan.is_gone();
        // An instance whose clock is off starts nothing, also where the claim's answer has just shown it.
        let stopped = self.shared.is_closing() || self.shared.is_skewed();
        if late || dropped || stopped || cell.check(now, mono).is_err() {
            let given_back = cell.step(phase::CLAIMED, phase::GIVEN_BACK);
            return given_back.then(|| Finished { cell: Arc::clone(cell), what: Finish::GivenBack });
        }
        if !cell.step(phase::CLAIMED, phase::ENTERED) {
            return None;
        }
        cell.started_at.store(now.as_micros(), Ordering::Relaxed);
        Counters::add(&self.shared.counters.started, 1);
        let lateness = now.since(cell.due);
        self.shared.counters.lateness(lateness);
        if self.shared.reports.observed() {
            self.shared.reports.event(&Event::Started { slot: &cell.slot, lateness });
        }
        let (ending, detail) = self.attempts(cell);
        let ended_at = self.shared.clock.now();
        let _ = cell.step(phase::ENTERED, phase::RETURNED);
        Some(Finished { cell: Arc::clone(cell), what: Finish::Returned { ending, ended_at, detail } })
    }

    /// Tries the job as often as its budget allows, all within this one start.
    fn attempts(&self, cell: &Arc<RunCell>) -> (Ending, Option<Arc<str>>) {
        let run = Run { cell: Arc::clone(cell), shared: Arc::clone(&self.shared) };
        let budget = cell.plan.policy.retry.map(crate::budget::RetryBudget::normalised);
        let tries = budget.map_or(1, |b| b.attempts);
        loop {
            let timeout = budget.map(|b| b.timeout).filter(|t| !t.is_zero());
            cell.begin_try(timeout.map(|timeout| self.shared.clock.monotonic().saturating_add(timeout)));
            if let Some(end) = cell.deadline() {
                self.shared.note_deadline(end);
            }
            let failure = match self.enter(&run) {
                Ok(()) => return (Ending::Succeeded, None),
                Err(failure) => failure,
            };
            let stop = cell.check(self.shared.clock.now(), self.shared.clock.monotonic()).err();
            // A panic is a failure whatever its token said.
            if let Some(Stop::Cancelled | Stop::LeaseLost) = stop {
                return (if failure.panicked { Ending::Failed } else { Ending::Cancelled }, failure.text);
            }
            let term_over = cell.term_end.is_some_and(|end| self.shared.clock.monotonic() >= end);
            if failure.permanent || term_over || run.tries() >= tries {
                return (Ending::Failed, failure.text);
            }
            cell.clear_deadline();
            let backoff = budget.map_or(Duration::ZERO, |b| b.backoff);
            match run.wait(backoff) {
                Ok(()) => {}
                Err(Stop::Deadline) => return (Ending::Failed, failure.text),
                Err(Stop::Cancelled | Stop::LeaseLost) => return (Ending::Cancelled, failure.text),
            }
        }
    }

    /// Enters the user's code once; a panic is contained.
    fn enter(&self, run: &Run) -> Result<(), Failure> {
        match catch_unwind(AssertUnwindSafe(|| self.shared.job.run(run))) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Failure::of(error)),
            Err(panic) => {
                let text = panic_text(panic);
                log::error!(target: "timertask::run", "{}: {} panicked: {text}", self.shared.config.instance, run.slot_key());
                Err(Failure::panicked(&text))
            }
        }
    }
}

struct Failure {
    text: Option<Arc<str>>,
    permanent: bool,
    panicked: bool,
}

impl Failure {
    /// Reads the error and drops it, one after the other: where both panic, the second must not meet the first one's
    /// unwinding.
    fn of(error: BoxError) -> Self {
        let permanent = error.downcast_ref::<Permanent>().is_some();
        let text = catch_unwind(AssertUnwindSafe(|| error.to_string()));
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(error)));
        match (text, dropped) {
            (Ok(text), Ok(())) => Self { text: Some(cut(&text)), permanent, panicked: false },
            (Ok(text), Err(panic)) => {
                let said = panic_text(panic);
                Self { text: Some(cut(&format!("{text} (its drop panicked: {said})"))), permanent, panicked: true }
            }
            (Err(panic), dropped) => {
                let _ = dropped.map_err(panic_text);
                Self { permanent, ..Self::panicked(&format!("in the error's own text: {}", panic_text(panic))) }
            }
        }
    }

    fn panicked(said: &str) -> Self {
        Self { text: Some(cut(&format!("panicked: {said}"))), permanent: false, panicked: true }
    }
}

/// At most as many bytes as a row's detail holds, cut between characters.
fn cut(text: &str) -> Arc<str> {
    if text.len() <= SlotRow::DETAIL {
        return Arc::from(text);
    }
    let mut end = SlotRow::DETAIL;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Arc::from(&text[..end])
}

/// What a panic said. The payload is dropped in here; one that panics in its own `Drop` is contained, too.
pub(crate) fn panic_text(panic: Box<dyn Any + Send>) -> String {
    let text = if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "(a payload that is no text)".to_owned()
    };
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        // A payload whose Drop panics is leaked rather than dropped once more.
        std::mem::forget(again);
    }
    text
}

impl Room for Worker {
    fn name(&self) -> &str {
        &self.name
    }

    fn signal(&self) -> &Signal {
        &self.shared.worker_signals[self.number]
    }

    fn turn(&mut self, now: Timestamp) -> Turn {
        let Some(cell) = self.shared.next_work(self.number) else {
            let over = match self.shared.phase() {
                Phase::Open => false,
                // The claimer may still have a call under way; what it brings home it gives back itself.
                Phase::Closing | Phase::Leaving => true,
            };
            return if over { Turn::Done } else { Turn::Wait(None) };
        };
        let finished = self.run(&cell, now);
        self.shared.busy.fetch_sub(1, Ordering::AcqRel);
        if !self.shared.config.exclusive {
            self.shared.claimer.signal().notify();
        }
        if let Some(finished) = finished {
            self.shared.scribe.send(ScribeMail::Finished(finished));
        }
        Turn::Wait(Some(Until::Monotonic(Duration::ZERO)))
    }
}
