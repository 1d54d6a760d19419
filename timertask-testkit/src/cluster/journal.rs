//! The jobs' own log: who ran which slot, with which fence, when. Written by a job around the user's job, and compared
//! with the ledger afterwards.

use std::collections::HashSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, PoisonError};

use timertask_core::clock::Clock;
use timertask_core::key::{Fence, Nonce, SlotKey};
use timertask_core::seam::RunKind;
use timertask_core::time::Timestamp;
use timertask_core::{BoxError, Job, Run};

use crate::clock::{ClockView, FakeClock};

/// One entry into a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Start {
    /// The slot.
    pub slot: SlotKey,
    /// Why it came about.
    pub kind: RunKind,
    /// The instance, by its number in the cluster.
    pub instance: usize,
    /// Which life of that instance it was, from 1; a restart begins another.
    pub life: u32,
    /// Which start of the slot the ledger said it was.
    pub attempt: u32,
    /// Which try within the start it was, from 1; above 1 only with a retry budget.
    pub tries: u32,
    /// The fence.
    pub fence: Fence,
    /// What names the run.
    pub nonce: Nonce,
    /// When it was entered, by the cluster's clock, without any instance's skew.
    pub at: Timestamp,
    /// When and how it was left; `None` while it runs.
    pub left: Option<(Timestamp, Left)>,
}

impl Start {
    /// The plan's id.
    #[must_use]
    pub fn plan(&self) -> &str {
        self.slot.plan.plan_str()
    }
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instance {} (life {}) at {}, fence {}", self.instance, self.life, self.at, self.fence)?;
        match &self.left {
            None => f.write_str(", not left"),
            Some((at, left)) => write!(f, ", {left} at {at}"),
        }
    }
}

/// How a job was left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// It returned `Ok`.
    Succeeded,
    /// It returned an error, which said this.
    Failed(String),
    /// It panicked.
    Panicked,
    /// Its instance was killed.
    Killed,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Succeeded => f.write_str("succeeded"),
            Self::Failed(why) => write!(f, "failed ({why})"),
            Self::Panicked => f.write_str("panicked"),
            Self::Killed => f.write_str("killed"),
        }
    }
}

/// All entries, in order.
#[derive(Clone, Default)]
pub(super) struct Journal(Arc<std::sync::Mutex<Vec<Start>>>);

impl Journal {
    pub(super) fn read<T>(&self, f: impl FnOnce(&[Start]) -> T) -> T {
        f(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn enter(&self, start: Start) -> usize {
        let mut starts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        starts.push(start);
        starts.len() - 1
    }

    fn leave(&self, index: usize, at: Timestamp, left: Left) {
        let mut starts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        starts[index].left = Some((at, left));
    }
}

/// The user's job with the journal around it, for one life of one instance.
pub(super) struct Recorded {
    pub(super) job: Arc<dyn Job>,
    pub(super) journal: Journal,
    pub(super) clock: FakeClock,
    pub(super) view: ClockView,
    pub(super) instance: usize,
    pub(super) life: u32,
}

impl Job for Recorded {
    fn run(&self, run: &Run) -> Result<(), BoxError> {
        let at = self.clock.now();
        let index = self.journal.enter(Start {
            slot: run.slot_key().clone(),
            kind: run.kind(),
            instance: self.instance,
            life: self.life,
            attempt: run.attempt(),
            tries: run.tries(),
            fence: run.fence(),
            nonce: run.nonce(),
            at,
            left: None,
        });
        self.clock.note_with(|| format!("instance {} enters {}, fence {}", self.instance, run.slot_key(), run.fence()));
        let result = catch_unwind(AssertUnwindSafe(|| self.job.run(run)));
        let left = match &result {
            _ if !self.view.is_alive() => Left::Killed,
            Ok(Ok(())) => Left::Succeeded,
            Ok(Err(error)) => Left::Failed(error.to_string()),
            Err(_) => Left::Panicked,
        };
        self.journal.leave(index, self.clock.now(), left);
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn names(&self) -> Option<HashSet<Arc<str>>> {
        self.job.names()
    }
}
