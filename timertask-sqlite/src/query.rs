//! Reading: pages by key, each from one short snapshot, no cursor left open between them.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::params;
use timertask_core::key::{Namespace, PlanId, PlanKey};
use timertask_core::rules;
use timertask_core::seam::{Page, PageToken, Query, SlotRow, StoreErrorKind};
use timertask_core::time::Trigger;

use crate::codec::{plan_columns, plan_key, plan_row, range_row, request_str, slot_columns, slot_row};
use crate::error::Fault;
use crate::tables::Tables;

/// How many rows of running slots a sweep's page looks at before it gives back what it has, so that a page stays short
/// even where thousands of healthy runs lie between two lapsed ones.
const LOOKED_AT: usize = 4096;

pub(crate) fn page(t: &Tables<'_>, query: &Query) -> Result<Page, Fault> {
    match query {
        Query::Lapsed { namespace, max_skew, after, limit } => {
            lapsed(t, namespace, *max_skew, after.as_ref(), at_least_one(*limit))
        }
        Query::Unfinished { plan, limit } => unfinished(t, plan, *limit),
        Query::History { plan, after, upto, page, limit } => {
            history(t, plan, (*after, *upto), page.as_ref(), at_least_one(*limit))
        }
        Query::Slots(keys) => {
            let mut slots = Vec::with_capacity(keys.len());
            for key in keys {
                slots.extend(t.slot(key)?);
            }
            Ok(Page { slots, ..Page::default() })
        }
        Query::Plans { namespace, after, limit } => plans(t, namespace, after.as_ref(), at_least_one(*limit)),
        _ => Err(Fault::new(StoreErrorKind::Internal, "a query that this version does not know")),
    }
}

fn lapsed(
    t: &Tables<'_>,
    namespace: &Namespace,
    max_skew: Duration,
    after: Option<&PageToken>,
    limit: usize,
) -> Result<Page, Fault> {
    let (plan, at, request) = match after {
        None => (String::new(), i64::MIN, String::new()),
        Some(token) => sweep_token(token)?,
    };
    let mut statement = t.sql(concat!(
        "SELECT plan, ",
        slot_columns!(),
        " FROM timertask_slot INDEXED BY timertask_slot_unfinished \
         WHERE namespace = ?1 AND state < 2 AND (plan, at, request) > (?2, ?3, ?4) ORDER BY plan, at, request"
    ))?;
    let mut rows = statement.query(params![namespace.as_str(), plan, at, request])?;
    let mut page = Page::default();
    let mut looked_at = 0;
    while let Some(row) = rows.next()? {
        let key = plan_key(namespace, row.get::<_, Arc<str>>(0)?)?;
        let slot = slot_row(row, 1, &key)?;
        let lapsed = rules::lapsed(t.now(), &slot, max_skew);
        looked_at += 1;
        if lapsed && page.slots.len() >= limit {
            page.more = page.slots.last().map(to_sweep_token);
            break;
        }
        let token = (looked_at >= LOOKED_AT && !page.slots.is_empty()).then(|| to_sweep_token(&slot));
        if lapsed {
            page.slots.push(slot);
        }
        if token.is_some() {
            page.more = token;
            break;
        }
    }
    Ok(page)
}

fn unfinished(t: &Tables<'_>, plan: &PlanKey, limit: usize) -> Result<Page, Fault> {
    let slots = t.all(
        concat!(
            "SELECT ",
            slot_columns!(),
            " FROM timertask_slot INDEXED BY timertask_slot_unfinished \
             WHERE namespace = ?1 AND plan = ?2 AND state < 2 ORDER BY at, request LIMIT ?3"
        ),
        params![plan.namespace.as_str(), plan.plan_str(), limit_of(limit)],
        |row| slot_row(row, 0, plan),
    )?;
    Ok(Page { slots, ..Page::default() })
}

