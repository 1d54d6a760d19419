//! What operators ask of a scheduler: the methods of [`Operator`](crate::Operator), with what this instance knows besides.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::{Inner, Scheduler};
use crate::engine::{ScribeMail, Watched, count};
use crate::error::SchedulerError;
use crate::key::{PlanId, SlotKey};
use crate::operate::{Audit, Cancelled, Desk, Expected, OperateError, Paused, Resume, ResumeOutcome, Resumed};
use crate::seam::{Asked, Pause};

impl Scheduler {
    /// Stops a plan on all instances, until it is resumed or `until` has passed: see
    /// [`Operator::pause`](crate::Operator::pause). The plan need not be installed here. With
    /// [`Scope::Process`](crate::Scope) it is this process alone that stops.
    ///
    /// # Errors
    /// [`SchedulerError::Operate`], [`SchedulerError::Stopped`].
    ///
    /// # Blocking
    /// A few calls of the store.
    pub fn pause(&self, plan: &str, asked: &Asked, until: Option<DateTime<Utc>>) -> Result<Paused, SchedulerError> {
        self.inner.operate(|desk| {
            let key = desk.plan(plan)?;
            let paused = desk.pause(&key, asked, until)?;
            self.inner.shared.pauses.note(key.plan.as_ref(), Some(Arc::clone(&paused.pause)));
            Ok(paused)
        })
    }

    /// Stops all plans on all instances, those that are added later too: see
    /// [`Operator::pause_all`](crate::Operator::pause_all).
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    ///
    /// # Blocking
    /// A few calls of the store.
    pub fn pause_all(&self, asked: &Asked, until: Option<DateTime<Utc>>) -> Result<Paused, SchedulerError> {
        self.inner.operate(|desk| {
            let paused = desk.pause(&desk.whole(), asked, until)?;
            self.inner.shared.pauses.note(None, Some(Arc::clone(&paused.pause)));
            Ok(paused)
        })
    }

    /// Ends the pause of a plan: see [`Operator::resume`](crate::Operator::resume).
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    ///
    /// # Blocking
    /// A few calls of the store.
    pub fn resume(&self, plan: &str, how: Resume, seen: Option<&Pause>) -> Result<Resumed, SchedulerError> {
        self.inner.operate(|desk| {
            let key = desk.plan(plan)?;
            let resumed = desk.resume(&key, how, seen)?;
            self.inner.resumed(key.plan, &resumed);
            Ok(resumed)
        })
    }

    /// Ends the pause of all: see [`Operator::resume_all`](crate::Operator::resume_all).
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    ///
    /// # Blocking
    /// A few calls of the store for every 500 plans that the ledger knows.
    pub fn resume_all(&self, how: Resume, seen: Option<&Pause>) -> Result<Resumed, SchedulerError> {
        self.inner.operate(|desk| {
            let resumed = desk.resume_all(how, seen)?;
            self.inner.resumed(None, &resumed);
            Ok(resumed)
        })
    }

    /// Tells a run to stop, on whichever instance it runs: see [`Operator::cancel`](crate::Operator::cancel).
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    ///
    /// # Blocking
    /// At most two calls of the store.
    pub fn cancel(&self, slot: &SlotKey, asked: &Asked) -> Result<Cancelled, SchedulerError> {
        self.inner.operate(|desk| desk.cancel(slot, asked))
    }

    /// What became of each slot of an installed plan in (`after`, `upto`]: see
    /// [`Operator::audit`](crate::Operator::audit).
    ///
    /// # Errors
    /// [`SchedulerError::NotInstalled`], else as [`pause`](Self::pause).
    ///
    /// # Blocking
    /// A few calls of the store, and one for every 1,000 records.
    pub fn audit(&self, plan: &str, after: DateTime<Utc>, upto: DateTime<Utc>) -> Result<Audit, SchedulerError> {
        let installed = self.inner.shared.registry().find(plan).cloned();
        let installed = installed.ok_or_else(|| SchedulerError::NotInstalled(plan.to_owned()))?;
        let expected = Expected {
            schedule: Arc::clone(&installed.schedule),
            spread: Duration::ZERO,
            offset: Some(Duration::from_secs(u64::from(installed.offset))),
            start_window: installed.policy.start_window,
            starts: Some(installed.policy.on_orphan.attempts_allowed()),
            fingerprint: Some(installed.fingerprint),
        };
        self.inner.operate(|desk| desk.audit(plan, &expected, after, upto))
    }
}

impl Inner {
    /// Carries out an operator's word through this scheduler's way to the ledger.
    fn operate<T>(&self, f: impl FnOnce(&Desk<'_>) -> Result<T, OperateError>) -> Result<T, SchedulerError> {
        self.running()?;
        let desk = Desk {
            ledger: &Watched(&self.shared),
            namespace: &self.shared.config.namespace,
            scope: self.scope(),
            count: &|plan, row, after, upto| count(&self.shared, plan, row, after, upto),
        };
        Ok(f(&desk)?)
    }

    /// A pause is over, of this plan or of all: what waits for that is looked at.
    fn resumed(&self, plan: Option<PlanId>, resumed: &Resumed) {
        let pause = match &resumed.outcome {
            ResumeOutcome::Ended(_) | ResumeOutcome::NotPaused => None,
            ResumeOutcome::Another(pause) => Some(Arc::clone(pause)),
        };
        let over = pause.is_none();
        self.shared.pauses.note(plan.as_ref(), pause);
        if over {
            self.shared.scribe.send(ScribeMail::Resumed(plan));
        }
    }
}
