//! The third room, as many as `concurrency` says: runs jobs. No lock of ours is held over user code, and a panic is an
//! outcome.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::order::Reply;
use super::pool::Next;
use super::rooms::WORKER;
use super::shared::{Phase, ScribeMail};
use super::stats::Counters;
use super::{PlanCounts, Shared};
use crate::clock::{Room, Signal, Turn, Until};
use crate::job::{BoxError, Permanent};
use crate::observer::Event;
use crate::record::FailedTry;
use crate::run::{Run, RunCell, Stop, phase};
use crate::seam::{Ending, RunKind, SlotRow};
use crate::time::Timestamp;

/// How soon a run whose trust has lapsed is looked at again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The name of a worker's thread.
pub(crate) fn name_of(number: usize) -> String {
    format!("{WORKER}{number}")
}

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
        Self { shared, number, name: name_of(number) }
    }

    /// Enters `cell` for the first time, or gives it back if it is too late for that.
    fn start(&self, cell: &Arc<RunCell>, now: Timestamp) -> Option<Finished> {
        let mono = self.shared.clock.monotonic();
        let late = cell.kind == RunKind::Scheduled && now > cell.start_by;
        let dropped = cell.kind != RunKind::Manual && cell.plan.is_gone();
        // An instance whose clock is off starts nothing, also where the claim's answer has just shown it.
        let stopped = self.shared.is_closing() || self.shared.is_skewed();
        if late || dropped || stopped || cell.check(now, mono).is_err() {
            let given_back = cell.step(phase::CLAIMED, phase::GIVEN_BACK);
            if let Some(order) = cell.order.as_ref().filter(|_| given_back) {
                order.reply(if self.shared.is_closing() { Reply::Stopped } else { Reply::NotEntered });
            }
            return given_back.then(|| Finished { cell: Arc::clone(cell), what: Finish::GivenBack });
        }
        if !cell.step(phase::CLAIMED, phase::ENTERED) {
            return None;
        }
        if let Some(order) = &cell.order {
            order.reply(Reply::Started(cell.slot.at));
        }
        cell.started_at.store(now.as_micros(), Ordering::Relaxed);
        Counters::add(&self.shared.counters.started, 1);
        let lateness = now.since(cell.due);
        PlanCounts::add(&cell.plan.counts().started);
        self.shared.counters.lateness.add(lateness);
        if self.shared.reports.observed() {
            self.shared.reports.event(&Event::Started { slot: &cell.slot, lateness });
        }
        self.attempt(cell, now)
    }

    /// Tries `cell` again, which has a permit anew, unless it was told to stop while it waited.
    fn retry(&self, cell: &Arc<RunCell>, now: Timestamp) -> Option<Finished> {
        let mono = self.shared.clock.monotonic();
        match cell.check(now, mono) {
            Ok(()) if !self.shared.is_closing() => self.attempt(cell, now),
            // The store has not vouched for it of late, and may do so again before its term is over.
            Err(Stop::LeaseLost) if cell.stopped().is_none() && self.wait(cell, mono + ASK_AGAIN) => None,
            _ => Some(self.shared.over(cell)),
        }
    }

    /// Tries the job once. Where it fails and its budget has another try, the run leaves this worker until then.
    fn attempt(&self, cell: &Arc<RunCell>, now: Timestamp) -> Option<Finished> {
        let run = Run { cell: Arc::clone(cell), shared: Arc::clone(&self.shared) };
        cell.worker.store(self.number, Ordering::Relaxed);
        let timeout = cell.plan.policy.retry.map(|b| b.timeout).filter(|timeout| !timeout.is_zero());
        cell.begin_try(timeout.map(|timeout| self.shared.clock.monotonic().saturating_add(timeout)));
        if let Some(end) = cell.deadline() {
            self.shared.note_deadline(end);
        }
        let Err(failure) = self.enter(&run) else {
            let ended_at = self.shared.clock.now();
            let _ = cell.step(phase::ENTERED, phase::RETURNED);
            let what = Finish::Returned { ending: Ending::Succeeded, ended_at, detail: None };
            return Some(Finished { cell: Arc::clone(cell), what });
        };
        let (ended_at, mono) = (self.shared.clock.now(), self.shared.clock.monotonic());
        let stop = cell.check(ended_at, mono).err();
        let next = self.next_try(cell, &failure, stop, mono);
        let failed = FailedTry { number: run.tries(), started_at: now, ended_at, error: failure.text.clone() };
        let next_in = next.map(|at| at.saturating_sub(mono));
        self.shared.try_failed(cell, failed, next_in);
        if let Some(at) = next {
            cell.clear_deadline();
            if self.wait(cell, at) {
                return None;
            }
            // It was told to stop in this very moment.
            return Some(self.shared.over(cell));
        }
        // A panic is a failure whatever its token said.
        let told = matches!(stop, Some(Stop::Cancelled | Stop::LeaseLost)) && !failure.panicked;
        let ending = if told { Ending::Cancelled } else { Ending::Failed };
        let _ = cell.step(phase::ENTERED, phase::RETURNED);
        Some(Finished { cell: Arc::clone(cell), what: Finish::Returned { ending, ended_at, detail: failure.text } })
    }

    /// When the next try may begin, in monotonic time, if there is one: none begins at the end of the budget or after it.
    fn next_try(&self, cell: &RunCell, failure: &Failure, stop: Option<Stop>, mono: Duration) -> Option<Duration> {
        let budget = cell.plan.policy.retry?.normalised();
        let tries = cell.tries.load(Ordering::Relaxed);
        // A time-out is that try's alone, and a lease that has lapsed may be renewed yet; what was fired stays.
        let stopped = match stop {
            Some(Stop::Cancelled) => true,
            Some(Stop::LeaseLost) => cell.stopped() == Some(Stop::LeaseLost),
            Some(Stop::Deadline) | None => false,
        };
        if failure.permanent || stopped || tries >= budget.attempts || self.shared.is_closing() {
            return None;
        }
        let at = mono.saturating_add(budget.backoff.wait(tries, self.shared.clock.entropy()));
        cell.term_end.is_none_or(|end| at < end).then_some(at)
    }

    /// Puts a run aside until `at`; whether it waits now.
    fn wait(&self, cell: &Arc<RunCell>, at: Duration) -> bool {
        // An instance that closes ends those that wait; one that comes after that is not to wait at all.
        let waits = self.shared.pool.put_aside(at, cell);
        if waits && self.shared.is_closing() {
            self.shared.end_waiting(|_| true);
        }
        waits
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
        self.shared.pool.signal(self.number)
    }

    fn turn(&mut self, now: Timestamp) -> Turn {
        let finished = match self.shared.pool.next(self.number, &*self.shared.clock) {
            Next::Start(cell) => self.start(&cell, now),
            Next::Retry(cell) => self.retry(&cell, now),
            Next::Wait(until) => {
                return match self.shared.phase() {
                    Phase::Open => Turn::Wait(until.map(Until::Monotonic)),
                    // The claimer may still have a call under way; what it brings home it gives back itself.
                    Phase::Closing | Phase::Leaving => Turn::Done,
                };
            }
        };
        self.shared.pool.release();
        if let Some(finished) = finished {
            self.shared.scribe.send(ScribeMail::Finished(finished));
        }
        Turn::Wait(Some(Until::Monotonic(Duration::ZERO)))
    }
}
