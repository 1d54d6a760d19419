//! What concerns a plan as a whole: generations, the cursor, pauses, cancelling.

use std::sync::Arc;
use std::time::Duration;

use super::{Change, blank, range_between};
use crate::key::{Fence, Fingerprint, PlanKey, SlotKey};
use crate::seam::{
    Applied, Cancel, Cover, Generation, NotStarted, Pause, PlanOp, PlanRow, RunKind, SlotRow, SlotState,
};
use crate::time::{Timestamp, Trigger};

/// What [`plan`] judges by, as read in the store's transaction.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlanRows<'a> {
    /// The row of the plan, or of the namespace.
    pub plan: Option<&'a PlanRow>,
    /// For [`PlanOp::Account`] with [`Cover::Rows`] or [`Cover::Slots`]: those of the slots named there (without a request
    /// id) that have a row, in order. Else empty.
    pub taken: &'a [Trigger],
    /// For [`PlanOp::Cancel`]: the row of the slot. Else `None`.
    pub slot: Option<&'a SlotRow>,
}

/// Decides a request on a plan. The answer's [`PlanState::row`](crate::seam::PlanState::row) is [`Change::plan`] where
/// there is one, else the row as it was.
pub fn plan(now: Timestamp, key: &PlanKey, op: &PlanOp, rows: &PlanRows<'_>) -> (Applied, Change) {
    if let PlanOp::Read = op {
        return unchanged();
    }
    if key.plan.is_none() {
        // The namespace's row holds the pause of all, and nothing else.
        return match op {
            PlanOp::Pause { by, why, until } => match rows.plan {
                Some(row) => pause(now, row, by, why, *until),
                None => pause(now, &blank(key), by, why, *until),
            },
            PlanOp::Resume { since, lapsed_only } => {
                rows.plan.map_or_else(conflict, |row| resume(now, row, *since, *lapsed_only))
            }
            _ => conflict(),
        };
    }
    if let PlanOp::Open { fingerprint, replaces } = op {
        return open(now, *fingerprint, *replaces, rows.plan);
    }
    let Some(row) = rows.plan else { return conflict() };
    match op {
        PlanOp::Read | PlanOp::Open { .. } => unchanged(),
        PlanOp::Close { generation } => close(row, *generation),
        PlanOp::Account { fingerprint, from, to, cover } => {
            let span = Span { from: *from, to: *to, foreign: *fingerprint != row.generation.fingerprint };
            account(now, key, row, span, cover, rows.taken)
        }
        PlanOp::SetBack { max_skew } => set_back(now, row, *max_skew),
        PlanOp::Pause { by, why, until } => pause(now, row, by, why, *until),
        PlanOp::Resume { since, lapsed_only } => resume(now, row, *since, *lapsed_only),
        PlanOp::Cancel { cancel, .. } => mark(rows.slot, cancel),
    }
}

fn unchanged() -> (Applied, Change) {
    (Applied::Unchanged, Change::default())
}

fn conflict() -> (Applied, Change) {
    (Applied::Conflict, Change::default())
}

fn done(change: Change) -> (Applied, Change) {
    (Applied::Done, change)
}

fn open(
    now: Timestamp,
    fingerprint: Fingerprint,
    replaces: Option<Generation>,
    row: Option<&PlanRow>,
) -> (Applied, Change) {
    let Some(row) = row else {
        let from = now.trigger();
        return done(Change::of_plan(PlanRow {
            generation: Generation { fingerprint, effective_from: from },
            closed: false,
            cursor: from,
            // Nothing was purged: an operator may fill in the time before the plan was known.
            low_water: Trigger::default(),
            fence: Fence::NONE,
            last_success: None,
            window_from: None,
            pause: None,
        }));
    };
    if row.generation.fingerprint == fingerprint && !row.closed {
        return unchanged();
    }
    if replaces.is_some_and(|generation| generation != row.generation) {
        return conflict();
    }
    let from = now.trigger().max(row.cursor);
    let reason = if row.closed { NotStarted::Disabled } else { NotStarted::Edited };
    let mut change = Change::of_plan(PlanRow {
        generation: Generation { fingerprint, effective_from: from },
        closed: false,
        cursor: from,
        window_from: Some(row.cursor),
        ..row.clone()
    });
    change.range = range_between(row.cursor, from, None, reason, now);
    done(change)
}

fn close(row: &PlanRow, generation: Generation) -> (Applied, Change) {
    if row.generation != generation {
        conflict()
    } else if row.closed {
        unchanged()
    } else {
        done(Change::of_plan(PlanRow { closed: true, ..row.clone() }))
    }
}

