//! Runs besides the schedule, as values.

use std::fmt;
use std::time::Duration;

use crate::key::{RequestId, SlotKey};
use crate::seam::{Asked, Ending};

/// A run besides the schedule: [`Scheduler::run_now`](crate::Scheduler::run_now),
/// [`Operator::run_now`](crate::Operator::run_now).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "nothing is asked for before it is given to `run_now`"]
pub struct RunNow {
    pub(crate) asked: Asked,
    pub(crate) id: Option<RequestId>,
    pub(crate) force: bool,
    pub(crate) within: Duration,
}

impl RunNow {
    /// A run that `asked` wants.
    pub fn new(asked: Asked) -> Self {
        Self { asked, id: None, force: false, within: Duration::from_secs(30) }
    }

    /// Names the run, so that asking again is the same run for as long as its record is kept. Without it each call is a
    /// run of its own.
    pub fn id(mut self, id: RequestId) -> Self {
        self.id = Some(id);
        self
    }

    /// Starts it also while the plan's overlap policy has no room for it.
    pub fn force(mut self) -> Self {
        self.force = true;
        self
    }

    /// How long to wait for a free worker and an answer; 30 s unless set.
    pub fn within(mut self, d: Duration) -> Self {
        self.within = d;
        self
    }
}

/// An accepted `run_now`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accepted {
    /// The slot: the plan, the instant at which the request was first accepted, and its id.
    pub slot: SlotKey,
    /// How it stands.
    pub standing: Standing,
}

/// How an accepted `run_now` stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Standing {
    /// This call started it: the job has been entered.
    Started,
    /// It was asked for before, and runs.
    Running,
    /// It was asked for before, and has ended so.
    Ended(Ending),
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started => f.write_str("started"),
            Self::Running => f.write_str("runs already"),
            Self::Ended(ending) => write!(f, "has ended: {ending}"),
        }
    }
}
