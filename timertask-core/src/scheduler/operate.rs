//! What operators ask of a scheduler: the methods of [`Operator`](crate::Operator), with what this instance knows besides.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::{Inner, Scheduler};
use crate::engine::{Installed, ScribeMail, Watched, count, state};
use crate::error::SchedulerError;
use crate::key::{PlanId, PlanKey, SlotKey};
use crate::operate::{
    Audit, AuditState, Cancelled, Desk, Expected, OperateError, Paused, Reason, Resume, ResumeOutcome, Resumed, Waits,
    Why,
};
use crate::seam::{Asked, Pause, PlanOp};

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
            let paused = match desk.pause(&key, asked, until) {
                Err(OperateError::Unknown(id)) => {
                    self.inner.open(desk, &key, id)?;
                    desk.pause(&key, asked, until)?
                }
                paused => paused?,
            };
            self.inner.paused(key.plan, &paused);
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
            self.inner.paused(None, &paused);
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
    pub fn resume(
        &self,
        plan: &str,
        asked: &Asked,
        how: Resume,
        seen: Option<&Pause>,
    ) -> Result<Resumed, SchedulerError> {
        self.inner.operate(|desk| {
            let key = desk.plan(plan)?;
            let resumed = desk.resume(&key, asked, how, seen)?;
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
    pub fn resume_all(&self, asked: &Asked, how: Resume, seen: Option<&Pause>) -> Result<Resumed, SchedulerError> {
        self.inner.operate(|desk| {
            let resumed = desk.resume_all(asked, how, seen)?;
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
        let expected = expected(&installed);
        self.inner.operate(|desk| desk.audit(plan, &expected, after, upto))
    }

    /// Why a plan is not running now, or that it is and where: in words, with the rows that stand in the way and what would
    /// let it. Whether the plan is installed or not, also while the store cannot be reached and after `close`.
    ///
    /// ```
    /// # extern crate timertask_core as timertask;
    /// # use timertask::{Plan, Run, Scheduler};
    /// # let scheduler = Scheduler::builder(|_: &Run| Ok(())).start()?;
    /// scheduler.reconcile([Plan::new("report", "30 2 29 2 *")])?;
    /// println!("{}", scheduler.why("report"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Blocking
    /// At most three calls of the store.
    #[must_use]
    pub fn why(&self, plan: &str) -> Why {
        self.inner.why(plan)
    }
}

impl Inner {
    fn why(&self, id: &str) -> Why {
        let shared = &self.shared;
        let mut reasons = Vec::new();
        if shared.is_closing() {
            reasons.push(Reason::Closing);
        }
        let installed = shared.registry().find(id).cloned();
        match installed.as_ref().map(|plan| plan.state()) {
            None => reasons.push(Reason::NotInstalled),
            Some(state::PENDING) => reasons.push(Reason::Pending),
            Some(state::FAILED) => reasons.push(Reason::CalendarFailed),
            Some(_) => {}
        }
        if shared.is_skewed() {
            let micros = shared.pulse.skew_micros.load(Ordering::Relaxed);
            reasons.push(Reason::Skewed { micros, max: shared.config.max_skew });
        }
        let expected = installed.as_deref().filter(|plan| plan.state() != state::FAILED).map(expected);
        let desk = Desk {
            ledger: &Watched(shared),
            namespace: &shared.config.namespace,
            scope: self.scope(),
            count: &|_, _, _, _| None,
        };
        let found = desk.plan(id).map(|key| desk.why(&key, expected.as_ref()));
        let now = match found {
            // What is no id names no plan.
            Err(_) => shared.clock.now(),
            Ok(Ok((now, found))) => {
                reasons.extend(found);
                now
            }
            Ok(Err(error)) => {
                let source = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                reasons.push(Reason::StoreFault(source));
                shared.clock.now()
            }
        };
        let waits = |reason: &Reason| matches!(reason, Reason::Due { state: AuditState::Waiting(Waits::Start), .. });
        let (busy, workers) = (shared.pool.busy(), shared.config.concurrency);
        if let Some(place) = reasons.iter().position(waits).filter(|_| busy >= workers) {
            reasons.insert(place + 1, Reason::NoWorker { workers });
        }
        let failed = shared.registry().failed(id).map(|why| Reason::VersionFailed(why.to_owned()));
        reasons.extend(failed);
        Why { scope: self.scope(), plan: id.to_owned(), now, reasons }
    }
}

fn named(plan: Option<&PlanId>) -> String {
    plan.map_or_else(|| "all plans".to_owned(), |plan| format!("plan {plan:?}"))
}

/// What an installed plan expects.
fn expected(plan: &Installed) -> Expected {
    Expected {
        schedule: Arc::clone(&plan.schedule),
        spread: Duration::ZERO,
        offset: Some(Duration::from_secs(u64::from(plan.offset))),
        start_window: plan.policy.start_window,
        starts: Some(plan.policy.on_orphan.attempts_allowed()),
        overlap: plan.policy.overlap,
        fingerprint: Some(plan.fingerprint),
    }
}

impl Inner {
    /// Carries out an operator's word through this scheduler's way to the ledger.
    fn operate<T>(&self, f: impl FnOnce(&Desk<'_>) -> Result<T, OperateError>) -> Result<T, SchedulerError> {
        self.running()?;
        let shared = &self.shared;
        let desk = Desk {
            ledger: &Watched(shared),
            namespace: &shared.config.namespace,
            scope: self.scope(),
            count: &|plan, row, after, upto| count(shared, plan, row, after, upto),
        };
        Ok(f(&desk)?)
    }

    /// A plan that was installed just now may not have been opened yet. Whoever opens it first does; the other finds it so.
    fn open(&self, desk: &Desk<'_>, key: &PlanKey, id: PlanId) -> Result<(), OperateError> {
        let fingerprint = self.shared.registry().get(&id).map(|plan| plan.fingerprint);
        let fingerprint = fingerprint.ok_or(OperateError::Unknown(id))?;
        desk.ask_one(key, PlanOp::Open { fingerprint, replaces: None }).map(drop)
    }

    /// This pause is in force, of this plan or of all.
    fn paused(&self, plan: Option<PlanId>, paused: &Paused) {
        self.shared.pauses.note(plan.as_ref(), Some(Arc::clone(&paused.pause)));
        if !paused.already {
            let (instance, pause) = (&self.shared.config.instance, &paused.pause);
            log::info!(target: "timertask::engine", "{instance}: {} {pause}", named(plan.as_ref()));
        }
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
