//! One request at a time: read what the rule asks for, let it decide, write what it says. All inside the caller's
//! transaction.

use std::time::Duration;

use rusqlite::params;
use timertask_core::key::{PlanKey, SlotKey};
use timertask_core::rules::{self, ClaimRows, PlanRows, PurgeRows};
use timertask_core::seam::{
    Claim, ClaimRequest, Cover, EndRequest, Ended, PlanOp, PlanRow, PlanState, Purged, Renewal, Retention, SlotRow,
    Term,
};
use timertask_core::time::Trigger;

use crate::codec::{range_row, request_str, slot_columns, slot_row};
use crate::error::Fault;
use crate::tables::{Read, Tables};

pub(crate) fn claim(t: &Tables<'_>, request: &ClaimRequest) -> Result<Claim, Fault> {
    let key = &request.key;
    let plan = t.plan(&key.plan)?;
    let slot = t.slot(key)?;
    let needs = rules::needs(request);
    let older = if needs.older { t.older(key)? } else { Vec::new() };
    let rows = ClaimRows {
        plan: plan.as_ref(),
        all_paused: t.all_paused(&key.plan.namespace)?,
        slot: slot.as_ref(),
        running: if needs.running { t.running(key)? } else { 0 },
        older: &older,
        newest_started: if needs.newest_started { t.newest_started(key)? } else { None },
    };
    let (answer, change) = rules::claim(t.now(), request, &rows);
    t.apply(&key.plan, Read { plan: plan.as_ref(), slot: slot.as_ref() }, &change)?;
    Ok(answer)
}

pub(crate) fn plan(t: &Tables<'_>, key: &PlanKey, op: &PlanOp) -> Result<PlanState, Fault> {
    let row = t.plan(key)?;
    let taken = match op {
        PlanOp::Account { cover: Cover::Rows(slots) | Cover::Slots(slots, _), .. } => taken(t, key, slots)?,
        _ => Vec::new(),
    };
    let slot = match op {
        PlanOp::Cancel { at, request, .. } => {
            t.slot(&SlotKey { plan: key.clone(), at: *at, request: request.clone() })?
        }
        _ => None,
    };
    let rows = PlanRows { plan: row.as_ref(), taken: &taken, slot: slot.as_ref() };
    let (applied, change) = rules::plan(t.now(), key, op, &rows);
    t.apply(key, Read { plan: row.as_ref(), slot: slot.as_ref() }, &change)?;
    Ok(PlanState { applied, row: change.plan.or(row) })
}

/// Those of the plan's `slots` that have a row, in order.
fn taken(t: &Tables<'_>, key: &PlanKey, slots: &[Trigger]) -> Result<Vec<Trigger>, Fault> {
    let mut statement =
        t.sql("SELECT 1 FROM timertask_slot WHERE namespace = ?1 AND plan = ?2 AND at = ?3 AND request = ''")?;
    let mut taken = Vec::new();
    for at in slots {
        if statement.exists(params![key.namespace.as_str(), key.plan_str(), at.as_secs()])? {
            taken.push(*at);
        }
    }
    Ok(taken)
}

pub(crate) fn renew(t: &Tables<'_>, term: &Term, ttl: Duration) -> Result<Renewal, Fault> {
    let slot = t.slot(&term.key)?;
    let (answer, row) = rules::renew(t.now(), term, ttl, slot.as_ref());
    if let Some(row) = row {
        t.put_slot(slot.as_ref(), &row)?;
    }
    Ok(answer)
}

pub(crate) fn end(t: &Tables<'_>, request: &EndRequest) -> Result<Ended, Fault> {
    let plan = t.plan(&request.key.plan)?;
    let slot = t.slot(&request.key)?;
    let (answer, change) = rules::end(t.now(), request, slot.as_ref(), plan.as_ref());
    t.apply(&request.key.plan, Read { plan: plan.as_ref(), slot: slot.as_ref() }, &change)?;
    Ok(answer)
}

