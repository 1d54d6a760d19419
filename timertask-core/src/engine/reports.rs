//! What goes out to people and programs: records, events, the instance's recent history.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use crate::observer::{Event, Observer};
use crate::record::{RunOutcome, RunRecord};
use crate::seam::Ending;

/// A closure that hears each record.
pub(crate) type OnRecord = Box<dyn Fn(&RunRecord) + Send + Sync>;

pub(crate) struct Reports {
    observer: Option<Arc<dyn Observer>>,
    on_record: Option<OnRecord>,
    capacity: usize,
    history: std::sync::Mutex<VecDeque<Arc<RunRecord>>>,
    complained: AtomicBool,
}

impl Reports {
    pub(crate) fn new(observer: Option<Arc<dyn Observer>>, on_record: Option<OnRecord>, capacity: usize) -> Self {
        Self {
            observer,
            on_record,
            capacity,
            history: std::sync::Mutex::new(VecDeque::new()),
            complained: AtomicBool::new(false),
        }
    }

    /// Tells the observer. Called without a lock; a panic is contained.
    pub(crate) fn event(&self, event: &Event<'_>) {
        if let Some(observer) = &self.observer {
            self.contained("observer", || observer.event(event));
        }
    }

    /// Whether anybody listens to events; spares the work of making them.
    pub(crate) fn observed(&self) -> bool {
        self.observer.is_some()
    }

    /// Whether anybody would ever see a record.
    pub(crate) fn wanted(&self) -> bool {
        self.observer.is_some() || self.on_record.is_some() || self.capacity > 0
    }

    /// Keeps the records and tells them on, each once.
    pub(crate) fn records(&self, records: Vec<RunRecord>) {
        let records: Vec<_> = records.into_iter().map(Arc::new).collect();
        if self.capacity > 0 {
            let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
            for record in records.iter().skip(records.len().saturating_sub(self.capacity)) {
                if history.len() >= self.capacity {
                    history.pop_front();
                }
                history.push_back(Arc::clone(record));
            }
        }
        for record in &records {
            if let Some(on_record) = &self.on_record {
                self.contained("on_record", || on_record(record));
            }
            self.event(&Event::Record(record));
        }
    }

    /// Logs how a slot came out; what the job's error said, which may be anything, stays in the record.
    pub(crate) fn log(record: &RunRecord) {
        let level = match record.outcome {
            RunOutcome::Ended(Ending::Failed) => log::Level::Warn,
            RunOutcome::Ended(Ending::Cancelled | Ending::Orphaned) | RunOutcome::NotStarted(_) => log::Level::Info,
            // The last two are told where they are found out.
            RunOutcome::Ended(Ending::Succeeded)
            | RunOutcome::Yielded
            | RunOutcome::GivenBack
            | RunOutcome::LeaseLost
            | RunOutcome::StoreFault => log::Level::Debug,
        };
        let RunRecord { instance, slot, outcome, .. } = record;
        log::log!(target: "timertask::run", level, "{instance}: {slot}: {outcome}");
    }

    /// The recent records, old to new.
    pub(crate) fn history(&self) -> Vec<Arc<RunRecord>> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    fn contained(&self, who: &str, f: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(f)) {
            let said = super::worker::panic_text(panic);
            if !self.complained.swap(true, Ordering::Relaxed) {
                log::error!(target: "timertask::engine", "{who} panicked (further ones are not logged): {said}");
            }
        }
    }
}
