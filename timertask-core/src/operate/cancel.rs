//! Telling a run to stop.

use std::sync::Arc;

use super::{Desk, OperateError, Scope};
use crate::key::SlotKey;
use crate::seam::{Applied, Asked, Cancel, Ending, NotStarted, PlanOp, Query, SlotState};

/// The answer to a cancel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cancelled {
    /// How far it reaches.
    pub scope: Scope,
    /// What was found, and done.
    pub outcome: CancelOutcome,
}

/// What a cancel found, and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CancelOutcome {
    /// It runs, and is told to stop at its next renewal. Whether it then stops is the job's to decide.
    Told,
    /// It runs, and was told before, by this one.
    ToldBefore(Arc<Cancel>),
    /// It was given back or swept, and waits to be run. Nothing was changed; pause the plan to hold it back.
    Open,
    /// It has ended so. Nothing was changed.
    Ended(Ending),
    /// It was not started, for this reason, and won't be. Nothing was changed.
    NotStarted(NotStarted),
    /// It has no record of its own: it is not due yet, lies in a range of slots that were not started, or was purged.
    /// Nothing was changed.
    NoRecord,
}

impl Desk<'_> {
    pub(crate) fn cancel(&self, slot: &SlotKey, asked: &Asked) -> Result<Cancelled, OperateError> {
        if slot.plan.namespace != *self.namespace || slot.plan.plan.is_none() {
            return Err(OperateError::Namespace { slot: slot.clone(), namespace: self.namespace.clone() });
        }
        let cancel = Cancel { by: asked.by().to_owned(), why: asked.why().to_owned() };
        let op = PlanOp::Cancel { at: slot.at, request: slot.request.clone(), cancel };
        let (state, _) = self.ask_one(&slot.plan, op)?;
        let outcome = match state.applied {
            Applied::Done => CancelOutcome::Told,
            Applied::Unchanged | Applied::Conflict => self.found(slot)?,
        };
        Ok(Cancelled { scope: self.scope, outcome })
    }

    /// Why a slot could not be told to stop.
    fn found(&self, slot: &SlotKey) -> Result<CancelOutcome, OperateError> {
        let page = self.ledger.read(&Query::Slots(vec![slot.clone()]))?.value;
        let Some(row) = page.slots.into_iter().find(|row| row.key == *slot) else {
            return Ok(CancelOutcome::NoRecord);
        };
        Ok(match row.state {
            SlotState::Running => match row.cancel {
                Some(cancel) => CancelOutcome::ToldBefore(cancel),
                // Taken up between the two calls.
                None => CancelOutcome::Open,
            },
            SlotState::Open => CancelOutcome::Open,
            SlotState::Ended(ending) => CancelOutcome::Ended(ending),
            SlotState::NotStarted(reason) => CancelOutcome::NotStarted(reason),
        })
    }
}
