//! Leases. A row is a lock that is held or has lapsed; it remembers nothing of what ran.

use std::time::Duration;

use rusqlite::{OptionalExtension, params};
use timertask_core::key::{Fence, LockKey, Nonce};
use timertask_core::rules;
use timertask_core::seam::{Held, Lease, Mutex, StoreError, StoreErrorKind};

use crate::codec::{fence, request_str};
use crate::error::Fault;
use crate::store::Sqlite;
use crate::tables::Tables;
use crate::writer::Urgency;

/// How many lapsed leases, of whatever key, a new one sweeps away.
const SWEPT: i64 = 16;

impl Mutex for Sqlite {
    fn try_lock(&self, key: &LockKey, nonce: Nonce, ttl: Duration) -> Result<Option<Lease>, StoreError> {
        let key = key.clone();
        let work = move |t: &Tables<'_>| try_lock(t, &key, nonce, ttl);
        self.write("lock", Urgency::Normal, 1, work).map(|answer| answer.value)
    }

    fn extend(&self, lease: &Lease, ttl: Duration) -> Result<Held, StoreError> {
        let lease = lease.clone();
        let work = move |t: &Tables<'_>| {
            if !is_current(t, &lease)? {
                return Ok(Held::Lost);
            }
            put(t, &lease, ttl).map(|()| Held::Held)
        };
        self.write("extend a lock", Urgency::First, 1, work).map(|answer| answer.value)
    }

    fn unlock(&self, lease: &Lease) -> Result<Held, StoreError> {
        let lease = lease.clone();
        let work = move |t: &Tables<'_>| {
            if !is_current(t, &lease)? {
                return Ok(Held::Lost);
            }
            let key = &lease.key;
            t.run(
                "DELETE FROM timertask_lock WHERE namespace = ?1 AND plan = ?2 AND at = ?3 AND request = ?4",
                params![key.plan.namespace.as_str(), key.plan.plan_str(), key.at.as_secs(), request_str(key)],
            )?;
            Ok(Held::Held)
        };
        self.write("unlock", Urgency::First, 1, work).map(|answer| answer.value)
    }
}

fn try_lock(t: &Tables<'_>, key: &LockKey, nonce: Nonce, ttl: Duration) -> Result<Option<Lease>, Fault> {
    let lease = match holder(t, key)? {
        Some((holder, fence)) if holder == nonce => Lease { key: key.clone(), nonce, fence },
        Some(_) => return Ok(None),
        None => Lease { key: key.clone(), nonce, fence: next_fence(t, key)? },
    };
    put(t, &lease, ttl)?;
    // What has lapsed says nothing any more; without this a plan's locks would stay for ever.
    t.run(
        "DELETE FROM timertask_lock WHERE (namespace, plan, at, request) IN (SELECT namespace, plan, at, request \
         FROM timertask_lock WHERE lease_end <= ?1 ORDER BY lease_end LIMIT ?2)",
        params![t.now().as_micros(), SWEPT],
    )?;
    Ok(Some(lease))
}

/// Whose lease stands on the key and has not lapsed.
fn holder(t: &Tables<'_>, key: &LockKey) -> Result<Option<(Nonce, Fence)>, Fault> {
    t.first(
        "SELECT nonce, fence FROM timertask_lock \
         WHERE namespace = ?1 AND plan = ?2 AND at = ?3 AND request = ?4 AND lease_end > ?5",
        params![
            key.plan.namespace.as_str(),
            key.plan.plan_str(),
            key.at.as_secs(),
            request_str(key),
            t.now().as_micros()
        ],
        |row| {
            let fence =
                u64::try_from(row.get::<_, i64>(1)?).map_err(|_| Fault::corrupt("a lock's fence is negative"))?;
            Ok((Nonce::from_bits(u128::from_be_bytes(row.get(0)?)), Fence::from_u64(fence)))
        },
    )
}

fn is_current(t: &Tables<'_>, lease: &Lease) -> Result<bool, Fault> {
    Ok(holder(t, &lease.key)? == Some((lease.nonce, lease.fence)))
}

fn put(t: &Tables<'_>, lease: &Lease, ttl: Duration) -> Result<(), Fault> {
    let key = &lease.key;
    t.run(
        "INSERT OR REPLACE INTO timertask_lock (namespace, plan, at, request, nonce, fence, lease_end) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![
            key.plan.namespace.as_str(),
            key.plan.plan_str(),
            key.at.as_secs(),
            request_str(key),
            lease.nonce.bits().to_be_bytes(),
            fence(lease.fence)?,
            t.now().saturating_add(ttl).as_micros(),
        ],
    )
    .map(drop)
}

/// A fence above each that the plan's locks ever had; it outlives them.
fn next_fence(t: &Tables<'_>, key: &LockKey) -> Result<Fence, Fault> {
    let plan = params![key.plan.namespace.as_str(), key.plan.plan_str()];
    let last: Option<i64> = t
        .sql("SELECT fence FROM timertask_lock_fence WHERE namespace = ?1 AND plan = ?2")?
        .query_row(plan, |row| row.get(0))
        .optional()?;
    let last = u64::try_from(last.unwrap_or(0)).map_err(|_| Fault::corrupt("a plan's last fence is negative"))?;
    let next = rules::next_fence(Fence::from_u64(last), t.now())
        .ok_or_else(|| Fault::new(StoreErrorKind::Internal, "the plan's fences are used up"))?;
    t.run(
        "INSERT OR REPLACE INTO timertask_lock_fence (namespace, plan, fence) VALUES (?1, ?2, ?3)",
        params![key.plan.namespace.as_str(), key.plan.plan_str(), fence(next)?],
    )?;
    Ok(next)
}
