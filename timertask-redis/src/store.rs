//! The handle.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use timertask_core::clock::{Clock, SystemClock};
use timertask_core::key::{PlanKey, SlotKey};
use timertask_core::seam::{
    Answer, Claim, ClaimRequest, Durability, EndRequest, Ended, Ledger, Outcome, Page, PlanOp, PlanState, Purged,
    Query, Renewal, Retention, StoreError, StoreErrorKind, Term,
};
use timertask_core::time::{Timestamp, Trigger};

use crate::error::Fault;
use crate::lane::Repeat;
use crate::layout::{Scope, bucket, micros};
use crate::options::Options;
use crate::request::OfPlan;
use crate::script::{CLAIM, Call, Code, END, PLAN, PURGE, READ, RENEW, Reply};
use crate::server::{Asked, Kind};
use crate::topology::Topology;
use crate::{query, request};

/// How many requests go in one script: while it runs the server does nothing else.
const GROUP: usize = 128;
/// The most rows that one purge deletes, likewise.
const PURGED: usize = 1_000;

/// On a cluster a call of several scripts asks no further one after so many response time-outs.
const PATIENCE: u32 = 4;

/// A ledger, a mutex and a board on Redis, shared by services on many hosts. Clones share its connections.
///
/// # Blocking
/// A call that finds its connection open waits for its answer up to the response time-out. Claims, ends and plans, renewals,
/// and reading have connections of their own: none waits for another's. At worst a call waits for a free connection,
/// opens one, and is asked for the script that the server has forgotten. With the times of [`Options`], `login` being the
/// connect time-out for connecting and once more for each of TLS, password and database:
///
/// | where | opening a connection (`open`) | one script (`ask`) | with all defaults |
/// |---|---|---|---|
/// | one server | `login` | `pool_wait + open + 2 × response` | 4 s |
/// | sentinels | `connect + response`, then one more sentinel and the master: `2 × (login + response)` | the same | 9 s |
/// | cluster | `login` | finding out who has which slot: `connect + response + login + response`; then three times as with one server | 16 s |
///
/// Where a connection turns out to be dead in the middle of a call it is opened once more: `open + 2 × response` on top.
/// [`Options::min_replicas`] adds its wait and a response time-out to claims, ends, changes of plans and locks.
///
/// A group of more than 128 requests is several scripts. On a cluster it is one for each bucket of a plan in it, the sweep
/// and the list of plans one for each of 256 buckets, and a pause of all two more than that: such a call ends with the
/// first fault, and begins no further script after four response time-outs; it takes no longer than these and one script.
///
/// # Errors
/// Every error is a [`StoreError`] with a kind; none ever stands for "another has it". Where
/// [`outcome_unknown`](StoreError::outcome_unknown) is true the server may have carried it out; asking again is safe.
#[derive(Clone)]
pub struct Redis(Arc<Inner>);

struct Inner {
    topology: Topology,
    options: Options,
}

impl Redis {
    /// Connects to what `url` names with the defaults of [`Options`]: a server at
    /// `redis://[user[:password]@]host[:port][/database]` or `unix:///path`, or one of the forms of the
    /// [crate](crate#where-it-is); 1 s to connect and for each answer.
    ///
    /// # Errors
    /// As [`Options::connect`].
    ///
    /// # Blocking
    /// As [`Options::connect`].
    pub fn connect(url: &str) -> Result<Self, StoreError> {
        Self::options().connect(url)
    }

    /// Options, to connect otherwise.
    pub fn options() -> Options {
        Options::default()
    }

    pub(crate) fn connect_with(url: &str, options: Options) -> Result<Self, StoreError> {
        let connected = Topology::connect(url, &options);
        let (topology, durability) = connected.map_err(|(doing, fault)| fault.into_store_error(&doing))?;
        if durability == Durability::UntilRestart {
            log::warn!(
                target: "timertask::store",
                "redis at {topology} writes nothing to disk: when it ends, what ran is forgotten, and so are all plans"
            );
        }
        Ok(Self(Arc::new(Inner { topology, options })))
    }

    pub(crate) fn options_in_use(&self) -> &Options {
        &self.0.options
    }

    pub(crate) fn scope(&self) -> Scope {
        self.0.topology.scope()
    }

