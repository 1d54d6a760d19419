//! Stopping plans for a while, and what becomes of the slots that fell into it.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::{Count, Desk, OperateError, Scope, unknown};
use crate::key::{Namespace, PlanId, PlanKey};
use crate::seam::{
    Applied, Asked, Cover, EndOp, EndRequest, NotStarted, PageToken, Pause, PlanOp, PlanRow, PlanState, Query, RunKind,
    SlotRow, SlotState, matched,
};
use crate::time::{Timestamp, Trigger};

/// So many plans, or open slots, are dealt with in one call.
const AT_ONCE: usize = 500;
/// How often a plan is tried whose cursor moves meanwhile.
const TRIES: usize = 8;

/// What becomes of the slots that fell into a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Resume {
    /// They are accounted for as not started ([`NotStarted::Paused`]), in one record for each plan: nothing of them is
    /// made up. So is what the plan had not accounted for before the pause began.
    #[default]
    FromNow,
    /// The plan's catch-up policy decides, as after a time in which no instance ran.
    CatchUp,
}

/// The answer to a pause.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Paused {
    /// How far it reaches.
    pub scope: Scope,
    /// The pause that is in force.
    pub pause: Arc<Pause>,
    /// Whether it was in force before: who paused first is who paused.
    pub already: bool,
}

/// The answer to a resume.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resumed {
    /// How far it reaches.
    pub scope: Scope,
    /// What was found, and done.
    pub outcome: ResumeOutcome,
}

/// What a resume found, and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResumeOutcome {
    /// This pause is over.
    Ended(Arc<Pause>),
    /// Nothing was paused, or somebody else has ended the pause meanwhile.
    NotPaused,
    /// This is the pause in force, and not the one that you saw. It stays.
    Another(Arc<Pause>),
}

/// A pause to end: an operator's word, or its own end, which has passed.
#[derive(Clone)]
struct Ended {
    pause: Arc<Pause>,
    lapsed: bool,
}

impl Ended {
    /// Up to where slots fell into it, as seen at `now`.
    fn upto(&self, now: Timestamp) -> Trigger {
        let end = if self.lapsed { self.pause.until.unwrap_or(now).min(now) } else { now };
        end.trigger()
    }

    /// The same, where `row` is still under this pause.
    fn upto_if_in(&self, row: &PlanRow, now: Timestamp) -> Option<Trigger> {
        (row.pause.as_ref()?.since == self.pause.since).then(|| self.upto(now))
    }

    fn op(&self) -> PlanOp {
        PlanOp::Resume { since: self.pause.since, lapsed_only: self.lapsed }
    }
}

/// Whether a pause's own end has passed.
pub(crate) fn has_lapsed(pause: &Pause, now: Timestamp) -> bool {
    pause.until.is_some_and(|until| until <= now)
}

