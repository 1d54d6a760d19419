//! Why a plan is not running now, or where it is: in words, with the rows that stand in the way.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::state::{AuditState, Expected, Facts, SWEPT_AFTER, Waits};
use super::{Desk, OperateError, Scope};
use crate::key::{Fence, InstanceId, PlanKey, SlotKey};
use crate::seam::{Cancel, NotStarted, Overlap, Pause, PlanOp, PlanRow, Query, SlotRow, SlotState};
use crate::time::{Timestamp, Trigger};

/// So many running and open slots of a plan are told of.
const ROWS: usize = 16;

/// Why a plan is not running now, or where it is. As text, a sentence for each reason:
///
/// ```text
/// "report": timertask/cron/exec/report/2026-01-01T00:01:00Z stands in the way (overlap Skip): it runs on web-1 since …
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Why {
    /// How far it reaches.
    pub scope: Scope,
    /// The plan.
    pub plan: String,
    /// As of when: the store's clock, or this instance's own where the store could not be asked.
    pub now: Timestamp,
    /// All that was found; the first is what has to change first.
    pub reasons: Vec<Reason>,
}

/// One thing to know about why a plan is not running now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// This scheduler is closing or closed; other instances may run it.
    Closing,
    /// It isn't installed in this scheduler.
    NotInstalled,
    /// The ledger does not know it: no instance has ever opened it.
    Unknown,
    /// The ledger has not opened it yet for this scheduler; it will as soon as the store can be reached.
    Pending,
    /// Its calendar panicked; it is searched again at the next reconcile.
    CalendarFailed,
    /// The version of the last set could not be taken, for this reason; a good one before it, if there is one, goes on.
    VersionFailed(String),
    /// This scheduler's clock is too far off the store's: it starts nothing until they agree.
    Skewed {
        /// The store's clock less this instance's, in microseconds.
        micros: i64,
        /// How far off it may be.
        max: Duration,
    },
    /// The store cannot be asked; nothing is started on its silence.
    StoreFault(String),
    /// It was removed or disabled: the ledger has closed it.
    Closed,
    /// The ledger has another version of it than the one meant here.
    OtherVersion,
    /// It is paused, by itself or with all, until an operator resumes it or its end has come.
    Paused {
        /// The pause.
        pause: Arc<Pause>,
        /// Whether it is that of all.
        all: bool,
    },
    /// It is running.
    Running(Holder),
    /// This slot was given back before it was entered, or is to be run again; the next sweep of an instance that has the
    /// plan takes it up, which come every ten seconds.
    Open {
        /// The slot.
        slot: SlotKey,
        /// How often it was started.
        attempt: u32,
    },
    /// Slots are due, and have no record yet.
    Due {
        /// The oldest.
        first: Trigger,
        /// The newest.
        newest: Trigger,
        /// How it stands with the oldest.
        state: AuditState,
    },
    /// All workers of this instance are at work; another one may start it, or the next worker that gets free.
    NoWorker {
        /// How many there are.
        workers: usize,
    },
    /// The newest slot was not started, and won't be.
    NotStarted {
        /// The slot.
        at: Trigger,
        /// Why.
        reason: NotStarted,
    },
    /// Nothing else of it is due before.
    Next {
        /// The next trigger point.
        at: Trigger,
        /// When it is due.
        due: Timestamp,
    },
    /// It has no trigger point left.
    Finished,
}

