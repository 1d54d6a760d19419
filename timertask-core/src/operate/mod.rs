//! What operators do with plans, in the service itself or from another process: pause and resume, cancel, run now,
//! backfill.
//!
//! Pauses, cancels and audits are decided in the ledger, so they work wherever the plans run, and whether they run at all.
//! A run now and a backfill need an instance that has the plan installed; another process leaves its request on the
//! store's notice board. Who may do it is the caller's to decide: nothing here asks for a permission.
//!
//! * `pause`: stopping a plan, or all, for a while
//! * `cancel`: telling a run to stop
//! * `audit`, `state`: what became of each slot
//! * `why`: why a plan is not running
//! * `run_now`, `backfill`: what is asked for besides the schedule, as values
//! * `requests`: asking for it from another process
//! * `notice`: how that stands on the notice board

mod audit;
mod backfill;
mod cancel;
pub(crate) mod notice;
mod pause;
mod requests;
mod run_now;
mod state;
mod why;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::clock::{Clock, SystemClock};
use crate::key::{IdError, Namespace, PlanId, PlanKey, SlotKey};
use crate::seam::{
    Asked, Board, Ledger, NotStarted, Outcome, Pause, PlanOp, PlanRow, PlanState, Refusal, Store, StoreError,
    StoreErrorKind, matched,
};
use crate::time::{Timestamp, Trigger};

pub use audit::{Audit, AuditSlot, Finding};
pub(crate) use backfill::{BACKFILL_STAYS, Judge, STEP, prospects};
pub use backfill::{Backfill, Backfilling, Outlook, Prospect};
pub use cancel::{CancelOutcome, Cancelled};
pub(crate) use pause::{EndOfAll, has_lapsed};
pub use pause::{Paused, Resume, ResumeOutcome, Resumed};
pub use run_now::{Accepted, RunNow, Standing};
pub use state::{AuditState, Expected, Waits};
pub use why::{Holder, Reason, Why};

/// How far what is said of overlap, pauses, catch-up and history reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All instances: they share a ledger.
    Shared,
    /// This process alone: it has a ledger to itself, with a mutex beside it or without.
    Process,
}

/// An operator's way to a ledger, without a scheduler: for admin pages, programs and scripts beside the service. A
/// [`Scheduler`](crate::Scheduler) has the same methods.
///
/// Who may call them is for you to decide. Who did, and why, is kept with what they did; of a pause, until it is over.
///
/// ```
/// # extern crate timertask_core as timertask;
/// use timertask::operate::{Operator, Resume};
/// use timertask::{Asked, MemLedger, Plan, Run, Scheduler};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let ledger = MemLedger::new();
/// let scheduler = Scheduler::builder(|_: &Run| Ok(())).ledger(ledger.clone()).start()?;
/// scheduler.reconcile([Plan::new("report", "30 2 * * *")])?;
///
/// // Elsewhere, on the same ledger:
/// let operator = Operator::new(ledger, Default::default());
/// let ana = Asked::new("ana", "the database moves tonight")?;
/// operator.pause_all(&ana, None)?;
/// assert_eq!(operator.all_paused()?.unwrap().by, "ana");
/// operator.resume_all(&ana, Resume::FromNow, None)?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Operator {
    ledger: Arc<dyn Ledger>,
    board: Option<Arc<dyn Board>>,
    namespace: Namespace,
    clock: Arc<dyn Clock>,
}

impl Operator {
    /// An operator of the plans in `namespace` of `ledger`; the default namespace is that of schedulers that set none.
    #[must_use]
    pub fn new(ledger: impl Ledger + 'static, namespace: Namespace) -> Self {
        Self { ledger: Arc::new(ledger), board: None, namespace, clock: Arc::new(SystemClock) }
    }

    /// As [`new`](Self::new), on a store that has a notice board too: for what an instance has to do,
    /// [`run_now`](Self::run_now) and [`backfill`](Self::backfill). The instances need the same store, given to
    /// [`Builder::store`](crate::Builder::store).
    #[must_use]
    pub fn of_store(store: impl Store + 'static, namespace: Namespace) -> Self {
        let store = Arc::new(store);
        let ledger = Arc::clone(&store) as Arc<dyn Ledger>;
        Self { ledger, board: Some(store), namespace, clock: Arc::new(SystemClock) }
    }

