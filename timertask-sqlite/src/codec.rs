//! Columns and values: how the rows of a ledger are spelled in SQLite, and back.
//!
//! Everything is an integer, a text bound as a parameter, or a blob of 16 bytes. What cannot have been written by this
//! library is [`Corrupt`](timertask_core::seam::StoreErrorKind::Corrupt), never a panic and never a guess.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Row;
use rusqlite::types::FromSql;
use timertask_core::key::{Fence, Fingerprint, InstanceId, Namespace, Nonce, PlanId, PlanKey, RequestId, SlotKey};
use timertask_core::seam::{
    Asked, Cancel, Ending, Generation, NotStarted, Pause, PlanRow, RangeRow, RunKind, SlotRow, SlotState,
};
use timertask_core::time::{Timestamp, Trigger};

use crate::error::Fault;

/// The columns of `timertask_plan` behind its key, in the order that [`plan_row`] reads.
macro_rules! plan_columns {
    () => {
        "fingerprint, effective_from, closed, cursor, low_water, fence, last_success, window_from, pause_since, \
         pause_by, pause_why, pause_until"
    };
}
pub(crate) use plan_columns;

/// The columns of `timertask_slot` behind namespace and plan, in the order that [`slot_row`] reads.
macro_rules! slot_columns {
    () => {
        "at, request, state, how, kind, nonce, released, fence, attempt, lease_end, ttl, cancel_by, cancel_why, \
         instance, version, claimed_at, started_at, ended_at, tries, detail, asked_by, asked_why"
    };
}
pub(crate) use slot_columns;

/// Reads a plan's row from the columns from `from` on.
pub(crate) fn plan_row(row: &Row<'_>, from: usize) -> Result<PlanRow, Fault> {
    let c = Columns { row, from, table: "timertask_plan" };
    let pause = match c.get::<Option<i64>>(8)? {
        None => None,
        Some(since) => Some(Arc::new(Pause {
            since: Timestamp::from_micros(since),
            by: c.get(9)?,
            why: c.get(10)?,
            until: c.get::<Option<i64>>(11)?.map(Timestamp::from_micros),
        })),
    };
    Ok(PlanRow {
        generation: Generation {
            fingerprint: Fingerprint::from_bits(c.bits(0)?),
            effective_from: Trigger::from_secs(c.get(1)?),
        },
        closed: c.number::<u8>(2)? != 0,
        cursor: Trigger::from_secs(c.get(3)?),
        low_water: Trigger::from_secs(c.get(4)?),
        fence: Fence::from_u64(c.number(5)?),
        last_success: c.get::<Option<i64>>(6)?.map(Trigger::from_secs),
        window_from: c.get::<Option<i64>>(7)?.map(Trigger::from_secs),
        pause,
    })
}

/// Reads a slot's row of `plan` from the columns from `from` on.
pub(crate) fn slot_row(row: &Row<'_>, from: usize, plan: &PlanKey) -> Result<SlotRow, Fault> {
    let c = Columns { row, from, table: "timertask_slot" };
    let cancel = match c.get::<Option<String>>(11)? {
        None => None,
        Some(by) => Some(Arc::new(Cancel { by, why: c.get(12)? })),
    };
    let instance = match c.get::<Option<Arc<str>>>(13)? {
        None => None,
        Some(text) => Some(InstanceId::new(text).map_err(|e| c.wrong(&e.to_string()))?),
    };
    let asked = match c.get::<Option<String>>(20)? {
        None => None,
        Some(by) => Some(Arc::new(Asked::new(by, c.get::<String>(21)?).map_err(|e| c.wrong(&e.to_string()))?)),
    };
    Ok(SlotRow {
        key: SlotKey { plan: plan.clone(), at: Trigger::from_secs(c.get(0)?), request: request_id(c.get(1)?)? },
        state: state(c.number(2)?, c.get(3)?).ok_or_else(|| c.wrong("unknown state"))?,
        kind: RunKind::from_code(c.number(4)?).ok_or_else(|| c.wrong("unknown kind"))?,
        asked,
        nonce: Nonce::from_bits(c.bits(5)?),
        released: nonces(&c.get::<Vec<u8>>(6)?).ok_or_else(|| c.wrong("released nonces are cut"))?,
        fence: Fence::from_u64(c.number(7)?),
        attempt: c.number(8)?,
        lease_end: Timestamp::from_micros(c.get(9)?),
        ttl: Duration::from_micros(c.number(10)?),
        cancel,
        instance,
        version: c.get(14)?,
        claimed_at: c.get::<Option<i64>>(15)?.map(Timestamp::from_micros),
        started_at: c.get::<Option<i64>>(16)?.map(Timestamp::from_micros),
        ended_at: c.get::<Option<i64>>(17)?.map(Timestamp::from_micros),
        tries: c.number(18)?,
        detail: c.get(19)?,
    })
}

