//! A ledger that is as simple as one can be, sound or with one fault built in. Sound, it is also an example of how
//! little a store of one's own has to do: read rows, ask the rules, write what they say.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use timertask_core::clock::Clock;
use timertask_core::key::{Fence, Namespace, PlanKey, SlotKey};
use timertask_core::memory::MemLedger;
use timertask_core::rules::{self, Change, ClaimRows, PlanRows, PurgeRows};
use timertask_core::seam::{
    Answer, Board, Claim, ClaimRequest, Cover, Durability, EndOp, EndRequest, Ended, Ending, Ledger, Outcome, Page,
    PageToken, PlanOp, PlanRow, PlanState, Posting, PostingKind, Purged, Query, RangeRow, Renewal, Retention, RunKind,
    SlotRow, SlotState, StoreError, Term,
};
use timertask_core::time::{Timestamp, Trigger};
use timertask_testkit::{FakeClock, Rewind};

use crate::Mutant;

#[derive(Clone)]
pub(crate) struct MutantLedger {
    clock: FakeClock,
    mutant: Mutant,
    /// Nothing is wrong with this one.
    board: MemLedger,
    tables: Arc<std::sync::Mutex<Tables>>,
}

impl Rewind for MutantLedger {
    fn save(&self) -> Box<dyn Fn() + Send> {
        let (tables, saved) = (Arc::clone(&self.tables), self.enter().1.clone());
        Box::new(move || *tables.lock().expect("no case panics inside") = saved.clone())
    }
}

#[derive(Clone, Default)]
struct Tables {
    plans: BTreeMap<PlanKey, PlanRow>,
    slots: BTreeMap<SlotKey, SlotRow>,
    ranges: BTreeMap<PlanKey, Vec<RangeRow>>,
}

impl MutantLedger {
    pub(crate) fn new(clock: FakeClock, mutant: Mutant) -> Self {
        let board = MemLedger::with_clock(Arc::new(clock.clone()));
        Self { clock, mutant, board, tables: Arc::default() }
    }

    fn enter(&self) -> (Timestamp, MutexGuard<'_, Tables>) {
        (self.clock.now(), self.tables.lock().expect("no case panics inside"))
    }
}

impl Tables {
    fn rows(&self, plan: &PlanKey) -> impl DoubleEndedIterator<Item = &SlotRow> {
        let from = SlotKey { plan: plan.clone(), at: Trigger::from_secs(i64::MIN), request: None };
        self.slots
            .range(from..)
            .map(|(_, row)| row)
            .take_while(move |row| row.key.plan == *plan)
            .collect::<Vec<_>>()
            .into_iter()
    }

    /// The row of a slot; that of a `run_now` is found by its request, whatever its instant.
    fn find(&self, key: &SlotKey, mutant: Mutant) -> Option<&SlotRow> {
        if key.request.is_none() || mutant == Mutant::RequestsByInstant {
            return self.slots.get(key);
        }
        self.slots.values().find(|row| row.key.plan == key.plan && row.key.request == key.request)
    }

    fn apply(&mut self, key: &PlanKey, change: &Change) {
        if let Some(plan) = &change.plan {
            self.plans.insert(key.clone(), plan.clone());
        }
        for row in change.slots() {
            self.slots.insert(row.key.clone(), row.clone());
        }
        let ranges = self.ranges.entry(key.clone()).or_default();
        if let Some(at) = change.cut_ranges {
            *ranges = ranges.iter().filter_map(|range| rules::cut(range, at)).collect();
        }
        ranges.extend(change.range.clone());
        ranges.sort_by_key(|range| range.last);
    }