impl Desk<'_> {
    pub(crate) fn pause(
        &self,
        key: &PlanKey,
        asked: &Asked,
        until: Option<DateTime<Utc>>,
    ) -> Result<Paused, OperateError> {
        let until = until.map(Timestamp::from);
        if let Some(until) = until {
            let (_, now) = self.ask_one(key, PlanOp::Read)?;
            if until <= now {
                return Err(OperateError::Until { until, now });
            }
        }
        let op = PlanOp::Pause { by: asked.by().to_owned(), why: asked.why().to_owned(), until };
        let (state, _) = self.ask_one(key, op)?;
        let pause = state.row.and_then(|row| row.pause).ok_or_else(|| unknown(key))?;
        Ok(Paused { scope: self.scope, pause, already: state.applied == Applied::Unchanged })
    }

    pub(crate) fn resume(
        &self,
        key: &PlanKey,
        asked: &Asked,
        how: Resume,
        seen: Option<&Pause>,
    ) -> Result<Resumed, OperateError> {
        let (row, now) = self.row(key)?;
        let outcome = match to_end(row.pause.as_ref(), seen) {
            Err(outcome) => outcome,
            Ok(pause) => self.end(key, row, now, Ended { pause, lapsed: false }, how)?,
        };
        Ok(self.resumed(key, asked, outcome))
    }

    /// Ends the pauses of plans whose own end has passed, as these rows show them with the time at which they were read.
    /// The rows as they are then.
    pub(crate) fn end_lapsed(
        &self,
        plans: Vec<(PlanKey, (PlanRow, Timestamp))>,
    ) -> Result<Vec<(PlanKey, PlanRow)>, OperateError> {
        let lapsed = |(key, (row, now)): (PlanKey, (PlanRow, Timestamp))| {
            let pause = row.pause.clone().filter(|pause| has_lapsed(pause, now))?;
            let ended = Ended { pause, lapsed: true };
            Some((key, row, ended.upto(now), ended))
        };
        let (mut skips, mut ends) = (Vec::new(), BTreeMap::new());
        for (key, row, upto, ended) in plans.into_iter().filter_map(lapsed) {
            self.rest_open_of(&key, upto)?;
            skips.push((key.clone(), row, upto));
            ends.insert(key, ended);
        }
        let still = |key: &PlanKey, row: &PlanRow, now: Timestamp| ends.get(key)?.upto_if_in(row, now);
        self.skip(skips, still)?;
        let requests: Vec<_> = ends.iter().map(|(key, ended)| (key.clone(), ended.op())).collect();
        let states = self.ask(&requests)?.value;
        Ok(requests.into_iter().zip(states).filter_map(|((key, _), state)| Some((key, state.row?))).collect())
    }

    /// Ends a plan's pause. What is to be accounted for is accounted for first, so that no instance starts it in between.
    fn end(
        &self,
        key: &PlanKey,
        row: PlanRow,
        now: Timestamp,
        ended: Ended,
        how: Resume,
    ) -> Result<ResumeOutcome, OperateError> {
        if how == Resume::FromNow {
            self.rest_open_of(key, ended.upto(now))?;
            self.skip(vec![(key.clone(), row, ended.upto(now))], |_, row, now| ended.upto_if_in(row, now))?;
        }
        let (state, _) = self.ask_one(key, ended.op())?;
        Ok(outcome(state.applied, state.row, ended.pause))
    }

    pub(crate) fn resume_all(&self, asked: &Asked, how: Resume, seen: Option<&Pause>) -> Result<Resumed, OperateError> {
        let (state, _) = self.ask_one(&self.whole(), PlanOp::Read)?;
        let there = state.row.and_then(|row| row.pause);
        let outcome = match to_end(there.as_ref(), seen) {
            Err(outcome) => outcome,
            Ok(pause) => {
                let mut end = EndOfAll::new(pause, false);
                if how == Resume::CatchUp {
                    end.stage = Stage::Resume;
                }
                loop {
                    if let Some(outcome) = end.step(self)? {
                        break outcome;
                    }
                }
            }
        };
        Ok(self.resumed(&self.whole(), asked, outcome))
    }

    /// A row keeps no pause that is over: who ended it, and why, stands in the log.
    fn resumed(&self, key: &PlanKey, asked: &Asked, outcome: ResumeOutcome) -> Resumed {
        if let ResumeOutcome::Ended(pause) = &outcome {
            let what = key.plan.as_ref().map_or_else(|| "all plans".to_owned(), |plan| format!("plan {plan:?}"));
            log::info!(target: "timertask::engine", "{what} resumed by {asked}; was {pause}");
        }
        Resumed { scope: self.scope, outcome }
    }

    /// Moves the cursors of plans on to where they are wanted, and accounts for what lies between as paused, in one range
    /// record each. `still` says of a plan that moved meanwhile how far it is to go now, if it is.
    fn skip(
        &self,
        plans: Vec<(PlanKey, PlanRow, Trigger)>,
        still: impl Fn(&PlanKey, &PlanRow, Timestamp) -> Option<Trigger>,
    ) -> Result<(), OperateError> {
        let mut left = plans;
        for _ in 0..TRIES {
            let requests: Vec<_> =
                left.iter().filter_map(|(key, row, to)| skipped(key, row, *to, self.count)).collect();
            if requests.is_empty() {
                return Ok(());
            }
            let answer = self.ask(&requests)?;
            let moved = |((key, _), state): ((PlanKey, PlanOp), PlanState)| {
                let row = state.row.filter(|_| state.applied == Applied::Conflict)?;
                let to = still(&key, &row, answer.now)?;
                Some((key, row, to))
            };
            left = requests.into_iter().zip(answer.value).filter_map(moved).collect();
        }
        match left.into_iter().find_map(|(key, ..)| key.plan) {
            None => Ok(()),
            Some(plan) => Err(OperateError::Busy(plan)),
        }
    }

    /// Slots of a plan that were given back before they were entered, and wait since.
    fn rest_open_of(&self, key: &PlanKey, upto: Trigger) -> Result<(), OperateError> {
        let slots = self.ledger.read(&Query::Unfinished { plan: key.clone(), limit: AT_ONCE })?.value.slots;
        self.rest(&slots, |_| true, upto)
    }

    /// Lays those slots of `slots` to rest that wait to be started, and never were. Runs that are to be run again stay:
    /// they had begun before the pause; so does what an operator asked for.
    fn rest(&self, slots: &[SlotRow], of: impl Fn(&PlanKey) -> bool, upto: Trigger) -> Result<(), OperateError> {
        let waits = |slot: &&SlotRow| {
            slot.state == SlotState::Open
                && slot.attempt == 0
                && slot.key.at <= upto
                && matches!(slot.kind, RunKind::Scheduled | RunKind::CatchUp)
                && of(&slot.key.plan)
        };
        let op = EndOp::Resolve { reason: NotStarted::Paused };
        let request = |slot: &SlotRow| EndRequest { key: slot.key.clone(), fence: slot.fence, op: op.clone() };
        let requests: Vec<_> = slots.iter().filter(waits).map(request).collect();
        if !requests.is_empty() {
            // One that somebody else took up or laid to rest meanwhile is not ours.
            let _ = matched("end", requests.len(), self.ledger.end(&requests)?)?;
        }
        Ok(())
    }
}

