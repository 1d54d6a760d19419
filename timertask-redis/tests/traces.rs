//! The rules in Lua against the rules in Rust: random requests, sensible or not, go to a real server and to `MemLedger`,
//! whose clock is set to what the server's was while it decided. Every answer and every row is equal.
//!
//! Time passes by itself, so leases of a few milliseconds lapse on the way; which of them have is part of the trace. All
//! else comes from the seed, which a failure names.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use common::{Server, bucket, fingerprint, plan_key};
use timertask_core::clock::{Clock, Signal, SystemClock, Until, Wake};
use timertask_core::key::{Fence, InstanceId, Namespace, Nonce, PlanKey, RequestId, SlotKey};
use timertask_core::memory::MemLedger;
use timertask_core::seam::{
    Asked, Cancel, Claim, ClaimRequest, Cover, EndOp, EndRequest, Ending, Gate, Generation, Ledger, NotStarted,
    Outcome, Overlap, Page, PlanOp, PlanRow, Query, Retention, RunKind, SlotRow, Term,
};
use timertask_core::time::{Timestamp, Trigger};
use timertask_redis::Redis;

/// Shows what it was set to.
struct Followed(AtomicI64);

impl Clock for Followed {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
    fn monotonic(&self) -> Duration {
        SystemClock.monotonic()
    }
    fn wait(&self, signal: &Signal, until: Option<Until>) -> Wake {
        SystemClock.wait(signal, until)
    }
    fn entropy(&self) -> u64 {
        SystemClock.entropy()
    }
}

/// Numbers from a seed (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()].clone()
    }
}

struct Trace {
    seed: u64,
    random: Random,
    redis: Redis,
    memory: MemLedger,
    clock: Arc<Followed>,
    plans: Vec<PlanKey>,
    base: i64,
    /// Around which slot, after the first, requests are made; it moves on, so that there are always new ones.
    around: i64,
    /// Terms that were granted lately.
    terms: Vec<Term>,
    granted: usize,
    /// Whether a group over several buckets is several scripts, each with its own now, so that only a group within one can
    /// be compared.
    divided: bool,
}

impl Trace {
    fn new(server: &Server, seed: u64) -> Self {
        Self::on(server.connect(), seed, ["p", "a}{b\\é", "q'\" "].map(plan_key).to_vec())
    }

    fn on(redis: Redis, seed: u64, plans: Vec<PlanKey>) -> Self {
        let clock = Arc::new(Followed(AtomicI64::new(0)));
        let memory = MemLedger::with_clock(Arc::clone(&clock) as Arc<dyn Clock>).keeping(usize::MAX);
        let now = redis.plan(&[]).unwrap().now;
        let random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        Self {
            seed,
            random,
            redis,
            memory,
            clock,
            plans,
            base: now.trigger().as_secs(),
            around: 0,
            terms: Vec::new(),
            granted: 0,
            divided: false,
        }
    }

    /// Asks both, the server first; its now is that of the other.
    #[track_caller]
    fn both<T: PartialEq + std::fmt::Debug>(
        &self,
        asked: &dyn std::fmt::Debug,
        ask: impl Fn(&dyn Ledger) -> Outcome<T>,
    ) -> T {
        let answer = ask(&self.redis).unwrap_or_else(|e| panic!("seed {}: {e} ({e:?}) at {asked:#?}", self.seed));
        self.clock.0.store(answer.now.as_micros(), Ordering::SeqCst);
        let expected = ask(&self.memory).unwrap();
        assert_eq!(answer, expected, "seed {}: redis, then memory, at {asked:#?}", self.seed);
        answer.value
    }

    fn now(&self) -> i64 {
        self.clock.0.load(Ordering::SeqCst)
    }

    fn row(&self, plan: &PlanKey) -> Option<PlanRow> {
        let read = [(plan.clone(), PlanOp::Read)];
        self.memory.plan(&read).unwrap().value.remove(0).row
    }

    fn plan(&mut self) -> PlanKey {
        if self.random.chance(2) { PlanKey::whole(Namespace::default()) } else { self.random.pick(&self.plans) }
    }

