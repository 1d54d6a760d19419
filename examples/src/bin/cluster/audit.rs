//! The verdict: reads the ledger and the application's table, and holds both against what should have happened.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use timertask::key::PlanKey;
use timertask::seam::{RangeRow, SlotRow, SlotState};
use timertask::{Ending, NotStarted, PlanId, RunKind, Trigger};
use timertask_examples::rows;

use crate::Result;
use crate::app::{App, WorkRow};
use crate::instance::{FLAKY, PANICKY};
use crate::score::ALL;
use crate::store::Store;
use crate::watch::Watch;

/// What became of the slots of one plan, or of all.
#[derive(Clone, Default)]
pub(crate) struct Tally {
    pub(crate) expected: usize,
    pub(crate) once: usize,
    pub(crate) twice: usize,
    pub(crate) missing: usize,
    pub(crate) succeeded: usize,
    pub(crate) failed: usize,
    pub(crate) orphaned: usize,
    pub(crate) running: usize,
    pub(crate) caught_up: usize,
    /// Which slots.
    pub(crate) started: BTreeSet<Trigger>,
    pub(crate) not_started: BTreeMap<&'static str, usize>,
    pub(crate) by_instance: BTreeMap<String, usize>,
    pub(crate) lateness: Vec<Duration>,
    /// Sentences about what should never be.
    pub(crate) wrong: Vec<String>,
}

/// The tallies by plan.
pub(crate) struct Audit {
    pub(crate) plans: BTreeMap<String, Tally>,
}

impl Audit {
    /// Reads all slots up to `end`.
    pub(crate) fn read(store: &Store, app: &App, watch: &Watch, end: Trigger) -> Result<Self> {
        let mut work: BTreeMap<String, Vec<WorkRow>> = BTreeMap::new();
        for row in app.work(end.as_secs())? {
            work.entry(row.plan.clone()).or_default().push(row);
        }
        let mut plans = BTreeMap::new();
        for id in watch.versions.keys() {
            let plan = PlanKey::new(store.namespace.clone(), PlanId::new(id.as_str())?);
            let (slots, ranges) = rows::history(&*store.ledger, &plan, end)?;
            let expected = expected(watch, id, end)?;
            let mut tally = tally(&expected, &slots, &ranges, work.get(id).map_or(&[], Vec::as_slice));
            for slot in slots.iter().filter(|slot| !watch.ever_had(id, slot.key.at)) {
                tally.wrong.push(format!("slot {} is on no version's schedule", slot.key.at));
            }
            plans.insert(id.clone(), tally);
        }
        Ok(Self { plans })
    }

    /// Holds what became of the slots of an outage against what each plan's policy wants, and says it in a sentence.
    pub(crate) fn judge_outage(&mut self, watch: &Watch, from: Trigger, to: Trigger) -> Result<String> {
        let (mut missed, mut started) = (0, 0);
        for (id, tally) in &mut self.plans {
            // Both came in the middle of a second.
            let during: Vec<_> = expected(watch, id, to)?.into_iter().filter(|at| *at > from).collect();
            let (made_up, left): (Vec<&Trigger>, Vec<_>) = during.iter().partition(|at| tally.started.contains(at));
            missed += during.len();
            started += made_up.len();
            if watch.make_up.get(id) == Some(&ALL) {
                tally.wrong.extend(left.iter().map(|at| format!("slot {at} fell into the outage and is not made up")));
            } else if !tally.started.iter().any(|at| *at > from && at.as_secs() <= to.as_secs() + 2) {
                // The latest that was missed, or the next ones, where those came first.
                tally.wrong.push("nothing is started up to two seconds after the outage".to_owned());
            }
        }
        let seconds = to.as_secs() - from.as_secs();
        Ok(format!(
            "outage of {seconds} s: {missed} slots fell into it, {started} of them were started once it was over"
        ))
    }

    /// Whether some slot has no final state yet.
    pub(crate) fn is_settled(&self) -> bool {
        self.plans.values().all(|tally| tally.running == 0 && tally.missing == 0)
    }

    /// All plans together.
    pub(crate) fn total(&self) -> Tally {
        let mut total = Tally::default();
        for (id, tally) in &self.plans {
            total.expected += tally.expected;
            total.once += tally.once;
            total.twice += tally.twice;
            total.missing += tally.missing;
            total.succeeded += tally.succeeded;
            total.failed += tally.failed;
            total.orphaned += tally.orphaned;
            total.running += tally.running;
            total.caught_up += tally.caught_up;
            tally.not_started.iter().for_each(|(k, n)| *total.not_started.entry(k).or_default() += n);
            tally.by_instance.iter().for_each(|(k, n)| *total.by_instance.entry(k.clone()).or_default() += n);
            total.lateness.extend(&tally.lateness);
            total.wrong.extend(tally.wrong.iter().map(|wrong| format!("{id}: {wrong}")));
        }
        total
    }
}