    /// The clock by which it waits for answers. For tests: a fake one.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    fn desk(&self) -> Desk<'_> {
        Desk { ledger: &*self.ledger, namespace: &self.namespace, scope: Scope::Shared, count: &|_, _, _, _| None }
    }

    /// Stops a plan: nothing of it starts, on any instance, until it is resumed or `until` has passed. What runs goes on.
    /// Its slots wait; whether they are made up then is [`Resume`]'s to say. A `run_now` and a backfill pass. A plan that
    /// is paused already keeps its pause.
    ///
    /// After `until` the first instance that sees it resumes the plan, [`Resume::FromNow`] from that instant on.
    ///
    /// # Errors
    /// [`OperateError`]; nothing is paused then, but where the store's word got lost it may be.
    ///
    /// # Blocking
    /// Two calls of the store.
    pub fn pause(&self, plan: &str, asked: &Asked, until: Option<DateTime<Utc>>) -> Result<Paused, OperateError> {
        self.desk().pause(&self.desk().plan(plan)?, asked, until)
    }

    /// Stops all plans of the namespace, those that are added later too, as [`pause`](Self::pause) does one.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    ///
    /// # Blocking
    /// Two calls of the store.
    pub fn pause_all(&self, asked: &Asked, until: Option<DateTime<Utc>>) -> Result<Paused, OperateError> {
        self.desk().pause(&self.desk().whole(), asked, until)
    }

    /// Ends the pause of a plan: the one that you saw, if `seen` names one, else the one that is in force now. What fell
    /// into the pause is accounted for or made up as `how` says. A pause of all stays. Who ended it and why is a line of this
    /// process's log, with the pause that it was: the ledger keeps no pause that is over.
    ///
    /// Where a call fails halfway the plan stays paused; repeat it.
    ///
    /// # Errors
    /// [`OperateError`].
    ///
    /// # Blocking
    /// A few calls of the store.
    pub fn resume(
        &self,
        plan: &str,
        asked: &Asked,
        how: Resume,
        seen: Option<&Pause>,
    ) -> Result<Resumed, OperateError> {
        self.desk().resume(&self.desk().plan(plan)?, asked, how, seen)
    }

    /// Ends the pause of all, as [`resume`](Self::resume) does that of one plan. Plans that are paused by themselves stay
    /// so, and what fell into the pause of all is theirs to account for.
    ///
    /// [`Resume::FromNow`] accounts for one plan after the other before the pause ends. What falls due meanwhile is the
    /// plans' catch-up policies' to decide.
    ///
    /// # Errors
    /// [`OperateError`].
    ///
    /// # Blocking
    /// A few calls of the store for every 500 plans that the ledger knows.
    pub fn resume_all(&self, asked: &Asked, how: Resume, seen: Option<&Pause>) -> Result<Resumed, OperateError> {
        self.desk().resume_all(asked, how, seen)
    }

    /// The pause of a plan by itself, whether or not all are paused.
    ///
    /// # Errors
    /// [`OperateError::Unknown`] where the ledger does not know the plan; [`OperateError::Store`].
    ///
    /// # Blocking
    /// One call of the store.
    pub fn paused(&self, plan: &str) -> Result<Option<Arc<Pause>>, OperateError> {
        let desk = self.desk();
        let (row, _) = desk.row(&desk.plan(plan)?)?;
        Ok(row.pause)
    }

    /// The pause of all.
    ///
    /// # Errors
    /// [`OperateError::Store`].
    ///
    /// # Blocking
    /// One call of the store.
    pub fn all_paused(&self) -> Result<Option<Arc<Pause>>, OperateError> {
        let desk = self.desk();
        let (state, _) = desk.ask_one(&desk.whole(), PlanOp::Read)?;
        Ok(state.row.and_then(|row| row.pause))
    }

    /// Tells a run to stop: its instance learns of it at its next renewal, at most ten seconds later, fires the run's token,
    /// and the run ends as cancelled if its job then returns an error. A job that does not listen goes on.
    ///
    /// # Errors
    /// [`OperateError`].
    ///
    /// # Blocking
    /// At most two calls of the store.
    pub fn cancel(&self, slot: &SlotKey, asked: &Asked) -> Result<Cancelled, OperateError> {
        self.desk().cancel(slot, asked)
    }

    /// What became of each slot in (`after`, `upto`] that `expected` tells to expect, since the plan's current generation
    /// began; with the records of earlier generations and of manual runs beside them. At most 10,000 slots are answered at
    /// once: see [`Audit::more`].
    ///
    /// # Errors
    /// [`OperateError`].
    ///
    /// # Blocking
    /// A few calls of the store, and one for every 1,000 records.
    pub fn audit(
        &self,
        plan: &str,
        expected: &Expected,
        after: DateTime<Utc>,
        upto: DateTime<Utc>,
    ) -> Result<Audit, OperateError> {
        self.desk().audit(plan, expected, after, upto)
    }

    /// Why a plan is not running now, or where it is, as far as the ledger knows; with `expected` also what is due. A
    /// scheduler that has it installed knows more: [`Scheduler::why`](crate::Scheduler::why).
    ///
    /// # Errors
    /// [`OperateError`].
    ///
    /// # Blocking
    /// At most three calls of the store.
    pub fn why(&self, plan: &str, expected: Option<&Expected>) -> Result<Why, OperateError> {
        let desk = self.desk();
        let (now, reasons) = desk.why(&desk.plan(plan)?, expected)?;
        Ok(Why { scope: desk.scope, plan: plan.to_owned(), now, reasons })
    }
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// Why an operator's request came to nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperateError {
    /// The plan's id is not allowed.
    #[error(transparent)]
    Id(#[from] IdError),
    /// The ledger does not know the plan: no instance has ever opened it. Look at the spelling; a plan that was installed just
    /// now is opened as soon as the store can be reached.
    #[error("the ledger does not know the plan {0:?}")]
    Unknown(PlanId),
    /// The pause would be over before it begins. Give a later end, or none.
    #[error("a pause until {until}, and it is {now} by the store's clock; give a later end, or none")]
    Until {
        /// When it would have ended.
        until: Timestamp,
        /// The store's clock.
        now: Timestamp,
    },
    /// The slot is of another namespace.
    #[error("slot {slot} is not of the namespace {namespace:?}")]
    Namespace {
        /// The slot.
        slot: SlotKey,
        /// The operator's.
        namespace: Namespace,
    },
    /// The ledger's generation of the plan is closed: it was disabled or removed. Enable it, and reconcile.
    #[error("plan {0:?} is disabled or was removed")]
    Closed(PlanId),
    /// The plan is installed here, and the ledger has not opened it yet, or its calendar panicked. Try again in a moment, or
    /// look at its [`why_not`](crate::PlanView::why_not).
    #[error("plan {0:?} is not ready here: the ledger has not opened it yet, or its calendar panicked")]
    NotReady(PlanId),
    /// As many runs of the plan go on as its overlap policy allows. Wait for their end, or force it.
    #[error("slot {0} was not started: as many runs of its plan go on as its overlap policy allows")]
    Full(SlotKey),
    /// A `run_now` of this id was accepted before, and was not started, for this reason. Ask under another id.
    #[error("slot {slot} was accepted before and not started ({reason}); ask under another id")]
    NotStarted {
        /// The slot.
        slot: SlotKey,
        /// Why.
        reason: NotStarted,
    },
    /// The slot lies at or below the plan's low water: whether it ran before is no longer known.
    #[error("slot {0} is too old: whether it ran before is no longer known")]
    TooOld(SlotKey),
    /// No worker got free in time. Wait longer, try another instance, or give this one more workers.
    #[error("no worker got free within {0:?}")]
    NoWorker(Duration),
    /// It was granted, and given back before the job was entered: the instance lost the store's trust, or its clock is off.
    #[error("slot {0} was given back before the job was entered")]
    NotEntered(SlotKey),
    /// This instance's clock is too far off the store's: it starts nothing until it isn't.
    #[error("this instance's clock is too far off the store's")]
    Skewed,
    /// This instance takes no more requests of operators for so long: a loop may have gone wild.
    #[error("too many requests of operators; ask again in {0:?}")]
    TooOften(Duration),
    /// It was called from an observer, a source of plans or a calendar, on a thread that the answer needs. Hand it to a thread
    /// of your own.
    #[error("called from inside a callback of the engine, which would wait for itself")]
    FromCallback,
    /// There was no answer in time; the request was taken back. From another process: does an instance with the plan
    /// run, on the same store and namespace?
    #[error("no answer within {0:?}; the request was taken back")]
    Unanswered(Duration),
    /// The instance that took it up refused it, for this reason.
    #[error("refused: {0}")]
    Refused(String),
    /// The store was given without a notice board: use [`Operator::of_store`].
    #[error("without a notice board no instance can be asked")]
    NoBoard,
    /// A backfill whose range begins after its end.
    #[error("a backfill from {from} to {to}: the range is empty")]
    EmptyRange {
        /// Its first instant.
        from: Trigger,
        /// Its last.
        to: Trigger,
    },
    /// A cap that is not allowed.
    #[error("a cap of {cap} slots; allowed are 1 to {}", Backfill::MAX)]
    Cap {
        /// What was asked for.
        cap: usize,
    },
    /// A backfill whose range holds more trigger points than are looked through. Split it.
    #[error("the range holds more than {} trigger points; split it", Backfill::MAX)]
    TooWide,
    /// A backfill that would start more slots than its cap. Narrow the range, or raise the cap.
    #[error("it would start {starts} slots, and its cap is {cap}; narrow the range or raise the cap")]
    OverCap {
        /// How many it would start.
        starts: usize,
        /// Its cap.
        cap: usize,
    },
    /// The plan's records moved on at each of several attempts. Try again; the plan stays paused.
    #[error("the records of plan {0:?} moved on at each attempt; it stays paused; try again")]
    Busy(PlanId),
    /// The ledger has another version of the plan than the one that is meant, whose slots are not known here. Ask an instance
    /// that has it.
    #[error("plan {0:?} is under another version in the ledger, whose slots are not known here")]
    OtherVersion(PlanId),
    /// The plan's calendar panicked while its slots were looked for.
    #[error("calendar {0:?} panicked")]
    CalendarPanicked(String),
    /// The store could not decide; its source says why. Asking again is safe.
    #[error("the store could not decide")]
    Store(#[from] StoreError),
}

impl OperateError {
    /// What a refused claim of `slot` means to who asked for it.
    pub(crate) fn of_refusal(refusal: Refusal, slot: SlotKey) -> Self {
        match refusal {
            Refusal::NotStarted(reason) => Self::NotStarted { slot, reason },
            Refusal::Full => Self::Full(slot),
            Refusal::TooOld | Refusal::Accounted => Self::TooOld(slot),
            Refusal::Released | Refusal::Paused => Self::NotEntered(slot),
            Refusal::Unknown => match slot.plan.plan.clone() {
                Some(plan) => Self::NotReady(plan),
                None => Self::NotEntered(slot),
            },
        }
    }
}

/// How many slots the plan's schedule has in (after, upto]; `None` where the caller does not know its current schedule.
pub(crate) type Count<'a> = &'a dyn Fn(&PlanId, &PlanRow, Trigger, Trigger) -> Option<u64>;

/// A ledger, and what is known of it: what all methods of operators come down to.
#[derive(Clone, Copy)]
pub(crate) struct Desk<'a> {
    pub(crate) ledger: &'a dyn Ledger,
    pub(crate) namespace: &'a Namespace,
    pub(crate) scope: Scope,
    pub(crate) count: Count<'a>,
}

