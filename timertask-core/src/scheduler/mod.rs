//! The handle.

mod apply;
mod close;
mod operate;
mod orders;
mod source;
mod view;

use std::fmt;
use std::sync::{Arc, PoisonError};

use crate::builder::Builder;
use crate::engine::{Health, Phase, PlanStats, Rooms, Shared, Stats};
use crate::error::SchedulerError;
use crate::job::Job;
use crate::key::{InstanceId, PlanId};
use crate::operate::Scope;
use crate::plan::Plan;
use crate::reconcile::ReconcileReport;
use crate::record::RunRecord;

pub use close::CloseReport;
pub use view::{PlanStatus, PlanView};

/// One instance of the scheduler. A handle: clones are the same scheduler, which begins to close when the last one is
/// dropped: keep one for as long as jobs are to run.
///
/// ```
/// # extern crate timertask_core as timertask;
/// use std::time::Duration;
/// use timertask::{Plan, Run, Scheduler};
///
/// let scheduler = Scheduler::builder(|run: &Run| { println!("{}", run.slot_key()); Ok(()) }).start()?;
/// scheduler.reconcile([Plan::new("report", "30 2 * * *").zone("Europe/Berlin")])?;
/// scheduler.close(Duration::from_secs(30))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use = "a scheduler closes as soon as its last handle is dropped"]
pub struct Scheduler {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    rooms: Rooms,
    /// One reconcile at a time; covers no user code and no call of a store.
    turn: std::sync::Mutex<()>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.shared.is_closing() {
            let instance = &self.shared.config.instance;
            log::info!(target: "timertask::engine", "{instance}: closing, since the last handle was dropped");
        }
        self.shared.go_to(Phase::Closing);
    }
}

impl Scheduler {
    /// A scheduler that runs `job`; several jobs by name are a [`Jobs`](crate::Jobs).
    pub fn builder(job: impl Job + 'static) -> Builder {
        Builder::new(Arc::new(job))
    }

    pub(crate) fn new(shared: Arc<Shared>, rooms: Rooms) -> Self {
        Self { inner: Arc::new(Inner { shared, rooms, turn: std::sync::Mutex::new(()) }) }
    }

    /// Makes the installed plans equal to `plans`, touching only what changed. Enabled plans are installed, or replaced
    /// where their fingerprint is new; disabled and absent ones are removed. A plan that cannot be taken does not stop
    /// the others, and a good version of it that was installed before goes on.
    ///
    /// A bad plan is no error of the call: look into [`ReconcileReport::failed`], or ask for
    /// [`all_taken`](ReconcileReport::all_taken).
    ///
    /// The ledger opens and closes generations right after, in the background; until it has, a plan is
    /// [`PlanStatus::Pending`] and starts nothing. It counts from then on and never fires the past.
    ///
    /// # Errors
    /// Nothing is changed where the scheduler is stopped, an id is not allowed or twice in the set, or the
    /// [`DropGuard`](crate::DropGuard) refuses the set.
    ///
    /// # Panics
    /// Never; a calendar that panics fails its plans.
    ///
    /// # Blocking
    /// Waits for another reconcile that is under way. Calls no store. May be called from inside a job.
    pub fn reconcile(&self, plans: impl IntoIterator<Item = Plan>) -> Result<ReconcileReport, SchedulerError> {
        self.inner.reconcile(&plans.into_iter().collect::<Vec<_>>(), apply::Guard::Ask)
    }

    /// As [`reconcile`](Self::reconcile), past the drop guard.
    ///
    /// # Errors
    /// As `reconcile`, without the drop guard.
    ///
    /// # Blocking
    /// As `reconcile`.
    pub fn reconcile_anyway(&self, plans: impl IntoIterator<Item = Plan>) -> Result<ReconcileReport, SchedulerError> {
        self.inner.reconcile(&plans.into_iter().collect::<Vec<_>>(), apply::Guard::Pass)
    }

