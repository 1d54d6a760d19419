//! The gap audit: each slot that a plan is expected to have had, with its one state.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::state::{AuditState, Expected, Facts};
use super::{Desk, OperateError, Scope, unknown};
use crate::key::{Fence, PlanId, PlanKey, SlotKey};
use crate::seam::{Pause, PlanOp, PlanRow, Query, RangeRow, SlotRow};
use crate::time::{Timestamp, Trigger};

/// The most slots that one answer lists, and about the most rows that it reads.
const AT_ONCE: usize = 10_000;
const PAGE: usize = 1000;
/// How often it is begun anew where the plan is edited meanwhile.
const TRIES: usize = 3;

/// What became of a plan's slots in an interval of time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Audit {
    /// How far it reaches.
    pub scope: Scope,
    /// The plan.
    pub plan: PlanId,
    /// As of when, by the store's clock.
    pub now: Timestamp,
    /// The plan's row: its generation, cursor, low water.
    pub row: PlanRow,
    /// The pause that the plan is under, by itself or with all.
    pub pause: Option<Arc<Pause>>,
    /// The slots that the plan's current generation expects, old to new.
    pub slots: Vec<AuditSlot>,
    /// Records of other trigger points, as they are: of the plan's earlier generations, whose schedule is not known any
    /// more, and backfills of such.
    pub earlier: Vec<SlotRow>,
    /// Manual runs.
    pub manual: Vec<SlotRow>,
    /// The records for ranges of slots that reach into the interval.
    pub ranges: Vec<RangeRow>,
    /// What never happens, and did.
    pub findings: Vec<Finding>,
    /// The interval is covered up to here; `None`: to its end. Go on from here for the rest.
    pub more: Option<DateTime<Utc>>,
}

/// A slot, and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditSlot {
    /// Its trigger point.
    pub at: Trigger,
    /// When it is due.
    pub due: Timestamp,
    /// Its one state.
    pub state: AuditState,
    /// Its record, where it has one of its own.
    pub row: Option<SlotRow>,
}

/// Something in a plan's records that never happens while the ledger keeps what it has acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// A slot without a record, which the plan's cursor has passed.
    NoRecord(SlotKey),
    /// A slot was started more often than its plan allows.
    TooManyStarts {
        /// The slot.
        slot: SlotKey,
        /// How often it was started.
        starts: u32,
        /// How often it may be.
        allowed: u32,
    },
    /// Two records of one slot.
    TwoRecords(SlotKey),
    /// Two slots of the plan were started under one fence.
    TwoOfOneFence {
        /// The fence.
        fence: Fence,
        /// The slots.
        slots: [SlotKey; 2],
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRecord(slot) => write!(f, "{slot} has no record"),
            Self::TooManyStarts { slot, starts, allowed } => {
                write!(f, "{slot} was started {starts} times; allowed are {allowed}")
            }
            Self::TwoRecords(slot) => write!(f, "{slot} has two records"),
            Self::TwoOfOneFence { fence, slots: [a, b] } => {
                write!(f, "{a} and {b} were started under one fence, {fence}")
            }
        }
    }
}

impl Audit {
    /// How many of the expected slots are in each state, by the states' names.
    #[must_use]
    pub fn tally(&self) -> BTreeMap<String, usize> {
        let mut tally = BTreeMap::new();
        for slot in &self.slots {
            *tally.entry(slot.state.to_string()).or_default() += 1;
        }
        tally
    }

    /// The slots that somebody ought to look at.
    pub fn standing_out(&self) -> impl Iterator<Item = &AuditSlot> {
        self.slots.iter().filter(|slot| slot.state.stands_out())
    }
}

/// What is read of a plan before its slots.
struct Begun {
    now: Timestamp,
    row: PlanRow,
    pause: Option<Arc<Pause>>,
}

/// Rows in an interval.
struct Rows {
    slots: Vec<SlotRow>,
    ranges: Vec<RangeRow>,
    /// Where reading stopped, if it did before the end.
    cut: Option<Trigger>,
}