/// The pause that a resume means.
fn to_end(there: Option<&Arc<Pause>>, seen: Option<&Pause>) -> Result<Arc<Pause>, ResumeOutcome> {
    let Some(there) = there else { return Err(ResumeOutcome::NotPaused) };
    if seen.is_some_and(|seen| seen.since != there.since) {
        return Err(ResumeOutcome::Another(Arc::clone(there)));
    }
    Ok(Arc::clone(there))
}

fn outcome(applied: Applied, row: Option<PlanRow>, pause: Arc<Pause>) -> ResumeOutcome {
    match (applied, row.and_then(|row| row.pause)) {
        (Applied::Done, _) => ResumeOutcome::Ended(pause),
        (_, None) => ResumeOutcome::NotPaused,
        (_, Some(other)) => ResumeOutcome::Another(other),
    }
}

/// The request that moves a plan's cursor to `to`; `None` where no slot lies between.
fn skipped(key: &PlanKey, row: &PlanRow, to: Trigger, count: Count<'_>) -> Option<(PlanKey, PlanOp)> {
    if to <= row.cursor || row.closed {
        return None;
    }
    let count = count(key.plan.as_ref()?, row, row.cursor, to);
    if count == Some(0) {
        return None;
    }
    let cover = Cover::Range { count, reason: NotStarted::Paused };
    let op = PlanOp::Account { fingerprint: row.generation.fingerprint, from: row.cursor, to, cover };
    Some((key.clone(), op))
}

/// The end of a pause of all, step by step, so that whoever carries it out can do other things in between.
pub(crate) struct EndOfAll {
    ended: Ended,
    stage: Stage,
}

enum Stage {
    /// Slots that wait to be started.
    Open(Option<PageToken>),
    /// Plans, after this one.
    Plans(Option<PlanId>),
    /// The pause itself.
    Resume,
}

