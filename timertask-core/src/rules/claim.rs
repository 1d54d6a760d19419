//! Whether a slot may be started.

use std::sync::Arc;

use super::{Change, lay_to_rest, range_between};
use crate::key::{Fence, SlotKey};
use crate::seam::{
    Cancel, Claim, ClaimRequest, Ending, Gate, Grant, NotStarted, Overlap, PlanRow, Refusal, RunKind, SlotRow,
    SlotState,
};
use crate::time::{Timestamp, Trigger};

/// The largest fence: every language holds it exactly.
const FENCE_MAX: u64 = (1 << 53) - 1;
/// How far the clock may lift a fence. It stays a trillion grants below the largest, so that a clock gone mad does not
/// use up the plan's fences.
const FENCE_BY_CLOCK: u64 = FENCE_MAX - (1 << 40);

/// What [`claim`] judges by, as read in the store's transaction.
#[derive(Clone, Copy, Debug)]
pub struct ClaimRows<'a> {
    /// The plan's row.
    pub plan: Option<&'a PlanRow>,
    /// Whether the row of the namespace itself ([`PlanKey::whole`](crate::key::PlanKey::whole)) holds a pause.
    pub all_paused: bool,
    /// The slot's row.
    pub slot: Option<&'a SlotRow>,
    /// How many rows of the plan are running, whatever their lease ends, the slot's own left out. Only asked for where
    /// [`Needs::running`].
    pub running: usize,
    /// The running rows of the plan that are older than the slot. Only asked for where [`Needs::older`].
    pub older: &'a [SlotRow],
    /// The latest trigger point among the plan's rows that [`started`] tells apart. Only asked for where
    /// [`Needs::newest_started`].
    pub newest_started: Option<Trigger>,
}

/// Which rows a request is judged by, besides those of its plan and slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// [`ClaimRows::running`].
    pub running: bool,
    /// [`ClaimRows::older`].
    pub older: bool,
    /// [`ClaimRows::newest_started`].
    pub newest_started: bool,
}

/// Which rows `request` is judged by. What is not needed may be left at 0, empty and `None`.
#[must_use]
pub fn needs(request: &ClaimRequest) -> Needs {
    let live = request.kind == RunKind::Scheduled;
    match request.gate {
        Gate::Force => Needs { running: false, older: false, newest_started: false },
        Gate::Policy(Overlap::Skip | Overlap::Allow(_)) => Needs { running: true, older: false, newest_started: false },
        Gate::Policy(Overlap::QueueOne) => Needs { running: true, older: false, newest_started: live },
        Gate::Policy(Overlap::CancelPrevious) => Needs { running: true, older: live, newest_started: live },
    }
}

/// Whether `slot` is a scheduled slot that was started and is not ahead of `now`.
#[must_use]
pub fn started(now: Timestamp, slot: &SlotRow) -> bool {
    let was = match slot.state {
        SlotState::Running | SlotState::Ended(_) => true,
        SlotState::Open => slot.attempt > 0,
        SlotState::NotStarted(_) => false,
    };
    was && slot.key.request.is_none() && slot.key.at.timestamp() <= now
}

/// The fence of the next grant after `last`: one more, or the clock in microseconds where that is later, so that fences
/// rise also after a store lost its counter. `None` where no higher one is left, which only a damaged row can bring about.
#[must_use]
pub fn next_fence(last: Fence, now: Timestamp) -> Option<Fence> {
    let by_clock = u64::try_from(now.as_micros()).unwrap_or(0).min(FENCE_BY_CLOCK);
    let fence = last.as_u64().saturating_add(1).max(by_clock);
    (fence <= FENCE_MAX).then_some(Fence::from_u64(fence))
}

/// Decides a claim. It compares no lease end: a running slot is held until it has ended, whoever asks and when.
pub fn claim(now: Timestamp, request: &ClaimRequest, rows: &ClaimRows<'_>) -> (Claim, Change) {
    let mut change = Change::default();
    let answer = decide(now, request, rows, &mut change);
    let leaves_a_row = match &answer {
        Claim::Granted(_) | Claim::Held | Claim::Ended(_) | Claim::Refused(Refusal::NotStarted(_)) => true,
        Claim::Refused(_) => false,
    };
    if leaves_a_row {
        move_cursor(now, request, rows.plan, &mut change);
    }
    (answer, change)
}

