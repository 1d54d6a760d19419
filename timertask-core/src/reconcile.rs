//! What a reconcile answers, and the guard against sets that would drop too much. Pure.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::key::PlanId;

/// What a reconcile changed, or would change.
///
/// A plan that could not be taken is no error of the call: it stands in [`failed`](Self::failed), and in the log as a
/// warning. Where the plans are written into the program, a mistake in one should rather stop it:
///
/// ```
/// # extern crate timertask_core as timertask;
/// use timertask::{Plan, Run, Scheduler};
///
/// let scheduler = Scheduler::builder(|_: &Run| Ok(())).start()?;
/// let report = scheduler.reconcile([Plan::new("report", "0 25 * * *")])?;
/// let error = report.all_taken().unwrap_err();
/// assert_eq!(error.to_string(), "plan \"report\": hour (column 3): out of range: found `25`, allowed: 0-23");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReconcileReport {
    /// Plans that are new.
    pub installed: Vec<PlanChange>,
    /// Plans whose fingerprint changed.
    pub replaced: Vec<PlanChange>,
    /// Plans that were removed: absent or disabled.
    pub removed: Vec<PlanChange>,
    /// How many plans are as they were.
    pub unchanged: usize,
    /// Plans that could not be taken. A good version that was installed before goes on.
    pub failed: Vec<PlanFailure>,
}

impl ReconcileReport {
    /// The report itself where every plan could be taken.
    ///
    /// # Errors
    /// [`PlansFailed`] where one could not. What the reconcile did is not undone by that.
    pub fn all_taken(self) -> Result<Self, PlansFailed> {
        if self.failed.is_empty() { Ok(self) } else { Err(PlansFailed(self.failed)) }
    }

    /// Whether nothing was changed and nothing failed.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        !self.is_changed() && self.failed.is_empty()
    }

    pub(crate) fn is_changed(&self) -> bool {
        !(self.installed.is_empty() && self.replaced.is_empty() && self.removed.is_empty())
    }
}

impl fmt::Display for ReconcileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} installed, {} replaced, {} removed, {} unchanged, {} failed",
            self.installed.len(),
            self.replaced.len(),
            self.removed.len(),
            self.unchanged,
            self.failed.len()
        )
    }
}

/// Plans that could not be taken; made by [`ReconcileReport::all_taken`]. As text: one plan a line.
#[derive(Clone, PartialEq, Eq)]
pub struct PlansFailed(pub Vec<PlanFailure>);

impl fmt::Display for PlansFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for failure in &self.0 {
            write!(f, "{between}{failure}")?;
            between = "\n";
        }
        Ok(())
    }
}

/// As `Display`, since this is what a `main` that returns it prints.
impl fmt::Debug for PlansFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for PlansFailed {}

/// One plan that a reconcile changes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanChange {
    /// The plan's id.
    pub id: PlanId,
    /// Its next trigger point before the change.
    pub next_before: Option<DateTime<Utc>>,
    /// Its next trigger point after the change; the plan counts from the instant at which the ledger opens it.
    pub next_after: Option<DateTime<Utc>>,
}

/// One plan that could not be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanFailure {
    /// The plan's id.
    pub id: PlanId,
    /// What is wrong with it.
    pub reason: PlanError,
    /// Whether a good version of it stays installed.
    pub kept: bool,
}

impl fmt::Display for PlanFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "plan {:?}: {}", self.id, self.reason)?;
        if self.kept { f.write_str("; the version that was installed before goes on") } else { Ok(()) }
    }
}

/// Why a plan could not be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The expression is not understood or not allowed.
    #[error(transparent)]
    Spec(#[from] crate::schedule::SpecError),
    /// The zone is not an IANA name. Names look like `Europe/Berlin`.
    #[error("unknown zone {0:?}; allowed are IANA names such as \"Europe/Berlin\"")]
    Zone(String),
    /// No calendar of this name was registered with the builder.
    #[error("unknown calendar {0:?}; register it with `Builder::calendar`")]
    Calendar(String),
    /// The calendar panicked while the next trigger point was looked for.
    #[error("calendar {0:?} panicked")]
    CalendarPanicked(String),
    /// The router has no job of this name.
    #[error(transparent)]
    Job(UnknownJob),
    /// The start window is too short.
    #[error("start window of {0:?}; allowed are 2 s and more")]
    StartWindow(Duration),
    /// With a mutex as the only shared part, a second start could not be excluded.
    #[error(
        "spread + start window + 2 × max_skew is {sum:?}, which must be less than the lock's {ttl:?}; shorten the first or set a larger budget"
    )]
    LockTooShort {
        /// `spread + start_window + 2 × max_skew`.
        sum: Duration,
        /// The lock's TTL, from the budget.
        ttl: Duration,
    },
}

/// A plan asks for a job that the scheduler does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownJob {
    /// The name that the plan asks for: its own id, unless it names a job.
    pub name: String,
    /// The names that there are, in alphabetical order; at most eight of them.
    pub known: Vec<Arc<str>>,
    /// How many more there are.
    pub more: usize,
}

impl UnknownJob {
    pub(crate) fn new(name: &str, names: &HashSet<Arc<str>>) -> Self {
        let mut known: Vec<_> = names.iter().cloned().collect();
        known.sort_unstable();
        known.truncate(8);
        Self { name: name.to_owned(), more: names.len() - known.len(), known }
    }
}

impl fmt::Display for UnknownJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<_> = self.known.iter().map(|name| format!("{name:?}")).collect();
        match (&known[..], self.more) {
            ([], _) => write!(f, "unknown job {:?}; there is none yet, add it with `Jobs::on`", self.name),
            (_, 0) => write!(f, "unknown job {:?}; there are {}", self.name, known.join(", ")),
            (_, more) => write!(f, "unknown job {:?}; there are {} and {more} more", self.name, known.join(", ")),
        }
    }
}

impl std::error::Error for UnknownJob {}

/// Refuses a set of plans that would drop more than is plausible. Off by default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DropGuard {
    /// The largest part of the installed plans that a set may drop, from 0.0 to 1.0.
    pub fraction: f64,
    /// As many plans as this may always be dropped.
    pub min_count: usize,
}

impl DropGuard {
    /// How many of `installed` plans a set may drop.
    #[must_use]
    pub fn allows(&self, installed: usize) -> usize {
        #[expect(clippy::cast_precision_loss, reason = "a fraction of a count; exact up to 2^53 plans")]
        let limit = self.fraction * installed as f64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "rounded down; what is no number counts as 0"
        )]
        let limit = limit as usize;
        limit.max(self.min_count)
    }

    /// Whether dropping `dropped` of `installed` plans is refused.
    #[must_use]
    pub fn refuses(&self, dropped: usize, installed: usize) -> bool {
        dropped > self.allows(installed)
    }
}