    fn at(&mut self) -> Trigger {
        Trigger::from_secs(self.base + self.around - 6 + self.random.below(12) as i64)
    }

    /// A slot; each request id has one instant.
    fn slot(&mut self) -> SlotKey {
        let plan = self.plan();
        if self.random.chance(20) {
            let n = self.random.below(4);
            let request = RequestId::new(format!("r{n}/\\{{}}")).unwrap();
            // A request is found by its id, whatever instant is named with it.
            let at = n + self.random.pick(&[0, 0, 0, 1, 10]);
            return SlotKey { plan, at: Trigger::from_secs(self.base + at as i64), request: Some(request) };
        }
        SlotKey { plan, at: self.at(), request: None }
    }

    fn nonce(&mut self) -> Nonce {
        let n = u128::from(self.random.below(12));
        Nonce::from_bits(n << 100 | n)
    }

    fn ttl(&mut self) -> Duration {
        self.random.pick(&[0, 1, 2_000, 2_000, 10_000, 3_600_000_000]).into_micros()
    }

    fn reason(&mut self) -> NotStarted {
        self.random.pick(&NotStarted::ALL)
    }

    fn text(&mut self) -> String {
        self.random.pick(&["", "a", "two\nlines\\n", "\\", "é\u{1F980}\0'\""]).to_owned()
    }

    fn asked(&mut self) -> Option<Arc<Asked>> {
        let by = self.random.pick(&["ana", "back\\slash\\n", "é\u{1F980}'\""]);
        self.random.chance(30).then(|| Arc::new(Asked::new(by, "a\\reason").unwrap()))
    }

    fn claim_request(&mut self) -> ClaimRequest {
        let key = self.slot();
        let manual = key.request.is_some() && self.random.chance(90);
        let gate = match self.random.below(6) {
            0 => Gate::Force,
            1 => Gate::Policy(Overlap::Skip),
            2 => Gate::Policy(Overlap::QueueOne),
            3 => Gate::Policy(Overlap::CancelPrevious),
            _ => Gate::Policy(Overlap::Allow(self.random.below(4) as u32)),
        };
        let version = self.random.chance(50).then(|| Arc::from(self.text()));
        ClaimRequest {
            nonce: self.nonce(),
            fingerprint: fingerprint(1 + u128::from(self.random.chance(10))),
            prev: self
                .random
                .chance(80)
                .then(|| Trigger::from_secs(key.at.as_secs() - 1 - self.random.below(2) as i64)),
            kind: if manual { RunKind::Manual } else { self.random.pick(&RunKind::ALL) },
            asked: self.asked(),
            gate,
            attempts_allowed: self.random.below(4) as u32,
            ttl: self.ttl(),
            instance: InstanceId::new(self.random.pick(&["i", "back\\slash", "é"])).unwrap(),
            version,
            key,
        }
    }

    fn term(&mut self) -> Term {
        if !self.terms.is_empty() && self.random.chance(85) {
            let mut term = self.random.pick(&self.terms);
            if self.random.chance(5) {
                term.nonce = self.nonce();
            }
            return term;
        }
        Term { key: self.slot(), nonce: self.nonce(), fence: Fence::from_u64(self.random.below(3)) }
    }

    /// A term as its row has it, so that open and lapsed slots are met.
    fn known_term(&mut self) -> Term {
        let plan = self.random.pick(&self.plans);
        let query = Query::Unfinished { plan, limit: 100 };
        let rows = self.memory.read(&query).unwrap().value.slots;
        if rows.is_empty() {
            return self.term();
        }
        let row = self.random.pick(&rows);
        Term { key: row.key, nonce: row.nonce, fence: row.fence }
    }