    fn claim(&mut self, now: Timestamp, request: &ClaimRequest, mutant: Mutant) -> Claim {
        let key = &request.key.plan;
        let mut request = request.clone();
        let mut plan = self.plans.get(key).cloned();
        let mut slot = self.find(&request.key, mutant).cloned();
        let own = slot.as_ref().map_or_else(|| request.key.clone(), |row| row.key.clone());
        let whole = self.plans.get(&PlanKey::whole(key.namespace.clone()));
        let all_paused = whole.is_some_and(|row| row.pause.is_some()) && mutant != Mutant::PauseOfAllIgnored;
        let others = || self.rows(key).filter(|row| row.key != own);
        let running: Vec<_> = others().filter(|row| row.state == SlotState::Running).cloned().collect();
        let mut older = running.clone();
        older.retain(|row| row.key.at < request.key.at);
        let judged_at = if mutant == Mutant::SupersededByTheFuture { Timestamp::MAX } else { now };
        let newest_started = others().rev().find(|row| rules::started(judged_at, row)).map(|row| row.key.at);
        let mut running = running.len();
        let repeat = slot.as_ref().is_some_and(|row| row.state == SlotState::Running && row.nonce == request.nonce);
        match (mutant, &mut slot, &mut plan) {
            (Mutant::ExpiryGrants, Some(row), _) if row.state == SlotState::Running && row.lease_end <= now => {
                row.state = SlotState::Open;
                request.attempts_allowed = u32::MAX;
            }
            (Mutant::NoReleasedNonces, Some(row), _) => row.released.clear(),
            (Mutant::CatchUpAccountsOnAFullGate, ..) if request.kind == RunKind::CatchUp => {
                request.kind = RunKind::Scheduled;
            }
            (Mutant::RerunWithoutALimit | Mutant::AttemptsAtTheSweepOnly, ..) => request.attempts_allowed = u32::MAX,
            (Mutant::FencePerSlot, row, Some(plan)) => plan.fence = row.as_ref().map_or(Fence::NONE, |row| row.fence),
            (Mutant::ClaimByUpsert, row, Some(plan)) => {
                *row = None;
                (plan.cursor, plan.low_water) = (Trigger::from_secs(-1), Trigger::from_secs(-1));
            }
            (Mutant::ForeignClaimsLeaveNoRange, _, Some(plan)) => request.fingerprint = plan.generation.fingerprint,
            (Mutant::TheCursorIgnoresGaps, ..) => request.prev = None,
            (Mutant::NoNonceRepeat, ..) if repeat => return Claim::Held,
            (Mutant::AStartedOpenSlotIsNotStarted, Some(row), _) if row.state == SlotState::Open => row.attempt = 0,
            (Mutant::LapsedRunsLeaveTheGate, ..) => {
                let live = |row: &&SlotRow| row.state == SlotState::Running && row.lease_end > now;
                running = others().filter(live).count();
            }
            _ => {}
        }
        let rows =
            ClaimRows { plan: plan.as_ref(), all_paused, slot: slot.as_ref(), running, older: &older, newest_started };
        let (mut answer, mut change) = rules::claim(now, &request, &rows);
        let granted = matches!(answer, Claim::Granted(_));
        match (mutant, &mut change.plan, &mut change.slot, &mut answer) {
            (Mutant::RunNowMovesTheCursor, Some(plan), _, _) if granted && request.kind == RunKind::Manual => {
                plan.cursor = plan.cursor.max(request.key.at);
            }
            (Mutant::FencesAsFloats, Some(plan), Some(row), Claim::Granted(grant)) => {
                // Fourteen digits, as a language without integers prints them.
                let rounded = Fence::from_u64((grant.fence.as_u64() + 50) / 100 * 100);
                (plan.fence, row.fence, grant.fence) = (rounded, rounded, rounded);
            }
            (Mutant::ARepeatKeepsTheLease, _, row, Claim::Granted(grant)) if repeat => {
                *row = None;
                grant.lease_end = slot.as_ref().map_or(grant.lease_end, |row| row.lease_end);
            }
            (Mutant::WhoAskedIsForgotten, _, Some(row), _) if granted => row.asked = request.asked.clone(),
            (Mutant::TheCursorMovesBack, Some(plan), _, _) if granted && request.kind != RunKind::Manual => {
                plan.cursor = request.key.at;
            }
            _ => {}
        }
        self.apply(key, &change);
        answer
    }

