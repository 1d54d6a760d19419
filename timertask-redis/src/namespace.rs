//! What goes over all buckets of a namespace. On one server that is one script; on a cluster it is one for each bucket,
//! and each bucket has a copy of the namespace's row, so that a claim there sees a pause of all.
//!
//! The row with the highest version wins. A pause or a resume is written to the row first, then to each copy, and only
//! then is it answered. Where that stops half-way, whoever sweeps the buckets next finds the versions apart and copies the
//! newest: within a sweep interval all are equal again. A row that was lost, with a failover, comes back from a copy.

use std::ops::Range;
use std::time::Duration;

use timertask_core::clock::{Clock, SystemClock};
use timertask_core::key::{Namespace, PlanId, PlanKey};
use timertask_core::seam::{Answer, Page, PageToken, SlotRow, StoreErrorKind};
use timertask_core::time::Timestamp;

use crate::codec::{plan_row, slot_row};
use crate::error::Fault;
use crate::lane::Repeat;
use crate::layout::{BUCKETS, Scope, bucket_at, micros, of_bucket, whole};
use crate::query::page_of;
use crate::script::{COPY, Call, READ, Reply};
use crate::server::Kind;
use crate::store::Redis;

/// A version of a namespace's row, and the row.
struct Copied {
    version: i64,
    row: String,
}

/// Where a sweep goes on.
struct Place<'a> {
    bucket: usize,
    phase: &'a str,
    score: &'a str,
    name: &'a str,
}

impl<'a> Place<'a> {
    const fn start_of(bucket: usize) -> Self {
        Self { bucket, phase: "1", score: "", name: "" }
    }

    fn read(token: &'a PageToken) -> Result<Self, Fault> {
        let foreign =
            || Fault::new(StoreErrorKind::Internal, format!("{:?} is not a page token of this store", token.0));
        let mut parts = token.0.splitn(4, '/');
        let (Some(bucket), Some(phase), Some(score), Some(name)) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(foreign());
        };
        let bucket = bucket.parse().ok().filter(|bucket| *bucket < BUCKETS).ok_or_else(foreign)?;
        Ok(Self { bucket, phase, score, name })
    }

    fn token(&self) -> PageToken {
        PageToken(format!("{}/{}/{}/{}", self.bucket, self.phase, self.score, self.name))
    }
}

impl Redis {
    /// The buckets from `first` on, by as many as one script may read.
    fn spans(&self, first: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let each = match self.scope() {
            Scope::Server => BUCKETS,
            Scope::Tag => 1,
        };
        (first..BUCKETS).step_by(each).map(move |first| first..BUCKETS.min(first + each))
    }

    fn span_call(&self, query: &str, namespace: &Namespace, span: Range<usize>) -> Call {
        let mut call = Call::new(self.scope());
        call.finds_keys().arg(query).number(span.len());
        for number in span {
            let bucket = bucket_at(namespace, number);
            of_bucket(&bucket).into_iter().for_each(|key| call.touched(key));
            call.fixed_key(bucket);
        }
        call
    }

    /// A page of the sweep. On a cluster one comes before it is full where it has taken long, copies of the namespace's row
    /// are renewed on the way, and a bucket that is just moving is left to the next sweep: a slot that moves for long holds
    /// up no other.
    pub(crate) fn lapsed(
        &self,
        namespace: &Namespace,
        max_skew: Duration,
        after: Option<&PageToken>,
        limit: usize,
    ) -> Result<Answer<Page>, Fault> {
        let limit = page_of(limit);
        let started = SystemClock.monotonic();
        let from = after.map_or(Ok(Place::start_of(0)), Place::read)?;
        let mut answer = Answer { now: Timestamp::EPOCH, value: Page::default() };
        let mut newest = None;
        if self.scope() == Scope::Tag {
            let read = self.newest(&whole(namespace), None)?;
            (answer.now, newest) = (read.now, Some(read.value));
        }
        for span in self.spans(from.bucket) {
            let first = span.start;
            let found = answer.value.slots.len();
            let is_late =
                first > from.bucket && SystemClock.monotonic() - started > self.options_in_use().response_timeout;
            if found == limit || is_late {
                answer.value.more = Some(Place::start_of(first).token());
                break;
            }
            let place = if first == from.bucket { &from } else { &Place::start_of(first) };
            let mut call = self.span_call("lapsed", namespace, span);
            call.number(micros(max_skew)).number(first).arg(place.phase).arg(place.score).arg(place.name);
            call.number(limit - found);
            let read = |reply: &mut Reply| Ok((reply.number()?, lapsed(namespace, reply, &mut answer.value)?));
            let read = match self.answer(Kind::Reads, Repeat::Harmless, 1, &READ, Ok(call), read) {
                Err(fault) if fault.is_of_a_moving_slot() => continue,
                read => read?,
            };
            answer.now = read.now;
            let (version, more): (i64, _) = read.value;
            if let Some(newest) = newest.as_mut().filter(|newest| newest.version != version) {
                self.mend(namespace, first, newest)?;
            }
            if more.is_some() {
                answer.value.more = more;
                break;
            }
        }
        Ok(answer)
    }

