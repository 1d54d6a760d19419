//! A ledger of one's own: three tables under one lock, and the published rules over them. In a real one the lock is the
//! transaction of a database. The conformance suite passes: tests/own_ledger.rs.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use timertask::clock::Clock;
use timertask::key::{PlanKey, SlotKey};
use timertask::rules::{self, Change, ClaimRows, PlanRows, PurgeRows};
use timertask::seam::{
    Answer, Claim, ClaimRequest, Cover, Durability, EndRequest, Ended, Ledger, Outcome, Page, PageToken, PlanOp,
    PlanRow, PlanState, Purged, Query, RangeRow, Renewal, Retention, SlotRow, SlotState, StoreError, Term,
};
use timertask::time::{Timestamp, Trigger};

/// The ledger. Its clock is the one by which leases end.
pub(crate) struct OwnLedger {
    clock: Arc<dyn Clock>,
    tables: std::sync::Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    plans: BTreeMap<PlanKey, PlanRow>,
    slots: BTreeMap<SlotKey, SlotRow>,
    ranges: BTreeMap<PlanKey, Vec<RangeRow>>,
}

impl OwnLedger {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, tables: std::sync::Mutex::default() }
    }

    /// Begins a transaction: now, and the tables. The answer is what `decide` makes of each request, in their order.
    fn each<R, T>(&self, requests: &[R], decide: impl Fn(Timestamp, &mut Tables, &R) -> T) -> Outcome<Vec<T>> {
        let (now, mut tables) = self.begin();
        Ok(Answer { now, value: requests.iter().map(|request| decide(now, &mut tables, request)).collect() })
    }

    fn begin(&self) -> (Timestamp, MutexGuard<'_, Tables>) {
        (self.clock.now(), self.tables.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Tables {
    /// The slots of a plan, old to new. A database has an index for it.
    fn of(&self, plan: &PlanKey) -> impl DoubleEndedIterator<Item = &SlotRow> {
        self.slots.values().filter(move |row| row.key.plan == *plan)
    }

    /// A slot's row. One that was asked for by a request is found by that alone, and keeps the instant of the first time.
    fn slot(&self, key: &SlotKey) -> Option<&SlotRow> {
        match &key.request {
            None => self.slots.get(key),
            Some(_) => self.of(&key.plan).find(|row| row.key.request == key.request),
        }
    }

    /// Writes what the rules decided, all of it.
    fn write(&mut self, plan: &PlanKey, change: Change) {
        let ranges = self.ranges.entry(plan.clone()).or_default();
        if let Some(at) = change.cut_ranges {
            *ranges = ranges.iter().filter_map(|range| rules::cut(range, at)).collect();
        }
        ranges.extend(change.range.clone());
        ranges.sort_by_key(|range| range.last);
        for row in change.slots() {
            self.slots.insert(row.key.clone(), row.clone());
        }
        if let Some(row) = change.plan {
            self.plans.insert(plan.clone(), row);
        }
    }
}

impl Ledger for OwnLedger {
    fn describe(&self) -> Result<Durability, StoreError> {
        Ok(Durability::Volatile)
    }

    fn plan(&self, requests: &[(PlanKey, PlanOp)]) -> Outcome<Vec<PlanState>> {
        self.each(requests, |now, tables, (key, op)| {
            let slot = |at: Trigger, request| tables.slot(&SlotKey { plan: key.clone(), at, request });
            let (mut taken, mut row) = (Vec::new(), None);
            match op {
                PlanOp::Account { cover: Cover::Rows(slots) | Cover::Slots(slots, _), .. } => {
                    taken = slots.iter().copied().filter(|at| slot(*at, None).is_some()).collect();
                }
                PlanOp::Cancel { at, request, .. } => row = slot(*at, request.clone()),
                _ => {}
            }
            let rows = PlanRows { plan: tables.plans.get(key), taken: &taken, slot: row };
            let (applied, change) = rules::plan(now, key, op, &rows);
            tables.write(key, change);
            PlanState { applied, row: tables.plans.get(key).cloned() }
        })
    }

    fn claim(&self, requests: &[ClaimRequest]) -> Outcome<Vec<Claim>> {
        self.each(requests, |now, tables, request| {
            let (key, plan) = (&request.key, &request.key.plan);
            let slot = tables.slot(key);
            let others = tables.of(plan).filter(|row| slot.is_none_or(|slot| slot.key != row.key));
            let running: Vec<SlotRow> = others.filter(|row| row.state == SlotState::Running).cloned().collect();
            let older: Vec<SlotRow> = running.iter().filter(|row| row.key.at < key.at).cloned().collect();
            let whole = PlanKey::whole(plan.namespace.clone());
            let rows = ClaimRows {
                plan: tables.plans.get(plan),
                all_paused: tables.plans.get(&whole).is_some_and(|row| row.pause.is_some()),
                slot,
                running: running.len(),
                older: &older,
                newest_started: tables.of(plan).rev().find(|row| rules::started(now, row)).map(|row| row.key.at),
            };
            let (claim, change) = rules::claim(now, request, &rows);
            tables.write(plan, change);
            claim
        })
    }

    fn renew(&self, terms: &[Term], ttl: Duration) -> Outcome<Vec<Renewal>> {
        self.each(terms, |now, tables, term| {
            let (renewal, row) = rules::renew(now, term, ttl, tables.slot(&term.key));
            tables.slots.extend(row.map(|row| (row.key.clone(), row)));
            renewal
        })
    }

    fn end(&self, requests: &[EndRequest]) -> Outcome<Vec<Ended>> {
        self.each(requests, |now, tables, request| {
            let plan = &request.key.plan;
            let (ended, change) = rules::end(now, request, tables.slot(&request.key), tables.plans.get(plan));
            tables.write(plan, change);
            ended
        })
    }

    fn read(&self, query: &Query) -> Outcome<Page> {
        let (now, tables) = self.begin();
        // A page ends at `limit`, and the next one begins behind its last row; the token is how many came before.
        let paged = |rows: &mut dyn Iterator<Item = &SlotRow>, token: &Option<PageToken>, limit: usize| {
            let skip = token.as_ref().and_then(|token| token.0.parse().ok()).unwrap_or(0);
            let mut slots: Vec<_> = rows.skip(skip).take(limit.saturating_add(1)).cloned().collect();
            let more = (slots.len() > limit).then(|| PageToken((skip + limit).to_string()));
            slots.truncate(limit);
            Page { slots, more, ..Page::default() }
        };
        let value = match query {
            Query::Lapsed { namespace, max_skew, after, limit } => {
                let here = |row: &&SlotRow| row.key.plan.namespace == *namespace && rules::lapsed(now, row, *max_skew);
                paged(&mut tables.slots.values().filter(here), after, *limit)
            }
            Query::Unfinished { plan, limit } => {
                let unfinished = |row: &&SlotRow| matches!(row.state, SlotState::Running | SlotState::Open);
                Page { more: None, ..paged(&mut tables.of(plan).filter(unfinished), &None, *limit) }
            }
            Query::History { plan, after, upto, page, limit } => {
                let inside = |row: &&SlotRow| row.key.at > *after && row.key.at <= *upto;
                let mut answer = paged(&mut tables.of(plan).filter(inside), page, *limit);
                answer.plans = tables.plans.get(plan).map(|row| (plan.clone(), row.clone())).into_iter().collect();
                if page.is_none() {
                    let reaches = |range: &&RangeRow| range.last > *after && range.first <= *upto;
                    answer.ranges = tables.ranges.get(plan).into_iter().flatten().filter(reaches).cloned().collect();
                }
                answer
            }
            Query::Slots(keys) => {
                Page { slots: keys.iter().filter_map(|key| tables.slot(key)).cloned().collect(), ..Page::default() }
            }
            Query::Plans { namespace, after, limit } => {
                let here = |(key, _): &(&PlanKey, &PlanRow)| {
                    key.namespace == *namespace && key.plan.is_some() && key.plan > *after
                };
                let plans = tables.plans.iter().filter(here).take(limit.saturating_add(1));
                let mut plans: Vec<_> = plans.map(|(key, row)| (key.clone(), row.clone())).collect();
                let more = plans.len() > *limit;
                plans.truncate(*limit);
                let last = plans.last().filter(|_| more).map(|(key, _)| PageToken(key.plan_str().to_owned()));
                Page { plans, more: last, ..Page::default() }
            }
            _ => return Err(StoreError::new(timertask::seam::StoreErrorKind::Internal, "a query that is new to me")),
        };
        Ok(Answer { now, value })
    }

    fn purge(&self, key: &PlanKey, keep: Retention, at_most: usize) -> Outcome<Purged> {
        let (now, mut tables) = self.begin();
        let Some(plan) = tables.plans.get(key) else {
            return Ok(Answer { now, value: Purged { deleted: 0, low_water: Trigger::default(), more: false } });
        };
        let ranges = tables.ranges.get(key).map_or(&[][..], Vec::as_slice);
        let unfinished = |row: &&SlotRow| matches!(row.state, SlotState::Running | SlotState::Open);
        let rows = PurgeRows {
            plan,
            records: tables.of(key).count() + ranges.len(),
            unfinished: tables.of(key).find(unfinished).map(|row| row.key.at),
        };
        let purge = rules::purge(now, keep, at_most, &rows, tables.of(key), ranges);
        let gone: Vec<SlotKey> = tables.of(key).take(purge.slots).map(|row| row.key.clone()).collect();
        gone.iter().for_each(|slot| drop(tables.slots.remove(slot)));
        tables.ranges.entry(key.clone()).or_default().drain(..purge.ranges);
        if let Some(plan) = tables.plans.get_mut(key) {
            plan.low_water = purge.low_water;
        }
        let deleted = purge.slots + purge.ranges;
        Ok(Answer { now, value: Purged { deleted, low_water: purge.low_water, more: purge.more } })
    }
}