/// A run that goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Its slot.
    pub slot: SlotKey,
    /// The instance that has it, by its label.
    pub instance: Option<InstanceId>,
    /// Its fence.
    pub fence: Fence,
    /// When it was claimed.
    pub since: Option<Timestamp>,
    /// Until when its runner is believed to live. Renewed every ten seconds while it does.
    pub lease_end: Timestamp,
    /// When a sweep ends it at the latest if its runner is not heard of again, and an instance is there.
    pub swept_by: Timestamp,
    /// The policy by which it keeps the plan's next slot from starting; `None`: it doesn't.
    pub blocks: Option<Overlap>,
    /// Who told it to stop, and why.
    pub cancel: Option<Arc<Cancel>>,
    /// Whether its lease has ended: its runner has not been heard of for a while.
    pub lapsed: bool,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.plan)?;
        for (i, reason) in self.reasons.iter().enumerate() {
            write!(f, "{} {reason}", if i == 0 { ":" } else { ";" })?;
        }
        Ok(())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closing => f.write_str("this scheduler is closing or closed"),
            Self::NotInstalled => {
                f.write_str("it is not installed in this scheduler; a reconcile whose set has it installs it")
            }
            Self::Unknown => f.write_str("the ledger does not know it: no instance has ever opened it"),
            Self::Pending => f.write_str("the ledger has not opened it yet; it will once the store can be reached"),
            Self::CalendarFailed => f.write_str("its calendar panicked; it is searched again at the next reconcile"),
            Self::VersionFailed(why) => write!(f, "the last set's version of it failed: {why}"),
            Self::Skewed { micros, max } => write!(
                f,
                "this instance's clock is {micros} µs off the store's, more than {max:?}: it starts nothing until they agree"
            ),
            Self::StoreFault(what) => write!(f, "the store cannot be asked: {what}; it is tried again and again"),
            Self::Closed => f.write_str("it was removed or disabled; a reconcile whose set has it opens it again"),
            Self::OtherVersion => f.write_str("the ledger has another version of it than this one"),
            Self::Paused { pause, all } => {
                let until = if pause.until.is_some() { "" } else { "; it waits for an operator to resume it" };
                write!(f, "{}{pause}{until}", if *all { "all plans are " } else { "it is " })
            }
            Self::Running(holder) => holder.fmt(f),
            Self::Open { slot, attempt: 0 } => {
                write!(f, "{slot} was given back before it was entered; the next sweep takes it up")
            }
            Self::Open { slot, .. } => write!(f, "{slot} is to be run again; the next sweep takes it up"),
            Self::Due { first, newest, state } => {
                write!(f, "its slot of {first}")?;
                if newest > first {
                    write!(f, ", as others up to {newest},")?;
                }
                f.write_str(match state {
                    AuditState::Waiting(Waits::Pause) => " waits for the end of the pause",
                    AuditState::Waiting(Waits::Start) => " is being asked for",
                    AuditState::Waiting(Waits::Plan) => " waits for the plan to be free",
                    AuditState::Waiting(Waits::CatchUp) => {
                        " was missed; the plan's catch-up policy decides within a few sweeps"
                    }
                    _ => " was missed and waits for catch-up: for a permit, or for an instance that reaches the store",
                })
            }
            Self::NoWorker { workers } => {
                write!(
                    f,
                    "all {workers} workers of this instance are at work; the next free one, or another instance, takes it"
                )
            }
            Self::NotStarted { at, reason } => write!(f, "its slot of {at} was not started ({reason})"),
            Self::Next { at, due } if at.timestamp() == *due => write!(f, "nothing else is due until {at}"),
            Self::Next { at, due } => write!(f, "nothing else is due until {due} (slot {at})"),
            Self::Finished => f.write_str("it has no trigger point left"),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slot, fence, lease_end, swept_by, .. } = self;
        match self.blocks {
            Some(overlap) => write!(f, "{slot} stands in the way (overlap {overlap:?}): it runs")?,
            None => write!(f, "{slot} runs")?,
        }
        if let Some(instance) = &self.instance {
            write!(f, " on {instance}")?;
        }
        write!(f, " under fence {fence}")?;
        if let Some(since) = self.since {
            write!(f, " since {since}")?;
        }
        if let Some(cancel) = &self.cancel {
            write!(f, ", told to stop by {}: {}", cancel.by, cancel.why)?;
        }
        if self.lapsed {
            write!(
                f,
                "; its runner has not been heard of, its lease ended at {lease_end}: it is swept up by {swept_by}"
            )
        } else {
            write!(f, "; it ends when its job returns, or, if its runner is not heard of again, by {swept_by}")
        }
    }
}