    fn renew(&mut self, now: Timestamp, term: &Term, ttl: Duration, mutant: Mutant) -> Renewal {
        let slot = self.find(&term.key, mutant);
        let mut term = term.clone();
        match (mutant, slot) {
            (Mutant::RenewalByName, Some(row)) => (term.nonce, term.fence) = (row.nonce, row.fence),
            (Mutant::RenewalComparesTime, Some(row)) if row.lease_end <= now => return Renewal::Lost,
            _ => {}
        }
        let (answer, row) = rules::renew(now, &term, ttl, slot);
        if let Some(row) = row {
            self.slots.insert(row.key.clone(), row);
        }
        answer
    }

    fn end(&mut self, now: Timestamp, request: &EndRequest, mutant: Mutant) -> Ended {
        let mut slot = self.find(&request.key, mutant).cloned();
        let mut request = request.clone();
        match (mutant, &mut request.op, &mut slot) {
            (Mutant::ExpiryOfWhatHasNotLapsed, EndOp::Expire { .. }, Some(row)) => row.lease_end = Timestamp::EPOCH,
            (Mutant::ExpiryByName, EndOp::Expire { .. }, Some(row)) => request.fence = row.fence,
            (Mutant::RerunWithoutALimit, EndOp::Expire { attempts_allowed }, _) => *attempts_allowed = u32::MAX,
            (Mutant::ExpiryReopensTheCancelled, EndOp::Expire { .. }, Some(row)) => row.cancel = None,
            (Mutant::AStartedOpenSlotIsNotStarted, EndOp::Resolve { .. }, Some(row)) => row.attempt = 0,
            (Mutant::ALateSettlementWins, EndOp::Settle { .. }, Some(row))
                if row.state == SlotState::Ended(Ending::Orphaned) =>
            {
                row.state = SlotState::Running;
            }
            _ => {}
        }
        let (answer, mut change) = rules::end(now, &request, slot.as_ref(), self.plans.get(&request.key.plan));
        if let (Mutant::NoReleasedNonces, Some(row)) = (mutant, &mut change.slot) {
            row.released.clear();
        }
        self.apply(&request.key.plan, &change);
        answer
    }

    /// Ends each lapsed lease, as whoever looks twice would do it after the second look.
    fn expire_at_sight(&mut self, now: Timestamp, namespace: &Namespace) {
        let lapsed = |row: &&SlotRow| row.state == SlotState::Running && row.lease_end <= now;
        let lapsed: Vec<_> =
            self.slots.values().filter(lapsed).filter(|row| row.key.plan.namespace == *namespace).collect();
        let op = EndOp::Expire { attempts_allowed: 1 };
        let requests: Vec<_> =
            lapsed.iter().map(|row| EndRequest { key: row.key.clone(), fence: row.fence, op: op.clone() }).collect();
        for request in requests {
            let _ = self.end(now, &request, Mutant::Sound);
        }
    }