    /// A page of the plans by id.
    pub(crate) fn plans(
        &self,
        namespace: &Namespace,
        after: Option<&PlanId>,
        limit: usize,
    ) -> Result<Answer<Page>, Fault> {
        let limit = page_of(limit);
        let started = SystemClock.monotonic();
        let mut now = Timestamp::EPOCH;
        let mut shown = Shown::default();
        for span in self.spans(0) {
            self.in_time(started)?;
            let mut call = self.span_call("plans", namespace, span);
            call.arg(after.map_or("", PlanId::as_str)).number(each(limit));
            let read = |reply: &mut Reply| shown.read(reply);
            now = self.answer(Kind::Reads, Repeat::Harmless, 1, &READ, Ok(call), read)?.now;
        }
        Ok(Answer { now, value: shown.page(namespace, limit)? })
    }

    /// Brings the row of a namespace into each bucket's copy, on a cluster.
    pub(crate) fn spread(&self, namespace: &Namespace) -> Result<(), Fault> {
        let started = SystemClock.monotonic();
        let mut newest = self.newest(&whole(namespace), None)?.value;
        for bucket in 0..BUCKETS {
            self.in_time(started)?;
            self.mend(namespace, bucket, &mut newest)?;
        }
        Ok(())
    }

    /// Brings the newest row into a bucket's copy; where that is newer still, into the row itself.
    fn mend(&self, namespace: &Namespace, bucket: usize, newest: &mut Copied) -> Result<(), Fault> {
        let there = self.newest(&bucket_at(namespace, bucket), Some(newest))?.value;
        if there.version > newest.version {
            *newest = self.newest(&whole(namespace), Some(&there))?.value;
        }
        Ok(())
    }

    /// The newer of what stands at `key` and what is `given`; it stands there then.
    fn newest(&self, key: &str, given: Option<&Copied>) -> Result<Answer<Copied>, Fault> {
        let mut call = Call::new(self.scope());
        call.fixed_key(key.to_owned());
        call.number(given.map_or(0, |given| given.version)).arg(given.map_or("", |given| given.row.as_str()));
        let read = |reply: &mut Reply| Ok(Copied { version: reply.number()?, row: reply.text()? });
        self.answer(Kind::Ends, Repeat::Harmless, 1, &COPY, Ok(call), read)
    }
}

/// Adds the rows of a span to the page, and answers where the next page begins, if this span has more.
fn lapsed(namespace: &Namespace, reply: &mut Reply, page: &mut Page) -> Result<Option<PageToken>, Fault> {
    let more = reply.text()? == "1";
    let mut last = None;
    while !reply.is_at_end() {
        let (bucket, phase, score, name) = (reply.number()?, reply.text()?, reply.text()?, reply.text()?);
        let row: SlotRow = {
            let Some((plan, slot)) = name.split_once('\n') else {
                return Err(Fault::corrupt("an entry of the sweep without a slot"));
            };
            slot_row(&plan_key(namespace, plan)?, slot, &reply.text()?)?
        };
        page.slots.push(row);
        last = Some(Place { bucket, phase: &phase, score: &score, name: &name }.token());
    }
    Ok(last.filter(|_| more))
}

/// How many plans each bucket is asked for: twice its share, so that a page is mostly whole although buckets differ.
fn each(limit: usize) -> usize {
    limit / BUCKETS * 2 + 16
}

/// Plans as their buckets show them, each by id.
#[derive(Default)]
struct Shown {
    found: Vec<(String, String)>,
    /// The least of the last ids of those buckets that have more: all before it has been shown.
    upto: Option<String>,
}

impl Shown {
    fn read(&mut self, reply: &mut Reply) -> Result<(), Fault> {
        while !reply.is_at_end() {
            let (more, n) = (reply.text()? == "1", reply.number::<usize>()?);
            for i in 0..n {
                let (id, row) = (reply.text()?, reply.text()?);
                if more && i + 1 == n && self.upto.as_ref().is_none_or(|upto| id < *upto) {
                    self.upto = Some(id.clone());
                }
                self.found.push((id, row));
            }
        }
        Ok(())
    }

    /// What is surely before all that no bucket has shown yet.
    fn page(self, namespace: &Namespace, limit: usize) -> Result<Page, Fault> {
        let Self { mut found, upto } = self;
        found.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        if let Some(upto) = &upto {
            found.retain(|(id, _)| id <= upto);
        }
        let more = upto.is_some() || found.len() > limit;
        found.truncate(limit);
        let token = found.last().filter(|_| more).map(|(id, _)| PageToken(id.clone()));
        let mut page = Page { more: token, ..Page::default() };
        for (id, row) in found {
            page.plans.push((plan_key(namespace, &id)?, plan_row(&row)?));
        }
        Ok(page)
    }
}

fn plan_key(namespace: &Namespace, id: &str) -> Result<PlanKey, Fault> {
    let id = PlanId::new(id).map_err(|e| Fault::corrupt(format!("a row's plan: {e}")))?;
    Ok(PlanKey::new(namespace.clone(), id))
}