/// Reads a range record: `first, last, count, reason, at`.
pub(crate) fn range_row(row: &Row<'_>) -> Result<RangeRow, Fault> {
    let c = Columns { row, from: 0, table: "timertask_range" };
    let count = match c.get::<Option<i64>>(2)? {
        None => None,
        Some(_) => Some(c.number(2)?),
    };
    Ok(RangeRow {
        first: Trigger::from_secs(c.get(0)?),
        last: Trigger::from_secs(c.get(1)?),
        count,
        reason: NotStarted::from_code(c.number(3)?).ok_or_else(|| c.wrong("unknown reason"))?,
        at: Timestamp::from_micros(c.get(4)?),
    })
}

/// The plan of a row, from its id; the namespace itself has the empty one.
pub(crate) fn plan_key(namespace: &Namespace, plan: Arc<str>) -> Result<PlanKey, Fault> {
    if plan.is_empty() {
        return Ok(PlanKey::whole(namespace.clone()));
    }
    let plan = PlanId::new(plan).map_err(|e| Fault::corrupt(format!("a row's plan: {e}")))?;
    Ok(PlanKey::new(namespace.clone(), plan))
}

/// The request of a row; a trigger point's own slot has the empty one.
fn request_id(text: Arc<str>) -> Result<Option<RequestId>, Fault> {
    if text.is_empty() {
        return Ok(None);
    }
    RequestId::new(text).map(Some).map_err(|e| Fault::corrupt(format!("a row's request: {e}")))
}

/// The text of a slot's request.
pub(crate) fn request_str(key: &SlotKey) -> &str {
    key.request.as_ref().map_or("", RequestId::as_str)
}

/// A state as its code and, of one that ended or was not started, the code of how.
pub(crate) fn state_codes(state: SlotState) -> (u8, Option<u8>) {
    match state {
        SlotState::Running => (0, None),
        SlotState::Open => (1, None),
        SlotState::Ended(ending) => (2, Some(ending.code())),
        SlotState::NotStarted(reason) => (3, Some(reason.code())),
    }
}

fn state(code: u8, how: Option<i64>) -> Option<SlotState> {
    let how = how.map(u8::try_from).transpose().ok()?;
    match (code, how) {
        (0, None) => Some(SlotState::Running),
        (1, None) => Some(SlotState::Open),
        (2, Some(how)) => Ending::from_code(how).map(SlotState::Ended),
        (3, Some(how)) => NotStarted::from_code(how).map(SlotState::NotStarted),
        _ => None,
    }
}

/// Nonces, one behind the other.
pub(crate) fn nonces_bytes(nonces: &[Nonce]) -> Vec<u8> {
    nonces.iter().flat_map(|n| n.bits().to_be_bytes()).collect()
}

fn nonces(bytes: &[u8]) -> Option<Vec<Nonce>> {
    let (whole, rest) = bytes.as_chunks::<16>();
    rest.is_empty().then(|| whole.iter().map(|n| Nonce::from_bits(u128::from_be_bytes(*n))).collect())
}

/// Microseconds of a duration, as far as an integer column goes.
pub(crate) fn micros(d: Duration) -> i64 {
    i64::try_from(d.as_micros()).unwrap_or(i64::MAX)
}

/// A fence as an integer. One beyond what a column holds would have to come from outside.
pub(crate) fn fence(fence: Fence) -> Result<i64, Fault> {
    i64::try_from(fence.as_u64()).map_err(|_| Fault::corrupt(format!("fence {fence} is out of range")))
}

/// A row's columns from one on.
struct Columns<'r> {
    row: &'r Row<'r>,
    from: usize,
    table: &'static str,
}

impl Columns<'_> {
    fn get<T: FromSql>(&self, column: usize) -> Result<T, Fault> {
        Ok(self.row.get(self.from + column)?)
    }

    fn number<T: TryFrom<i64>>(&self, column: usize) -> Result<T, Fault> {
        let n: i64 = self.get(column)?;
        T::try_from(n).map_err(|_| self.wrong(&format!("{} is {n}", self.name(column))))
    }

    fn bits(&self, column: usize) -> Result<u128, Fault> {
        let bytes = self.row.get_ref(self.from + column)?.as_blob().map_err(rusqlite::Error::from)?;
        match <[u8; 16]>::try_from(bytes) {
            Ok(bytes) => Ok(u128::from_be_bytes(bytes)),
            Err(_) => Err(self.wrong(&format!("{} has {} bytes instead of 16", self.name(column), bytes.len()))),
        }
    }

    fn name(&self, column: usize) -> &str {
        self.row.as_ref().column_name(self.from + column).unwrap_or("a column")
    }

    fn wrong(&self, what: &str) -> Fault {
        Fault::corrupt(format!("a row of {}: {what}", self.table))
    }
}