impl EndOfAll {
    pub(crate) fn new(pause: Arc<Pause>, lapsed: bool) -> Self {
        Self { ended: Ended { pause, lapsed }, stage: Stage::Open(None) }
    }

    /// Which pause it ends.
    pub(crate) fn since(&self) -> Timestamp {
        self.ended.pause.since
    }

    /// A step; what came of it all, once it is done. After an error the step is repeated.
    pub(crate) fn step(&mut self, desk: &Desk<'_>) -> Result<Option<ResumeOutcome>, OperateError> {
        if let Stage::Resume = self.stage {
            let (state, _) = desk.ask_one(&desk.whole(), self.ended.op())?;
            return Ok(Some(outcome(state.applied, state.row, Arc::clone(&self.ended.pause))));
        }
        // Only what fell due while the pause is seen to be in force fell into it.
        let (state, now) = desk.ask_one(&desk.whole(), PlanOp::Read)?;
        let there = state.row.and_then(|row| row.pause);
        match to_end(there.as_ref(), Some(&self.ended.pause)) {
            Err(outcome) => return Ok(Some(outcome)),
            Ok(_) if self.ended.lapsed && !has_lapsed(&self.ended.pause, now) => {
                return Ok(Some(ResumeOutcome::Another(Arc::clone(&self.ended.pause))));
            }
            Ok(_) => {}
        }
        let upto = self.ended.upto(now);
        self.stage = match &self.stage {
            Stage::Open(after) => open(desk, after.clone(), upto)?,
            Stage::Plans(after) => plans(desk, after.clone(), upto)?,
            Stage::Resume => Stage::Resume,
        };
        Ok(None)
    }
}

fn open(desk: &Desk<'_>, after: Option<PageToken>, upto: Trigger) -> Result<Stage, OperateError> {
    let query = Query::Lapsed {
        namespace: Namespace::clone(desk.namespace),
        // Of leases nothing is wanted here.
        max_skew: std::time::Duration::from_secs(86_400 * 365),
        after: after.clone(),
        limit: AT_ONCE,
    };
    let page = desk.ledger.read(&query)?.value;
    let own = own_pauses(desk, &page.slots)?;
    desk.rest(&page.slots, |plan| !own.contains(plan), upto)?;
    Ok(match page.more.filter(|more| after.as_ref() != Some(more)) {
        Some(more) => Stage::Open(Some(more)),
        None => Stage::Plans(None),
    })
}

/// The plans of these open slots that are paused by themselves, too.
fn own_pauses(desk: &Desk<'_>, slots: &[SlotRow]) -> Result<Vec<PlanKey>, OperateError> {
    let open = slots.iter().filter(|slot| slot.state == SlotState::Open);
    let requests: Vec<_> = open.map(|slot| (slot.key.plan.clone(), PlanOp::Read)).collect();
    if requests.is_empty() {
        return Ok(Vec::new());
    }
    let states = desk.ask(&requests)?.value;
    let paused = |state: &PlanState| state.row.as_ref().is_some_and(|row| row.pause.is_some());
    Ok(requests.into_iter().zip(states).filter(|(_, state)| paused(state)).map(|((key, _), _)| key).collect())
}

fn plans(desk: &Desk<'_>, after: Option<PlanId>, upto: Trigger) -> Result<Stage, OperateError> {
    let query = Query::Plans { namespace: Namespace::clone(desk.namespace), after, limit: AT_ONCE };
    let page = desk.ledger.read(&query)?.value;
    let last = page.plans.iter().filter_map(|(key, _)| key.plan.clone()).next_back();
    let covered = |row: &PlanRow| row.pause.is_none() && !row.closed;
    let plans = page.plans.into_iter().filter(|(key, row)| key.plan.is_some() && covered(row));
    desk.skip(plans.map(|(key, row)| (key, row, upto)).collect(), |_, row, _| covered(row).then_some(upto))?;
    Ok(match last {
        Some(last) if page.more.is_some() => Stage::Plans(Some(last)),
        _ => Stage::Resume,
    })
}