impl Tally {
    /// The lateness below which so many percent of the starts lie.
    pub(crate) fn percentile(&self, percent: usize) -> Option<Duration> {
        let mut sorted = self.lateness.clone();
        sorted.sort_unstable();
        let place = (sorted.len() * percent).div_ceil(100).checked_sub(1)?;
        sorted.get(place).copied()
    }

    /// Whether all is as promised.
    pub(crate) fn passes(&self) -> bool {
        self.twice == 0 && self.missing == 0 && self.running == 0 && self.wrong.is_empty()
    }
}

fn expected(watch: &Watch, id: &str, end: Trigger) -> Result<BTreeSet<Trigger>> {
    let mut expected = BTreeSet::new();
    for segment in watch.segments(id, end) {
        expected.extend(segment.triggers()?);
    }
    Ok(expected)
}

fn tally(expected: &BTreeSet<Trigger>, slots: &[SlotRow], ranges: &[RangeRow], work: &[WorkRow]) -> Tally {
    let rows: BTreeSet<Trigger> = slots.iter().map(|slot| slot.key.at).collect();
    // Around an edit a slot of the version before may have been started as well; then it counts like the others.
    let mut tally = Tally { expected: expected.union(&rows).count(), ..Tally::default() };
    let mut entered: BTreeMap<i64, usize> = BTreeMap::new();
    for row in work {
        *entered.entry(row.at).or_default() += 1;
        *tally.by_instance.entry(row.instance.clone()).or_default() += 1;
    }
    for slot in slots {
        one_slot(&mut tally, slot, entered.get(&slot.key.at.as_secs()).copied().unwrap_or(0));
    }
    for at in expected.iter().filter(|at| !rows.contains(at)) {
        match ranges.iter().find(|range| (range.first..=range.last).contains(at)) {
            Some(range) => *tally.not_started.entry(range.reason.as_str()).or_default() += 1,
            None => tally.missing += 1,
        }
    }
    for at in entered.keys().filter(|at| !rows.contains(&Trigger::from_secs(**at))) {
        tally.wrong.push(format!(
            "the application has a row for {} of which the ledger knows nothing",
            Trigger::from_secs(*at)
        ));
    }
    let fences: BTreeSet<i64> = work.iter().map(|row| row.fence).collect();
    if fences.len() != work.len() {
        tally.wrong.push("two runs had the same fence".to_owned());
    }
    tally
}

fn one_slot(tally: &mut Tally, slot: &SlotRow, entered: usize) {
    let at = slot.key.at;
    if entered > 1 || slot.attempt > 1 {
        tally.twice += 1;
        tally.wrong.push(format!("slot {at} was started twice"));
    } else if slot.attempt == 1 {
        tally.once += 1;
        tally.started.insert(at);
    }
    if slot.kind == RunKind::CatchUp && slot.attempt > 0 {
        tally.caught_up += 1;
    }
    match slot.state {
        SlotState::Running | SlotState::Open => tally.running += 1,
        SlotState::Ended(Ending::Succeeded) => {
            tally.succeeded += 1;
            if entered == 0 {
                tally.wrong.push(format!("slot {at} succeeded, and the application has no row of it"));
            }
        }
        SlotState::Ended(Ending::Failed | Ending::Cancelled) => {
            tally.failed += 1;
            // Some jobs fail by design, and say so; any other failure is one of the demonstration.
            let said = slot.detail.as_deref().unwrap_or_default();
            if !said.ends_with(FLAKY) && !said.ends_with(PANICKY) {
                tally.wrong.push(format!("slot {at} failed: {said}"));
            }
        }
        SlotState::Ended(Ending::Orphaned) => tally.orphaned += 1,
        SlotState::NotStarted(reason) => not_started(tally, reason, at, entered),
    }
    if let Some(started) = slot.started_at.filter(|_| slot.kind == RunKind::Scheduled) {
        tally.lateness.push(started.since(at.timestamp()));
    }
}

fn not_started(tally: &mut Tally, reason: NotStarted, at: Trigger, entered: usize) {
    *tally.not_started.entry(reason.as_str()).or_default() += 1;
    if entered > 0 {
        tally.wrong.push(format!("slot {at} is on record as not started, and the application has a row of it"));
    }
}
