//! The handle.

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Client, ConnectionInfo, IntoConnectionInfo};
use timertask_core::key::PlanKey;
use timertask_core::seam::{
    Answer, Claim, ClaimRequest, Durability, EndRequest, Ended, Ledger, Outcome, Page, PlanOp, PlanState, Purged,
    Query, Renewal, Retention, StoreError, StoreErrorKind, Term,
};
use timertask_core::time::{Timestamp, Trigger};

use crate::error::Fault;
use crate::fitness;
use crate::lane::{Lane, Opener, Repeat};
use crate::layout::{bucket, micros};
use crate::options::Options;
use crate::script::{CLAIM, Call, Code, END, PLAN, PURGE, READ, RENEW, Reply};
use crate::{query, request};

/// How many requests go in one script: while it runs the server does nothing else.
const GROUP: usize = 128;
/// The most rows that one purge deletes, likewise.
const PURGED: usize = 1_000;

/// A ledger, a mutex and a board on one Redis server, shared by services on many hosts. Clones share its connections.
///
/// # Blocking
/// A call that finds its connection open waits for its answer up to the response time-out. At worst it waits for a free
/// connection, connects anew, and is asked for the script that the server has forgotten:
/// `pool_wait + connect_timeout × (1 + password + database) + 2 × response_timeout` of [`Options`], 6 s with all defaults.
/// A group of more than 128 requests is several calls. Claims, ends and plans, renewals, and reading have connections of
/// their own: none waits for another's.
///
/// # Errors
/// Every error is a [`StoreError`] with a kind; none ever stands for "another has it". Where
/// [`outcome_unknown`](StoreError::outcome_unknown) is true the server may have carried it out; asking again is safe.
#[derive(Clone)]
pub struct Redis(Arc<Inner>);

struct Inner {
    /// Where it is, for people; without user and password.
    address: String,
    options: Options,
    claims: Lane,
    ends: Lane,
    renewals: Lane,
    reads: Lane,
}

impl Redis {
    /// Connects to the server at `url` with the defaults of [`Options`]: `redis://[user[:password]@]host[:port][/database]`
    /// or `unix:///path`; 1 s to connect and for each answer.
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
        let misread = |_| {
            // The cause may quote the URL, and with it the password.
            let what = "the URL can't be read; it is redis://[user[:password]@]host[:port][/database] or unix:///path";
            StoreError::new(StoreErrorKind::Misconfigured, what)
        };
        let info: ConnectionInfo = url.into_connection_info().map_err(misread)?;
        // It would cost the handshake two answers more.
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        let info = info.set_redis_settings(settings);
        let address = info.addr().to_string();
        let client = Client::open(info).map_err(misread)?;
        let opener = Arc::new(Opener { client, options: options.clone() });
        let connecting = || {
            let mut connection = opener.open().map_err(Fault::at_connect)?;
            let fitness = fitness::ask(&mut connection).map_err(Fault::at_connect)?;
            fitness.durability(options.evicts).map(|durability| (connection, durability))
        };
        let (connection, durability) =
            connecting().map_err(|fault| fault.into_store_error(&format!("connect to {address}")))?;
        if durability == Durability::UntilRestart {
            log::warn!(
                target: "timertask::store",
                "redis at {address} writes nothing to disk: when it ends, what ran is forgotten, and so are all plans"
            );
        }
        let lane = || Lane::new(Arc::clone(&opener));
        let reads = lane().with(connection);
        Ok(Self(Arc::new(Inner { address, options, claims: lane(), ends: lane(), renewals: lane(), reads })))
    }

    pub(crate) fn claims(&self) -> &Lane {
        &self.0.claims
    }

    pub(crate) fn ends(&self) -> &Lane {
        &self.0.ends
    }

    pub(crate) fn renewals(&self) -> &Lane {
        &self.0.renewals
    }

    pub(crate) fn reads(&self) -> &Lane {
        &self.0.reads
    }

    /// One script of `group` requests, and what `read` makes of its answer.
    pub(crate) fn answer<T>(
        &self,
        lane: &Lane,
        repeat: Repeat,
        group: usize,
        code: &LazyLock<Code>,
        call: Result<Call, Fault>,
        read: impl FnOnce(&mut Reply) -> Result<T, Fault>,
    ) -> Result<Answer<T>, Fault> {
        let call = call?;
        let value = lane.call(repeat, group, |connection| call.run(code, connection))?;
        let (now, mut reply) = Reply::new(value)?;
        let value = read(&mut reply)?;
        reply.finish()?;
        Ok(Answer { now, value })
    }

    pub(crate) fn told(&self, doing: &str, fault: Fault) -> StoreError {
        fault.into_store_error(&format!("{doing} on redis at {}", self.0.address))
    }

    /// Carries out a group, 128 requests to a script.
    fn group<R, T>(
        &self,
        lane: &Lane,
        doing: (&str, Repeat, &LazyLock<Code>),
        requests: &[R],
        begin: impl Fn(&mut Call),
        ask: impl Fn(&mut Call, &R) -> Result<(), Fault>,
        read: impl Fn(&mut Reply) -> Result<T, Fault>,
    ) -> Outcome<Vec<T>> {
        let (doing, repeat, code) = doing;
        let mut all = Answer { now: Timestamp::EPOCH, value: Vec::with_capacity(requests.len()) };
        // An empty group is asked too: its answer tells the server's now.
        let nothing: [&[R]; 1] = [&[]];
        let pieces = requests.chunks(GROUP).chain(nothing.into_iter().filter(|_| requests.is_empty()));
        for piece in pieces {
            let call = || {
                let mut call = Call::default();
                call.number(piece.len());
                begin(&mut call);
                piece.iter().try_for_each(|request| ask(&mut call, request)).map(|()| call)
            };
            let answers = |reply: &mut Reply| piece.iter().map(|_| read(reply)).collect::<Result<Vec<T>, _>>();
            match self.answer(lane, repeat, piece.len(), code, call(), answers) {
                Ok(answer) => {
                    all.now = answer.now;
                    all.value.extend(answer.value);
                }
                // What came before in the group has been carried out.
                Err(fault) if !all.value.is_empty() => return Err(self.told(doing, fault.unknown_outcome())),
                Err(fault) => return Err(self.told(doing, fault)),
            }
        }
        Ok(all)
    }
}

