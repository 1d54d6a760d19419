//! The promises, verified over the whole store, the jobs' own log and what the witness saw.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use timertask_core::Schedule;
use timertask_core::key::{Fence, Fingerprint, Namespace, PlanKey, SlotKey};
use timertask_core::seam::{Ending, Ledger, PlanOp, RunKind, SlotRow, SlotState, StoreError};
use timertask_core::time::{Timestamp, Trigger};

use super::journal::{Left, Start};
use super::rows::{PlanRows, read_all};
use super::timely::Care;
use super::witness::Seen;

/// How long a lease lasts, and three sweeps: what comes on top of the start window until a slot has to be accounted for.
pub(super) const GRACE: Duration = Duration::from_secs(30 + 3 * 10);

/// A sentence of the promise, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Promise {
    /// 1: a slot is started at most once.
    AtMostOneStart = 1,
    /// 2: with `Rerun` at most 1 + max starts, each under a higher fence; one settlement.
    BoundedRestarts = 2,
    /// 3: a slot that was started and ended is never started again.
    EndedIsFinal = 3,
    /// 4: every slot is accounted for, in exactly one state.
    Accounted = 4,
    /// 5: a slot starts in its start window.
    Start = 5,
    /// 6: nothing runs that the store did not grant.
    FailClosed = 6,
}

/// Where a promise was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// Which sentence.
    pub promise: Promise,
    /// Which plan.
    pub plan: PlanKey,
    /// Which slot, where it is about one.
    pub slot: Option<SlotKey>,
    /// What is wrong.
    pub text: String,
}

impl Violation {
    pub(super) fn of_slot(promise: Promise, slot: &SlotKey, text: String) -> Self {
        Self { promise, plan: slot.plan.clone(), slot: Some(slot.clone()), text }
    }

    pub(super) fn of_plan(promise: Promise, plan: &PlanKey, text: String) -> Self {
        Self { promise, plan: plan.clone(), slot: None, text }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "promise {}, ", self.promise as u8)?;
        match &self.slot {
            Some(slot) => write!(f, "slot {slot}: {}", self.text),
            None => write!(f, "plan {}: {}", self.plan.plan_str(), self.text),
        }
    }
}

/// What a check counted, for a test that wants to know that it saw something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Plans in the ledger.
    pub plans: usize,
    /// Slots that the schedules expect up to now.
    pub expected: usize,
    /// Of them those with a row that was started.
    pub started: usize,
    /// Those with a row as not started.
    pub not_started: usize,
    /// Those that lie in a range record.
    pub in_ranges: usize,
    /// Those at or below low water, without a row.
    pub purged: usize,
    /// Those that are not accounted for yet, and need not be.
    pub pending: usize,
    /// The oldest of these.
    pub oldest_pending: Option<Trigger>,
    /// Entries into jobs.
    pub starts: usize,
}

/// What a plan under one fingerprint expects.
#[derive(Clone)]
pub(super) struct Expectation {
    pub(super) schedule: Arc<Schedule>,
    /// From a trigger point to when it is due: the spread.
    pub(super) offset: Duration,
    /// From there to where its start window closes.
    pub(super) start_window: Duration,
}

/// What a check compares.
pub(super) struct Evidence<'a> {
    pub(super) ledger: &'a dyn Ledger,
    pub(super) namespace: &'a Namespace,
    pub(super) expected: &'a HashMap<(PlanKey, Fingerprint), Expectation>,
    pub(super) starts: &'a [Start],
    pub(super) seen: &'a Seen,
    /// Since when an instance has been fit, and has reached the store; `None`: none is.
    pub(super) healthy_since: Option<Timestamp>,
    /// The instances that are fit, and since when each version of a plan is installed in one of them.
    pub(super) cares: &'a [Care],
    /// Up to then time is lived through once more, after a step back.
    pub(super) lived_until: Timestamp,
}

/// Why a slot may wait.
#[derive(Clone, Copy)]
struct Waits {
    /// Something that is not over holds it up.
    excused: bool,
    permit_since: Option<Timestamp>,
}

