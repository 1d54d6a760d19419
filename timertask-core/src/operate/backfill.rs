//! Slots of the past that are to be started, and how each stands.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::OperateError;
use super::notice::{Notice, Wish};
use crate::key::{PlanId, PlanKey, RequestId, SlotKey};
use crate::schedule::Schedule;
use crate::seam::{Asked, Ending, NotStarted, Outcome, Page, PlanRow, Query, RangeRow, SlotRow, SlotState, StoreError};
use crate::time::{Timestamp, Trigger};

/// Slots of the past that are to be started: [`Scheduler::backfill`](crate::Scheduler::backfill),
/// [`Operator::backfill`](crate::Operator::backfill).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "nothing is asked for before it is given to `backfill`"]
pub struct Backfill {
    pub(crate) asked: Asked,
    pub(crate) id: Option<RequestId>,
    pub(crate) from: Trigger,
    pub(crate) to: Trigger,
    pub(crate) cap: usize,
}

impl Backfill {
    /// The most that a cap may be, and the most trigger points that a range may hold.
    pub const MAX: usize = 10_000;

    /// The trigger points from `from` to `to`, both included, that `asked` wants.
    pub fn new(from: DateTime<Utc>, to: DateTime<Utc>, asked: Asked) -> Self {
        let (first, to) = (Timestamp::from(from), Timestamp::from(to).trigger());
        // Part of a second is cut by `trigger`; what lies before `from` does not belong to it.
        let cut = first.trigger();
        let from = if cut.timestamp() < first { Trigger::from_secs(cut.as_secs().saturating_add(1)) } else { cut };
        Self { asked, id: None, from, to, cap: 100 }
    }

    /// The one trigger point `at`.
    pub fn slot(at: DateTime<Utc>, asked: Asked) -> Self {
        Self::new(at, at, asked)
    }

    /// The most slots that it may start; 100 unless set, at most [`MAX`](Self::MAX). One that would start more is refused
    /// as a whole.
    pub fn cap(mut self, slots: usize) -> Self {
        self.cap = slots;
        self
    }

    /// What is wrong with it, if anything is.
    pub(crate) fn check(&self) -> Result<(), OperateError> {
        if self.from > self.to {
            return Err(OperateError::EmptyRange { from: self.from, to: self.to });
        }
        if !(1..=Self::MAX).contains(&self.cap) {
            return Err(OperateError::Cap { cap: self.cap });
        }
        Ok(())
    }

    pub(crate) fn range(&self) -> (Trigger, Trigger) {
        (self.from, self.to)
    }

    pub(crate) fn named(&self) -> Option<&RequestId> {
        self.id.as_ref()
    }

    /// Whether so many starts are within the cap.
    pub(crate) fn check_count(&self, starts: usize) -> Result<(), OperateError> {
        if starts > self.cap { Err(OperateError::OverCap { starts, cap: self.cap }) } else { Ok(()) }
    }

    /// As a request on the notice board.
    pub(crate) fn notice(&self, plan: PlanId, id: RequestId) -> Notice {
        let wish = Wish::Backfill { from: self.from, to: self.to, cap: self.cap };
        Notice { plan, id, asked: self.asked.clone(), wish }
    }

    /// Names the request, so that it can be found and withdrawn. Without it the name is random.
    pub fn id(mut self, id: RequestId) -> Self {
        self.id = Some(id);
        self
    }
}

/// How long a backfill stays on the notice board.
pub(crate) const BACKFILL_STAYS: Duration = Duration::from_secs(7 * 86_400);

/// An accepted `backfill`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backfilling {
    /// Its name, for [`withdraw`](crate::Operator::withdraw).
    pub id: RequestId,
    /// How many slots it will start; `None` where no instance has taken it up yet.
    pub starts: Option<usize>,
}

/// What a backfill would do about one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prospect {
    /// The slot.
    pub slot: SlotKey,
    /// How it stands, and thereby whether it would be started.
    pub outlook: Outlook,
}

impl Prospect {
    /// Whether a backfill would start it.
    #[must_use]
    pub fn starts(&self) -> bool {
        self.outlook.starts()
    }
}

impl fmt::Display for Prospect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.starts() { "starts" } else { "stays" };
        write!(f, "{}: {what}: {}", self.slot, self.outlook)
    }
}

/// How a slot stands, for a backfill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outlook {
    /// Nobody started it, and nothing says why. Would be started.
    Unaccounted,
    /// It is on record as not started, by itself or in a range. Would be started.
    NotStarted(NotStarted),
    /// It was given back, or is to be run again. Would be started.
    Open,
    /// It runs. Stays.
    Running,
    /// It was started, and has ended. Stays.
    Ended(Ending),
    /// It lies at or below low water: its record, if there was one, is gone. Stays.
    TooOld,
    /// Its time has not come, or its start window is open: it starts by itself. Stays.
    Ahead,
}

impl Outlook {
    /// Whether a backfill would start it.
    #[must_use]
    pub const fn starts(self) -> bool {
        match self {
            Self::Unaccounted | Self::NotStarted(_) | Self::Open => true,
            Self::Running | Self::Ended(_) | Self::TooOld | Self::Ahead => false,
        }
    }
}