    /// What [`reconcile`](Self::reconcile) would change, with next trigger points before and after. Changes nothing.
    ///
    /// # Errors
    /// As `reconcile`.
    ///
    /// # Blocking
    /// As `reconcile`.
    pub fn plan_reconcile(&self, plans: impl IntoIterator<Item = Plan>) -> Result<ReconcileReport, SchedulerError> {
        self.inner.reconcile(&plans.into_iter().collect::<Vec<_>>(), apply::Guard::DryRun)
    }

    /// Installs or replaces one plan, until the next reconcile, whose set is the truth. A disabled plan is removed.
    ///
    /// # Errors
    /// Where the scheduler is stopped, or the plan cannot be taken; a good version of it goes on then.
    ///
    /// # Blocking
    /// As [`reconcile`](Self::reconcile).
    pub fn upsert(&self, plan: Plan) -> Result<ReconcileReport, SchedulerError> {
        self.inner.upsert(&plan)
    }

    /// Removes one plan, until the next reconcile; whether it was there. A run in progress goes on, one that is not
    /// started is dropped.
    ///
    /// # Errors
    /// Where the scheduler is stopped.
    ///
    /// # Blocking
    /// As [`reconcile`](Self::reconcile).
    pub fn remove(&self, id: &str) -> Result<bool, SchedulerError> {
        self.inner.remove(id)
    }

    /// What is installed, by id.
    ///
    /// # Errors
    /// Where the scheduler is stopped.
    pub fn plans(&self) -> Result<Vec<PlanView>, SchedulerError> {
        self.inner.running()?;
        Ok(self.inner.views())
    }

    /// One installed plan.
    ///
    /// # Errors
    /// Where the scheduler is stopped.
    pub fn plan(&self, id: &str) -> Result<Option<PlanView>, SchedulerError> {
        self.inner.running()?;
        Ok(self.inner.view_of(id))
    }

    /// This instance's recent records, in the order in which they were made: a slot that was passed over while a run
    /// went on comes before the end of that run. Of one plan, or of all. Also after `close`.
    #[must_use]
    pub fn run_history(&self, plan: Option<&PlanId>) -> Vec<Arc<RunRecord>> {
        let mut records = self.inner.shared.reports.history();
        if let Some(plan) = plan {
            records.retain(|record| record.slot.plan.plan.as_ref() == Some(plan));
        }
        records
    }

    /// How far overlap, catch-up and history reach. With a mutex alone, or with neither mutex nor ledger, they are this
    /// process's own.
    #[must_use]
    pub fn scope(&self) -> Scope {
        self.inner.scope()
    }

    /// How this instance is doing. Also after `close`.
    #[must_use]
    pub fn health(&self) -> Health {
        self.inner.shared.health()
    }

    /// What this instance counted. Also after `close`.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.shared.stats()
    }

    /// What this instance counted of one installed plan; `None` where none of its slots has fallen due here. Also after
    /// `close`.
    #[must_use]
    pub fn plan_stats(&self, id: &str) -> Option<PlanStats> {
        let plan = self.inner.shared.registry().find(id).cloned()?;
        plan.stats()
    }

    /// What this instance counted of each installed plan of which a slot has fallen due here, by id. Also after `close`.
    #[must_use]
    pub fn stats_by_plan(&self) -> Vec<PlanStats> {
        let mut all: Vec<_> = self.inner.shared.registry().iter().filter_map(|plan| plan.stats()).collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        all
    }

    /// This instance's label.
    #[must_use]
    pub fn instance(&self) -> &InstanceId {
        &self.inner.shared.config.instance
    }
}

impl Inner {
    pub(crate) fn running(&self) -> Result<(), SchedulerError> {
        if self.shared.is_closing() { Err(SchedulerError::Stopped) } else { Ok(()) }
    }

    fn scope(&self) -> Scope {
        let shared = &self.shared;
        if shared.config.exclusive || shared.mutex.is_some() { Scope::Process } else { Scope::Shared }
    }

    fn turn(&self) -> std::sync::MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = &self.inner.shared;
        f.debug_struct("Scheduler")
            .field("instance", &shared.config.instance)
            .field("plans", &shared.registry().len())
            .field("phase", &shared.phase())
            .finish_non_exhaustive()
    }
}
