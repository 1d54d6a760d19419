//! [`MemLedger`]: the whole contract of a ledger, in memory.

use std::fmt;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use super::records::Records;
use super::state::State;
use crate::clock::{Clock, SystemClock};
use crate::key::{Namespace, PlanId, PlanKey, RequestId};
use crate::rules;
use crate::seam::{
    Answer, Board, Claim, ClaimRequest, Durability, EndRequest, Ended, Ledger, Outcome, Page, PageToken, PlanOp,
    PlanState, Posting, PostingKind, Purged, Query, Renewal, Retention, SlotRow, StoreError, StoreErrorKind, Term,
};
use crate::time::{Timestamp, Trigger};

/// A ledger in this process's memory, and a notice board: everything of the contract but that it survives.
///
/// Clones share one ledger, so several schedulers of a process may work on it together. Besides what is running, open
/// or waiting beyond a cursor it remembers the last 256 records in all ([`keeping`](Self::keeping)); what goes lifts
/// low water as any purge does, so a forgotten slot is refused as too old and never starts again.
///
/// # Blocking
/// No call waits for anything but the one lock, which is held over no call of anybody else's code. The clock is asked
/// before it is taken.
#[derive(Clone)]
pub struct MemLedger(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    state: std::sync::Mutex<State>,
}

impl MemLedger {
    /// An empty ledger on the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// An empty ledger on `clock`. A test with a simulated clock gives it that one: with the system's, every scheduler
    /// would be far off its store, and start nothing.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner { clock, state: std::sync::Mutex::new(State::new()) }))
    }

    /// Remembers the last `records` ended and not-started slots and range records, of all plans together, instead of 256.
    /// More are kept only as long as a running or open slot, or the cursor, is in the way. With [`usize::MAX`] it forgets
    /// nothing by itself.
    #[must_use]
    pub fn keeping(self, records: usize) -> Self {
        self.state().keep = records;
        self
    }

    /// A copy of what it holds now, which goes its own way from here on, on the same clock.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        let state = self.state().clone();
        Self(Arc::new(Inner { clock: Arc::clone(&self.0.clock), state: std::sync::Mutex::new(state) }))
    }

    /// Holds from here on what `snapshot` holds, for all clones: what a failover to a replica does that had not received
    /// the last writes. For tests; a ledger that is set back has forgotten starts that it granted.
    pub fn restore(&self, snapshot: &Self) {
        let state = snapshot.state().clone();
        *self.state() = state;
    }

    /// How many postings it holds, those included that are gone.
    #[cfg(test)]
    pub(super) fn postings(&self) -> usize {
        self.state().postings.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The rules don't panic; if one did, what it had decided was not written yet.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store's now, and the state under its lock.
    fn enter(&self) -> (Timestamp, MutexGuard<'_, State>) {
        let now = self.0.clock.now();
        (now, self.state())
    }
}

impl Default for MemLedger {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("MemLedger").field("plans", &state.plans.len()).field("slots", &state.slots.used()).finish()
    }
}

impl Ledger for MemLedger {
    fn describe(&self) -> Result<Durability, StoreError> {
        Ok(Durability::Volatile)
    }

    fn plan(&self, requests: &[(PlanKey, PlanOp)]) -> Outcome<Vec<PlanState>> {
        let (now, mut state) = self.enter();
        Ok(Answer { now, value: requests.iter().map(|(key, op)| state.plan(now, key, op)).collect() })
    }

    fn claim(&self, requests: &[ClaimRequest]) -> Outcome<Vec<Claim>> {
        let (now, mut state) = self.enter();
        let plans = state.find_all(requests.iter().map(|request| &request.key.plan));
        let claims = requests.iter().zip(plans).map(|(request, plan)| state.claim(now, request, plan));
        Ok(Answer { now, value: claims.collect() })
    }

    fn renew(&self, terms: &[Term], ttl: Duration) -> Outcome<Vec<Renewal>> {
        let (now, mut state) = self.enter();
        let plans = state.find_all(terms.iter().map(|term| &term.key.plan));
        let renewals = terms.iter().zip(plans).map(|(term, plan)| state.renew(now, term, ttl, plan));
        Ok(Answer { now, value: renewals.collect() })
    }

    fn end(&self, requests: &[EndRequest]) -> Outcome<Vec<Ended>> {
        let (now, mut state) = self.enter();
        let plans = state.find_all(requests.iter().map(|request| &request.key.plan));
        let ends = requests.iter().zip(plans).map(|(request, plan)| state.end(now, request, plan));
        Ok(Answer { now, value: ends.collect() })
    }

    fn read(&self, query: &Query) -> Outcome<Page> {
        let (now, mut state) = self.enter();
        let value = match query {
            Query::Lapsed { namespace, max_skew, after, limit } => {
                lapsed(&state, now, namespace, *max_skew, after.as_ref(), *limit)?
            }
            Query::Unfinished { plan, limit } => unfinished(&state, plan, *limit),
            Query::History { plan, after, upto, page, limit } => {
                history(&state, plan, *after, *upto, page.as_ref(), *limit)?
            }
            Query::Slots(keys) => {
                Page { slots: keys.iter().filter_map(|key| state.slot_row(key)).cloned().collect(), ..Page::default() }
            }
            Query::Plans { namespace, after, limit } => plans(&mut state, namespace, after.as_ref(), *limit),
        };
        Ok(Answer { now, value })
    }