    fn plan(&mut self, now: Timestamp, key: &PlanKey, op: &PlanOp, mutant: Mutant) -> PlanState {
        let row = self.plans.get(key).cloned();
        let mut op = op.clone();
        let mut judged_at = now;
        match (mutant, &mut op, &row) {
            (Mutant::AccountWithoutCompare, PlanOp::Account { from, .. }, Some(row)) => *from = row.cursor,
            (Mutant::AccountBeyondNow, PlanOp::Account { .. }, _) => judged_at = Timestamp::MAX,
            (Mutant::CloseByName, PlanOp::Close { generation }, Some(row)) => *generation = row.generation,
            (Mutant::OpenByName, PlanOp::Open { replaces, .. }, _) => *replaces = None,
            (Mutant::ResumeOfAnyPause, PlanOp::Resume { since, .. }, Some(row)) => {
                *since = row.pause.as_ref().map_or(*since, |pause| pause.since);
            }
            _ => {}
        }
        let there = |at: &&Trigger| self.slots.contains_key(&SlotKey { plan: key.clone(), at: **at, request: None });
        let mut taken = Vec::new();
        let mut slot = None;
        match &op {
            PlanOp::Account { cover: Cover::Rows(slots) | Cover::Slots(slots, _), .. } => {
                taken = slots.iter().filter(there).copied().collect();
            }
            PlanOp::Cancel { at, request, .. } => {
                slot = self.find(&SlotKey { plan: key.clone(), at: *at, request: request.clone() }, mutant);
            }
            _ => {}
        }
        let (applied, mut change) =
            rules::plan(judged_at, key, &op, &PlanRows { plan: row.as_ref(), taken: &taken, slot });
        match (mutant, &op, &mut change.plan) {
            (Mutant::OpenMovesTheCursorBack, PlanOp::Open { .. }, Some(plan)) => {
                (plan.cursor, plan.generation.effective_from) = (now.trigger(), now.trigger());
            }
            (Mutant::SetBackKeepsRanges, PlanOp::SetBack { .. }, _) => change.cut_ranges = None,
            _ => {}
        }
        self.apply(key, &change);
        PlanState { applied, row: change.plan.or(row) }
    }

    fn purge(&mut self, now: Timestamp, key: &PlanKey, keep: Retention, at_most: usize, mutant: Mutant) -> Purged {
        let Some(row) = self.plans.get(key).cloned() else {
            return Purged { deleted: 0, low_water: Trigger::default(), more: false };
        };
        let mut plan = row.clone();
        let unfinished = |row: &&SlotRow| matches!(row.state, SlotState::Running | SlotState::Open);
        let mut blocked = self.rows(key).find(unfinished).map(|row| row.key.at);
        let mut slots: Vec<_> = self.rows(key).cloned().collect();
        match mutant {
            Mutant::PurgePastTheCursor => plan.cursor = Trigger::from_secs(i64::MAX),
            Mutant::PurgePastUnfinishedSlots => {
                blocked = None;
                slots.retain(|row| !unfinished(&row));
            }
            _ => {}
        }
        let ranges = self.ranges.get(key).cloned().unwrap_or_default();
        let rows = PurgeRows { plan: &plan, records: slots.len() + ranges.len(), unfinished: blocked };
        let purge = rules::purge(now, keep, at_most, &rows, &slots, &ranges);
        for row in &slots[..purge.slots] {
            self.slots.remove(&row.key);
        }
        self.ranges.entry(key.clone()).or_default().drain(..purge.ranges);
        let low_water = if mutant == Mutant::NoLowWater { row.low_water } else { purge.low_water };
        self.plans.insert(key.clone(), PlanRow { low_water, ..row });
        Purged { deleted: purge.slots + purge.ranges, low_water, more: purge.more }
    }