impl Ledger for Redis {
    fn describe(&self) -> Result<Durability, StoreError> {
        let fitness = self.0.reads.call(Repeat::Harmless, 1, fitness::ask);
        let judged = fitness.and_then(|fitness| fitness.durability(self.0.options.evicts));
        judged.map_err(|fault| self.told("look", fault))
    }

    fn plan(&self, requests: &[(PlanKey, PlanOp)]) -> Outcome<Vec<PlanState>> {
        if requests.iter().all(|(_, op)| *op == PlanOp::Read) {
            let doing = ("read plans", Repeat::Harmless, &PLAN);
            return self.group(&self.0.reads, doing, requests, |_| {}, request::plan, request::planned);
        }
        // Asked twice, what was accounted the first time would look like a conflict.
        self.group(
            &self.0.ends,
            ("write plans", Repeat::Never, &PLAN),
            requests,
            |_| {},
            request::plan,
            request::planned,
        )
    }

    fn claim(&self, requests: &[ClaimRequest]) -> Outcome<Vec<Claim>> {
        let doing = ("claim", Repeat::Harmless, &CLAIM);
        self.group(&self.0.claims, doing, requests, |_| {}, request::claim, request::claimed)
    }

    fn renew(&self, terms: &[Term], ttl: Duration) -> Outcome<Vec<Renewal>> {
        let doing = ("renew", Repeat::Harmless, &RENEW);
        let begin = |call: &mut Call| request::ttl(call, ttl);
        self.group(&self.0.renewals, doing, terms, begin, request::renew, request::renewed)
    }

    fn end(&self, requests: &[EndRequest]) -> Outcome<Vec<Ended>> {
        let doing = ("record ends", Repeat::Harmless, &END);
        self.group(&self.0.ends, doing, requests, |_| {}, request::end, request::ended)
    }

    fn read(&self, query: &Query) -> Outcome<Page> {
        let read = |reply: &mut Reply| query::page(query, reply);
        let page = self.answer(&self.0.reads, Repeat::Harmless, 1, &READ, query::call(query), read);
        page.map_err(|fault| self.told("read", fault))
    }

    fn purge(&self, plan: &PlanKey, keep: Retention, at_most: usize) -> Outcome<Purged> {
        let mut call = Call::default();
        call.fixed_key(bucket(plan)).arg(plan.plan_str());
        call.arg(keep.age.map_or_else(String::new, |age| micros(age).to_string()));
        call.arg(keep.count.map_or_else(String::new, |count| count.to_string()));
        call.number(keep.keep_last).number(at_most.min(PURGED));
        let read = |reply: &mut Reply| {
            let (deleted, low_water) = (reply.number()?, Trigger::from_secs(reply.number()?));
            Ok(Purged { deleted, low_water, more: reply.text()? == "1" })
        };
        self.answer(&self.0.reads, Repeat::Harmless, 1, &PURGE, Ok(call), read)
            .map_err(|fault| self.told("purge", fault))
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("address", &self.0.address).finish_non_exhaustive()
    }
}
