//! Asking instances from another process: a request goes up on the store's notice board, and an answer is waited for.

use std::time::Duration;

use super::notice::{Notice, Verdict, Wish, backfill_key};
use super::{
    Accepted, BACKFILL_STAYS, Backfill, Backfilling, Expected, Judge, OperateError, Operator, Prospect, RunNow,
    Standing, prospects,
};
use crate::clock::{Signal, Until, Wake};
use crate::key::{Nonce, PlanKey, RequestId, SlotKey};
use crate::seam::{Asked, Board, PlanOp, Posting, PostingKind, Query, SlotState};
use crate::time::Timestamp;

/// How often an answer is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Operator {
    /// Asks whichever instance has the plan installed to run it now: see
    /// [`Scheduler::run_now`](crate::Scheduler::run_now). Instances look at the board every ten seconds; one takes the request
    /// up, and takes it off once it is answered. A request that nobody answers within [`RunNow::within`] is taken back; one
    /// that was left behind by a process that died ends by then, too. Where two instances find a request at once, one starts it,
    /// and the answer may be the other's: that it runs already, or has ended.
    ///
    /// # Errors
    /// [`OperateError`]. Nothing runs then; but an instance that was about to start the run as the request was taken back
    /// may still do so, as may one whose answer, or this process's own, got lost on its way through the store. The id is safe to
    /// ask for again, and tells.
    ///
    /// # Blocking
    /// Until there is an answer, at most [`RunNow::within`]; a call of the store each second.
    pub fn run_now(&self, plan: &str, how: &RunNow) -> Result<Accepted, OperateError> {
        let board = self.board()?;
        let (key, now) = self.known(plan)?;
        let id = how.id.clone().map_or_else(|| self.random_id(), Ok)?;
        let slot = SlotKey { plan: key, at: now.trigger(), request: Some(id.clone()) };
        if let Some(accepted) = self.found(&slot)? {
            return accepted;
        }
        let Some(plan) = slot.plan.plan.clone() else { return Err(OperateError::NoBoard) };
        let wish = Wish::RunNow { at: slot.at, force: how.force };
        let notice = Notice { plan, id, asked: how.asked.clone(), wish };
        let posting = notice.posting(&self.namespace, now.saturating_add(how.within));
        // What an earlier request of this id came to.
        let _ = board.take(&self.namespace, PostingKind::Answer, &posting.key)?;
        let _ = board.post(&posting)?;
        let accepted = |at, standing| Ok(Accepted { slot: SlotKey { at, ..slot.clone() }, standing });
        match self.answer(board, &posting.key, how.within)? {
            Some(Verdict::Started(at)) => accepted(at, Standing::Started),
            Some(Verdict::Running(at)) => accepted(at, Standing::Running),
            Some(Verdict::Ended(at, how)) => accepted(at, Standing::Ended(how)),
            Some(Verdict::Refused(why)) => Err(OperateError::Refused(why)),
            Some(Verdict::Goes(_)) | None => {
                let _ = board.take(&self.namespace, PostingKind::Request, &posting.key)?;
                self.found(&slot)?.unwrap_or(Err(OperateError::Unanswered(how.within)))
            }
        }
    }

    /// Asks the instances that have the plan installed for slots of the past: see
    /// [`Scheduler::backfill`](crate::Scheduler::backfill). Which slots that are, and whether they are within the cap, an
    /// instance finds out. Waits up to 30 s for its answer; without one the request stays on the board, for up to seven days,
    /// until an instance that has the plan comes along.
    ///
    /// # Errors
    /// [`OperateError`]; nothing is started then, but where the store's word got lost the request may stand on the board, to be
    /// [withdrawn](Self::withdraw) by its id.
    ///
    /// # Blocking
    /// At most 30 s; a call of the store each second.
    pub fn backfill(&self, plan: &str, what: &Backfill) -> Result<Backfilling, OperateError> {
        let board = self.board()?;
        what.check()?;
        let (key, now) = self.known(plan)?;
        let id = what.named().cloned().map_or_else(|| self.random_id(), Ok)?;
        let Some(plan) = key.plan else { return Err(OperateError::NoBoard) };
        let posting = what.notice(plan, id.clone()).posting(&self.namespace, now.saturating_add(BACKFILL_STAYS));
        let _ = board.take(&self.namespace, PostingKind::Answer, &posting.key)?;
        let _ = board.post(&posting)?;
        match self.answer(board, &posting.key, Duration::from_secs(30))? {
            Some(Verdict::Goes(starts)) => Ok(Backfilling { id, starts: Some(starts) }),
            Some(Verdict::Refused(why)) => Err(OperateError::Refused(why)),
            Some(Verdict::Started(_) | Verdict::Running(_) | Verdict::Ended(..)) | None => {
                Ok(Backfilling { id, starts: None })
            }
        }
    }

    /// What a backfill would do about each of the plan's trigger points, and why: see
    /// [`Scheduler::dry_run`](crate::Scheduler::dry_run). Changes nothing, and asks no instance; so the plan's schedule has to be
    /// known here.
    ///
    /// # Errors
    /// [`OperateError`].
    ///
    /// # Blocking
    /// A call of the store for every 256 slots of the range.
    pub fn dry_run(&self, plan: &str, expected: &Expected, what: &Backfill) -> Result<Vec<Prospect>, OperateError> {
        what.check()?;
        let (key, _) = self.desk().plan(plan).and_then(|key| Ok((key.clone(), self.desk().row(&key)?)))?;
        let offset = key.plan.as_ref().map_or(Duration::ZERO, |plan| expected.offset_of(plan));
        let judge = Judge {
            plan: &key,
            schedule: &expected.schedule,
            allowed: expected.starts.unwrap_or(u32::MAX),
            open_for: expected.start_window.saturating_add(offset),
        };
        prospects(&judge, what.range(), |query| self.ledger.read(query))
    }

    /// Takes back a backfill: see [`Scheduler::withdraw`](crate::Scheduler::withdraw). Whether it was still on the board. Who
    /// asked for it, and why, is told in the log.
    ///
    /// # Errors
    /// [`OperateError`].
    ///
    /// # Blocking
    /// A call of the store.
    pub fn withdraw(&self, plan: &str, backfill: &RequestId, asked: &Asked) -> Result<bool, OperateError> {
        let board = self.board()?;
        let Some(plan) = self.desk().plan(plan)?.plan else { return Ok(false) };
        let taken = board.take(&self.namespace, PostingKind::Request, &backfill_key(&plan, backfill))?;
        if taken.value.is_some() {
            log::info!(target: "timertask::engine", "backfill {backfill} of plan {plan:?} withdrawn by {asked}");
        }
        Ok(taken.value.is_some())
    }

    fn board(&self) -> Result<&dyn Board, OperateError> {
        self.board.as_deref().ok_or(OperateError::NoBoard)
    }

    fn random_id(&self) -> Result<RequestId, OperateError> {
        Ok(RequestId::new(Nonce::random(&*self.clock).to_string())?)
    }

    /// A plan that the ledger knows and that is not closed, and the store's now.
    fn known(&self, plan: &str) -> Result<(PlanKey, Timestamp), OperateError> {
        let key = self.desk().plan(plan)?;
        let (state, now) = self.desk().ask_one(&key, PlanOp::Read)?;
        match (state.row, &key.plan) {
            (None, Some(plan)) => Err(OperateError::Unknown(plan.clone())),
            (Some(row), Some(plan)) if row.closed => Err(OperateError::Closed(plan.clone())),
            _ => Ok((key, now)),
        }
    }

    /// What is on record of a request; `None` where nothing is, or it waits to be taken up.
    fn found(&self, slot: &SlotKey) -> Result<Option<Result<Accepted, OperateError>>, OperateError> {
        let page = self.ledger.read(&Query::Slots(vec![slot.clone()]))?.value;
        let Some(row) = page.slots.into_iter().next() else { return Ok(None) };
        let slot = row.key;
        Ok(match row.state {
            SlotState::Open => None,
            SlotState::Running => Some(Ok(Accepted { slot, standing: Standing::Running })),
            SlotState::Ended(ending) => Some(Ok(Accepted { slot, standing: Standing::Ended(ending) })),
            SlotState::NotStarted(reason) => Some(Err(OperateError::NotStarted { slot, reason })),
        })
    }

    /// Waits for the answer to a request, and takes it off.
    fn answer(&self, board: &dyn Board, key: &str, within: Duration) -> Result<Option<Verdict>, OperateError> {
        let end = self.clock.monotonic().saturating_add(within);
        let nobody = Signal::new();
        loop {
            let listed = board.list(&self.namespace, PostingKind::Answer)?;
            let answer = |posting: &Posting| (posting.key == key).then(|| Verdict::parse(&posting.body).ok()).flatten();
            if let Some(verdict) = listed.value.iter().find_map(answer) {
                // What is left there ends by itself.
                let _ = board.take(&self.namespace, PostingKind::Answer, key);
                return Ok(Some(verdict));
            }
            let mono = self.clock.monotonic();
            if mono >= end {
                return Ok(None);
            }
            match self.clock.wait(&nobody, Some(Until::Monotonic(end.min(mono + LOOK_EVERY)))) {
                Wake::Signal | Wake::Time => {}
            }
        }
    }
}
