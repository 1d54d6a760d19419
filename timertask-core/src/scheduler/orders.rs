//! What operators ask of a scheduler besides the schedule: a run now, slots of the past.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::{Inner, Scheduler};
use crate::clock::{Signal, Until, Wake};
use crate::engine::{
    ClaimerMail, Finish, Finished, Installed, Order, Reply, ScribeMail, Withdrawn, is_inside, is_inside_job, judge,
    order_of,
};
use crate::error::SchedulerError;
use crate::key::{Nonce, RequestId, SlotKey};
use crate::operate::notice::{Notice, Wish};
use crate::operate::{
    Accepted, BACKFILL_STAYS, Backfill, Backfilling, OperateError, Prospect, RunNow, Standing, prospects,
};
use crate::seam::{Asked, PostingKind, Query, SlotState};

impl Scheduler {
    /// Runs a plan that is installed here now, besides its schedule, on this instance. It is a slot of its own, named by the
    /// instant of its acceptance and by its id, and starts at most once like any other. It obeys the plan's overlap policy
    /// unless forced, passes a pause, and moves nothing of the schedule.
    ///
    /// The same id again, here or on any instance that shares the ledger, is the same run for as long as its record is kept:
    /// the answer tells how it stands, and names it by its first instant. Without a shared ledger that holds for this
    /// process.
    ///
    /// It goes before what is due and before what catches up, as soon as a worker is free. From inside a job it is refused
    /// where none is free at once, so that jobs don't wait for each other.
    ///
    /// Who may call this is yours to decide; who did, and why, is kept with the run. An instance takes 60 such requests at
    /// once, and one more each second.
    ///
    /// # Errors
    /// [`SchedulerError`], mostly [`Operate`](SchedulerError::Operate), says why not. Nothing runs then, and the same id may
    /// be asked for again; where the store's word got lost, a record of it may stand until that.
    ///
    /// # Blocking
    /// Until the job is entered or that is refused, at most [`RunNow::within`]. Not for the end of the run.
    pub fn run_now(&self, plan: &str, how: &RunNow) -> Result<Accepted, SchedulerError> {
        self.inner.run_now(plan, how)
    }

    /// Starts slots of the past of a plan that is installed here: those of the range that nobody started, and those that are
    /// on record as not started. What ran or runs, what lies at or below the plan's low water, and what still starts by
    /// itself, stays: [`dry_run`](Self::dry_run) tells each, and why.
    ///
    /// The slots are started under their own keys, each once, old to new, one after the other, with the permit and at the pace of
    /// catch-up, and after what is due. They obey the overlap policy by waiting, and pass a pause. While one runs it counts
    /// for overlap like any other: under `Skip` a slot that falls due meanwhile is not started.
    ///
    /// With [`Builder::store`](crate::Builder::store) the request stands on the store's notice board until all its slots are
    /// answered, at most seven days: all instances work on it, and it goes on when one dies. With a
    /// [`ledger`](crate::Builder::ledger) alone, or a mutex, it lives and ends with this instance. With a mutex alone what another
    /// host ran longer ago than its lock lasts may run again.
    ///
    /// # Errors
    /// [`SchedulerError`], mostly [`Operate`](SchedulerError::Operate): a range that would start more slots than its
    /// [cap](Backfill::cap) is refused as a whole, and the error says how many. Nothing is started then; where the store's
    /// word got lost, the request may stand on the board, to be [withdrawn](Self::withdraw) by its id.
    ///
    /// # Blocking
    /// A call of the store for every 256 slots of the range, and one to put it up. Not for the runs.
    pub fn backfill(&self, plan: &str, what: &Backfill) -> Result<Backfilling, SchedulerError> {
        self.inner.backfill(plan, what)
    }

    /// What [`backfill`](Self::backfill) would do about each trigger point of the range, old to new, and why. Changes
    /// nothing. The cap counts for nothing here.
    ///
    /// # Errors
    /// [`SchedulerError`].
    ///
    /// # Blocking
    /// A call of the store for every 256 slots of the range.
    pub fn dry_run(&self, plan: &str, what: &Backfill) -> Result<Vec<Prospect>, SchedulerError> {
        self.inner.running()?;
        what.check()?;
        let plan = self.inner.ready(plan)?;
        Ok(self.inner.prospects(&plan, what)?)
    }

