//! What stands under the ledger's one lock, and how the rules are applied to it.

use std::collections::VecDeque;
use std::time::Duration;

use super::board::Postings;
use super::chunked::Slab;
use super::plans::{NONE, Plans};
use super::records::{Note, Records, Slots, unfinished};
use crate::key::{Namespace, PlanKey, SlotKey};
use crate::rules::{self, Change, ClaimRows, PlanRows, PurgeRows};
use crate::seam::{
    Applied, Claim, ClaimRequest, Cover, EndRequest, Ended, PlanOp, PlanRow, PlanState, Purged, RangeRow, Renewal,
    Retention, SlotRow, Term,
};
use crate::time::{Timestamp, Trigger};

/// How many records the ledger keeps where nothing else was asked for.
const KEEP: usize = 256;

/// A record that may be forgotten once newer ones push it out.
#[derive(Clone, Debug)]
enum Oldest {
    Slot(Note),
    Range { plan: u32, last: Trigger },
}

/// Everything, under one lock.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) plans: Plans,
    pub(super) records: Slab<Records>,
    pub(super) slots: Slots,
    pub(super) postings: Postings,
    /// The namespaces in which all is paused; mostly none, so that claims look nothing up.
    all_paused: Vec<Namespace>,
    /// Ended and not-started rows and range records, in the order in which they came to be so. May hold notes of rows
    /// that are gone or run again.
    oldest: VecDeque<Oldest>,
    /// How many of them there are.
    finished: usize,
    /// How many to keep.
    pub(super) keep: usize,
    /// How many of `oldest` the next tidying may look at.
    looks: usize,
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            plans: Plans::new(),
            records: Slab::new(),
            slots: Slots::new(),
            postings: Postings::default(),
            all_paused: Vec::new(),
            oldest: VecDeque::new(),
            finished: 0,
            keep: KEEP,
            looks: 0,
        }
    }

    /// The plan's records, where it has any.
    pub(super) fn records_of(&self, plan: u32) -> Option<&Records> {
        let at = self.plans.records(plan);
        (at != NONE).then(|| self.records.get(at))
    }

    /// The plan's row.
    pub(super) fn plan_row(&self, plan: u32) -> PlanRow {
        let mut row = self.plans.row(plan);
        row.pause = self.records_of(plan).and_then(|records| records.pause.clone());
        row
    }

    /// A slot's number.
    fn slot(&self, plan: u32, key: &SlotKey) -> Option<u32> {
        self.records_of(plan).and_then(|records| self.slots.find(records, key.at, key.request.as_ref()))
    }

    pub(super) fn slot_row(&self, key: &SlotKey) -> Option<&SlotRow> {
        let plan = self.plans.find(&key.plan)?;
        self.row(self.slot(plan, key))
    }

    fn row(&self, slot: Option<u32>) -> Option<&SlotRow> {
        slot.and_then(|slot| self.slots.get(slot)).map(|(_, row)| row)
    }

    /// The numbers of a group's plans. Looked up ahead of the decisions, so that the processor waits for the memory of many
    /// at once: in a table of a million plans that is most of the time.
    pub(super) fn find_all<'k>(&self, keys: impl Iterator<Item = &'k PlanKey>) -> Vec<Option<u32>> {
        keys.map(|key| self.plans.find(key)).collect()
    }

    pub(super) fn claim(&mut self, now: Timestamp, request: &ClaimRequest, plan: Option<u32>) -> Claim {
        let all_paused = self.all_paused.contains(&request.key.plan.namespace);
        let Some(plan) = plan else {
            let rows = ClaimRows { plan: None, all_paused, slot: None, running: 0, older: &[], newest_started: None };
            return rules::claim(now, request, &rows).0;
        };
        let plan_row = self.plan_row(plan);
        let slot = self.slot(plan, &request.key);
        let needs = rules::needs(request);
        let mut rows = ClaimRows {
            plan: Some(&plan_row),
            all_paused,
            slot: self.row(slot),
            running: 0,
            older: &[],
            newest_started: None,
        };
        let older: Vec<SlotRow>;
        if let Some(records) = self.records_of(plan) {
            // Where the slot itself is running the answer does not come as far as the gate.
            rows.running = records.running;
            if needs.newest_started {
                let started = self.slots.rows(records).rev().find(|row| rules::started(now, row));
                rows.newest_started = started.map(|row| row.key.at);
            }
            if needs.older && records.running > 0 {
                let before = self.slots.unfinished(records).filter(|row| row.key.at < request.key.at);
                older = before.cloned().collect();
                rows.older = &older;
            }
        }
        let (answer, change) = rules::claim(now, request, &rows);
        self.apply(plan, slot, change);
        answer
    }

    pub(super) fn renew(&mut self, now: Timestamp, term: &Term, ttl: Duration, plan: Option<u32>) -> Renewal {
        let slot = plan.and_then(|plan| self.slot(plan, &term.key));
        let (answer, row) = rules::renew(now, term, ttl, self.row(slot));
        if let (Some(plan), Some(row)) = (plan, row) {
            self.put(plan, slot, row);
        }
        answer
    }

    pub(super) fn end(&mut self, now: Timestamp, request: &EndRequest, plan: Option<u32>) -> Ended {
        let Some(plan) = plan else { return rules::end(now, request, None, None).0 };
        let slot = self.slot(plan, &request.key);
        let plan_row = self.plan_row(plan);
        let (answer, change) = rules::end(now, request, self.row(slot), Some(&plan_row));
        self.apply(plan, slot, change);
        answer
    }

    pub(super) fn plan(&mut self, now: Timestamp, key: &PlanKey, op: &PlanOp) -> PlanState {
        let plan = self.plans.find(key);
        let row = plan.map(|plan| self.plan_row(plan));
        let mut slot = None;
        let mut taken = Vec::new();
        match (plan, op) {
            (Some(plan), PlanOp::Cancel { at, request, .. }) => {
                slot = self.records_of(plan).and_then(|records| self.slots.find(records, *at, request.as_ref()));
            }
            (Some(plan), PlanOp::Account { cover: Cover::Rows(slots) | Cover::Slots(slots, _), .. }) => {
                if let Some(records) = self.records_of(plan) {
                    let there = |at: &&Trigger| self.slots.find(records, **at, None).is_some();
                    taken = slots.iter().filter(there).copied().collect();
                }
            }
            _ => {}
        }
        let rows = PlanRows { plan: row.as_ref(), taken: &taken, slot: self.row(slot) };
        let (applied, change) = rules::plan(now, key, op, &rows);
        let row = change.plan.clone().or(row);
        match (plan, &change.plan) {
            (Some(plan), _) => self.apply(plan, slot, change),
            (None, Some(new)) => {
                let plan = self.plans.insert(key, new);
                self.apply(plan, None, change);
            }
            (None, None) => debug_assert!(applied != Applied::Done, "nothing can be done to a plan that isn't there"),
        }
        PlanState { applied, row }
    }

    pub(super) fn purge(&mut self, now: Timestamp, key: &PlanKey, keep: Retention, at_most: usize) -> Purged {
        let Some(plan) = self.plans.find(key) else {
            return Purged { deleted: 0, low_water: Trigger::default(), more: false };
        };
        let plan_row = self.plan_row(plan);
        let Some(records) = self.records_of(plan) else {
            return Purged { deleted: 0, low_water: plan_row.low_water, more: false };
        };
        let rows = PurgeRows {
            plan: &plan_row,
            records: records.slots.len() + records.ranges.len(),
            unfinished: self.slots.unfinished(records).map(|row| row.key.at).min(),
        };
        let purge = rules::purge(now, keep, at_most, &rows, self.slots.rows(records), &records.ranges);
        self.delete(plan, purge.slots, purge.ranges, purge.low_water);
        Purged { deleted: purge.slots + purge.ranges, low_water: purge.low_water, more: purge.more }
    }

    /// Writes what a rule decided.
    fn apply(&mut self, plan: u32, slot: Option<u32>, change: Change) {
        let Change { plan: row, slot: slot_row, more_slots, range, cut_ranges } = change;
        if let Some(row) = row {
            self.set_plan(plan, row);
        }
        if let Some(row) = slot_row {
            self.put(plan, slot, row);
        }
        for row in more_slots {
            let slot = self.slot(plan, &row.key);
            self.put(plan, slot, row);
        }
        if let Some(at) = cut_ranges {
            self.cut_ranges(plan, at);
        }
        if let Some(range) = range {
            self.add_range(plan, range);
        }
        self.tidy();
    }

    fn set_plan(&mut self, plan: u32, row: PlanRow) {
        self.plans.set(plan, &row);
        if row.pause.is_none() && self.plans.records(plan) == NONE {
            return;
        }
        let records = self.records_mut(plan);
        if records.pause == row.pause {
            return;
        }
        let paused = row.pause.is_some();
        records.pause = row.pause;
        let key = self.plans.key(plan);
        if key.plan.is_none() {
            self.all_paused.retain(|namespace| *namespace != key.namespace);
            if paused {
                self.all_paused.push(key.namespace);
            }
        }
        self.leave_if_empty(plan);
    }

    fn records_mut(&mut self, plan: u32) -> &mut Records {
        let mut at = self.plans.records(plan);
        if at == NONE {
            at = self.records.take(Records::default);
            self.plans.set_records(plan, at);
        }
        self.records.get_mut(at)
    }

    fn leave_if_empty(&mut self, plan: u32) {
        let at = self.plans.records(plan);
        if at != NONE && self.records.get(at).is_empty() {
            self.records.leave(at);
            self.plans.set_records(plan, NONE);
        }
    }

    fn put(&mut self, plan: u32, slot: Option<u32>, row: SlotRow) {
        let finished = !unfinished(row.state);
        self.records_mut(plan);
        let records = self.records.get_mut(self.plans.records(plan));
        let (slot, more) = self.slots.put(records, plan, slot, row);
        self.finished = self.finished.saturating_add_signed(more);
        if finished && more > 0 {
            self.remember(Oldest::Slot(self.slots.note(slot)));
        }
    }

    fn add_range(&mut self, plan: u32, range: RangeRow) {
        let last = range.last;
        let ranges = &mut self.records_mut(plan).ranges;
        let i = ranges.partition_point(|other| other.last < last);
        ranges.insert(i, range);
        self.finished += 1;
        self.remember(Oldest::Range { plan, last });
    }

    fn cut_ranges(&mut self, plan: u32, at: Trigger) {
        let ranges = &mut self.records_mut(plan).ranges;
        let first = ranges.partition_point(|range| range.last <= at);
        let behind: Vec<RangeRow> = ranges.drain(first..).collect();
        self.finished -= behind.len();
        for range in behind.iter().filter_map(|range| rules::cut(range, at)) {
            self.add_range(plan, range);
        }
        self.leave_if_empty(plan);
    }

    fn remember(&mut self, record: Oldest) {
        self.oldest.push_back(record);
        // Two looks for each that came, so that a backlog of records that had to stay shrinks again.
        self.looks += 2;
    }

    /// Forgets what is beyond the number to keep: a constant amount of work for each record that came to be.
    fn tidy(&mut self) {
        while self.looks > 0 && self.finished > self.keep {
            self.looks -= 1;
            let Some(record) = self.oldest.pop_front() else { break };
            let Some((plan, at)) = self.still_there(&record) else { continue };
            self.forget_upto(plan, at);
            if self.still_there(&record).is_some() {
                // An unfinished slot or the cursor is in the way; later, then.
                self.oldest.push_back(record);
            }
        }
        self.looks = 0;
        if self.oldest.len() > 64 + self.finished.saturating_mul(2) {
            // Purges from outside leave notes behind.
            let oldest = std::mem::take(&mut self.oldest);
            self.oldest = oldest.into_iter().filter(|record| self.still_there(record).is_some()).collect();
        }
    }

    /// The plan and trigger point of a finished record, where it is still there.
    fn still_there(&self, record: &Oldest) -> Option<(u32, Trigger)> {
        match record {
            Oldest::Slot(note) => {
                let (plan, row) = self.slots.noted(*note)?;
                (!unfinished(row.state)).then_some((plan, row.key.at))
            }
            Oldest::Range { plan, last } => {
                let ranges = &self.records_of(*plan)?.ranges;
                ranges.binary_search_by_key(last, |range| range.last).is_ok().then_some((*plan, *last))
            }
        }
    }

    /// Deletes the plan's records up to `at`, as far as low water may rise: not past the cursor, and short of each
    /// running or open slot.
    fn forget_upto(&mut self, plan: u32, at: Trigger) {
        let Some(records) = self.records_of(plan) else { return };
        let upto = at.min(self.plans.cursor(plan));
        let old = |row: &&SlotRow| row.key.at <= upto;
        // Each row that is looked at goes, but for those of the last trigger point: no walk is made twice.
        let blocked = self.slots.rows(records).take_while(old).find(|row| unfinished(row.state)).map(|row| row.key.at);
        let goes = |at: Trigger| at <= upto && blocked.is_none_or(|blocked| at < blocked);
        let mut low_water = None;
        let slots = self.slots.rows(records).map(|row| row.key.at).take_while(|at| goes(*at));
        let slots = slots.inspect(|at| low_water = low_water.max(Some(*at))).count();
        let ranges = records.ranges.iter().map(|range| range.last).take_while(|last| goes(*last));
        let ranges = ranges.inspect(|last| low_water = low_water.max(Some(*last))).count();
        if let Some(low_water) = low_water {
            self.delete(plan, slots, ranges, low_water);
        }
    }

    fn delete(&mut self, plan: u32, slots: usize, ranges: usize, low_water: Trigger) {
        let at = self.plans.records(plan);
        if at == NONE {
            return;
        }
        let records = self.records.get_mut(at);
        self.slots.delete_oldest(records, slots);
        records.ranges.drain(..ranges);
        self.finished -= slots + ranges;
        self.plans.raise_low_water(plan, low_water);
        self.leave_if_empty(plan);
    }
}