    fn read(&self, now: Timestamp, query: &Query, mutant: Mutant) -> Page {
        let mut page = Page::default();
        let slots: Vec<&SlotRow> = match query {
            Query::Lapsed { namespace, max_skew, after, limit } => {
                let skip = after.as_ref().map_or(0, |token| token.0.parse().expect("our own token"));
                let here = |row: &&SlotRow| row.key.plan.namespace == *namespace && rules::lapsed(now, row, *max_skew);
                let all: Vec<_> = self.slots.values().filter(here).collect();
                page.more = (all.len() > skip + limit).then(|| PageToken((skip + limit).to_string()));
                all.into_iter().skip(skip).take(*limit).collect()
            }
            Query::Unfinished { plan, limit } => {
                let unfinished = |row: &&SlotRow| matches!(row.state, SlotState::Running | SlotState::Open);
                self.rows(plan).filter(unfinished).take(*limit).collect()
            }
            Query::History { plan, after, upto, page: token, limit } => {
                let skip = token.as_ref().map_or(0, |token| token.0.parse().expect("our own token"));
                page.plans.extend(self.plans.get(plan).map(|row| (plan.clone(), row.clone())));
                if token.is_none() {
                    let ranges = self.ranges.get(plan).into_iter().flatten();
                    page.ranges = ranges.filter(|range| range.last > *after && range.first <= *upto).cloned().collect();
                }
                let all: Vec<_> = self.rows(plan).filter(|row| row.key.at > *after && row.key.at <= *upto).collect();
                page.more = (all.len() > skip + limit).then(|| PageToken((skip + limit).to_string()));
                all.into_iter().skip(skip).take(*limit).collect()
            }
            Query::Slots(keys) => keys.iter().filter_map(|key| self.find(key, mutant)).collect(),
            Query::Plans { namespace, after, limit } => {
                let here = |(key, _): &(&PlanKey, &PlanRow)| {
                    key.namespace == *namespace && key.plan.is_some() && key.plan > *after
                };
                let all: Vec<_> = self.plans.iter().filter(here).map(|(key, row)| (key.clone(), row.clone())).collect();
                page.more = (all.len() > *limit).then(|| PageToken(String::new()));
                page.plans = all.into_iter().take(*limit).collect();
                Vec::new()
            }
            other => panic!("not known here: {other:?}"),
        };
        page.slots = slots.into_iter().cloned().collect();
        page
    }
}

impl Ledger for MutantLedger {
    fn describe(&self) -> Result<Durability, StoreError> {
        Ok(Durability::Volatile)
    }

    fn plan(&self, requests: &[(PlanKey, PlanOp)]) -> Outcome<Vec<PlanState>> {
        let (now, mut tables) = self.enter();
        let plan = |(key, op): &(PlanKey, PlanOp)| tables.plan(now, key, op, self.mutant);
        Ok(Answer { now, value: requests.iter().map(plan).collect() })
    }

    fn claim(&self, requests: &[ClaimRequest]) -> Outcome<Vec<Claim>> {
        let (now, mut tables) = self.enter();
        Ok(Answer { now, value: requests.iter().map(|request| tables.claim(now, request, self.mutant)).collect() })
    }

    fn renew(&self, terms: &[Term], ttl: Duration) -> Outcome<Vec<Renewal>> {
        let (now, mut tables) = self.enter();
        Ok(Answer { now, value: terms.iter().map(|term| tables.renew(now, term, ttl, self.mutant)).collect() })
    }

    fn end(&self, requests: &[EndRequest]) -> Outcome<Vec<Ended>> {
        let (now, mut tables) = self.enter();
        Ok(Answer { now, value: requests.iter().map(|request| tables.end(now, request, self.mutant)).collect() })
    }

    fn read(&self, query: &Query) -> Outcome<Page> {
        let (now, mut tables) = self.enter();
        if let (Mutant::ALookEndsWhatHasLapsed, Query::Lapsed { namespace, .. }) = (self.mutant, query) {
            tables.expire_at_sight(now, namespace);
        }
        Ok(Answer { now, value: tables.read(now, query, self.mutant) })
    }

    fn purge(&self, plan: &PlanKey, keep: Retention, at_most: usize) -> Outcome<Purged> {
        let (now, mut tables) = self.enter();
        Ok(Answer { now, value: tables.purge(now, plan, keep, at_most, self.mutant) })
    }
}

impl Board for MutantLedger {
    fn post(&self, posting: &Posting) -> Outcome<()> {
        self.board.post(posting)
    }

    fn list(&self, namespace: &Namespace, kind: PostingKind) -> Outcome<Vec<Posting>> {
        self.board.list(namespace, kind)
    }

    fn take(&self, namespace: &Namespace, kind: PostingKind, key: &str) -> Outcome<Option<Posting>> {
        self.board.take(namespace, kind, key)
    }
}
