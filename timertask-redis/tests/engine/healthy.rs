//! What holds while nothing fails: how often the server is asked, what is kept, and what `health()` says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use timertask_core::clock::SystemClock;
use timertask_core::key::{PlanKey, RequestId};
use timertask_core::seam::{
    Claim, ClaimRequest, Durability, EndRequest, Ended, Ledger, Outcome, Page, PlanOp, PlanState, Purged, Query,
    Refusal, Renewal, Retention, RunKind, SlotState, StoreError, Term,
};
use timertask_core::{Overlap, Plan, Run, Scheduler};
use timertask_redis::Redis;

use crate::common::clock::{FAST, OddClock};
use crate::common::*;
use crate::service::*;

/// Redis, and the groups in which it was asked for slots.
#[derive(Clone)]
struct Counted {
    store: Redis,
    claims: Arc<std::sync::Mutex<Vec<Vec<ClaimRequest>>>>,
    purges: Arc<std::sync::Mutex<Vec<usize>>>,
}

impl Counted {
    fn new(store: Redis) -> Self {
        Self { store, claims: Arc::default(), purges: Arc::default() }
    }
}

impl Ledger for Counted {
    fn describe(&self) -> Result<Durability, StoreError> {
        self.store.describe()
    }
    fn plan(&self, requests: &[(PlanKey, PlanOp)]) -> Outcome<Vec<PlanState>> {
        self.store.plan(requests)
    }
    fn claim(&self, requests: &[ClaimRequest]) -> Outcome<Vec<Claim>> {
        self.claims.lock().unwrap().push(requests.to_vec());
        self.store.claim(requests)
    }
    fn renew(&self, terms: &[Term], ttl: Duration) -> Outcome<Vec<Renewal>> {
        self.store.renew(terms, ttl)
    }
    fn end(&self, requests: &[EndRequest]) -> Outcome<Vec<Ended>> {
        self.store.end(requests)
    }
    fn read(&self, query: &Query) -> Outcome<Page> {
        self.store.read(query)
    }
    fn purge(&self, plan: &PlanKey, keep: Retention, at_most: usize) -> Outcome<Purged> {
        let answer = self.store.purge(plan, keep, at_most)?;
        self.purges.lock().unwrap().push(answer.value.deleted);
        Ok(answer)
    }
}

/// How many scripts the server has run.
fn scripts_run(server: &Server) -> u64 {
    let info: String = server.tell(&["INFO", "commandstats"]);
    let count = |line: &str| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?.parse::<u64>().ok();
    info.lines().find_map(count).unwrap()
}

/// Ten instances, a hundred plans that are due in the same second: nobody asks for a slot twice, and what is due goes in
/// groups.
#[test]
fn ten_instances_ask_once_for_each_slot_and_in_groups() {
    const PLANS: usize = 100;
    let server = Server::start(&[]);
    let entered = Arc::new(AtomicU64::new(0));
    let instances: Vec<_> = (0..10)
        .map(|_| {
            let counted = Arc::clone(&entered);
            let job = move |_: &Run| {
                counted.fetch_add(1, Ordering::SeqCst);
                Ok(())
            };
            let store = Counted::new(server.connect());
            let scheduler = Scheduler::builder(job).concurrency(2 * PLANS).ledger(store.clone()).start().unwrap();
            let plan = |n| Plan::new(format!("p{n}"), "@every 2s").overlap(Overlap::Allow(1_000));
            scheduler.reconcile((0..PLANS).map(plan)).unwrap();
            (scheduler, store)
        })
        .collect();
    until(|| (entered.load(Ordering::SeqCst) >= 4 * PLANS as u64).then_some(()));
    let scripts = scripts_run(&server);
    instances.iter().for_each(|(scheduler, _)| close(scheduler));
    let mut groups = 0;
    for (scheduler, store) in &instances {
        let claims = store.claims.lock().unwrap();
        let mut asked = BTreeMap::new();
        for request in claims.iter().flatten() {
            *asked.entry(request.key.clone()).or_insert(0) += 1;
        }
        assert!(asked.values().all(|times| *times == 1), "a slot was asked for twice: {asked:?}");
        let ticks: BTreeSet<_> = asked.keys().map(|key| key.at).collect();
        let sizes: Vec<_> = claims.iter().map(Vec::len).collect();
        assert_eq!(sizes.len(), ticks.len(), "one call for all that is due: {sizes:?}");
        groups += claims.len();
        assert_eq!(scheduler.stats().store_faults, 0);
    }
    println!("{scripts} scripts, {groups} groups of claims for {} runs", entered.load(Ordering::SeqCst));
}