    /// One script of `group` requests, and what `read` makes of its answer.
    pub(crate) fn answer<T>(
        &self,
        kind: Kind,
        repeat: Repeat,
        group: usize,
        code: &LazyLock<Code>,
        call: Result<Call, Fault>,
        read: impl FnOnce(&mut Reply) -> Result<T, Fault>,
    ) -> Result<Answer<T>, Fault> {
        let asked = Asked { kind, repeat, group, code, call: &call? };
        let (now, mut reply) = Reply::new(self.0.topology.ask(&asked)?)?;
        let value = read(&mut reply)?;
        reply.finish()?;
        Ok(Answer { now, value })
    }

    pub(crate) fn told(&self, doing: &str, fault: Fault) -> StoreError {
        fault.into_store_error(&format!("{doing} on redis at {}", self.0.topology))
    }

    /// Whether a call that began at `started` may ask for more.
    pub(crate) fn in_time(&self, started: Duration) -> Result<(), Fault> {
        let patience = self.0.options.response_timeout.saturating_mul(PATIENCE);
        if self.scope() == Scope::Server || SystemClock.monotonic().saturating_sub(started) <= patience {
            return Ok(());
        }
        Err(Fault::new(StoreErrorKind::TimedOut, "the nodes of the cluster took too long in all"))
    }

    /// What goes in one script each, by place, in order: what is about the same plan stays so.
    fn pieces<'r, R: OfPlan>(&self, requests: &'r [R], most: usize) -> Vec<Vec<(usize, &'r R)>> {
        let placed = requests.iter().enumerate();
        let together: Vec<Vec<_>> = match self.scope() {
            Scope::Server => vec![placed.collect()],
            Scope::Tag => {
                let (mut places, mut buckets) = (HashMap::new(), Vec::new());
                for (place, request) in placed {
                    let bucket = *places.entry(bucket(request.plan())).or_insert_with(|| {
                        buckets.push(Vec::new());
                        buckets.len() - 1
                    });
                    buckets[bucket].push((place, request));
                }
                buckets
            }
        };
        together.iter().flat_map(|bucket| bucket.chunks(most).map(<[_]>::to_vec)).collect()
    }

    /// Carries out a group, 128 requests to a script.
    fn group<R: OfPlan, T>(
        &self,
        kind: Kind,
        doing: (&str, Repeat, &LazyLock<Code>),
        requests: &[R],
        begin: impl Fn(&mut Call),
        ask: impl Fn(&mut Call, &R) -> Result<(), Fault>,
        read: impl Fn(&mut Reply) -> Result<T, Fault>,
    ) -> Outcome<Vec<T>> {
        let (doing, repeat, code) = doing;
        let mut pieces = self.pieces(requests, GROUP);
        if pieces.is_empty() {
            // An empty group is asked too: its answer tells the server's now.
            pieces.push(Vec::new());
        }
        let started = SystemClock.monotonic();
        let mut now = Timestamp::EPOCH;
        let mut all: Vec<Option<T>> = requests.iter().map(|_| None).collect();
        for (n, piece) in pieces.iter().enumerate() {
            let call = || {
                let mut call = Call::new(self.scope());
                call.number(piece.len());
                begin(&mut call);
                piece.iter().try_for_each(|(_, request)| ask(&mut call, request)).map(|()| call)
            };
            let mut answers = |reply: &mut Reply| {
                piece.iter().try_for_each(|(place, _)| {
                    all[*place] = Some(read(reply)?);
                    Ok(())
                })
            };
            let done =
                self.in_time(started).and_then(|()| self.answer(kind, repeat, piece.len(), code, call(), &mut answers));
            match done {
                Ok(answer) => now = answer.now,
                // What came before in the group has been carried out.
                Err(fault) if n > 0 => return Err(self.told(doing, fault.unknown_outcome())),
                Err(fault) => return Err(self.told(doing, fault)),
            }
        }
        Ok(Answer { now, value: all.into_iter().flatten().collect() })
    }

    /// The rows of slots, in the order of their keys.
    fn slots(&self, keys: &[SlotKey]) -> Result<Answer<Page>, Fault> {
        let most = match self.scope() {
            Scope::Server => usize::MAX,
            Scope::Tag => GROUP,
        };
        let mut pieces = self.pieces(keys, most);
        if pieces.is_empty() {
            pieces.push(Vec::new());
        }
        let (started, mut now, mut rows) = (SystemClock.monotonic(), Timestamp::EPOCH, Vec::new());
        for piece in &pieces {
            self.in_time(started)?;
            let call = query::slots_call(piece.iter().map(|(_, key)| *key), self.scope());
            let read = |reply: &mut Reply| query::slots(piece, reply);
            let answer = self.answer(Kind::Reads, Repeat::Harmless, 1, &READ, call, read)?;
            now = answer.now;
            rows.extend(answer.value);
        }
        rows.sort_unstable_by_key(|(place, _)| *place);
        let slots = rows.into_iter().map(|(_, row)| row).collect();
        Ok(Answer { now, value: Page { slots, ..Page::default() } })
    }
}

