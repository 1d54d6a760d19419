//! What an instance remembers of runs and non-runs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::key::{Fence, InstanceId, SlotKey};
use crate::run::Stop;
use crate::seam::{Asked, Ending, NotStarted, RunKind};
use crate::time::Timestamp;

/// How a slot came out, as an instance saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RunOutcome {
    /// It was started here and ended so.
    Ended(Ending),
    /// It was started here, but its end could not be recorded: the term was over (orphaned meanwhile, or run again).
    LeaseLost,
    /// It was accounted for as not started.
    NotStarted(NotStarted),
    /// Another instance has it: normal.
    Yielded,
    /// It was claimed here and given back before it was entered.
    GivenBack,
    /// The store could not be reached inside the start window: an alarm. The slot is unaccounted in the ledger.
    StoreFault,
}

impl fmt::Display for RunOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(ending) => ending.fmt(f),
            Self::LeaseLost => f.write_str("lease lost"),
            Self::NotStarted(reason) => write!(f, "not started ({reason})"),
            Self::Yielded => f.write_str("yielded"),
            Self::GivenBack => f.write_str("given back"),
            Self::StoreFault => f.write_str("store fault"),
        }
    }
}

/// One run or non-run, as this instance saw it. As text: slot, outcome and, where there is one, detail.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunRecord {
    /// The slot.
    pub slot: SlotKey,
    /// Why it came about.
    pub kind: RunKind,
    /// Who asked for it and why, where an operator did.
    pub asked: Option<Arc<Asked>>,
    /// This instance's label.
    pub instance: InstanceId,
    /// This instance's code version.
    pub version: Option<Arc<str>>,
    /// Which start of the slot it was; 0 where it was not started here.
    pub attempt: u32,
    /// The fence; [`Fence::NONE`] where it was not started here.
    pub fence: Fence,
    /// When it was due.
    pub due: Timestamp,
    /// When the job was entered.
    pub started_at: Option<Timestamp>,
    /// When the job returned, or the slot was accounted for.
    pub ended_at: Timestamp,
    /// How many times the job was tried.
    pub tries: u32,
    /// The tries that failed, old to new, the last one among them where the run failed; at most the latest
    /// [`FailedTry::KEPT`].
    pub failed_tries: Vec<FailedTry>,
    /// How it came out.
    pub outcome: RunOutcome,
    /// What the error or panic of the last try said.
    pub detail: Option<Arc<str>>,
}

/// A try of a run that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedTry {
    /// Which try of the run it was, from 1.
    pub number: u32,
    /// When the job was entered.
    pub started_at: Timestamp,
    /// When it returned.
    pub ended_at: Timestamp,
    /// What its error or panic said.
    pub error: Option<Arc<str>>,
}

impl FailedTry {
    /// So many of a run are kept in its record; each is told as an [`Event::TryFailed`](crate::Event::TryFailed).
    pub const KEPT: usize = 16;
}

impl fmt::Display for RunRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.slot, self.outcome)?;
        match &self.detail {
            Some(detail) => write!(f, ": {detail}"),
            None => Ok(()),
        }
    }
}

/// A run whose job has not come back. It has a worker to itself until it does: a thread cannot be stopped from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StillRunning {
    /// The slot.
    pub slot: SlotKey,
    /// The label of the instance that it runs on.
    pub instance: InstanceId,
    /// The name of the thread that it runs on.
    pub worker: String,
    /// When the job was entered, for the first time where it is tried again.
    pub since: Timestamp,
    /// Which try it is, from 1.
    pub tries: u32,
    /// What it was told to stop for, where it was.
    pub stop: Option<Stop>,
    /// Time since it was told.
    pub told_ago: Option<Duration>,
}

impl fmt::Display for StillRunning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} runs since {} on {}, thread {}", self.slot, self.since, self.instance, self.worker)?;
        match (self.stop, self.told_ago) {
            (Some(stop), Some(ago)) => write!(f, ", told to stop {} s ago: {stop}", ago.as_secs()),
            _ => Ok(()),
        }
    }
}