    /// Takes back a backfill: what it has not started will not be. Other instances learn of it within a sweep (10 s). What
    /// runs goes on; a [`cancel`](Self::cancel) tells it to stop. Who asked for it, and why, is told in the log.
    ///
    /// # Errors
    /// [`SchedulerError`].
    ///
    /// # Blocking
    /// A call of the store.
    pub fn withdraw(&self, plan: &str, backfill: &RequestId, asked: &Asked) -> Result<(), SchedulerError> {
        self.inner.running()?;
        let shared = &self.inner.shared;
        let plan = crate::key::PlanId::new(plan).map_err(OperateError::from)?;
        shared.scribe.send(ScribeMail::Withdrawn(plan.clone(), backfill.clone()));
        let key = crate::operate::notice::backfill_key(&plan, backfill);
        let namespace = &shared.config.namespace;
        if let Some(taken) = shared.on_board("take", |board| board.take(namespace, PostingKind::Request, &key)) {
            let _ = taken.map_err(OperateError::from)?;
        }
        let instance = &shared.config.instance;
        log::info!(target: "timertask::engine", "{instance}: backfill {backfill} of plan {plan:?} withdrawn by {asked}");
        Ok(())
    }
}

impl Inner {
    /// A plan that is installed here and that the ledger has opened.
    fn ready(&self, plan: &str) -> Result<Arc<Installed>, SchedulerError> {
        let installed = self.shared.registry().find(plan).cloned();
        let installed = installed.ok_or_else(|| SchedulerError::NotInstalled(plan.to_owned()))?;
        if self.shared.is_skewed() {
            return Err(OperateError::Skewed.into());
        }
        if installed.is_active() { Ok(installed) } else { Err(OperateError::NotReady(installed.id.clone()).into()) }
    }

    fn run_now(&self, plan: &str, how: &RunNow) -> Result<Accepted, SchedulerError> {
        self.running()?;
        let shared = &self.shared;
        let in_job = is_inside_job(shared);
        if is_inside(shared) && !in_job {
            return Err(OperateError::FromCallback.into());
        }
        let plan = self.ready(plan)?;
        shared.admit().map_err(OperateError::TooOften)?;
        let at = shared.clock.now().trigger();
        let notice = Notice {
            plan: plan.id.clone(),
            id: how.id.clone().map_or_else(|| self.random_id(), Ok)?,
            asked: how.asked.clone(),
            wish: Wish::RunNow { at, force: how.force },
        };
        let mono = shared.clock.monotonic();
        let end = mono.saturating_add(how.within);
        let order = Order::new(how.force, if in_job { mono } else { end }, Signal::new());
        shared.loops.lock().unwrap_or_else(PoisonError::into_inner).push(order.wake.clone());
        shared.claimer.send(ClaimerMail::Ordered(order_of(shared, plan, at, &notice, &order)));
        let reply = self.reply_to(&order, end, how.within);
        shared.loops.lock().unwrap_or_else(PoisonError::into_inner).retain(|signal| !signal.is(&order.wake));
        let slot = SlotKey { request: Some(notice.id), ..shared.slot_key(&notice.plan, at) };
        let accepted = self.accepted(slot, reply?, if in_job { Duration::ZERO } else { how.within })?;
        log::info!(target: "timertask::engine", "{}: {}: {}, asked by {:?}", shared.config.instance, accepted.slot, accepted.standing, how.asked.by());
        Ok(accepted)
    }

    fn random_id(&self) -> Result<RequestId, OperateError> {
        Ok(RequestId::new(Nonce::random(&*self.shared.clock).to_string())?)
    }