fn decide(now: Timestamp, request: &ClaimRequest, rows: &ClaimRows<'_>, change: &mut Change) -> Claim {
    if let Some(slot) = rows.slot {
        match slot.state {
            SlotState::Ended(ending) => return Claim::Ended(ending),
            SlotState::Running if slot.nonce == request.nonce => return again(now, request, rows.plan, slot, change),
            SlotState::Running => return Claim::Held,
            SlotState::Open | SlotState::NotStarted(_) if slot.released.contains(&request.nonce) => {
                return Claim::Refused(Refusal::Released);
            }
            SlotState::NotStarted(reason) if request.kind != RunKind::Backfill => {
                return Claim::Refused(Refusal::NotStarted(reason));
            }
            SlotState::NotStarted(_) => {}
            SlotState::Open => {
                if slot.attempt >= request.attempts_allowed.max(1) {
                    let mut row = slot.clone();
                    row.state = SlotState::Ended(Ending::Orphaned);
                    row.ended_at = Some(now);
                    change.slot = Some(row);
                    return Claim::Ended(Ending::Orphaned);
                }
            }
        }
    }
    let at = request.key.at;
    let operator = matches!(request.kind, RunKind::Manual | RunKind::Backfill);
    let Some(plan) = rows.plan.filter(|_| request.key.plan.plan.is_some()) else {
        return Claim::Refused(Refusal::Unknown);
    };
    if rows.slot.is_none() {
        if at <= plan.low_water {
            return Claim::Refused(Refusal::TooOld);
        }
        if at <= plan.cursor && !operator {
            return Claim::Refused(Refusal::Accounted);
        }
    }
    if (rows.all_paused || plan.pause.is_some()) && !operator {
        return Claim::Refused(Refusal::Paused);
    }
    if let Some(refusal) = gate(now, request, rows, change) {
        return refusal;
    }
    grant(now, request, plan, rows.slot, change)
}

/// The same decision asks again: the same grant, so that a lost answer is safe to ask for.
fn again(now: Timestamp, request: &ClaimRequest, plan: Option<&PlanRow>, slot: &SlotRow, change: &mut Change) -> Claim {
    // A running slot of a plan that isn't there would be a broken store; nothing is started on its word.
    let Some(plan) = plan else { return Claim::Refused(Refusal::Unknown) };
    let lease_end = slot.lease_end.max(now.saturating_add(request.ttl));
    if lease_end != slot.lease_end {
        change.slot = Some(SlotRow { lease_end, ttl: request.ttl, ..slot.clone() });
    }
    Claim::Granted(Grant {
        at: slot.key.at,
        fence: slot.fence,
        attempt: slot.attempt,
        lease_end,
        cursor: plan.cursor,
        last_success: plan.last_success,
        window_from: plan.window_from,
    })
}

/// Judges overlap over the plan's running rows, for all instances at once. `None`: it passes.
fn gate(now: Timestamp, request: &ClaimRequest, rows: &ClaimRows<'_>, change: &mut Change) -> Option<Claim> {
    let Gate::Policy(overlap) = request.gate else { return None };
    // What was started before is claimed as catch-up is, whoever asks: a full gate lets it wait, and it is never
    // accounted as not started.
    let live = request.kind == RunKind::Scheduled && rows.slot.is_none_or(|slot| slot.attempt == 0);
    let queues = matches!(overlap, Overlap::QueueOne | Overlap::CancelPrevious);
    if live && queues && rows.newest_started.is_some_and(|newest| newest > request.key.at) {
        return Some(account(now, request, rows.slot, NotStarted::Superseded, change));
    }
    let limit = match overlap {
        Overlap::Allow(n) => n.max(1) as usize,
        Overlap::Skip | Overlap::QueueOne | Overlap::CancelPrevious => 1,
    };
    if rows.running < limit {
        return None;
    }
    match overlap {
        Overlap::Skip | Overlap::Allow(_) if live => {
            return Some(account(now, request, rows.slot, NotStarted::Overlap, change));
        }
        Overlap::CancelPrevious if live => mark_older(request, rows.older, change),
        _ => {}
    }
    Some(Claim::Refused(Refusal::Full))
}