/// Records beyond the age go, a few at a time; those that are younger, and what still runs, stay.
#[test]
fn the_scribe_purges_in_small_batches() {
    const OLD: usize = 450;
    // What it keeps in memory alone has to go as well.
    let server = Server::start(&[]);
    let plain = server.connect();
    let plan = plan_key(TICK);
    // Before the first of the plan's own trigger points.
    let at = open(&plain, &plan);
    let by_hand = |at, n: usize| {
        let mut request = request(&plan, at, n as u128);
        request.key.request = Some(RequestId::new(format!("by-hand-{n}")).unwrap());
        request.kind = RunKind::Manual;
        request
    };
    let requests: Vec<_> = (0..OLD).map(|n| by_hand(at, n)).collect();
    let granted = plain.claim(&requests).unwrap().value;
    let ends = requests.iter().zip(&granted).map(|(request, claim)| match claim {
        // They ended long ago.
        Claim::Granted(grant) => success(request, grant),
        other => panic!("{other:?}"),
    });
    assert_eq!(plain.end(&ends.collect::<Vec<_>>()).unwrap().value.len(), OLD);
    let running = by_hand(at + 1, OLD);
    grant(&plain, &running);

    let store = Counted::new(server.connect());
    let keep = Retention { age: Some(Duration::from_secs(3600)), count: None, keep_last: 0 };
    let builder = Scheduler::builder(|_: &Run| Ok(())).ledger(store.clone()).retention(keep).clock(FAST);
    let scheduler = builder.start().unwrap();
    // The generation that is there is taken over, and its cursor goes on from where it is.
    scheduler.reconcile([Plan::new(TICK, "@every 1s").overlap(Overlap::Allow(1_000))]).unwrap();
    let purged = || store.purges.lock().unwrap().iter().sum::<usize>();
    until(|| (purged() >= OLD).then_some(()));
    close(&scheduler);
    assert_eq!(purged(), OLD);
    let batches = store.purges.lock().unwrap().clone();
    assert!(batches.iter().all(|batch| *batch <= 200), "{batches:?}");
    let left = slots(&plain, TICK);
    assert!(left.iter().any(|slot| slot.key == running.key && slot.state == SlotState::Running));
    let rows: usize = server.tell(&["HLEN", &format!("{}:slots:{TICK}", bucket_of(&server))]);
    assert_eq!(rows, left.len() + 1, "a row for each, and the name of the request that runs");
    let refused = claim(&plain, &by_hand(at, 0));
    assert_eq!(refused, Claim::Refused(Refusal::TooOld), "what was purged is never started again");
}

/// The bucket of the one plan that the server knows.
fn bucket_of(server: &Server) -> String {
    let keys: Vec<String> = server.tell(&["KEYS", "timertask:1:*:ids"]);
    keys[0].trim_end_matches(":ids").to_owned()
}

#[test]
fn health_tells_skew_as_each_call_measures_it_and_durability() {
    let server = Server::start(&[]);
    for (off_by, skewed) in [(-2_000_000, false), (2_000_000, false), (-9_000_000, true), (9_000_000, true)] {
        let journal = Journal::default();
        journal.release();
        let clock = OddClock { times: 1, off_by };
        let scheduler = instance(server.connect(), &journal, clock);
        let health = until(|| Some(scheduler.health()).filter(|health| health.skew_micros != 0));
        assert!((health.skew_micros + off_by).abs() < 1_000_000, "{health:?} with a clock off by {off_by}");
        assert_eq!((health.skewed, health.store_reachable), (skewed, true), "{health:?}");
        if skewed {
            until_settled(&server.connect());
            assert_eq!(journal.len(), 0);
        } else {
            journal.until_more_than(1);
        }
        close(&scheduler);
        let () = server.tell(&["FLUSHALL"]);
    }
}

/// What the server promises is what it was found to promise, also where it came back otherwise than it went.
#[test]
fn health_tells_what_the_server_promises_now() {
    let mut server = Server::start(&[]);
    let journal = Journal::default();
    journal.release();
    let scheduler = instance(server.connect_impatiently(), &journal, FAST);
    assert_eq!(scheduler.health().durability, Durability::UntilRestart);
    server.kill();
    until_faults(&scheduler, 1);
    server.start_again_with(APPENDS);
    until(|| (scheduler.health().durability == Durability::Durable { synced: true }).then_some(()));
    close(&scheduler);
}

/// Nobody notices, but for a script that is sent once more.
#[test]
fn scripts_that_are_flushed_all_the_time_disturb_no_run() {
    let server = Server::start(APPENDS);
    let journal = Journal::default();
    journal.release();
    let scheduler = instance(server.connect(), &journal, SystemClock);
    for n in 0..4 {
        journal.until_more_than(n);
        let () = server.tell(&["SCRIPT", "FLUSH"]);
    }
    let store = server.connect();
    until_settled(&store);
    close(&scheduler);
    assert_eq!(scheduler.stats().store_faults, 0);
    journal.is_recorded(&store);
}