    fn end_request(&mut self) -> EndRequest {
        let term = if self.random.chance(50) { self.known_term() } else { self.term() };
        let nonce = term.nonce;
        let op = match self.random.below(6) {
            0 | 1 => EndOp::Settle {
                nonce,
                ending: self.random.pick(&Ending::ALL),
                started_at: Timestamp::from_micros(self.now()),
                // Some long ago, so that purging by count has something to take.
                ended_at: Timestamp::from_micros(self.now() - self.random.pick(&[0, 1, 200_000_000_000])),
                tries: self.random.below(3) as u32,
                detail: self.random.chance(50).then(|| Arc::from(self.text())),
            },
            2 => EndOp::GiveBack { nonce },
            3 => EndOp::Expire { attempts_allowed: self.random.below(4) as u32 },
            4 => EndOp::CutLease { max_skew: self.ttl() },
            _ => EndOp::Resolve { reason: self.reason() },
        };
        EndRequest { key: term.key, fence: term.fence, op }
    }

    fn generation(&mut self, row: Option<&PlanRow>) -> Generation {
        let made_up =
            Generation { fingerprint: fingerprint(1 + u128::from(self.random.below(2))), effective_from: self.at() };
        row.filter(|_| self.random.chance(70)).map_or(made_up, |row| row.generation)
    }

    fn cover(&mut self, from: Trigger, to: Trigger) -> Cover {
        let mut slots: Vec<_> = (from.as_secs() + 1..=to.as_secs()).map(Trigger::from_secs).collect();
        slots.retain(|_| self.random.chance(80));
        if self.random.chance(5) {
            slots.push(self.at());
        }
        match self.random.below(4) {
            0 => Cover::Nothing,
            1 => Cover::Rows(slots),
            2 => Cover::Slots(slots, self.reason()),
            _ => Cover::Range { count: self.random.chance(50).then(|| self.random.below(9)), reason: self.reason() },
        }
    }

    fn plan_request(&mut self) -> (PlanKey, PlanOp) {
        let plan = self.plan();
        let row = self.row(&plan);
        // Left to chance alone, all would be paused for most of the time.
        let paused = |trace: &Self, plan: &PlanKey| trace.row(plan).and_then(|row| row.pause);
        for plan in [plan.clone(), PlanKey::whole(Namespace::default())] {
            if let Some(pause) = paused(self, &plan)
                && self.random.chance(40)
            {
                return (plan, PlanOp::Resume { since: pause.since, lapsed_only: self.random.chance(30) });
            }
        }
        let op = match self.random.below(12) {
            0 => PlanOp::Read,
            1 | 2 => PlanOp::Open {
                fingerprint: fingerprint(1 + u128::from(self.random.chance(20))),
                replaces: self.random.chance(50).then(|| self.generation(row.as_ref())),
            },
            3 => PlanOp::Close { generation: self.generation(row.as_ref()) },
            4..8 => {
                let guess = self.at();
                let from = row.filter(|_| self.random.chance(90)).map_or(guess, |row| row.cursor);
                let to = Trigger::from_secs(from.as_secs() - 1 + self.random.below(5) as i64);
                let fingerprint = fingerprint(1 + u128::from(self.random.chance(10)));
                PlanOp::Account { fingerprint, from, to, cover: self.cover(from, to) }
            }
            8 => PlanOp::SetBack { max_skew: Duration::from_secs(self.random.pick(&[0, 1, 5, 20, 60, 100])) },
            9 => PlanOp::Pause {
                by: self.text(),
                why: self.text(),
                until: self
                    .random
                    .chance(50)
                    .then(|| Timestamp::from_micros(self.now() + self.random.below(2_000) as i64)),
            },
            10 => PlanOp::Resume {
                since: row.and_then(|row| row.pause.clone()).map_or(Timestamp::EPOCH, |pause| pause.since),
                lapsed_only: self.random.chance(30),
            },
            _ => {
                let key = if self.random.chance(70) { self.known_term().key } else { self.slot() };
                let cancel = Cancel { by: self.text(), why: self.text() };
                return (key.plan, PlanOp::Cancel { at: key.at, request: key.request, cancel });
            }
        };
        (plan, op)
    }