fn account(
    now: Timestamp,
    request: &ClaimRequest,
    slot: Option<&SlotRow>,
    reason: NotStarted,
    change: &mut Change,
) -> Claim {
    change.slot = Some(match slot {
        None => SlotRow::not_started(request.key.clone(), request.kind, reason, now),
        Some(slot) => {
            let mut row = slot.clone();
            lay_to_rest(&mut row, reason, now);
            row
        }
    });
    Claim::Refused(Refusal::NotStarted(reason))
}

/// Tells the runs of older slots to make room.
fn mark_older(request: &ClaimRequest, older: &[SlotRow], change: &mut Change) {
    let unmarked =
        |row: &&SlotRow| row.state == SlotState::Running && row.cancel.is_none() && row.key.at < request.key.at;
    let mut mark = None;
    for row in older.iter().filter(unmarked) {
        let mark = mark.get_or_insert_with(|| {
            Arc::new(Cancel { by: request.instance.to_string(), why: "a newer slot waits (overlap)".to_owned() })
        });
        change.more_slots.push(SlotRow { cancel: Some(Arc::clone(mark)), ..row.clone() });
    }
}

fn grant(now: Timestamp, request: &ClaimRequest, plan: &PlanRow, slot: Option<&SlotRow>, change: &mut Change) -> Claim {
    // Only a damaged row has used up its fences. Without a higher one nothing may start.
    let Some(fence) = next_fence(plan.fence, now) else { return Claim::Refused(Refusal::Full) };
    let attempt = slot.map_or(0, |row| row.attempt).saturating_add(1);
    let lease_end = now.saturating_add(request.ttl);
    change.plan = Some(PlanRow { fence, ..plan.clone() });
    change.slot = Some(SlotRow {
        key: slot.map_or_else(|| request.key.clone(), |row| row.key.clone()),
        state: SlotState::Running,
        kind: request.kind,
        asked: request.asked.clone().or_else(|| slot.and_then(|row| row.asked.clone())),
        nonce: request.nonce,
        released: slot.map_or_else(Vec::new, |row| row.released.clone()),
        fence,
        attempt,
        lease_end,
        ttl: request.ttl,
        // An operator's word to stop outlives a give-back; of a slot that was laid to rest it is spent.
        cancel: slot.filter(|row| row.state == SlotState::Open).and_then(|row| row.cancel.clone()),
        instance: Some(request.instance.clone()),
        version: request.version.clone(),
        claimed_at: Some(now),
        started_at: None,
        ended_at: None,
        tries: 0,
        detail: None,
    });
    Claim::Granted(Grant {
        at: slot.map_or(request.key.at, |row| row.key.at),
        fence,
        attempt,
        lease_end,
        cursor: plan.cursor,
        last_success: plan.last_success,
        window_from: plan.window_from,
    })
}

/// Moves the cursor to the slot where nothing before it is open; never back, and never for a `run_now`.
fn move_cursor(now: Timestamp, request: &ClaimRequest, plan: Option<&PlanRow>, change: &mut Change) {
    let SlotKey { at, request: ref run_now, .. } = request.key;
    let Some(plan) = plan else { return };
    if run_now.is_some() || request.kind == RunKind::Manual || at <= plan.cursor || Some(plan.cursor) < request.prev {
        return;
    }
    if request.fingerprint != plan.generation.fingerprint {
        // The asker's schedule isn't the current one: what the current one has in between it cannot know.
        let before = Trigger::from_secs(at.as_secs().saturating_sub(1));
        change.range = range_between(plan.cursor, before, None, NotStarted::Edited, now);
    }
    change.plan.get_or_insert_with(|| plan.clone()).cursor = at;
}
