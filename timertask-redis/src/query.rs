//! Reading, by pages; each page is one script. What goes over all buckets of a namespace is in `namespace.rs`.

use timertask_core::key::{PlanKey, SlotKey};
use timertask_core::seam::{Page, PageToken, Query, SlotRow, StoreErrorKind};

use crate::codec::{plan_row, range_row, slot_row};
use crate::error::Fault;
use crate::layout::{Scope, bound, slot};
use crate::script::{Call, Reply};

/// The most rows of a page: while a script runs the server does nothing else.
const PAGE: usize = 4_096;

/// The call that reads the rows of these slots.
pub(crate) fn slots_call<'a>(keys: impl ExactSizeIterator<Item = &'a SlotKey>, scope: Scope) -> Result<Call, Fault> {
    let mut call = Call::new(scope);
    call.arg("slots").number(keys.len());
    for key in keys {
        call.plan(&key.plan).arg(slot(key)?);
    }
    Ok(call)
}

/// The call that reads what `query` asks for, of one plan.
pub(crate) fn call(query: &Query, scope: Scope) -> Result<Call, Fault> {
    let mut call = Call::new(scope);
    match query {
        Query::Unfinished { plan, limit } => {
            call.arg("unfinished").fixed_plan(plan).number(limit.min(&PAGE));
        }
        Query::History { plan, after, upto, page, limit } => {
            call.arg("history").fixed_plan(plan);
            call.number(bound(*after)).number(bound(*upto));
            call.arg(page.as_ref().map_or("", |token| token.0.as_str())).number(u8::from(page.is_none()));
            call.number(page_of(*limit));
        }
        _ => return Err(Fault::new(StoreErrorKind::Internal, "a query that this version does not know")),
    }
    Ok(call)
}

/// The page that the script answered.
pub(crate) fn page(query: &Query, reply: &mut Reply) -> Result<Page, Fault> {
    match query {
        Query::Unfinished { plan, limit } => unfinished(plan, *limit, reply),
        Query::History { plan, limit, .. } => history(plan, page_of(*limit), reply),
        _ => Err(Fault::new(StoreErrorKind::Internal, "a query that this version does not know")),
    }
}

/// A page of none would never come to an end.
pub(crate) fn page_of(limit: usize) -> usize {
    limit.clamp(1, PAGE)
}

/// The rows of those of `keys` that have one, each with its place.
pub(crate) fn slots(keys: &[(usize, &SlotKey)], reply: &mut Reply) -> Result<Vec<(usize, SlotRow)>, Fault> {
    let mut rows = Vec::new();
    while !reply.is_at_end() {
        let place: usize = reply.number()?;
        let Some((place, key)) = place.checked_sub(1).and_then(|place| keys.get(place)) else {
            return Err(Fault::nonsense("a slot that was not asked for"));
        };
        rows.push((*place, slot_row(&key.plan, &reply.text()?, &reply.text()?)?));
    }
    Ok(rows)
}

fn unfinished(plan: &PlanKey, limit: usize, reply: &mut Reply) -> Result<Page, Fault> {
    let mut page = Page::default();
    while !reply.is_at_end() {
        page.slots.push(slot_row(plan, &reply.text()?, &reply.text()?)?);
    }
    // Running and open ones come each in order; no slot is both.
    page.slots.sort_by(|a, b| (a.key.at, &a.key.request).cmp(&(b.key.at, &b.key.request)));
    page.slots.truncate(limit);
    Ok(page)
}

fn history(plan: &PlanKey, limit: usize, reply: &mut Reply) -> Result<Page, Fault> {
    let mut page = Page::default();
    match reply.text()?.as_str() {
        "" => {}
        row => page.plans.push((plan.clone(), plan_row(row)?)),
    }
    let ranges: usize = reply.number()?;
    for _ in 0..ranges {
        page.ranges.push(range_row(&reply.text()?)?);
    }
    let mut last = String::new();
    while !reply.is_at_end() {
        let (name, row) = (reply.text()?, reply.text()?);
        if page.slots.len() == limit {
            page.more = Some(PageToken(last));
            break;
        }
        page.slots.push(slot_row(plan, &name, &row)?);
        last = name;
    }
    while !reply.is_at_end() {
        reply.text()?;
    }
    Ok(page)
}
