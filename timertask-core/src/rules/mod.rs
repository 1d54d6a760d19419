//! The rules of the ledger, as pure functions: rows and a request go in, an answer and the rows to write come out.
//!
//! A store reads what a function asks for, calls it with its own now, and writes the [`Change`], all in one
//! transaction (or under one lock). It decides nothing itself; that is what makes a store of one's own small. No
//! function here knows a thread, a lock or a clock.
//!
//! | call of [`Ledger`](crate::seam::Ledger) | function | reads |
//! |---|---|---|
//! | `claim` | [`claim`], [`needs`], [`started`] | plan row, slot row, pause of all, number of running rows |
//! | `plan` | [`plan`], [`cut`] | plan row; the rows of the slots that the request names |
//! | `renew` | [`renew`] | slot row |
//! | `end` | [`end`] | slot row, plan row |
//! | `read` | [`lapsed`] | slot rows |
//! | `purge` | [`purge`] | plan row, the oldest slot rows and range records |
//!
//! Beside them stands [`Look`], the two looks of a sweep, which an instance takes and no store sees.

mod claim;
mod end;
mod plan;
mod purge;

use crate::key::PlanKey;
use crate::seam::{NotStarted, PlanRow, RangeRow, SlotRow, SlotState};
use crate::time::{Timestamp, Trigger};

pub use claim::{ClaimRows, Needs, claim, needs, next_fence, started};
pub use end::{Look, end, lapsed, renew};
pub use plan::{PlanRows, plan};
pub use purge::{Purge, PurgeRows, purge};

/// What a decision writes. The store applies all of it in the transaction in which it read, or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Change {
    /// The plan's row as it is from now on (insert or replace).
    pub plan: Option<PlanRow>,
    /// A slot's row as it is from now on (insert or replace, by its key).
    pub slot: Option<SlotRow>,
    /// Further slot rows, likewise. Apart from `slot`, so that the common case allocates nothing.
    pub more_slots: Vec<SlotRow>,
    /// A range record to add.
    pub range: Option<RangeRow>,
    /// The clock rule: each range record of the plan becomes what [`cut`] makes of it, before `range` is added.
    pub cut_ranges: Option<Trigger>,
}

impl Change {
    /// Whether nothing is written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.plan.is_none()
            && self.slot.is_none()
            && self.more_slots.is_empty()
            && self.range.is_none()
            && self.cut_ranges.is_none()
    }

    /// All slot rows to write.
    pub fn slots(&self) -> impl Iterator<Item = &SlotRow> {
        self.slot.iter().chain(&self.more_slots)
    }

    /// A change of one slot row.
    fn of_slot(row: SlotRow) -> Self {
        Self { slot: Some(row), ..Self::default() }
    }

    /// A change of the plan's row.
    fn of_plan(row: PlanRow) -> Self {
        Self { plan: Some(row), ..Self::default() }
    }
}

/// What is left of `range` where nothing after `at` counts any more; `None`: delete it. What its writer had counted
/// no longer holds for a part of it.
#[must_use]
pub fn cut(range: &RangeRow, at: Trigger) -> Option<RangeRow> {
    if range.last <= at {
        return Some(range.clone());
    }
    (range.first <= at).then(|| RangeRow { last: at, count: None, ..range.clone() })
}

/// The row of a namespace or of a plan that is new to the ledger, before anything has happened to it.
fn blank(key: &PlanKey) -> PlanRow {
    debug_assert!(key.plan.is_none(), "the row of a plan begins with its generation");
    PlanRow {
        generation: crate::seam::Generation { fingerprint: Default::default(), effective_from: Trigger::default() },
        closed: false,
        cursor: Trigger::default(),
        low_water: Trigger::default(),
        fence: Default::default(),
        last_success: None,
        window_from: None,
        pause: None,
    }
}

/// The slots in (`after`, `upto`] as one record; `None` where that holds no second.
fn range_between(
    after: Trigger,
    upto: Trigger,
    count: Option<u64>,
    reason: NotStarted,
    now: Timestamp,
) -> Option<RangeRow> {
    let first = Trigger::from_secs(after.as_secs().saturating_add(1));
    (after < upto).then_some(RangeRow { first, last: upto, count, reason, at: now })
}

/// Makes `row` one that nobody will start: orphaned where it was started before (a started slot is never accounted as
/// not started), else not started for `reason`.
fn lay_to_rest(row: &mut SlotRow, reason: NotStarted, now: Timestamp) {
    row.state =
        if row.attempt == 0 { SlotState::NotStarted(reason) } else { SlotState::Ended(crate::seam::Ending::Orphaned) };
    row.lease_end = Timestamp::EPOCH;
    row.ended_at = Some(now);
}

/// Opens `row` again and remembers its nonce as released, so that a late duplicate of its claim is granted nothing.
fn release(row: &mut SlotRow) {
    row.state = SlotState::Open;
    row.lease_end = Timestamp::EPOCH;
    if row.released.len() >= SlotRow::RELEASED {
        let surplus = row.released.len() + 1 - SlotRow::RELEASED;
        row.released.drain(..surplus);
    }
    row.released.push(row.nonce);
}

#[cfg(test)]
mod tests;
