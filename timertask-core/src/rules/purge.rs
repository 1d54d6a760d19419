//! Which records go, and how far low water rises with them.

use std::time::Duration;

use crate::seam::{PlanRow, RangeRow, Retention, SlotRow, SlotState};
use crate::time::{Timestamp, Trigger};

/// Purging by count spares what ended within this time: a clock that stepped back must not reopen it.
const SPARED_BY_COUNT: Duration = Duration::from_secs(86_400);

/// What [`purge`] judges by besides the oldest records, as read in the store's transaction.
#[derive(Clone, Copy, Debug)]
pub struct PurgeRows<'a> {
    /// The plan's row.
    pub plan: &'a PlanRow,
    /// How many records the plan has in all: slot rows and range records.
    pub records: usize,
    /// The oldest trigger point of the plan's running and open slots.
    pub unfinished: Option<Trigger>,
}

/// What goes. The store deletes it and sets [`PlanRow::low_water`] in one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Purge {
    /// So many of the oldest slot rows.
    pub slots: usize,
    /// So many of the oldest range records.
    pub ranges: usize,
    /// The plan's low water from now on.
    pub low_water: Trigger,
    /// Whether more is to be deleted.
    pub more: bool,
}

/// Decides what a purge deletes: at most `at_most` of the oldest records, up to the first that stays. Each deleted one
/// lifts low water, which never passes the cursor nor a running or open slot.
///
/// `slots` are the plan's slot rows from the oldest on (by trigger point and request id), `ranges` its range records
/// from the oldest on; of each it takes at most `at_most + 1`.
pub fn purge<'a>(
    now: Timestamp,
    keep: Retention,
    at_most: usize,
    rows: &PurgeRows<'_>,
    slots: impl IntoIterator<Item = &'a SlotRow>,
    ranges: impl IntoIterator<Item = &'a RangeRow>,
) -> Purge {
    let mut slots = slots.into_iter().peekable();
    let mut ranges = ranges.into_iter().peekable();
    let mut purge = Purge { slots: 0, ranges: 0, low_water: rows.plan.low_water, more: false };
    let mut left = rows.records;
    loop {
        let slot_first = match (slots.peek(), ranges.peek()) {
            (None, None) => return purge,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            // A range record goes only together with the rows inside it.
            (Some(slot), Some(range)) => slot.key.at <= range.last,
        };
        let (at, since) = match (slots.peek(), ranges.peek()) {
            (Some(slot), _) if slot_first => match slot.state {
                SlotState::Running | SlotState::Open => return purge,
                SlotState::Ended(_) | SlotState::NotStarted(_) => (slot.key.at, ended_at(slot)),
            },
            (_, Some(range)) => (range.last, range.at),
            _ => return purge,
        };
        let blocked = at > rows.plan.cursor || rows.unfinished.is_some_and(|unfinished| at >= unfinished);
        if blocked || !goes(now, keep, left, since) {
            return purge;
        }
        if purge.slots + purge.ranges >= at_most {
            purge.more = true;
            return purge;
        }
        if slot_first {
            purge.slots += 1;
            slots.next();
        } else {
            purge.ranges += 1;
            ranges.next();
        }
        left = left.saturating_sub(1);
        purge.low_water = purge.low_water.max(at);
    }
}

/// Whether the oldest of `left` records goes, which ended or was written at `since`.
fn goes(now: Timestamp, keep: Retention, left: usize, since: Timestamp) -> bool {
    if left <= keep.keep_last {
        return false;
    }
    let old = keep.age.is_some_and(|age| since < now.saturating_sub(age));
    let surplus = keep.count.is_some_and(|count| left > count) && since < now.saturating_sub(SPARED_BY_COUNT);
    old || surplus
}

/// When a row ended; by its own account, else by the last that is known of it.
fn ended_at(slot: &SlotRow) -> Timestamp {
    slot.ended_at.or(slot.claimed_at).unwrap_or_else(|| slot.key.at.timestamp())
}
