//! In which one state a slot is, by the rows that a ledger has: a pure function.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::key::PlanId;
use crate::schedule::Schedule;
use crate::seam::{Ending, NotStarted, Overlap, PlanRow, RangeRow, RunKind, SlotRow, SlotState};
use crate::time::{Timestamp, Trigger};

/// A lease that has lapsed is swept up within three sweeps.
pub(super) const SWEPT_AFTER: Duration = Duration::from_secs(3 * 10);
/// A slot that is due, and has no record yet, may take so much longer than its start window: a lease and three sweeps.
const GRACE: Duration = Duration::from_secs(30 + 3 * 10);

/// Which slots a plan is expected to have, for whoever audits a plan that is not installed here.
#[derive(Clone, Debug)]
#[must_use]
pub struct Expected {
    pub(crate) schedule: Arc<Schedule>,
    pub(crate) spread: Duration,
    /// The plan's share of its spread, where that is known.
    pub(crate) offset: Option<Duration>,
    pub(crate) start_window: Duration,
    pub(crate) starts: Option<u32>,
    pub(crate) overlap: Overlap,
    /// Of the version that is meant; `None`: whichever is current.
    pub(crate) fingerprint: Option<crate::key::Fingerprint>,
}

impl Expected {
    /// The trigger points of `schedule`, with a scheduler's defaults: no spread, a start window of 60 s, `Overlap::Skip`.
    pub fn new(schedule: Schedule) -> Self {
        Self {
            schedule: Arc::new(schedule),
            spread: Duration::ZERO,
            offset: None,
            start_window: Duration::from_secs(60),
            starts: None,
            overlap: Overlap::Skip,
            fingerprint: None,
        }
    }

    /// The plan's [`spread`](crate::Plan::spread).
    pub fn spread(mut self, spread: Duration) -> Self {
        (self.spread, self.offset) = (spread, None);
        self
    }

    /// The plan's [`start_window`](crate::Plan::start_window).
    pub fn start_window(mut self, window: Duration) -> Self {
        self.start_window = window;
        self
    }

    /// How many starts a slot may have in all: 1 with [`OnOrphan::Record`](crate::OnOrphan), 1 + max with `Rerun`. Where it
    /// is not set, no slot is found to have had too many.
    pub fn starts_allowed(mut self, starts: u32) -> Self {
        self.starts = Some(starts);
        self
    }

    /// The plan's [`overlap`](crate::Plan::overlap).
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    pub(super) fn offset_of(&self, plan: &PlanId) -> Duration {
        let share = || Duration::from_secs(u64::from(crate::plan::spread_offset(plan, self.spread)));
        self.offset.unwrap_or_else(share)
    }
}

/// The one state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AuditState {
    /// Its time has not come.
    NotDue,
    /// It is due, and waits.
    Waiting(Waits),
    /// It runs, or its runner is not heard of any more and not yet swept up.
    Running,
    /// It was started, and ended so.
    Ended(Ending),
    /// It was not started, for this reason: by a record of its own, or by one for a range of slots.
    NotStarted(NotStarted),
    /// Its record has been purged: it is at or below low water.
    Purged,
    /// The plan was removed or disabled before anybody accounted for it. If the plan comes back, it is accounted for then.
    Closed,
    /// It should have a record by now, and nothing of its plan goes on that it could wait for: no instance was there, or
    /// none reached the store, or catch-up waits for a permit that another plan has.
    Overdue,
    /// The plan's cursor has passed it, and it has no record: it was lost. That never happens while the ledger keeps what it
    /// has acknowledged.
    NoRecord,
}

/// What a slot waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Waits {
    /// Its start window is open; nobody has asked for it yet.
    Start,
    /// Its plan, or all, is paused.
    Pause,
    /// It was given back before it was entered, or is to be run again: a sweep takes it up.
    Sweep,
    /// Its plan runs, or has a slot that a sweep is to take up.
    Plan,
    /// Its start window has closed; the next walk over the gap accounts for it or makes it up.
    CatchUp,
}

impl AuditState {
    /// Whether somebody ought to look: [`Overdue`](Self::Overdue) or [`NoRecord`](Self::NoRecord).
    #[must_use]
    pub const fn stands_out(self) -> bool {
        matches!(self, Self::Overdue | Self::NoRecord)
    }
}

impl fmt::Display for AuditState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotDue => f.write_str("not due"),
            Self::Waiting(Waits::Start) => f.write_str("waiting to be started"),
            Self::Waiting(Waits::Pause) => f.write_str("waiting (paused)"),
            Self::Waiting(Waits::Sweep) => f.write_str("waiting (open)"),
            Self::Waiting(Waits::Plan) => f.write_str("waiting for its plan"),
            Self::Waiting(Waits::CatchUp) => f.write_str("waiting (catch-up)"),
            Self::Running => f.write_str("running"),
            Self::Ended(ending) => ending.fmt(f),
            Self::NotStarted(reason) => write!(f, "not started ({reason})"),
            Self::Purged => f.write_str("purged"),
            Self::Closed => f.write_str("closed"),
            Self::Overdue => f.write_str("overdue"),
            Self::NoRecord => f.write_str("no record"),
        }
    }
}

/// What a slot's state is judged by, besides its own rows.
pub(super) struct Facts<'a> {
    pub(super) now: Timestamp,
    pub(super) row: &'a PlanRow,
    /// Whether the plan, or all, is paused.
    pub(super) paused: bool,
    /// Whether the plan has a running or an open slot.
    pub(super) busy: bool,
    pub(super) offset: Duration,
    pub(super) start_window: Duration,
}

impl Facts<'_> {
    pub(super) fn due(&self, at: Trigger) -> Timestamp {
        at.timestamp().saturating_add(self.offset)
    }

    /// The state of the slot at `at`, which has this row, and lies in this range record.
    pub(super) fn state(&self, at: Trigger, row: Option<&SlotRow>, range: Option<&RangeRow>) -> AuditState {
        if let Some(row) = row {
            // A row outranks a range.
            return self.state_of_row(row);
        }
        if let Some(range) = range {
            return AuditState::NotStarted(range.reason);
        }
        let due = self.due(at);
        let closes = due.saturating_add(self.start_window);
        match () {
            () if at <= self.row.low_water => AuditState::Purged,
            () if at <= self.row.cursor => AuditState::NoRecord,
            () if self.row.closed => AuditState::Closed,
            () if self.now < due => AuditState::NotDue,
            () if self.paused => AuditState::Waiting(Waits::Pause),
            () if self.now <= closes => AuditState::Waiting(Waits::Start),
            () if self.busy => AuditState::Waiting(Waits::Plan),
            () if self.now <= closes.saturating_add(GRACE) => AuditState::Waiting(Waits::CatchUp),
            () => AuditState::Overdue,
        }
    }

    pub(super) fn state_of_row(&self, row: &SlotRow) -> AuditState {
        let operators = matches!(row.kind, RunKind::Manual | RunKind::Backfill);
        match row.state {
            SlotState::Running => AuditState::Running,
            SlotState::Open if self.paused && !operators => AuditState::Waiting(Waits::Pause),
            SlotState::Open => AuditState::Waiting(Waits::Sweep),
            SlotState::Ended(ending) => AuditState::Ended(ending),
            SlotState::NotStarted(reason) => AuditState::NotStarted(reason),
        }
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
