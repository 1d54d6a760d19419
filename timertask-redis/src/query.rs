//! Reading, by pages; each page is one script.

use timertask_core::key::{Namespace, PlanId, PlanKey, SlotKey};
use timertask_core::seam::{Page, PageToken, Query, SlotRow, StoreErrorKind};

use crate::codec::{plan_row, range_row, slot_row};
use crate::error::Fault;
use crate::layout::{bound, bucket, buckets, micros, slot};
use crate::script::{Call, Reply};

/// The most rows of a page: while a script runs the server does nothing else.
const PAGE: usize = 4_096;
/// Into how many buckets a namespace is divided.
const BUCKETS: usize = 256;

/// The call that reads what `query` asks for.
pub(crate) fn call(query: &Query) -> Result<Call, Fault> {
    let mut call = Call::default();
    match query {
        Query::Slots(keys) => {
            call.arg("slots").number(keys.len());
            for key in keys {
                call.plan(&key.plan).arg(slot(key)?);
            }
        }
        Query::Unfinished { plan, limit } => {
            call.fixed_key(bucket(plan)).arg("unfinished").arg(plan.plan_str()).number(limit.min(&PAGE));
        }
        Query::History { plan, after, upto, page, limit } => {
            call.fixed_key(bucket(plan)).arg("history").arg(plan.plan_str());
            call.number(bound(*after)).number(bound(*upto));
            call.arg(page.as_ref().map_or("", |token| token.0.as_str())).number(u8::from(page.is_none()));
            call.number(page_of(*limit));
        }
        Query::Lapsed { namespace, max_skew, after, limit } => {
            call.fixed_key(buckets(namespace)).arg("lapsed").number(micros(*max_skew));
            let (bucket, phase, score, name) = match after {
                None => ("0", "1", "", ""),
                Some(token) => sweep_token(token)?,
            };
            call.arg(bucket).arg(phase).arg(score).arg(name).number(page_of(*limit));
        }
        Query::Plans { namespace, after, limit } => {
            call.fixed_key(buckets(namespace)).arg("plans");
            call.arg(after.as_ref().map_or("", PlanId::as_str)).number(each(*limit));
        }
        _ => return Err(Fault::new(StoreErrorKind::Internal, "a query that this version does not know")),
    }
    Ok(call)
}

/// The page that the script answered.
pub(crate) fn page(query: &Query, reply: &mut Reply) -> Result<Page, Fault> {
    match query {
        Query::Slots(keys) => slots(keys, reply),
        Query::Unfinished { plan, limit } => unfinished(plan, *limit, reply),
        Query::History { plan, limit, .. } => history(plan, page_of(*limit), reply),
        Query::Lapsed { namespace, .. } => lapsed(namespace, reply),
        Query::Plans { namespace, limit, .. } => plans(namespace, *limit, reply),
        _ => Err(Fault::new(StoreErrorKind::Internal, "a query that this version does not know")),
    }
}

/// A page of none would never come to an end.
fn page_of(limit: usize) -> usize {
    limit.clamp(1, PAGE)
}

fn slots(keys: &[SlotKey], reply: &mut Reply) -> Result<Page, Fault> {
    let mut page = Page::default();
    while !reply.is_at_end() {
        let place: usize = reply.number()?;
        let Some(key) = place.checked_sub(1).and_then(|place| keys.get(place)) else {
            return Err(Fault::nonsense("a slot that was not asked for"));
        };
        page.slots.push(slot_row(&key.plan, &reply.text()?, &reply.text()?)?);
    }
    Ok(page)
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

fn lapsed(namespace: &Namespace, reply: &mut Reply) -> Result<Page, Fault> {
    let mut page = Page::default();
    let more = reply.text()? == "1";
    while !reply.is_at_end() {
        let place = (reply.text()?, reply.text()?, reply.text()?);
        let name = reply.text()?;
        let row: SlotRow = {
            let Some((plan, slot)) = name.split_once('\n') else {
                return Err(Fault::corrupt("an entry of the sweep without a slot"));
            };
            slot_row(&plan_key(namespace, plan)?, slot, &reply.text()?)?
        };
        page.slots.push(row);
        if more {
            page.more = Some(PageToken(format!("{}/{}/{}/{name}", place.0, place.1, place.2)));
        }
    }
    Ok(page)
}

fn sweep_token(token: &PageToken) -> Result<(&str, &str, &str, &str), Fault> {
    let mut parts = token.0.splitn(4, '/');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(bucket), Some(phase), Some(score), Some(name)) => Ok((bucket, phase, score, name)),
        _ => Err(foreign(token)),
    }
}

fn foreign(token: &PageToken) -> Fault {
    Fault::new(StoreErrorKind::Internal, format!("{:?} is not a page token of this store", token.0))
}

/// How many plans each bucket is asked for: twice its share, so that a page is mostly whole although buckets differ.
fn each(limit: usize) -> usize {
    page_of(limit) / BUCKETS * 2 + 16
}

/// Plans lie in their buckets by id; a page is what is surely before all that no bucket has shown yet.
fn plans(namespace: &Namespace, limit: usize, reply: &mut Reply) -> Result<Page, Fault> {
    let mut found = Vec::new();
    let mut shown_upto: Option<String> = None;
    while !reply.is_at_end() {
        let (more, n) = (reply.text()? == "1", reply.number::<usize>()?);
        for i in 0..n {
            let (id, row) = (reply.text()?, reply.text()?);
            if more && i + 1 == n && shown_upto.as_ref().is_none_or(|upto| id < *upto) {
                shown_upto = Some(id.clone());
            }
            found.push((id, row));
        }
    }
    found.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    if let Some(upto) = &shown_upto {
        found.retain(|(id, _)| id <= upto);
    }
    let more = shown_upto.is_some() || found.len() > page_of(limit);
    found.truncate(page_of(limit));
    let token = found.last().filter(|_| more).map(|(id, _)| PageToken(id.clone()));
    let mut page = Page { more: token, ..Page::default() };
    for (id, row) in found {
        page.plans.push((plan_key(namespace, &id)?, plan_row(&row)?));
    }
    Ok(page)
}

fn plan_key(namespace: &Namespace, id: &str) -> Result<PlanKey, Fault> {
    let id = PlanId::new(id).map_err(|e| Fault::corrupt(format!("a row's plan: {e}")))?;
    Ok(PlanKey::new(namespace.clone(), id))
}