impl Evidence<'_> {
    /// Everything that is broken, and what was counted.
    pub(super) fn check(&self) -> Result<(Summary, Vec<Violation>), StoreError> {
        let (now, plans) = read_all(self.ledger, self.namespace)?;
        let mut found = self.seen.violations.clone();
        let mut summary = Summary { starts: self.starts.len(), ..Summary::default() };
        let mut starts: HashMap<&SlotKey, Vec<&Start>> = HashMap::new();
        for start in self.starts {
            starts.entry(&start.slot).or_default().push(start);
        }
        let catching_up = plans
            .iter()
            .flat_map(|p| &p.slots)
            .any(|s| s.state == SlotState::Running && matches!(s.kind, RunKind::CatchUp | RunKind::Backfill));
        // A permit for catch-up was free only since then.
        let permit_since = self.seen.permit_since();
        let whole = self.ledger.plan(&[(PlanKey::whole(self.namespace.clone()), PlanOp::Read)])?.value;
        let paused = whole.iter().any(|state| state.row.as_ref().is_some_and(|row| row.pause.is_some()));
        for plan in plans.iter().filter(|p| p.key.plan.is_some()) {
            summary.plans += 1;
            self.check_plan(plan, &mut found);
            for slot in &plan.slots {
                self.check_slot(plan, slot, starts.get(&slot.key).map_or(&[], Vec::as_slice), now, &mut found);
            }
            let excused = paused || catching_up || plan.row.pause.is_some();
            let waits = Waits { excused, permit_since };
            self.check_expected(plan, now, waits, &mut summary, &mut found);
            if !paused {
                self.check_timely(plan, now, &mut found);
            }
        }
        let rows: HashMap<&SlotKey, &PlanRows> =
            plans.iter().flat_map(|p| p.slots.iter().map(move |s| (&s.key, p))).collect();
        let by_key: HashMap<&PlanKey, &PlanRows> = plans.iter().map(|p| (&p.key, p)).collect();
        for (slot, starts) in starts {
            self.check_starts(slot, &starts, &mut found);
            let purged = by_key.get(&slot.plan).is_some_and(|p| slot.at <= p.row.low_water);
            if !rows.contains_key(slot) && !purged && !self.lost(slot) {
                let text = format!("was started, and has no row above low water: {}", list(&starts));
                found.push(Violation::of_slot(Promise::Accounted, slot, text));
            }
        }
        found.sort_by(|a, b| (a.promise, &a.plan, &a.slot).cmp(&(b.promise, &b.plan, &b.slot)));
        Ok((summary, found))
    }

    /// Whether the store was set back, and what it knew of this slot is lost.
    fn lost(&self, slot: &SlotKey) -> bool {
        self.seen.slots.get(slot).is_some_and(|seen| seen.lost)
    }

    fn check_plan(&self, plan: &PlanRows, found: &mut Vec<Violation>) {
        let mut complain = |promise, text| found.push(Violation::of_plan(promise, &plan.key, text));
        let row = &plan.row;
        if row.low_water > row.cursor {
            complain(Promise::Accounted, format!("low water {} is ahead of the cursor {}", row.low_water, row.cursor));
        }
        let unfinished = |s: &&SlotRow| matches!(s.state, SlotState::Running | SlotState::Open);
        for slot in plan.slots.iter().filter(unfinished).filter(|s| s.key.at <= row.low_water) {
            complain(
                Promise::Accounted,
                format!("low water {} passed {}, which is {}", row.low_water, slot.key, slot.state),
            );
        }
        let highest = plan.slots.iter().map(|s| s.fence).max().unwrap_or(Fence::NONE);
        if highest > row.fence {
            complain(Promise::BoundedRestarts, format!("a slot has fence {highest}, the plan only {}", row.fence));
        }
        for pair in plan.ranges.windows(2) {
            if pair[1].first <= pair[0].last {
                complain(Promise::Accounted, format!("two range records overlap: {:?} and {:?}", pair[0], pair[1]));
            }
        }
        for range in &plan.ranges {
            if range.first > range.last || range.last > row.cursor {
                complain(Promise::Accounted, format!("a range record beyond the cursor {}: {range:?}", row.cursor));
            }
        }
        let succeeded = |s: &&SlotRow| s.state == SlotState::Ended(Ending::Succeeded) && s.kind != RunKind::Manual;
        let last = plan.slots.iter().filter(succeeded).map(|s| s.key.at).max();
        if last > row.last_success {
            let text = format!("last success is {:?}, and {last:?} succeeded", row.last_success);
            complain(Promise::Accounted, text);
        }
    }

    /// A slot's row against the jobs' own log.
    fn check_slot(
        &self,
        plan: &PlanRows,
        slot: &SlotRow,
        starts: &[&Start],
        now: Timestamp,
        found: &mut Vec<Violation>,
    ) {
        let mut complain = |promise, text| found.push(Violation::of_slot(promise, &slot.key, text));
        // Tries within one start share its fence; the last of them decides.
        let last = starts.iter().rev().find(|s| s.fence == slot.fence).map(|s| s.left.as_ref().map(|(_, left)| left));
        match slot.state {
            SlotState::NotStarted(_) | SlotState::Open
                if slot.attempt == 0 && !starts.is_empty() && !self.lost(&slot.key) =>
            {
                complain(Promise::Accounted, format!("is {}, but was started: {}", slot.state, list(starts)));
            }
            SlotState::Ended(Ending::Succeeded) if !matches!(last, Some(Some(Left::Succeeded))) => {
                complain(Promise::Accounted, format!("ended as succeeded, but the job's log has: {}", list(starts)));
            }
            SlotState::Ended(ending @ (Ending::Failed | Ending::Cancelled))
                if !matches!(last, Some(Some(Left::Failed(_) | Left::Panicked))) =>
            {
                complain(Promise::Accounted, format!("ended as {ending}, but the job's log has: {}", list(starts)));
            }
            SlotState::Running => {
                let since = self.healthy_since.map(|since| since.max(slot.lease_end));
                if since.is_some_and(|since| now > since.saturating_add(GRACE)) {
                    let lease = slot.lease_end;
                    complain(Promise::Accounted, format!("still running, though its lease ended at {lease}"));
                }
            }
            _ => {}
        }
        if slot.fence > plan.row.fence {
            complain(Promise::BoundedRestarts, format!("has fence {}, above its plan's", slot.fence));
        }
    }

    /// Entries into the job against what the store granted.
    fn check_starts(&self, slot: &SlotKey, starts: &[&Start], found: &mut Vec<Violation>) {
        let mut complain = |promise, text| found.push(Violation::of_slot(promise, slot, text));
        let first_tries: Vec<&Start> = starts.iter().filter(|s| s.tries == 1).copied().collect();
        let seen = self.seen.slots.get(slot);
        let allowed = seen.map_or(0, |s| s.allowed) as usize;
        if first_tries.len() > allowed && !self.lost(slot) {
            let promise = if allowed <= 1 { Promise::AtMostOneStart } else { Promise::BoundedRestarts };
            complain(promise, format!("started {} times, allowed {allowed}: {}", first_tries.len(), list(starts)));
        }
        for pair in first_tries.windows(2) {
            // Where the store was set back the witness has compared it with the clock.
            if pair[1].fence <= pair[0].fence && !self.lost(slot) {
                complain(Promise::BoundedRestarts, format!("fences do not rise: {}", list(starts)));
            }
        }
        for start in first_tries {
            let grant = seen.and_then(|s| s.grants.iter().find(|g| g.nonce == start.nonce && g.fence == start.fence));
            match grant {
                None => complain(Promise::FailClosed, format!("started without a grant: {start}")),
                Some(grant) if grant.given_back => {
                    complain(
                        Promise::AtMostOneStart,
                        format!("given back by {}, and started: {start}", grant.instance),
                    );
                }
                Some(grant) if grant.attempt != start.attempt => {
                    complain(Promise::BoundedRestarts, format!("granted as start {}: {start}", grant.attempt));
                }
                Some(_) => {}
            }
        }
    }

    /// Every slot that the schedules expect is in exactly one state.
    fn check_expected(
        &self,
        plan: &PlanRows,
        now: Timestamp,
        waits: Waits,
        summary: &mut Summary,
        found: &mut Vec<Violation>,
    ) {
        let none = Vec::new();
        let generations = self.seen.plans.get(&plan.key).map_or(&none, |p| &p.generations);
        let rows: HashMap<Trigger, &SlotRow> =
            plan.slots.iter().filter(|s| s.key.request.is_none()).map(|s| (s.key.at, s)).collect();
        // What is missed waits for its plan and for a permit; both may have become free just now.
        let free_since = self.seen.ended_at(&plan.key).max(waits.permit_since).max(self.seen.paused_at(&plan.key));
        let free_since = free_since.unwrap_or(Timestamp::EPOCH).min(now);
        let busy = waits.excused || plan.slots.iter().any(|s| matches!(s.state, SlotState::Running | SlotState::Open));
        for (i, generation) in generations.iter().enumerate() {
            let version = (plan.key.clone(), generation.fingerprint);
            let Some(expected) = self.expected.get(&version) else { continue };
            let cares = || self.cares.iter().filter_map(|care| Some((care, care.since(&version)?)));
            // By who is fit, has it installed, and a worker free.
            let cared_for_since = cares().filter_map(|(care, since)| Some(since.max(care.free_since?))).min();
            let orphaned = self.healthy_since.is_some() && cares().next().is_none();
            // A generation ends where a later one begins (the clock rule may have moved that back); the last one now.
            let later = generations[i + 1..].iter().map(|later| later.effective_from);
            let end = later.min().unwrap_or(now.trigger()).min(now.trigger());
            let mut at = generation.effective_from;
            while let Some(next) = expected.schedule.next_trigger(at).filter(|next| *next <= end) {
                at = next;
                summary.expected += 1;
                let in_range = plan.ranges.iter().any(|r| r.first <= at && at <= r.last);
                match rows.get(&at).map(|row| row.state) {
                    Some(SlotState::NotStarted(_)) => summary.not_started += 1,
                    Some(SlotState::Running | SlotState::Open | SlotState::Ended(_)) => summary.started += 1,
                    None if in_range => summary.in_ranges += 1,
                    None if at <= plan.row.low_water => summary.purged += 1,
                    None if at <= plan.row.cursor => {
                        let text = format!("unaccounted, and the cursor has passed it ({})", plan.row.cursor);
                        found.push(Violation::of_slot(Promise::Accounted, &slot_of(plan, at), text));
                    }
                    // Closed some time ago, or installed nowhere: what came after belongs to nobody for now.
                    None if plan.row.closed || orphaned => summary.expected -= 1,
                    None => {
                        summary.pending += 1;
                        let closes =
                            at.timestamp().saturating_add(expected.offset).saturating_add(expected.start_window);
                        summary.oldest_pending = Some(summary.oldest_pending.map_or(at, |there| there.min(at)));
                        // The newest slot of a queue has a start window from when its plan is free; what was missed comes after.
                        let free = free_since.saturating_add(expected.start_window);
                        // Who has just come, or come back, doesn't know since when the plan has been free.
                        let overdue = |since: Timestamp| {
                            now > closes
                                .max(since.saturating_add(expected.start_window))
                                .max(free)
                                .saturating_add(GRACE)
                        };
                        if !busy && cared_for_since.is_some_and(overdue) {
                            let text = format!("unaccounted at {now}; the cursor is {}", plan.row.cursor);
                            found.push(Violation::of_slot(Promise::Accounted, &slot_of(plan, at), text));
                        }
                    }
                }
            }
        }
    }
}

pub(super) fn slot_of(plan: &PlanRows, at: Trigger) -> SlotKey {
    SlotKey { plan: plan.key.clone(), at, request: None }
}

/// Starts in words.
pub(super) fn list(starts: &[&Start]) -> String {
    if starts.is_empty() {
        return "nothing".to_owned();
    }
    starts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
