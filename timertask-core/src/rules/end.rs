//! How terms go on and end: renewals, settlements, give-backs, the sweep.

use std::sync::Arc;
use std::time::Duration;

use super::{Change, lay_to_rest, release};
use crate::key::{Fence, Nonce};
use crate::seam::{EndOp, EndRequest, Ended, Ending, PlanRow, Renewal, RunKind, SlotRow, SlotState, Term};
use crate::time::{Timestamp, Trigger};

/// Decides a renewal, and what row to write. It compares no times either: a row that still runs under this nonce and
/// fence is renewed, and only ever lengthened.
pub fn renew(now: Timestamp, term: &Term, ttl: Duration, slot: Option<&SlotRow>) -> (Renewal, Option<SlotRow>) {
    let Some(slot) = slot.filter(|slot| runs(slot, term.nonce, term.fence)) else { return (Renewal::Lost, None) };
    let lease_end = slot.lease_end.max(now.saturating_add(ttl));
    let row = (lease_end != slot.lease_end).then(|| SlotRow { lease_end, ttl, ..slot.clone() });
    let answer = match &slot.cancel {
        None => Renewal::Held(lease_end),
        Some(cancel) => Renewal::Cancel(lease_end, Arc::clone(cancel)),
    };
    (answer, row)
}

/// Decides what becomes of a slot's term. `plan` is the plan's row; where it is missing no success is noted.
pub fn end(now: Timestamp, request: &EndRequest, slot: Option<&SlotRow>, plan: Option<&PlanRow>) -> (Ended, Change) {
    let Some(slot) = slot else { return (Ended::Lost(None), Change::default()) };
    let fence = request.fence;
    match &request.op {
        EndOp::Settle { nonce, ending, .. } => {
            if runs(slot, *nonce, fence) {
                return settle(&request.op, slot, plan);
            }
            let same = slot.nonce == *nonce && slot.fence == fence && slot.state == SlotState::Ended(*ending);
            no_change(slot, same)
        }
        EndOp::GiveBack { nonce } => {
            if runs(slot, *nonce, fence) {
                let mut row = slot.clone();
                release(&mut row);
                // Never entered, so not a start.
                row.attempt = row.attempt.saturating_sub(1);
                return record(row);
            }
            let same = slot.state == SlotState::Open && slot.fence == fence && slot.released.contains(nonce);
            no_change(slot, same)
        }
        EndOp::Expire { attempts_allowed } => {
            if slot.state == SlotState::Running && slot.fence == fence && slot.lease_end <= now {
                let mut row = slot.clone();
                if slot.attempt < *attempts_allowed && slot.cancel.is_none() {
                    release(&mut row);
                } else {
                    orphan(&mut row, now);
                }
                return record(row);
            }
            no_change(slot, orphaned_at(slot, fence))
        }
        EndOp::CutLease { max_skew } => {
            if slot.fence == fence && ahead(now, slot, *max_skew) {
                return record(SlotRow { lease_end: now.saturating_add(slot.ttl), ..slot.clone() });
            }
            no_change(slot, false)
        }
        EndOp::Resolve { reason } => {
            if slot.state == SlotState::Open && slot.fence == fence {
                let mut row = slot.clone();
                lay_to_rest(&mut row, *reason, now);
                return record(row);
            }
            let same = slot.fence == fence && slot.state == SlotState::NotStarted(*reason);
            no_change(slot, same || orphaned_at(slot, fence))
        }
    }
}

/// Whether a sweep should look at `slot`: it is open, or running with a lease end that has passed, or with one that
/// lies further ahead than its TTL and `max_skew` allow.
#[must_use]
pub fn lapsed(now: Timestamp, slot: &SlotRow, max_skew: Duration) -> bool {
    match slot.state {
        SlotState::Open => true,
        SlotState::Running => slot.lease_end <= now || ahead(now, slot, max_skew),
        SlotState::Ended(_) | SlotState::NotStarted(_) => false,
    }
}