impl Desk<'_> {
    pub(crate) fn plan(&self, id: &str) -> Result<PlanKey, OperateError> {
        Ok(PlanKey::new(self.namespace.clone(), PlanId::new(id)?))
    }

    pub(crate) fn whole(&self) -> PlanKey {
        PlanKey::whole(self.namespace.clone())
    }

    fn ask(&self, requests: &[(PlanKey, PlanOp)]) -> Outcome<Vec<PlanState>> {
        matched("plan", requests.len(), self.ledger.plan(requests)?)
    }

    pub(crate) fn ask_one(&self, key: &PlanKey, op: PlanOp) -> Result<(PlanState, Timestamp), OperateError> {
        let mut answer = self.ask(&[(key.clone(), op)])?;
        let state = answer.value.pop().ok_or_else(|| nonsense("no answer to a request"))?;
        Ok((state, answer.now))
    }

    /// A plan's row, and the store's clock.
    fn row(&self, key: &PlanKey) -> Result<(PlanRow, Timestamp), OperateError> {
        let (state, now) = self.ask_one(key, PlanOp::Read)?;
        state.row.map(|row| (row, now)).ok_or_else(|| unknown(key))
    }
}

/// What is known of a plan without a row.
fn unknown(key: &PlanKey) -> OperateError {
    match &key.plan {
        Some(plan) => OperateError::Unknown(plan.clone()),
        None => OperateError::Store(nonsense("a request on the whole namespace left no row")),
    }
}

fn nonsense(what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Internal, what)
}
