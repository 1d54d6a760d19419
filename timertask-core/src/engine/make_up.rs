//! What the policy says of missed slots: which of them are made up, and what is recorded of the others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::candidate::{Candidate, Origin};
use super::{Installed, Shared};
use crate::key::PlanId;
use crate::plan::CatchUp;
use crate::schedule::Schedule;
use crate::seam::{Cover, NotStarted, PlanRow, RunKind};
use crate::time::{Timestamp, Trigger};

/// The most that a range record counts; beyond it the count is left out.
pub(super) const COUNT: u64 = 1_000_000;
/// The most slots that a cap can ask for: they are looked for one by one, on the thread that renews leases, too.
const MOST: u32 = 10_000;
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// Missed slots: the first, the last whose start window has closed, and the last that is due (before the first that has
/// a row, where that counts).
pub(super) struct Gap {
    pub(super) missed: Trigger,
    pub(super) closed: Trigger,
    pub(super) upto: Trigger,
}

/// What is to be done about a gap.
pub(super) enum MakeUp {
    /// Its slots up to this one are accounted for so.
    Drop(Trigger, Cover),
    /// The first one is made up.
    One(Candidate),
}

/// Accounts for a gap behind `cursor`, or picks what is made up.
pub(super) fn make_up(shared: &Shared, plan: &Arc<Installed>, cursor: Trigger, gap: &Gap, now: Timestamp) -> MakeUp {
    let schedule = &plan.schedule;
    let oldest = oldest_wanted(plan, gap.closed, now);
    let drop_upto = |to: Trigger, reason: NotStarted| {
        let count = counted(schedule, cursor, to);
        MakeUp::Drop(to, Cover::Range { count, reason })
    };
    // Where a mutex is all that instances share, it has lapsed by now.
    let policy = if shared.mutex.is_some() { CatchUp::None } else { plan.policy.catch_up };
    let first = match policy {
        CatchUp::None | CatchUp::All { cap: 0 } => return drop_upto(gap.closed, NotStarted::TooLate),
        CatchUp::Latest => {
            // A slot whose window is open is the latest; it starts live.
            if schedule.next_trigger(gap.closed).is_some_and(|live| live <= gap.upto) {
                return drop_upto(gap.closed, NotStarted::Superseded);
            }
            gap.closed
        }
        CatchUp::All { cap } => nth_back(schedule, gap.upto, cap.min(MOST), gap.missed.max(oldest)),
    };
    if gap.closed < oldest {
        return drop_upto(gap.closed, NotStarted::OutsideWindow);
    }
    let first = if first < oldest { schedule.next_trigger(predecessor(oldest)).unwrap_or(first) } else { first };
    let before = schedule.prev_trigger(first);
    if let Some(before) = before.filter(|before| *before >= gap.missed) {
        let reason = match policy {
            _ if before < oldest => NotStarted::OutsideWindow,
            CatchUp::Latest => NotStarted::Superseded,
            CatchUp::None | CatchUp::All { .. } => NotStarted::OverCap,
        };
        return drop_upto(before.min(gap.closed), reason);
    }
    // The cursor stands right before it, whatever the schedule was back then.
    let mut candidate = Candidate::new(shared, Arc::clone(plan), first, Some(cursor), RunKind::CatchUp, Origin::Walk);
    candidate.from = before;
    // Until then it waits for its plan, a permit and a worker; then the policy is asked anew.
    let outside = plan.due(first).saturating_add(window(plan, gap.closed)).saturating_add(SECOND);
    candidate.until = Some(match policy {
        CatchUp::Latest => newer(plan, gap.closed).map_or(outside, |newer| newer.min(outside)),
        CatchUp::None | CatchUp::All { .. } => outside,
    });
    MakeUp::One(candidate)
}

/// How old a slot may be that is made up; by default a day or a period of the plan.
fn window(plan: &Installed, closed: Trigger) -> Duration {
    plan.policy.catch_up_window.unwrap_or_else(|| {
        let period = plan.schedule.period_after(predecessor(closed)).unwrap_or(DAY);
        period.max(DAY).min(31 * DAY)
    })
}

/// The oldest trigger point that may still be made up.
fn oldest_wanted(plan: &Installed, closed: Trigger, now: Timestamp) -> Trigger {
    let back = window(plan, closed).saturating_add(Duration::from_secs(u64::from(plan.offset)));
    now.saturating_sub(back).trigger()
}

/// When the slot after `at` falls due, which makes that one the latest.
fn newer(plan: &Installed, at: Trigger) -> Option<Timestamp> {
    plan.schedule.next_trigger(at).map(|next| plan.due(next))
}

/// The trigger point `n - 1` before `last`, not before `first`.
fn nth_back(schedule: &Schedule, last: Trigger, n: u32, first: Trigger) -> Trigger {
    let mut at = last;
    for _ in 1..n {
        match schedule.prev_trigger(at) {
            Some(before) if before >= first => at = before,
            _ => break,
        }
    }
    at
}

/// How many slots the plan has in (after, upto], where this instance has its current version installed.
pub(crate) fn count(shared: &Shared, plan: &PlanId, row: &PlanRow, after: Trigger, upto: Trigger) -> Option<u64> {
    let plan = shared.registry().get(plan).filter(|plan| plan.fingerprint == row.generation.fingerprint)?;
    // A calendar is user code.
    catch_unwind(AssertUnwindSafe(|| counted(&plan.schedule, after, upto))).unwrap_or_default()
}

fn counted(schedule: &Schedule, after: Trigger, upto: Trigger) -> Option<u64> {
    let n = schedule.count_between(after, upto, COUNT);
    (n < COUNT).then_some(n)
}

pub(super) fn successor(at: Trigger) -> Trigger {
    Trigger::from_secs(at.as_secs().saturating_add(1))
}

fn predecessor(at: Trigger) -> Trigger {
    Trigger::from_secs(at.as_secs().saturating_sub(1))
}