fn history(
    t: &Tables<'_>,
    plan: &PlanKey,
    (after, upto): (Trigger, Trigger),
    page: Option<&PageToken>,
    limit: usize,
) -> Result<Page, Fault> {
    let (namespace, id) = (plan.namespace.as_str(), plan.plan_str());
    // The page before ended at this slot; the interval begins behind all slots of its first instant.
    let (at, request) = match page {
        None => (after.as_secs().saturating_add(1), String::new()),
        Some(token) => history_token(token)?,
    };
    let (first_page, last) = (page.is_none(), upto.as_secs());
    let mut slots = t.all(
        concat!(
            "SELECT ",
            slot_columns!(),
            " FROM timertask_slot WHERE namespace = ?1 AND plan = ?2 AND at <= ?3 \
             AND (at > ?4 OR (at = ?4 AND (request > ?5 OR ?6))) AND at >= ?4 ORDER BY at, request LIMIT ?7"
        ),
        params![namespace, id, last, at, request, first_page, limit_of(limit.saturating_add(1))],
        |row| slot_row(row, 0, plan),
    )?;
    let more = (slots.len() > limit).then(|| {
        slots.truncate(limit);
        slots.last().map_or_else(|| PageToken(format!("{at}/{request}")), to_history_token)
    });
    let ranges = if first_page {
        t.all(
            "SELECT first, last, count, reason, at FROM timertask_range WHERE namespace = ?1 AND plan = ?2 \
             AND last > ?3 AND first <= ?4 ORDER BY last, first",
            params![namespace, id, after.as_secs(), last],
            range_row,
        )?
    } else {
        Vec::new()
    };
    let plans = t.plan(plan)?.map(|row| (plan.clone(), row)).into_iter().collect();
    Ok(Page { plans, slots, ranges, more })
}

fn plans(t: &Tables<'_>, namespace: &Namespace, after: Option<&PlanId>, limit: usize) -> Result<Page, Fault> {
    // No plan has an empty id, so what comes after it is all of them, without the namespace's own row.
    let after = after.map_or("", PlanId::as_str);
    let mut plans = t.all(
        concat!(
            "SELECT plan, ",
            plan_columns!(),
            " FROM timertask_plan WHERE namespace = ?1 AND plan > ?2 ORDER BY plan LIMIT ?3"
        ),
        params![namespace.as_str(), after, limit_of(limit.saturating_add(1))],
        |row| Ok((plan_key(namespace, row.get::<_, Arc<str>>(0)?)?, plan_row(row, 1)?)),
    )?;
    let more = (plans.len() > limit).then(|| {
        plans.truncate(limit);
        PageToken(plans.last().map_or(after, |(key, _)| key.plan_str()).to_owned())
    });
    Ok(Page { plans, more, ..Page::default() })
}

/// A page of none would never come to an end.
fn at_least_one(limit: usize) -> usize {
    limit.max(1)
}

fn limit_of(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// `<trigger>/<request>`.
fn to_history_token(slot: &SlotRow) -> PageToken {
    PageToken(format!("{}/{}", slot.key.at.as_secs(), request_str(&slot.key)))
}

fn history_token(token: &PageToken) -> Result<(i64, String), Fault> {
    token
        .0
        .split_once('/')
        .and_then(|(at, request)| Some((at.parse().ok()?, request.to_owned())))
        .ok_or_else(|| foreign(token))
}

/// `<trigger>/<bytes of the plan's id>/<plan><request>`.
fn to_sweep_token(slot: &SlotRow) -> PageToken {
    let plan = slot.key.plan.plan_str();
    PageToken(format!("{}/{}/{plan}{}", slot.key.at.as_secs(), plan.len(), request_str(&slot.key)))
}

fn sweep_token(token: &PageToken) -> Result<(String, i64, String), Fault> {
    let parse = || {
        let (at, rest) = token.0.split_once('/')?;
        let (bytes, rest) = rest.split_once('/')?;
        let (plan, request) = rest.split_at_checked(bytes.parse().ok()?)?;
        Some((plan.to_owned(), at.parse().ok()?, request.to_owned()))
    };
    parse().ok_or_else(|| foreign(token))
}

fn foreign(token: &PageToken) -> Fault {
    Fault::new(StoreErrorKind::Internal, format!("{:?} is not a page token of this store", token.0))
}
