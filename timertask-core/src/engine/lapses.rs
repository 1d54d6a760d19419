//! Pauses whose own end has passed: whichever instance sees one first ends it, naming it, and accounts for what fell into
//! it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::make_up::count;
use super::walk::Walks;
use super::{Shared, Watched};
use crate::key::{PlanId, PlanKey};
use crate::operate::{Desk, EndOfAll, OperateError, ResumeOutcome, Scope, has_lapsed};
use crate::seam::PlanRow;
use crate::time::Timestamp;

/// So many plans are dealt with in one turn.
const AT_ONCE: usize = 128;
/// How long to wait after a fault.
const BACK_OFF: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Lapses {
    /// Plans, with their rows as they were seen, and when; in the order of their ids, as the same seed does the same.
    plans: BTreeMap<PlanId, (PlanRow, Timestamp)>,
    all: Option<EndOfAll>,
    not_before: Duration,
}

impl Lapses {
    /// A row as the ledger has it at `now`.
    pub(crate) fn look(&mut self, key: &PlanKey, row: &PlanRow, now: Timestamp) {
        let Some(pause) = row.pause.as_ref().filter(|pause| has_lapsed(pause, now)) else { return };
        match &key.plan {
            Some(plan) => drop(self.plans.insert(plan.clone(), (row.clone(), now))),
            None if self.all.as_ref().is_some_and(|all| all.since() == pause.since) => {}
            None => self.all = Some(EndOfAll::new(pause.clone(), true)),
        }
    }

    /// When there is something to do.
    pub(crate) fn due(&self) -> Option<Duration> {
        (self.all.is_some() || !self.plans.is_empty()).then_some(self.not_before)
    }

    /// Some plans, or a step towards the end of a pause of all.
    pub(crate) fn turn(&mut self, shared: &Shared, mono: Duration, walks: &mut Walks) {
        // An instance whose clock is off accounts for nothing.
        if mono < self.not_before || self.due().is_none() || shared.is_skewed() {
            return;
        }
        let desk = Desk {
            ledger: &Watched(shared),
            namespace: &shared.config.namespace,
            scope: Scope::Shared,
            count: &|plan, row, after, upto| count(shared, plan, row, after, upto),
        };
        if let Err(error) = self.some_plans(shared, &desk, walks).and_then(|()| self.some_of_all(shared, &desk, walks))
        {
            log::debug!(target: "timertask::engine", "{}: a pause that is over could not be ended yet: {error}", shared.config.instance);
            self.not_before = mono + BACK_OFF;
        }
    }

    fn some_plans(&mut self, shared: &Shared, desk: &Desk<'_>, walks: &mut Walks) -> Result<(), OperateError> {
        let ids: Vec<PlanId> = self.plans.keys().take(AT_ONCE).cloned().collect();
        if ids.is_empty() {
            return Ok(());
        }
        let rows = ids.iter().filter_map(|id| Some((shared.plan_key(id), self.plans.get(id)?.clone())));
        let rows = desk.end_lapsed(rows.collect())?;
        shared.pauses.saw(rows.iter().map(|(key, row)| (key, Some(row))));
        for id in ids {
            self.plans.remove(&id);
            log::info!(target: "timertask::engine", "{}: plan {id:?} is resumed: its pause is over", shared.config.instance);
            if let Some(plan) = shared.registry().get(&id) {
                walks.want(plan);
            }
            walks.resumed(Some(&id));
        }
        Ok(())
    }

    fn some_of_all(&mut self, shared: &Shared, desk: &Desk<'_>, walks: &mut Walks) -> Result<(), OperateError> {
        let Some(all) = &mut self.all else { return Ok(()) };
        let Some(outcome) = all.step(desk)? else { return Ok(()) };
        self.all = None;
        let pause = match outcome {
            ResumeOutcome::Another(pause) => Some(pause),
            // Another instance may have been first.
            ResumeOutcome::Ended(_) | ResumeOutcome::NotPaused => {
                log::info!(target: "timertask::engine", "{}: all plans are resumed: their pause is over", shared.config.instance);
                walks.resumed(None);
                None
            }
        };
        shared.pauses.note(None, pause);
        Ok(())
    }
}