    fn many<T>(&mut self, mut make: impl FnMut(&mut Self) -> T, plan: impl Fn(&T) -> &PlanKey) -> Vec<T> {
        let n = if self.random.chance(80) { 1 } else { self.random.below(6) };
        let mut all: Vec<T> = (0..n).map(|_| make(self)).collect();
        if self.divided
            && let Some(bucket) = all.first().map(|one| bucket(plan(one)))
        {
            all.retain(|one| common::bucket(plan(one)) == bucket);
        }
        all
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..45 => {
                let requests = self.many(Self::claim_request, |request| &request.key.plan);
                let claims = self.both(&requests, |ledger| ledger.claim(&requests));
                for (request, claim) in requests.iter().zip(claims) {
                    if let Claim::Granted(grant) = claim {
                        self.granted += 1;
                        if self.terms.len() >= 16 {
                            self.terms.remove(0);
                        }
                        self.terms.push(Term { key: request.key.clone(), nonce: request.nonce, fence: grant.fence });
                    }
                }
            }
            45..55 => {
                let (terms, ttl) = (self.many(Self::term, |term| &term.key.plan), self.ttl());
                self.both(&(&terms, ttl), |ledger| ledger.renew(&terms, ttl));
            }
            55..78 => {
                let requests = self.many(Self::end_request, |request| &request.key.plan);
                self.both(&requests, |ledger| ledger.end(&requests));
            }
            78..96 => {
                let requests = self.many(Self::plan_request, |request| &request.0);
                self.both(&requests, |ledger| ledger.plan(&requests));
            }
            _ => {
                let plan = self.random.pick(&self.plans);
                let keep = Retention {
                    age: self.random.chance(50).then(|| self.ttl()),
                    count: self.random.chance(50).then(|| self.random.below(4) as usize),
                    keep_last: self.random.below(4) as usize,
                };
                let at_most = self.random.below(5) as usize;
                self.both(&(&plan, keep, at_most), |ledger| ledger.purge(&plan, keep, at_most));
            }
        }
    }

    /// Everything that is stored, read in each way.
    fn compare(&mut self) {
        let namespace = Namespace::default();
        let query = Query::Plans { namespace: namespace.clone(), after: None, limit: 100 };
        self.both(&query, |ledger| ledger.read(&query));
        self.compare_sweeps(&namespace);
        for plan in self.plans.clone() {
            let query = Query::Unfinished { plan: plan.clone(), limit: 1 + self.random.below(100) as usize };
            self.both(&query, |ledger| ledger.read(&query));
            let (after, upto) = (Trigger::default(), Trigger::from_secs(i64::MAX));
            let query = Query::History { plan: plan.clone(), after, upto, page: None, limit: 1_000 };
            let all = self.both(&query, |ledger| ledger.read(&query));
            let keys: Vec<_> = all.slots.iter().map(|row| row.key.clone()).collect();
            let query = Query::Slots(keys);
            self.both(&query, |ledger| ledger.read(&query));
            let (after, upto, limit) = (self.at(), self.at(), 1 + self.random.below(4) as usize);
            let pages = |ledger: &dyn Ledger| {
                let mut whole = Page::default();
                let mut page = None;
                loop {
                    let query = Query::History { plan: plan.clone(), after, upto, page, limit };
                    let read = ledger.read(&query).unwrap().value;
                    assert!(read.slots.len() <= limit);
                    whole.slots.extend(read.slots);
                    whole.ranges.extend(read.ranges);
                    page = read.more;
                    if page.is_none() {
                        return whole;
                    }
                }
            };
            assert_eq!(pages(&self.redis), pages(&self.memory), "seed {}: ({after}, {upto}]", self.seed);
        }
    }

    /// A sweep in one page, and page by page; leases may lapse between pages.
    fn compare_sweeps(&mut self, namespace: &Namespace) {
        let max_skew = self.ttl();
        let query = |after, limit| Query::Lapsed { namespace: namespace.clone(), max_skew, after, limit };
        let read = |ledger: &dyn Ledger, query: &Query| ledger.read(query).unwrap();
        let sorted = |mut rows: Vec<SlotRow>| {
            rows.sort_by(|a, b| a.key.cmp(&b.key));
            rows
        };
        let by_pages = |limit| {
            let (mut rows, mut after) = (Vec::new(), None);
            loop {
                let page = read(&self.redis, &query(after, limit));
                rows.extend(page.value.slots);
                after = page.value.more;
                if after.is_none() {
                    return (page.now, sorted(rows));
                }
            }
        };
        let at = |now: Timestamp| {
            self.clock.0.store(now.as_micros(), Ordering::SeqCst);
            sorted(read(&self.memory, &query(None, 1_000)).value.slots)
        };
        let start = self.redis.plan(&[]).unwrap().now;
        let whole = read(&self.redis, &query(None, 1_000));
        let first = if self.divided {
            // Each bucket has its own now, between these two.
            let (first, last) = (at(start), at(whole.now));
            let shown = sorted(whole.value.slots);
            assert!(shown.iter().all(|row| first.contains(row) || last.contains(row)), "seed {}", self.seed);
            assert!(first.iter().all(|row| row.lease_end > start || shown.contains(row)), "seed {}", self.seed);
            first
        } else {
            let first = at(whole.now);
            assert_eq!(sorted(whole.value.slots), first, "seed {}", self.seed);
            first
        };
        let (last_now, pages) = by_pages(1 + usize::try_from(self.seed % 3).unwrap());
        let last = at(last_now);
        // What lies ahead of now by too much may come within reach on the way.
        let lapsed = |row: &&SlotRow| row.lease_end <= last_now;
        assert!(
            first.iter().filter(lapsed).all(|row| pages.contains(row)),
            "seed {}: {first:?} in {pages:?}",
            self.seed
        );
        assert!(pages.iter().all(|row| last.contains(row) || first.contains(row)), "seed {}", self.seed);
        assert!(pages.windows(2).all(|pair| pair[0].key != pair[1].key), "seed {}: shown twice", self.seed);
    }
}