pub(crate) fn purge(t: &Tables<'_>, key: &PlanKey, keep: Retention, at_most: usize) -> Result<Purged, Fault> {
    let Some(plan) = t.plan(key)? else {
        return Ok(Purged { deleted: 0, low_water: Trigger::default(), more: false });
    };
    let (namespace, id) = (key.namespace.as_str(), key.plan_str());
    let limit = i64::try_from(at_most.saturating_add(1)).unwrap_or(i64::MAX);
    let slots = t.all(
        concat!(
            "SELECT ",
            slot_columns!(),
            " FROM timertask_slot WHERE namespace = ?1 AND plan = ?2 ORDER BY at, request LIMIT ?3"
        ),
        params![namespace, id, limit],
        |row| slot_row(row, 0, key),
    )?;
    let ranges = t.all(
        "SELECT first, last, count, reason, at FROM timertask_range WHERE namespace = ?1 AND plan = ?2 \
         ORDER BY last, first LIMIT ?3",
        params![namespace, id, limit],
        range_row,
    )?;
    let rows = PurgeRows { plan: &plan, records: records(t, key, keep, at_most)?, unfinished: unfinished(t, key)? };
    let purge = rules::purge(t.now(), keep, at_most, &rows, &slots, &ranges);
    if let Some(last) = purge.slots.checked_sub(1).and_then(|last| slots.get(last)) {
        delete_slots(t, last)?;
    }
    if let Some(last) = purge.ranges.checked_sub(1).and_then(|last| ranges.get(last)) {
        t.run(
            "DELETE FROM timertask_range WHERE namespace = ?1 AND plan = ?2 AND (last, first) <= (?3, ?4)",
            params![namespace, id, last.last.as_secs(), last.first.as_secs()],
        )?;
    }
    if purge.low_water != plan.low_water {
        t.put_plan(key, Some(&plan), &PlanRow { low_water: purge.low_water, ..plan.clone() })?;
    }
    Ok(Purged { deleted: purge.slots + purge.ranges, low_water: purge.low_water, more: purge.more })
}

/// Deletes the plan's rows up to this one.
fn delete_slots(t: &Tables<'_>, upto: &SlotRow) -> Result<(), Fault> {
    let key = &upto.key;
    t.run(
        "DELETE FROM timertask_slot WHERE namespace = ?1 AND plan = ?2 AND (at, request) <= (?3, ?4)",
        params![key.plan.namespace.as_str(), key.plan.plan_str(), key.at.as_secs(), request_str(key)],
    )
    .map(drop)
}

/// How many records the plan has; counted no farther than the rule can tell a difference, since the write lock is held
/// meanwhile.
fn records(t: &Tables<'_>, key: &PlanKey, keep: Retention, at_most: usize) -> Result<usize, Fault> {
    let enough = keep.count.unwrap_or(0).max(keep.keep_last).saturating_add(at_most).saturating_add(1);
    let enough = i64::try_from(enough).unwrap_or(i64::MAX);
    let sql = "SELECT count(*) FROM (SELECT 1 FROM timertask_slot WHERE namespace = ?1 AND plan = ?2 \
               UNION ALL SELECT 1 FROM timertask_range WHERE namespace = ?1 AND plan = ?2 LIMIT ?3)";
    let n: i64 = t.sql(sql)?.query_row(params![key.namespace.as_str(), key.plan_str(), enough], |row| row.get(0))?;
    Ok(usize::try_from(n).unwrap_or(0))
}

/// The oldest trigger point of the plan's running and open slots.
fn unfinished(t: &Tables<'_>, key: &PlanKey) -> Result<Option<Trigger>, Fault> {
    let sql = "SELECT at FROM timertask_slot INDEXED BY timertask_slot_unfinished \
               WHERE namespace = ?1 AND plan = ?2 AND state < 2 ORDER BY at LIMIT 1";
    let at = t.first(sql, params![key.namespace.as_str(), key.plan_str()], |row| Ok(row.get::<_, i64>(0)?))?;
    Ok(at.map(Trigger::from_secs))
}