impl Desk<'_> {
    /// What the ledger knows of why a plan is not running, and its clock.
    pub(crate) fn why(
        &self,
        key: &PlanKey,
        expected: Option<&Expected>,
    ) -> Result<(Timestamp, Vec<Reason>), OperateError> {
        let answer = self.ask(&[(key.clone(), PlanOp::Read), (self.whole(), PlanOp::Read)])?;
        let mut rows = answer.value.into_iter().map(|state| state.row);
        let (row, all) = (rows.next().flatten(), rows.next().flatten().and_then(|all| all.pause));
        let mut reasons = Vec::new();
        let Some(row) = row else { return Ok((answer.now, vec![Reason::Unknown])) };
        if row.closed {
            reasons.push(Reason::Closed);
        }
        let current = |of: &&Expected| of.fingerprint.is_none_or(|of| of == row.generation.fingerprint);
        if expected.is_some_and(|of| !current(&of)) {
            reasons.push(Reason::OtherVersion);
        }
        let paused = all.is_some() || row.pause.is_some();
        reasons.extend(all.map(|pause| Reason::Paused { pause, all: true }));
        reasons.extend(row.pause.clone().map(|pause| Reason::Paused { pause, all: false }));
        let unfinished = self.ledger.read(&Query::Unfinished { plan: key.clone(), limit: ROWS })?;
        let (now, slots) = (unfinished.now, unfinished.value.slots);
        let running = slots.iter().filter(|slot| slot.state == SlotState::Running);
        let full = expected.map(|of| of.overlap).filter(|overlap| running.clone().count() >= at_once(*overlap));
        reasons.extend(running.map(|slot| Reason::Running(holder(slot, full, now))));
        let open = slots.iter().filter(|slot| slot.state == SlotState::Open);
        reasons.extend(open.map(|slot| Reason::Open { slot: slot.key.clone(), attempt: slot.attempt }));
        if let (Some(expected), false, Some(id)) = (expected.filter(current), row.closed, &key.plan) {
            let facts = Facts {
                now,
                row: &row,
                paused,
                busy: !slots.is_empty(),
                offset: expected.offset_of(id),
                start_window: expected.start_window,
            };
            // A calendar is user code.
            match catch_unwind(AssertUnwindSafe(|| around(expected, &facts, full.is_some()))) {
                Ok(around) => self.tell(key, around, &facts, &mut reasons)?,
                Err(_) => reasons.push(Reason::CalendarFailed),
            }
        }
        Ok((now, reasons))
    }

    fn tell(
        &self,
        key: &PlanKey,
        around: Around,
        facts: &Facts<'_>,
        reasons: &mut Vec<Reason>,
    ) -> Result<(), OperateError> {
        reasons.extend(around.due);
        if let Some(at) = around.newest {
            let slot = SlotKey { plan: key.clone(), at, request: None };
            let rows = self.ledger.read(&Query::Slots(vec![slot]))?.value.slots;
            if let Some(SlotState::NotStarted(reason)) = rows.first().map(|row| row.state) {
                reasons.push(Reason::NotStarted { at, reason });
            }
        }
        reasons.push(around.next.map_or(Reason::Finished, |at| Reason::Next { at, due: facts.due(at) }));
        Ok(())
    }
}

/// What lies around now on a plan's schedule.
struct Around {
    due: Option<Reason>,
    newest: Option<Trigger>,
    next: Option<Trigger>,
}

fn around(expected: &Expected, facts: &Facts<'_>, full: bool) -> Around {
    let schedule = &expected.schedule;
    let upto = facts.now.saturating_sub(facts.offset).trigger();
    let PlanRow { cursor, generation, .. } = facts.row;
    let newest = schedule.prev_trigger(Trigger::from_secs(upto.as_secs().saturating_add(1)));
    let newest = newest.filter(|newest| *newest > generation.effective_from);
    let first = schedule.next_trigger(*cursor).filter(|first| *first <= upto);
    let due = first.map(|first| {
        let state = match facts.state(first, None, None) {
            AuditState::Waiting(Waits::Start) if full => AuditState::Waiting(Waits::Plan),
            state => state,
        };
        Reason::Due { first, newest: newest.unwrap_or(first), state }
    });
    Around { due, newest, next: schedule.next_trigger(upto) }
}

fn at_once(overlap: Overlap) -> usize {
    match overlap {
        Overlap::Allow(n) => n.max(1) as usize,
        Overlap::Skip | Overlap::QueueOne | Overlap::CancelPrevious => 1,
    }
}

fn holder(slot: &SlotRow, blocks: Option<Overlap>, now: Timestamp) -> Holder {
    Holder {
        slot: slot.key.clone(),
        instance: slot.instance.clone(),
        fence: slot.fence,
        since: slot.claimed_at,
        lease_end: slot.lease_end,
        swept_by: slot.lease_end.saturating_add(SWEPT_AFTER),
        blocks,
        cancel: slot.cancel.clone(),
        lapsed: slot.lease_end <= now,
    }
}