    /// Waits for what becomes of an order until `end`, and takes it back then.
    fn reply_to(&self, order: &Order, end: Duration, within: Duration) -> Result<Reply, SchedulerError> {
        let shared = &self.shared;
        let mut end = end;
        loop {
            if let Some(reply) = order.take_reply() {
                return Ok(reply);
            }
            let closing = shared.is_closing();
            if closing || shared.clock.monotonic() >= end {
                let error = match order.withdraw() {
                    Withdrawn::Unasked => OperateError::NoWorker(within),
                    Withdrawn::Unanswered => OperateError::Unanswered(within),
                    Withdrawn::Granted(cell) => {
                        shared.scribe.send(ScribeMail::Finished(Finished { cell, what: Finish::GivenBack }));
                        OperateError::NoWorker(within)
                    }
                    // The worker has its word on the tip of its tongue.
                    Withdrawn::TooLate => {
                        end = shared.clock.monotonic().saturating_add(Duration::from_millis(1));
                        match shared.clock.wait(&order.wake, Some(Until::Monotonic(end))) {
                            Wake::Signal | Wake::Time => continue,
                        }
                    }
                };
                return Err(if closing { SchedulerError::Stopped } else { error.into() });
            }
            match shared.clock.wait(&order.wake, Some(Until::Monotonic(end))) {
                Wake::Signal | Wake::Time => {}
            }
        }
    }

    /// What a reply means to who asked.
    fn accepted(&self, slot: SlotKey, reply: Reply, within: Duration) -> Result<Accepted, SchedulerError> {
        let error = match reply {
            Reply::Started(at) => {
                return Ok(Accepted { slot: SlotKey { at, ..slot }, standing: Standing::Started });
            }
            Reply::Held | Reply::Ended(_) => {
                let query = Query::Slots(vec![slot.clone()]);
                let answer = self.shared.store("read", |ledger| ledger.read(&query)).map_err(OperateError::from)?;
                let row = answer.value.slots.into_iter().next();
                return match row.map(|row| (row.key, row.state)) {
                    Some((slot, SlotState::Ended(ending))) => Ok(Accepted { slot, standing: Standing::Ended(ending) }),
                    Some((slot, SlotState::NotStarted(reason))) => {
                        Err(OperateError::NotStarted { slot, reason }.into())
                    }
                    Some((slot, SlotState::Running | SlotState::Open)) => {
                        Ok(Accepted { slot, standing: Standing::Running })
                    }
                    // With a mutex alone: another process has its lock.
                    None => Ok(Accepted { slot, standing: Standing::Running }),
                };
            }
            Reply::Refused(refusal) => OperateError::of_refusal(refusal, slot),
            Reply::NotEntered => OperateError::NotEntered(slot),
            Reply::Busy => OperateError::NoWorker(within),
            Reply::Skewed => OperateError::Skewed,
            Reply::NotInstalled => {
                return Err(SchedulerError::NotInstalled(slot.plan.plan_str().to_owned()));
            }
            Reply::Stopped => return Err(SchedulerError::Stopped),
            Reply::Fault(error) => error.into(),
        };
        Err(error.into())
    }

    fn prospects(&self, plan: &Installed, what: &Backfill) -> Result<Vec<Prospect>, OperateError> {
        let key = self.shared.plan_key(&plan.id);
        let judge = judge(&key, plan);
        prospects(&judge, what.range(), |query| self.shared.store("read", |ledger| ledger.read(query)))
    }

    fn backfill(&self, plan: &str, what: &Backfill) -> Result<Backfilling, SchedulerError> {
        self.running()?;
        what.check()?;
        let plan = self.ready(plan)?;
        let shared = &self.shared;
        shared.admit().map_err(OperateError::TooOften)?;
        let starts = self.prospects(&plan, what)?.iter().filter(|prospect| prospect.starts()).count();
        what.check_count(starts)?;
        let id = what.named().cloned().map_or_else(|| self.random_id(), Ok)?;
        let notice = what.notice(plan.id.clone(), id.clone());
        if starts > 0 {
            let until = shared.clock.now().saturating_add(BACKFILL_STAYS);
            let posting = notice.posting(&shared.config.namespace, until);
            match shared.on_board("post", |board| board.post(&posting)) {
                Some(posted) => {
                    let _ = posted.map_err(OperateError::from)?;
                    shared.scribe.send(ScribeMail::LookAtBoard);
                }
                None => shared.scribe.send(ScribeMail::Backfill(notice)),
            }
        }
        Ok(Backfilling { id, starts: Some(starts) })
    }
}