impl Desk<'_> {
    pub(crate) fn audit(
        &self,
        plan: &str,
        expected: &Expected,
        after: DateTime<Utc>,
        upto: DateTime<Utc>,
    ) -> Result<Audit, OperateError> {
        let key = self.plan(plan)?;
        let id = PlanId::new(plan)?;
        let (after, upto) = (Trigger::from(after), Trigger::from(upto));
        for _ in 0..TRIES {
            let begun = self.begin(&key)?;
            if expected.fingerprint.is_some_and(|of| of != begun.row.generation.fingerprint) {
                return Err(OperateError::OtherVersion(id));
            }
            let from = after.max(begun.row.generation.effective_from);
            let (mut triggers, more) = triggers(expected, from, upto)?;
            let mut last = if more { triggers.last().copied().unwrap_or(upto) } else { upto };
            let rows = self.rows(&key, after, last)?;
            if let Some(cut) = rows.cut {
                last = cut;
                triggers.retain(|at| *at <= cut);
            }
            let query = Query::Unfinished { plan: key.clone(), limit: 1 };
            let busy = !self.ledger.read(&query)?.value.slots.is_empty();
            let end = self.begin(&key)?;
            if end.row.generation != begun.row.generation {
                continue;
            }
            // What was read first bounds what must have a record by then; what was purged meanwhile need not.
            let row =
                PlanRow { cursor: begun.row.cursor.min(end.row.cursor), low_water: end.row.low_water, ..begun.row };
            let facts = Facts {
                now: begun.now,
                row: &row,
                paused: begun.pause.is_some(),
                busy,
                offset: expected.offset_of(&id),
                start_window: expected.start_window,
            };
            let mut audit = Audit {
                scope: self.scope,
                plan: id,
                now: begun.now,
                row: row.clone(),
                pause: begun.pause.clone(),
                slots: Vec::new(),
                earlier: Vec::new(),
                manual: Vec::new(),
                ranges: Vec::new(),
                findings: Vec::new(),
                more: (last < upto).then(|| last.to_datetime()),
            };
            audit.fill(&key, &facts, triggers, rows, expected.starts);
            return Ok(audit);
        }
        Err(OperateError::Busy(id))
    }

    fn begin(&self, key: &PlanKey) -> Result<Begun, OperateError> {
        let answer = self.ask(&[(key.clone(), PlanOp::Read), (self.whole(), PlanOp::Read)])?;
        let mut rows = answer.value.into_iter().map(|state| state.row);
        let row = rows.next().flatten().ok_or_else(|| unknown(key))?;
        let all = rows.next().flatten().and_then(|all| all.pause);
        Ok(Begun { now: answer.now, pause: all.or_else(|| row.pause.clone()), row })
    }

    /// The plan's rows in (after, upto], about as many as may be read at once.
    fn rows(&self, plan: &PlanKey, after: Trigger, upto: Trigger) -> Result<Rows, OperateError> {
        let mut rows = Rows { slots: Vec::new(), ranges: Vec::new(), cut: None };
        let mut page = None;
        loop {
            let query = Query::History { plan: plan.clone(), after, upto, page: page.take(), limit: PAGE };
            let read = self.ledger.read(&query)?.value;
            rows.slots.extend(read.slots);
            for range in read.ranges {
                if !rows.ranges.contains(&range) {
                    rows.ranges.push(range);
                }
            }
            page = read.more;
            if page.is_none() {
                return Ok(rows);
            }
            // Of the last instant there may be more to come.
            if rows.slots.len() >= AT_ONCE
                && let (Some(first), Some(last)) = (rows.slots.first(), rows.slots.last())
                && first.key.at < last.key.at
            {
                let cut = Trigger::from_secs(last.key.at.as_secs().saturating_sub(1));
                rows.slots.retain(|slot| slot.key.at <= cut);
                rows.cut = Some(cut);
                return Ok(rows);
            }
        }
    }
}

/// The trigger points in (after, upto], and whether there are more of them than one answer holds.
fn triggers(expected: &Expected, after: Trigger, upto: Trigger) -> Result<(Vec<Trigger>, bool), OperateError> {
    let search = || {
        let (mut triggers, mut at) = (Vec::new(), after);
        while let Some(next) = expected.schedule.next_trigger(at).filter(|next| *next <= upto) {
            if triggers.len() == AT_ONCE {
                return (triggers, true);
            }
            triggers.push(next);
            at = next;
        }
        (triggers, false)
    };
    // A calendar is user code.
    catch_unwind(AssertUnwindSafe(search))
        .map_err(|_| OperateError::CalendarPanicked(expected.schedule.calendar_name().unwrap_or_default().to_owned()))
}

impl Audit {
    fn fill(&mut self, key: &PlanKey, facts: &Facts<'_>, triggers: Vec<Trigger>, rows: Rows, allowed: Option<u32>) {
        self.look_for_doubles(&rows.slots, allowed);
        let mut of_slots: HashMap<Trigger, SlotRow> = HashMap::new();
        for row in rows.slots {
            if row.key.request.is_some() {
                self.manual.push(row);
            } else {
                of_slots.insert(row.key.at, row);
            }
        }
        self.ranges = rows.ranges;
        self.ranges.sort_by_key(|range| (range.first, range.last));
        let mut ranges = self.ranges.iter().peekable();
        for at in triggers {
            while ranges.next_if(|range| range.last < at).is_some() {}
            let range = ranges.peek().copied().filter(|range| range.first <= at);
            let row = of_slots.remove(&at);
            let state = facts.state(at, row.as_ref(), range);
            if state == AuditState::NoRecord {
                self.findings.push(Finding::NoRecord(SlotKey { plan: key.clone(), at, request: None }));
            }
            self.slots.push(AuditSlot { at, due: facts.due(at), state, row });
        }
        self.earlier = of_slots.into_values().collect();
        self.earlier.sort_by_key(|row| row.key.at);
    }

    /// Slots that were started twice, as far as records can show it.
    fn look_for_doubles(&mut self, rows: &[SlotRow], allowed: Option<u32>) {
        for pair in rows.windows(2) {
            if pair[0].key == pair[1].key {
                self.findings.push(Finding::TwoRecords(pair[1].key.clone()));
            }
        }
        let mut fences: HashMap<Fence, &SlotKey> = HashMap::new();
        for row in rows.iter().filter(|row| row.fence != Fence::NONE) {
            if let Some(allowed) = allowed.filter(|allowed| row.attempt > *allowed) {
                let slot = row.key.clone();
                self.findings.push(Finding::TooManyStarts { slot, starts: row.attempt, allowed });
            }
            if let Some(other) = fences.insert(row.fence, &row.key).filter(|other| **other != row.key) {
                let slots = [other.clone(), row.key.clone()];
                self.findings.push(Finding::TwoOfOneFence { fence: row.fence, slots });
            }
        }
    }
}