/// What a sweep saw of a running slot. A lease is ended only after two looks: one alone may come right after a step
/// of the clock that laps every lease at once, and the runners need the time between for their next renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The fence of the term.
    pub fence: Fence,
    /// Its lease end.
    pub lease_end: Timestamp,
    /// When it was seen, in the sweeper's monotonic time.
    pub at: Duration,
}

impl Look {
    /// A look at `slot`; `None` unless it runs and its lease end has passed at `now`.
    #[must_use]
    pub fn at(slot: &SlotRow, now: Timestamp, monotonic: Duration) -> Option<Self> {
        let passed = slot.state == SlotState::Running && slot.lease_end <= now;
        passed.then_some(Self { fence: slot.fence, lease_end: slot.lease_end, at: monotonic })
    }

    /// Whether `later` confirms this look: the same fence and lease end, at least one and a half times `interval`
    /// (that of renewals) later. Only then may [`EndOp::Expire`] be sent.
    #[must_use]
    pub fn confirmed_by(&self, later: &Self, interval: Duration) -> bool {
        self.fence == later.fence
            && self.lease_end == later.lease_end
            && later.at.saturating_sub(self.at) >= interval.saturating_add(interval / 2)
    }
}

fn runs(slot: &SlotRow, nonce: Nonce, fence: Fence) -> bool {
    slot.state == SlotState::Running && slot.nonce == nonce && slot.fence == fence
}

/// Whether the lease end was written under a clock that ran ahead of this one.
fn ahead(now: Timestamp, slot: &SlotRow, max_skew: Duration) -> bool {
    slot.state == SlotState::Running && slot.lease_end > now.saturating_add(slot.ttl).saturating_add(max_skew)
}

fn orphaned_at(slot: &SlotRow, fence: Fence) -> bool {
    slot.fence == fence && slot.state == SlotState::Ended(Ending::Orphaned)
}

fn orphan(row: &mut SlotRow, now: Timestamp) {
    row.state = SlotState::Ended(Ending::Orphaned);
    row.lease_end = Timestamp::EPOCH;
    row.ended_at = Some(now);
}

fn record(row: SlotRow) -> (Ended, Change) {
    (Ended::Recorded(row.state), Change::of_slot(row))
}

fn no_change(slot: &SlotRow, same: bool) -> (Ended, Change) {
    (if same { Ended::AlreadyRecorded } else { Ended::Lost(Some(slot.state)) }, Change::default())
}

fn settle(op: &EndOp, slot: &SlotRow, plan: Option<&PlanRow>) -> (Ended, Change) {
    let EndOp::Settle { ending, started_at, ended_at, tries, detail, .. } = op else {
        return no_change(slot, false);
    };
    let mut row = slot.clone();
    row.state = SlotState::Ended(*ending);
    row.lease_end = Timestamp::EPOCH;
    row.started_at = Some(*started_at);
    row.ended_at = Some(*ended_at);
    row.tries = *tries;
    row.detail = detail.as_ref().map(shorten);
    let at = row.key.at;
    let scheduled = row.key.request.is_none() && row.kind != RunKind::Manual;
    let (answer, mut change) = record(row);
    if scheduled && *ending == Ending::Succeeded {
        change.plan = plan.filter(|plan| plan.last_success < Some(at)).map(|plan| note_success(plan, at));
    }
    (answer, change)
}

fn note_success(plan: &PlanRow, at: Trigger) -> PlanRow {
    PlanRow { last_success: Some(at), ..plan.clone() }
}

/// `detail`, cut to what a row holds, at a character's end.
fn shorten(detail: &Arc<str>) -> Arc<str> {
    if detail.len() <= SlotRow::DETAIL {
        return Arc::clone(detail);
    }
    let end = (0..=SlotRow::DETAIL).rev().find(|at| detail.is_char_boundary(*at)).unwrap_or(0);
    Arc::from(&detail[..end])
}
