//! Promise 5: a slot that nothing stands against starts in its start window.

use std::collections::HashMap;
use std::time::Duration;

use timertask_core::key::{Fingerprint, PlanKey};
use timertask_core::seam::{SlotRow, SlotState};
use timertask_core::time::{Timestamp, Trigger};

use super::check::{Evidence, Promise, Violation, slot_of};
use super::journal::Start;
use super::rows::PlanRows;

/// How far a fit instance's clock may be off.
const SKEW: Duration = Duration::from_secs(5);

/// What a fit instance cares for.
pub(super) struct Care {
    pub(super) instance: usize,
    pub(super) life: u32,
    pub(super) fit_since: Timestamp,
    /// Since when it has had a free worker; `None`: it has none.
    pub(super) free_since: Option<Timestamp>,
    /// Since when each version of a plan is installed in it.
    pub(super) installed: HashMap<(PlanKey, Fingerprint), Timestamp>,
    pub(super) workers: usize,
}

impl Care {
    /// Since when it has been fit, and had this version installed.
    pub(super) fn since(&self, version: &(PlanKey, Fingerprint)) -> Option<Timestamp> {
        self.installed.get(version).map(|installed| self.fit_since.max(*installed))
    }

    /// Whether one of its workers was free throughout; true only where it is sure.
    fn had_a_free_worker(&self, starts: &[Start], from: Timestamp, to: Timestamp) -> bool {
        let own = starts.iter().filter(|s| s.instance == self.instance && s.life == self.life);
        let busy = own.filter(|s| s.at <= to && s.left.as_ref().is_none_or(|(left, _)| *left >= from));
        busy.count() < self.workers
    }
}

impl Evidence<'_> {
    /// Looks at the slots whose start window has closed, and that one and the same fit instance has had the chance to
    /// start from its beginning to its end, and finds each of them started. Wherever something may have stood against it
    /// (a pause, another run of the plan, a grant that was given back, low water) it says nothing.
    pub(super) fn check_timely(&self, plan: &PlanRows, now: Timestamp, found: &mut Vec<Violation>) {
        let Some(seen) = self.seen.plans.get(&plan.key) else { return };
        let Some(generation) = seen.generations.last() else { return };
        let version = (plan.key.clone(), generation.fingerprint);
        let Some(expected) = self.expected.get(&version) else { return };
        if plan.row.closed || plan.row.pause.is_some() {
            return;
        }
        let paused_at = self.seen.paused_at(&plan.key);
        let Some(since) = self.cares.iter().filter_map(|care| care.since(&version)).min() else { return };
        let own = plan.slots.iter().filter(|row| row.key.request.is_none());
        let rows: HashMap<Trigger, &SlotRow> = own.map(|row| (row.key.at, row)).collect();
        let since = since.max(self.lived_until);
        let mut at = generation.effective_from.max(since.trigger()).max(plan.row.low_water);
        while let Some(next) = expected.schedule.next_trigger(at) {
            at = next;
            let due = at.timestamp().saturating_add(expected.offset);
            let closes = due.saturating_add(expected.start_window);
            // By a clock that lags it closes a little later.
            if closes.saturating_add(SKEW) >= now {
                return;
            }
            let from = at.timestamp().saturating_sub(SKEW);
            let row = rows.get(&at);
            if row.is_some_and(|row| matches!(row.state, SlotState::Running | SlotState::Ended(_))) {
                continue;
            }
            let had_the_chance = |care: &Care| {
                care.since(&version).is_some_and(|since| since <= at.timestamp())
                    && care.had_a_free_worker(self.starts, from, closes.saturating_add(SKEW))
            };
            if paused_at.is_some_and(|paused| paused >= from) || !self.cares.iter().any(had_the_chance) {
                continue;
            }
            let slot = slot_of(plan, at);
            if self.seen.slots.get(&slot).is_some_and(|seen| !seen.grants.is_empty()) {
                continue;
            }
            // A run counts until its end is recorded. Its row may be gone by now, so this asks what was seen.
            let in_the_way = self.seen.slots.iter().any(|(key, seen)| {
                let over = seen.settled_at.is_some_and(|settled| settled < from);
                key.plan == plan.key && *key != slot && !over && seen.grants.iter().any(|grant| !grant.given_back)
            });
            if !in_the_way {
                let state = row.map_or_else(|| "without a row".to_owned(), |row| row.state.to_string());
                let text = format!("was not started in its window, and nothing stood against it: it is {state}");
                found.push(Violation::of_slot(Promise::Start, &slot, text));
            }
        }
    }
}