impl fmt::Display for Outlook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unaccounted => f.write_str("nobody started it"),
            Self::NotStarted(reason) => write!(f, "was not started ({reason})"),
            Self::Open => f.write_str("waits to be taken up"),
            Self::Running => f.write_str("it runs"),
            Self::Ended(ending) => write!(f, "has ended: {ending}"),
            Self::TooOld => f.write_str("too old: its record is gone"),
            Self::Ahead => f.write_str("its own time is not over"),
        }
    }
}

/// What a plan's slots are judged by.
#[derive(Clone)]
pub(crate) struct Judge<'a> {
    pub(crate) plan: &'a PlanKey,
    pub(crate) schedule: &'a Schedule,
    /// How many starts a slot may have in all.
    pub(crate) allowed: u32,
    /// How long after its trigger point a slot may still start by itself.
    pub(crate) open_for: Duration,
}

/// How many trigger points are looked up in one step.
pub(crate) const STEP: usize = 256;

impl Judge<'_> {
    /// The trigger points of `[from, to]`, a step's worth. Asks the calendar, which is user code.
    pub(crate) fn step(&self, from: Trigger, to: Trigger) -> Vec<Trigger> {
        let mut slots = Vec::new();
        let mut at = Trigger::from_secs(from.as_secs().saturating_sub(1));
        while slots.len() < STEP
            && let Some(next) = self.schedule.next_trigger(at).filter(|next| *next <= to)
        {
            slots.push(next);
            at = next;
        }
        slots
    }

    /// How these slots stand, which follow each other.
    pub(crate) fn look(
        &self,
        slots: &[Trigger],
        mut read: impl FnMut(&Query) -> Outcome<Page>,
    ) -> Result<Vec<Prospect>, StoreError> {
        let (Some(first), Some(last)) = (slots.first(), slots.last()) else { return Ok(Vec::new()) };
        let (mut rows, mut ranges, mut plan) = (Vec::new(), Vec::new(), None);
        let mut page = None;
        let now = loop {
            let query = Query::History {
                plan: self.plan.clone(),
                after: Trigger::from_secs(first.as_secs().saturating_sub(1)),
                upto: *last,
                page: page.take(),
                limit: STEP,
            };
            let answer = read(&query)?;
            let mut value = answer.value;
            rows.extend(value.slots.into_iter().filter(|row| row.key.request.is_none()));
            ranges.append(&mut value.ranges);
            plan = value.plans.pop().map(|(_, row)| row).or(plan);
            // A store that gives the same page again and again would never come to an end.
            match value.more {
                Some(more) if Some(&more) != page_of(&query) => page = Some(more),
                _ => break answer.now,
            }
        };
        let prospect = |at: &Trigger| {
            let row = rows.binary_search_by_key(at, |row: &SlotRow| row.key.at).ok().and_then(|i| rows.get(i));
            let slot = SlotKey { plan: self.plan.clone(), at: *at, request: None };
            Prospect { slot, outlook: self.outlook(*at, row, &ranges, plan.as_ref(), now) }
        };
        Ok(slots.iter().map(prospect).collect())
    }

    fn outlook(
        &self,
        at: Trigger,
        row: Option<&SlotRow>,
        ranges: &[RangeRow],
        plan: Option<&PlanRow>,
        now: Timestamp,
    ) -> Outlook {
        match row {
            Some(row) => match row.state {
                SlotState::Running => Outlook::Running,
                SlotState::Ended(ending) => Outlook::Ended(ending),
                SlotState::NotStarted(reason) => Outlook::NotStarted(reason),
                // Its starts are used up: whoever asks for it learns that it is orphaned.
                SlotState::Open if row.attempt >= self.allowed.max(1) => Outlook::Ended(Ending::Orphaned),
                SlotState::Open => Outlook::Open,
            },
            None if at.timestamp().saturating_add(self.open_for) >= now => Outlook::Ahead,
            None if plan.is_none_or(|plan| at <= plan.low_water) => Outlook::TooOld,
            None => match ranges.iter().find(|range| range.first <= at && at <= range.last) {
                Some(range) => Outlook::NotStarted(range.reason),
                None => Outlook::Unaccounted,
            },
        }
    }
}

fn page_of(query: &Query) -> Option<&crate::seam::PageToken> {
    match query {
        Query::History { page, .. } => page.as_ref(),
        _ => None,
    }
}

/// All slots of a range, and how they stand.
///
/// # Errors
/// Where the range is too wide, the store cannot be asked, or the plan's calendar panics.
pub(crate) fn prospects(
    judge: &Judge<'_>,
    (from, to): (Trigger, Trigger),
    mut read: impl FnMut(&Query) -> Outcome<Page>,
) -> Result<Vec<Prospect>, OperateError> {
    let mut all = Vec::new();
    let mut next = from;
    loop {
        // A calendar is user code.
        let slots = catch_unwind(AssertUnwindSafe(|| judge.step(next, to))).map_err(|_| {
            OperateError::CalendarPanicked(judge.schedule.calendar_name().unwrap_or_default().to_owned())
        })?;
        if all.len() + slots.len() > Backfill::MAX {
            return Err(OperateError::TooWide);
        }
        all.extend(judge.look(&slots, &mut read)?);
        match slots.last() {
            Some(last) if slots.len() == STEP => next = Trigger::from_secs(last.as_secs().saturating_add(1)),
            _ => return Ok(all),
        }
    }
}