impl Ledger for Redis {
    fn describe(&self) -> Result<Durability, StoreError> {
        self.0.topology.durability(&self.0.options).map_err(|fault| self.told("look", fault))
    }

    fn plan(&self, requests: &[(PlanKey, PlanOp)]) -> Outcome<Vec<PlanState>> {
        if requests.iter().all(|(_, op)| *op == PlanOp::Read) {
            let doing = ("read plans", Repeat::Harmless, &PLAN);
            return self.group(Kind::Reads, doing, requests, |_| {}, request::plan, request::planned);
        }
        // Asked twice, what was accounted the first time would look like a conflict.
        let doing = ("write plans", Repeat::Never, &PLAN);
        let done = self.group(Kind::Ends, doing, requests, |_| {}, request::plan, request::planned)?;
        if self.scope() == Scope::Tag {
            // Also where nothing changed: whoever wrote it may have been stopped half-way.
            let changed = requests.iter().filter(|(key, op)| key.plan.is_none() && *op != PlanOp::Read);
            for (key, _) in changed {
                let spread = self.spread(&key.namespace);
                spread.map_err(|fault| self.told("pause or resume all", fault.unknown_outcome()))?;
            }
        }
        Ok(done)
    }

    fn claim(&self, requests: &[ClaimRequest]) -> Outcome<Vec<Claim>> {
        let doing = ("claim", Repeat::Harmless, &CLAIM);
        self.group(Kind::Claims, doing, requests, |_| {}, request::claim, request::claimed)
    }

    fn renew(&self, terms: &[Term], ttl: Duration) -> Outcome<Vec<Renewal>> {
        let doing = ("renew", Repeat::Harmless, &RENEW);
        let begin = |call: &mut Call| request::ttl(call, ttl);
        self.group(Kind::Renewals, doing, terms, begin, request::renew, request::renewed)
    }

    fn end(&self, requests: &[EndRequest]) -> Outcome<Vec<Ended>> {
        let doing = ("record ends", Repeat::Harmless, &END);
        self.group(Kind::Ends, doing, requests, |_| {}, request::end, request::ended)
    }

    fn read(&self, query: &Query) -> Outcome<Page> {
        let page = match query {
            Query::Slots(keys) => self.slots(keys),
            Query::Lapsed { namespace, max_skew, after, limit } => {
                self.lapsed(namespace, *max_skew, after.as_ref(), *limit)
            }
            Query::Plans { namespace, after, limit } => self.plans(namespace, after.as_ref(), *limit),
            _ => {
                let read = |reply: &mut Reply| query::page(query, reply);
                self.answer(Kind::Reads, Repeat::Harmless, 1, &READ, query::call(query, self.scope()), read)
            }
        };
        page.map_err(|fault| self.told("read", fault))
    }

    fn purge(&self, plan: &PlanKey, keep: Retention, at_most: usize) -> Outcome<Purged> {
        let mut call = Call::new(self.scope());
        call.fixed_plan(plan);
        call.arg(keep.age.map_or_else(String::new, |age| micros(age).to_string()));
        call.arg(keep.count.map_or_else(String::new, |count| count.to_string()));
        call.number(keep.keep_last).number(at_most.min(PURGED));
        let read = |reply: &mut Reply| {
            let (deleted, low_water) = (reply.number()?, Trigger::from_secs(reply.number()?));
            Ok(Purged { deleted, low_water, more: reply.text()? == "1" })
        };
        self.answer(Kind::Reads, Repeat::Harmless, 1, &PURGE, Ok(call), read).map_err(|fault| self.told("purge", fault))
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("address", &format_args!("{}", self.0.topology)).finish_non_exhaustive()
    }
}