    fn purge(&self, plan: &PlanKey, keep: Retention, at_most: usize) -> Outcome<Purged> {
        let (now, mut state) = self.enter();
        Ok(Answer { now, value: state.purge(now, plan, keep, at_most) })
    }
}

impl Board for MemLedger {
    fn post(&self, posting: &Posting) -> Outcome<()> {
        let (now, mut state) = self.enter();
        state.postings.post(now, posting);
        Ok(Answer { now, value: () })
    }

    fn list(&self, namespace: &Namespace, kind: PostingKind) -> Outcome<Vec<Posting>> {
        let (now, mut state) = self.enter();
        Ok(Answer { now, value: state.postings.list(now, namespace, kind) })
    }

    fn take(&self, namespace: &Namespace, kind: PostingKind, key: &str) -> Outcome<Option<Posting>> {
        let (now, mut state) = self.enter();
        Ok(Answer { now, value: state.postings.take(now, namespace, kind, key) })
    }
}

fn foreign_token() -> StoreError {
    StoreError::new(StoreErrorKind::Internal, "a page token that this store did not make")
}

/// A page goes on at a number: places of slots are used again, but a slot never changes its own.
fn lapsed(
    state: &State,
    now: Timestamp,
    namespace: &Namespace,
    max_skew: Duration,
    after: Option<&PageToken>,
    limit: usize,
) -> Result<Page, StoreError> {
    let from = after.map_or(Ok(0), |token| token.0.parse::<u32>()).map_err(|_| foreign_token())?;
    let mut page = Page::default();
    for number in state.slots.unfinished_from(from) {
        let Some((plan, row)) = state.slots.get(number) else { continue };
        if !rules::lapsed(now, row, max_skew) || state.plans.namespace(plan) != namespace {
            continue;
        }
        if page.slots.len() >= limit.max(1) {
            page.more = Some(PageToken(number.to_string()));
            break;
        }
        page.slots.push(row.clone());
    }
    Ok(page)
}

fn records<'a>(state: &'a State, key: &PlanKey) -> Option<&'a Records> {
    state.records_of(state.plans.find(key)?)
}

fn unfinished(state: &State, plan: &PlanKey, limit: usize) -> Page {
    let Some(records) = records(state, plan) else { return Page::default() };
    let mut slots: Vec<&SlotRow> = state.slots.unfinished(records).collect();
    slots.sort_unstable_by(|a, b| (a.key.at, &a.key.request).cmp(&(b.key.at, &b.key.request)));
    slots.truncate(limit);
    Page { slots: slots.into_iter().cloned().collect(), ..Page::default() }
}

fn history(
    state: &State,
    key: &PlanKey,
    after: Trigger,
    upto: Trigger,
    page: Option<&PageToken>,
    limit: usize,
) -> Result<Page, StoreError> {
    let last = page.map(parse_slot_token).transpose()?;
    let Some(plan) = state.plans.find(key) else { return Ok(Page::default()) };
    let mut answer = Page { plans: vec![(key.clone(), state.plan_row(plan))], ..Page::default() };
    let Some(records) = state.records_of(plan) else { return Ok(answer) };
    if page.is_none() {
        let reaches = |range: &&_| -> bool {
            let range: &crate::seam::RangeRow = range;
            range.last > after && range.first <= upto
        };
        answer.ranges = records.ranges.iter().filter(reaches).cloned().collect();
    }
    let done = |row: &&SlotRow| match &last {
        Some((at, request)) => (row.key.at, &row.key.request) <= (*at, request),
        None => row.key.at <= after,
    };
    let start = records.slots.partition_point(|slot| state.slots.get(*slot).is_none_or(|(_, row)| done(&row)));
    let rows = records.slots.range(start..).filter_map(|slot| state.slots.get(*slot)).map(|(_, row)| row);
    for row in rows.take_while(|row| row.key.at <= upto) {
        if answer.slots.len() >= limit.max(1) {
            answer.more = answer.slots.last().map(slot_token);
            break;
        }
        answer.slots.push(row.clone());
    }
    Ok(answer)
}

/// The last slot of a page: its trigger point, and its request where it has one.
fn slot_token(row: &SlotRow) -> PageToken {
    let at = row.key.at.as_secs();
    PageToken(match &row.key.request {
        None => at.to_string(),
        Some(request) => format!("{at}:{request}"),
    })
}

fn parse_slot_token(token: &PageToken) -> Result<(Trigger, Option<RequestId>), StoreError> {
    let (at, request) = match token.0.split_once(':') {
        None => (token.0.as_str(), None),
        Some((at, request)) => (at, Some(RequestId::new(request).map_err(|e| foreign_token().with_source(e))?)),
    };
    let at = at.parse().map_err(|_| foreign_token())?;
    Ok((Trigger::from_secs(at), request))
}

fn plans(state: &mut State, namespace: &Namespace, after: Option<&PlanId>, limit: usize) -> Page {
    let limit = limit.max(1);
    let mut numbers = state.plans.by_id(namespace, after, limit.saturating_add(1));
    let more = numbers.len() > limit;
    numbers.truncate(limit);
    let plans: Vec<_> = numbers.into_iter().map(|plan| (state.plans.key(plan), state.plan_row(plan))).collect();
    let last = plans.last().filter(|_| more).map(|(key, _)| PageToken(key.plan_str().to_owned()));
    Page { plans, more: last, ..Page::default() }
}