/// What an account moves the cursor over.
struct Span {
    from: Trigger,
    to: Trigger,
    /// Whether the asker's schedule isn't the current one.
    foreign: bool,
}

fn account(
    now: Timestamp,
    key: &PlanKey,
    row: &PlanRow,
    span: Span,
    cover: &Cover,
    taken: &[Trigger],
) -> (Applied, Change) {
    let Span { from, to, foreign } = span;
    if row.cursor != from || to < from || to.timestamp() > now || !in_order(from, to, cover) {
        return conflict();
    }
    if to == from {
        return unchanged();
    }
    let has_row = |at: &Trigger| taken.binary_search(at).is_ok();
    let mut change = Change::default();
    let mut reached = to;
    match cover {
        Cover::Nothing => {}
        Cover::Rows(slots) => {
            let leading = slots.iter().take_while(|at| has_row(at)).count();
            if leading < slots.len() {
                reached = leading.checked_sub(1).map_or(from, |i| slots[i]);
            }
        }
        Cover::Slots(slots, reason) => {
            let row_of = |at: &Trigger| {
                let key = SlotKey { plan: key.clone(), at: *at, request: None };
                SlotRow::not_started(key, RunKind::Scheduled, *reason, now)
            };
            change.more_slots = slots.iter().filter(|at| !has_row(at)).map(row_of).collect();
        }
        Cover::Range { count, reason } => change.range = range_between(from, to, *count, *reason, now),
    }
    if reached == from {
        return unchanged();
    }
    if foreign && change.range.is_none() {
        // The asker's schedule isn't the current one: what the current one has in between it cannot know.
        change.range = range_between(from, reached, None, NotStarted::Edited, now);
    }
    change.plan = Some(PlanRow { cursor: reached, ..row.clone() });
    done(change)
}

/// Whether the slots that a cover names rise strictly and lie in (`from`, `to`].
fn in_order(from: Trigger, to: Trigger, cover: &Cover) -> bool {
    let (Cover::Rows(slots) | Cover::Slots(slots, _)) = cover else { return true };
    slots.first().is_none_or(|at| *at > from)
        && slots.last().is_none_or(|at| *at <= to)
        && slots.is_sorted_by(|a, b| a < b)
}

fn set_back(now: Timestamp, row: &PlanRow, max_skew: Duration) -> (Applied, Change) {
    let limit = now.saturating_add(max_skew);
    let target = now.trigger().max(row.low_water);
    let corrected = |at: Trigger| if at.timestamp() > limit { at.min(target) } else { at };
    let mut new = row.clone();
    new.generation.effective_from = corrected(row.generation.effective_from);
    // What lies before an effective-from that stays was another generation's: this one would never account for it again.
    let floor = new.generation.effective_from.min(row.cursor);
    new.cursor = corrected(row.cursor).max(floor);
    if new == *row {
        return unchanged();
    }
    new.window_from = row.window_from.map(|at| at.min(new.cursor));
    let cut_ranges = (new.cursor < row.cursor).then_some(new.cursor);
    done(Change { plan: Some(new), cut_ranges, ..Change::default() })
}

fn pause(now: Timestamp, row: &PlanRow, by: &str, why: &str, until: Option<Timestamp>) -> (Applied, Change) {
    if row.pause.is_some() {
        return unchanged();
    }
    let pause = Pause { since: now, by: by.to_owned(), why: why.to_owned(), until };
    done(Change::of_plan(PlanRow { pause: Some(Arc::new(pause)), ..row.clone() }))
}

fn resume(now: Timestamp, row: &PlanRow, since: Timestamp, lapsed_only: bool) -> (Applied, Change) {
    let Some(pause) = &row.pause else { return unchanged() };
    if pause.since != since || (lapsed_only && pause.until.is_none_or(|until| until > now)) {
        return conflict();
    }
    done(Change::of_plan(PlanRow { pause: None, ..row.clone() }))
}

fn mark(slot: Option<&SlotRow>, cancel: &Cancel) -> (Applied, Change) {
    match slot {
        Some(slot) if slot.state == SlotState::Running && slot.cancel.is_some() => unchanged(),
        Some(slot) if slot.state == SlotState::Running => {
            done(Change::of_slot(SlotRow { cancel: Some(Arc::new(cancel.clone())), ..slot.clone() }))
        }
        _ => conflict(),
    }
}