trait IntoMicros {
    fn into_micros(self) -> Duration;
}

impl IntoMicros for u64 {
    fn into_micros(self) -> Duration {
        Duration::from_micros(self)
    }
}

fn run(seed: u64, steps: usize) {
    let server = Server::start(&[]);
    compare_all_along(Trace::new(&server, seed), steps, 8);
}

fn compare_all_along(mut trace: Trace, steps: usize, every: usize) {
    let seed = trace.seed;
    for step in 0..steps {
        // To and fro, so that the cursor is met from both sides.
        trace.around = i64::try_from(step / 10 % 120).unwrap() - i64::try_from(step / 400 % 40).unwrap();
        trace.step();
        if step % every == 0 {
            trace.compare();
        }
    }
    trace.compare();
    assert!(trace.granted > steps / 20, "seed {seed}: {} grants in {steps} steps show little", trace.granted);
}

const STEPS: usize = 2_500;

#[test]
fn the_rules_in_lua_decide_as_those_in_rust_1() {
    run(1, STEPS);
}

#[test]
fn the_rules_in_lua_decide_as_those_in_rust_2() {
    run(2, STEPS);
}

#[test]
fn the_rules_in_lua_decide_as_those_in_rust_3() {
    run(3, STEPS);
}

/// On a cluster each decision is one script all the same. Two of the plans share a bucket.
#[cfg(feature = "cluster")]
#[test]
fn the_rules_in_lua_decide_as_those_in_rust_on_a_cluster() {
    let nodes = common::nodes::Nodes::start();
    let plan = plan_key("p");
    let beside = (0..).map(|n| plan_key(&format!("}}{n}{{"))).find(|other| bucket(other) == bucket(&plan)).unwrap();
    let mut trace = Trace::on(nodes.connect(), 4, vec![plan, beside, plan_key("q'\" ")]);
    trace.divided = true;
    compare_all_along(trace, STEPS, 50);
}

/// One more, or as many as there is time for.
#[test]
fn soak_the_rules_in_lua_decide_as_those_in_rust() {
    let seconds = std::env::var("TIMERTASK_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let end = SystemClock.monotonic() + Duration::from_secs(seconds);
    let mut seed = 1_000;
    loop {
        run(seed, STEPS);
        seed += 1;
        if SystemClock.monotonic() >= end {
            break;
        }
    }
}
