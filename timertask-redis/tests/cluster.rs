//! On a real cluster of three masters: all that a store must do, and what befalls clusters.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::nodes::{Nodes, patient, prompt};
use common::*;
use timertask_core::key::{Namespace, Nonce, PlanKey};
use timertask_core::seam::{
    Applied, Claim, Durability, Ended, Held, Ledger, Mutex, PlanOp, Query, Refusal, StoreError, StoreErrorKind, Term,
};
use timertask_core::time::Trigger;
use timertask_redis::Redis;
use timertask_testkit::conformance::{self, BoardHarness, LedgerHarness, MutexHarness};

struct OnCluster(Nodes);

impl OnCluster {
    fn start() -> Self {
        Self(Nodes::start())
    }
}

impl LedgerHarness for OnCluster {
    type Ledger = Redis;
    fn handle(&self) -> Redis {
        self.0.connect()
    }
    fn pass_time(&self, d: Duration) {
        wait(d);
    }
}

impl MutexHarness for OnCluster {
    type Mutex = Redis;
    fn handle(&self) -> Redis {
        self.0.connect()
    }
    fn pass_time(&self, d: Duration) {
        wait(d);
    }
}

impl BoardHarness for OnCluster {
    type Board = Redis;
    fn handle(&self) -> Redis {
        self.0.connect()
    }
}

/// Starting a cluster takes two seconds, so a few are shared by all cases, one after the other.
#[test]
fn all_that_a_store_must_do_holds_on_a_cluster() {
    let [ledger, mutex, board] =
        [conformance::ledger_cases(), conformance::mutex_cases(), conformance::board_cases::<OnCluster>()];
    let cases = std::sync::Mutex::new([ledger, mutex, board].concat());
    let (all, ran) = (cases.lock().unwrap().len(), AtomicUsize::new(0));
    assert!(all > 150, "{all} cases");
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let cluster = OnCluster::start();
                while let Some((name, case)) = { cases.lock().unwrap().pop() } {
                    for server in &cluster.0.servers {
                        let () = server.tell(&["FLUSHALL"]);
                    }
                    // The panic's own message has been printed; this one says of which case it is.
                    let held = catch_unwind(AssertUnwindSafe(|| case(&cluster)));
                    assert!(held.is_ok(), "{name} does not hold");
                    ran.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(ran.into_inner(), all);
}

/// Plans, one on each master.
fn one_on_each(nodes: &Nodes) -> Vec<PlanKey> {
    let on = |n| (0..).map(|i| plan_key(&format!("plan-{i}"))).find(|plan| nodes.owner(&bucket(plan)).0 == n).unwrap();
    (0..nodes.masters).map(on).collect()
}

fn try_claim(store: &Redis, plan: &PlanKey, at: i64, nonce: u128) -> Result<Claim, StoreError> {
    store.claim(&[request(plan, at, nonce)]).map(|mut answer| answer.value.remove(0))
}

#[test]
fn a_group_over_all_masters_is_answered_in_order() {
    let nodes = Nodes::start();
    let store = nodes.connect();
    assert_eq!(store.describe().unwrap(), Durability::UntilRestart);
    let plans: Vec<_> = (0..100).map(|n| plan_key(&format!("plan-{n}"))).collect();
    let opens: Vec<_> =
        plans.iter().map(|plan| (plan.clone(), PlanOp::Open { fingerprint: fingerprint(1), replaces: None })).collect();
    let rows = store.plan(&opens).unwrap().value;
    let ats: Vec<_> = rows.iter().map(|state| state.row.as_ref().unwrap().cursor.as_secs() + 1).collect();
    let mut requests: Vec<_> = plans.iter().zip(&ats).map(|(plan, at)| request(plan, *at, 1)).collect();
    // A refusal in between changes nothing for the others.
    requests.insert(50, request(&plan_key("unknown"), 1, 1));
    let claims = store.claim(&requests).unwrap().value;
    assert_eq!(claims.len(), 101);
    assert_eq!(claims[50], Claim::Refused(Refusal::Unknown));
    requests.remove(50);
    let granted: Vec<_> = claims
        .iter()
        .filter_map(|claim| match claim {
            Claim::Granted(grant) => Some(grant.fence),
            _ => None,
        })
        .collect();
    assert_eq!(granted.len(), 100);
    // Each answer belongs to its request: with the fences in that order every term is held.
    let terms: Vec<_> = requests
        .iter()
        .zip(&granted)
        .map(|(request, fence)| Term { key: request.key.clone(), nonce: request.nonce, fence: *fence })
        .collect();
    let renewed = store.renew(&terms, Duration::from_secs(30)).unwrap().value;
    assert!(renewed.iter().all(|renewal| matches!(renewal, timertask_core::seam::Renewal::Held(_))));
    let keys: Vec<_> = requests.iter().map(|request| request.key.clone()).rev().collect();
    let read = store.read(&Query::Slots(keys.clone())).unwrap().value.slots;
    assert_eq!(read.iter().map(|row| row.key.clone()).collect::<Vec<_>>(), keys);
    let on_each = nodes.servers.iter().map(|server| server.tell::<i64>(&["DBSIZE"]));
    assert!(on_each.into_iter().all(|keys| keys > 100), "each master keeps a share");
}

/// What a sweep shows, by pages of a few rows.
fn sweep(store: &Redis, limit: usize) -> Vec<String> {
    let (mut after, mut shown) = (None, Vec::new());
    loop {
        let query = Query::Lapsed { namespace: Namespace::default(), max_skew: Duration::ZERO, after, limit };
        let page = store.read(&query).unwrap().value;
        assert!(page.slots.len() <= limit);
        shown.extend(page.slots.iter().map(|row| row.key.to_string()));
        after = page.more;
        if after.is_none() {
            shown.sort();
            return shown;
        }
    }
}

#[test]
fn reading_goes_over_all_buckets_page_by_page() {
    let nodes = Nodes::start();
    let store = nodes.connect();
    let plans: Vec<_> = (0..60).map(|n| plan_key(&format!("plan-{n:02}"))).collect();
    let mut lapsed = Vec::new();
    for plan in &plans {
        let at = open(&store, plan) + 1;
        let mut request = request(plan, at, 1);
        request.ttl = Duration::ZERO;
        grant(&store, &request);
        lapsed.push(request.key.to_string());
    }
    lapsed.sort();
    for limit in [1, 7, 60, 1_000] {
        assert_eq!(sweep(&store, limit), lapsed, "{limit} at a time");
    }
    let (mut after, mut shown) = (None, Vec::new());
    loop {
        let query = Query::Plans { namespace: Namespace::default(), after, limit: 7 };
        let page = store.read(&query).unwrap().value;
        shown.extend(page.plans.into_iter().map(|(plan, _)| plan));
        if page.more.is_none() {
            break;
        }
        after = shown.last().and_then(|plan| plan.plan.clone());
    }
    assert_eq!(shown, plans);
}

fn pause_all(store: &Redis) -> Applied {
    let op = PlanOp::Pause { by: "me".into(), why: "moving".into(), until: None };
    store.plan(&[(PlanKey::whole(Namespace::default()), op)]).unwrap().value[0].applied
}

fn paused_since(store: &Redis) -> Option<timertask_core::time::Timestamp> {
    let read = store.plan(&[(PlanKey::whole(Namespace::default()), PlanOp::Read)]).unwrap();
    read.value[0].row.as_ref()?.pause.as_ref().map(|pause| pause.since)
}

fn resume_all(store: &Redis) -> Applied {
    let since = paused_since(store).unwrap();
    let op = PlanOp::Resume { since, lapsed_only: false };
    store.plan(&[(PlanKey::whole(Namespace::default()), op)]).unwrap().value[0].applied
}

#[test]
fn a_pause_of_all_holds_on_each_master_once_it_is_answered() {
    let nodes = Nodes::start();
    let store = nodes.connect();
    let plans = one_on_each(&nodes);
    let ats: Vec<_> = plans.iter().map(|plan| open(&store, plan) + 1).collect();
    let claims = |n: i64| -> Vec<_> {
        plans.iter().zip(&ats).map(|(plan, at)| try_claim(&nodes.connect(), plan, at + n, 1).unwrap()).collect()
    };
    assert_eq!(pause_all(&store), Applied::Done);
    assert_eq!(pause_all(&store), Applied::Unchanged);
    assert!(claims(0).iter().all(|claim| *claim == Claim::Refused(Refusal::Paused)));
    assert_eq!(resume_all(&store), Applied::Done);
    assert!(claims(0).iter().all(|claim| matches!(claim, Claim::Granted(_))));
}

/// A pause that stops half-way has not been answered. Whoever sweeps next brings it to all.
#[test]
fn a_pause_that_stopped_half_way_is_brought_to_all_by_the_next_sweep() {
    let nodes = Nodes::start();
    let store = nodes.connect();
    let plans = one_on_each(&nodes);
    let ats: Vec<_> = plans.iter().map(|plan| open(&store, plan) + 1).collect();
    assert_eq!(pause_all(&store), Applied::Done);
    // As if two of the three had not been reached.
    let copies = [bucket(&plans[0]), bucket(&plans[1])];
    for (n, copy) in copies.iter().enumerate() {
        let _: i64 = nodes.servers[n].tell(&["HDEL", copy, "", "\n"]);
        assert!(matches!(try_claim(&store, &plans[n], ats[n], 1), Ok(Claim::Granted(_))));
    }
    sweep(&store, 100);
    for (plan, at) in plans.iter().zip(&ats) {
        assert_eq!(try_claim(&store, plan, at + 1, 1).unwrap(), Claim::Refused(Refusal::Paused));
    }
    // A resume that stopped half-way, likewise: an older copy of the row never comes back.
    let old: Vec<String> = nodes.servers[0].tell(&["HMGET", &copies[0], "", "\n"]);
    assert_eq!(resume_all(&store), Applied::Done);
    let _: i64 = nodes.servers[0].tell(&["HSET", &copies[0], "", &old[0], "\n", &old[1]]);
    assert_eq!(try_claim(&store, &plans[0], ats[0] + 2, 1).unwrap(), Claim::Refused(Refusal::Paused));
    sweep(&store, 1);
    assert!(matches!(try_claim(&store, &plans[0], ats[0] + 2, 1), Ok(Claim::Granted(_))));
    assert_eq!(paused_since(&store), None);
}

/// The row itself may be what a failover loses.
#[test]
fn a_pause_that_its_own_master_lost_comes_back_from_the_copies() {
    let nodes = Nodes::start();
    let store = nodes.connect();
    let plan = &one_on_each(&nodes)[0];
    let at = open(&store, plan) + 1;
    assert_eq!(pause_all(&store), Applied::Done);
    let since = paused_since(&store);
    let (n, _) = nodes.owner("{:all}");
    let _: i64 = nodes.servers[n].tell(&["DEL", "timertask:1:{:all}"]);
    assert_eq!(paused_since(&store), None);
    sweep(&store, 100);
    assert_eq!(paused_since(&store), since);
    assert_eq!(try_claim(&store, plan, at, 1).unwrap(), Claim::Refused(Refusal::Paused));
    assert_eq!(resume_all(&store), Applied::Done);
    assert!(matches!(try_claim(&store, plan, at, 1), Ok(Claim::Granted(_))));
}

/// A slot on its way from one node to another.
struct Move<'a> {
    nodes: &'a Nodes,
    slot: String,
    from: usize,
    to: usize,
}

impl<'a> Move<'a> {
    fn begin(nodes: &'a Nodes, bucket: &str) -> Self {
        let (from, slot) = nodes.owner(bucket);
        let (to, slot) = ((from + 1) % nodes.masters, slot.to_string());
        let () = nodes.servers[to].tell(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &nodes.id(from)]);
        let () = nodes.servers[from].tell(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &nodes.id(to)]);
        Self { nodes, slot, from, to }
    }

    fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> =
            self.nodes.servers[self.from].tell(&["CLUSTER", "GETKEYSINSLOT", &self.slot, "1000"]);
        keys.sort();
        keys
    }

    fn key(&self, key: &str) {
        let port = self.nodes.servers[self.to].port().to_string();
        let () = self.nodes.servers[self.from].tell(&["MIGRATE", "127.0.0.1", &port, key, "0", "10000"]);
    }

    fn finish(self) {
        let id = self.nodes.id(self.to);
        for n in [self.to, self.from] {
            let () = self.nodes.servers[n].tell(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &id]);
        }
    }
}

/// While a slot moves, key by key, a call is carried out by the node that has all of its keys, or by none: a plan of which
/// one node has a half is never taken for one without a past.
#[test]
fn while_a_slot_moves_nothing_is_started_twice_and_all_goes_on_after_it() {
    let nodes = Nodes::start();
    let store = nodes.connect();
    let plan = plan_key("p");
    let at = open(&store, &plan) + 1;
    let running = request(&plan, at, 1);
    let granted = grant(&store, &running);
    let done = request(&plan, at + 1, 1);
    let done_grant = grant(&store, &done);
    assert!(matches!(store.end(&[success(&done, &done_grant)]).unwrap().value[0], Ended::Recorded(_)));
    let term = Term { key: running.key.clone(), nonce: running.nonce, fence: granted.fence };
    let mut next = at + 2;
    let mut refused = 0;
    let mut probe = |when: &str| {
        // The same in each state: what was started stays so, or it cannot be said now.
        for (slot, nonce) in [(at, 2), (at + 1, 2)] {
            match try_claim(&nodes.connect(), &plan, slot, nonce) {
                Ok(Claim::Held) => assert_eq!(slot, at, "{when}"),
                Ok(Claim::Ended(_)) => assert_eq!(slot, at + 1, "{when}"),
                Ok(other) => panic!("{when}: {other:?}"),
                Err(error) => {
                    assert_eq!(error.kind(), StoreErrorKind::Busy, "{when}: {error} {error:?}");
                    refused += 1;
                }
            }
        }
        for store in [&store, &nodes.connect()] {
            match store.renew(std::slice::from_ref(&term), Duration::from_secs(60)) {
                Ok(answer) => assert!(matches!(answer.value[0], timertask_core::seam::Renewal::Held(_)), "{when}"),
                Err(error) => assert_eq!(error.kind(), StoreErrorKind::Busy, "{when}: {error} {error:?}"),
            }
            match try_claim(store, &plan, next, 1) {
                Ok(Claim::Granted(grant)) => {
                    assert!(grant.fence > granted.fence, "{when}");
                    next += 1;
                }
                Ok(other) => panic!("{when}: {other:?}"),
                Err(error) => assert_eq!(error.kind(), StoreErrorKind::Busy, "{when}: {error} {error:?}"),
            }
            let query =
                Query::Lapsed { namespace: Namespace::default(), max_skew: Duration::ZERO, after: None, limit: 100 };
            let swept = store.read(&query);
            assert!(swept.is_ok(), "{when}: a slot that moves holds up no sweep: {swept:?}");
        }
    };
    let migration = Move::begin(&nodes, &bucket(&plan));
    probe("nothing has moved");
    let keys = migration.keys();
    assert_eq!(keys.len(), 6, "rows, ids, ends, grants of the bucket; slots and index of the plan: {keys:?}");
    for (n, key) in keys.iter().enumerate() {
        migration.key(key);
        probe(&format!("{} of 6 keys have moved", n + 1));
    }
    let to = migration.to;
    migration.finish();
    probe("it has moved");
    assert!(refused > 0, "a half of a plan is refused");
    // The handle that had connected before is sent on, and remembers: nothing is busy any more.
    assert_eq!(try_claim(&store, &plan, at, 2).unwrap(), Claim::Held);
    assert!(matches!(try_claim(&store, &plan, at + 99, 1), Ok(Claim::Granted(_))));
    assert_eq!(
        nodes.servers[to].tell::<i64>(&["CLUSTER", "COUNTKEYSINSLOT", &nodes.owner(&bucket(&plan)).1.to_string()]),
        6
    );
}

/// A node that asked for a whole of keys which have all moved sends the client on for this one time.
#[test]
fn a_plan_that_has_moved_before_its_slot_is_followed() {
    let nodes = Nodes::start();
    let store = nodes.connect();
    let plan = plan_key("p");
    let at = open(&store, &plan) + 1;
    grant(&store, &request(&plan, at, 1));
    let migration = Move::begin(&nodes, &bucket(&plan));
    for key in migration.keys() {
        migration.key(&key);
    }
    assert_eq!(try_claim(&store, &plan, at, 2).unwrap(), Claim::Held);
    let () = nodes.servers[migration.to].tell(&["SCRIPT", "FLUSH"]);
    assert!(
        matches!(try_claim(&store, &plan, at + 1, 2), Ok(Claim::Granted(_))),
        "also with a script to be sent again"
    );
    let read = store.read(&Query::Unfinished { plan: plan.clone(), limit: 9 }).unwrap();
    assert_eq!(read.value.slots.len(), 2);
    migration.finish();
    assert_eq!(try_claim(&store, &plan, at + 1, 3).unwrap(), Claim::Held);
}

#[test]
fn a_lock_is_where_its_plan_is() {
    let nodes = Nodes::start();
    let store = nodes.connect();
    let ttl = Duration::from_secs(60);
    for plan in one_on_each(&nodes) {
        let key = request(&plan, 1, 1).key;
        let lease = store.try_lock(&key, Nonce::from_bits(1), ttl).unwrap().unwrap();
        assert_eq!(nodes.connect().try_lock(&key, Nonce::from_bits(2), ttl).unwrap(), None);
        assert_eq!(store.extend(&lease, ttl).unwrap(), Held::Held);
        assert_eq!(store.unlock(&lease).unwrap(), Held::Held);
        assert!(store.try_lock(&key, Nonce::from_bits(2), ttl).unwrap().unwrap().fence > lease.fence);
    }
}

#[test]
fn one_dead_master_fails_its_own_plans_in_bounded_time() {
    let nodes = Nodes::with_replicas(0, &["--cluster-require-full-coverage", "no"]);
    let mut nodes = nodes;
    let store = nodes.connect_with(prompt());
    let plans = one_on_each(&nodes);
    let ats: Vec<_> = plans.iter().map(|plan| open(&store, plan) + 1).collect();
    nodes.servers[1].kill();
    let error = try_claim(&store, &plans[1], ats[1], 1).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable);
    assert!(matches!(try_claim(&store, &plans[0], ats[0], 1), Ok(Claim::Granted(_))), "others go on");
    // A group with all three fails as a whole; what was carried out before is granted again.
    let group: Vec<_> = plans.iter().zip(&ats).map(|(plan, at)| request(plan, at + 1, 1)).collect();
    let error = store.claim(&group).unwrap_err();
    assert!(error.outcome_unknown(), "the first of them has been granted");
    assert!(matches!(store.claim(&group[..1]).unwrap().value[0], Claim::Granted(_)));
    assert_eq!(store.claim(&[request(&plans[0], ats[0] + 1, 2)]).unwrap().value[0], Claim::Held);
    // Frozen instead of dead: the call comes back all the same.
    let frozen = nodes.servers[2].freeze();
    let error = try_claim(&store, &plans[2], ats[2], 1).unwrap_err();
    assert!(matches!(error.kind(), StoreErrorKind::TimedOut | StoreErrorKind::Unreachable), "{error}");
    drop(frozen);
}

/// With full coverage, the default, the loss of one master stops the others too.
#[test]
fn a_cluster_that_is_down_is_busy() {
    let mut nodes = Nodes::start();
    let store = nodes.connect_with(prompt());
    let plan = &one_on_each(&nodes)[0];
    let at = open(&store, plan) + 1;
    nodes.servers[1].kill();
    let error = until(|| try_claim(&store, plan, at, 1).err());
    assert_eq!((error.kind(), error.outcome_unknown()), (StoreErrorKind::Busy, false), "{error} {error:?}");
    assert!(format!("{error:?}").contains("ClusterDown"), "{error:?}");
}

#[test]
fn a_cluster_is_told_from_a_server_and_no_error_tells_the_password() {
    let nodes = Nodes::start();
    let port = nodes.servers[0].port();
    let error = Redis::connect(&format!("redis://127.0.0.1:{port}/")).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
    assert!(error.to_string().contains("redis+cluster://"), "{error}");
    let alone = Server::start(&[]);
    let error = Redis::connect(&format!("redis+cluster://:sesame@127.0.0.1:{}", alone.port())).unwrap_err();
    assert!(matches!(error.kind(), StoreErrorKind::Auth | StoreErrorKind::Misconfigured), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("sesame"));
    let error = Redis::connect(&format!("redis+cluster://127.0.0.1:{}", alone.port())).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error} {error:?}");
    let fresh = Server::start_node(&["--cluster-enabled", "yes"]);
    let error = patient().connect(&format!("redis+cluster://127.0.0.1:{}", fresh.port())).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Busy, "a node that has met no other: {error} {error:?}");
    // One host of several is enough.
    let store = prompt().connect(&format!("redis+cluster://127.0.0.1:1,127.0.0.1:{port}")).unwrap();
    open(&store, &plan_key("p"));
    assert!(!format!("{store:?}").is_empty());
}

/// A node that the others were taken from knows of its own slots alone. Whoever asks it first asks another then.
#[test]
fn a_node_that_was_cut_off_does_not_say_who_has_what() {
    let nodes = Nodes::with_replicas(0, &["--cluster-require-full-coverage", "no"]);
    for n in 1..3 {
        let () = nodes.servers[0].tell(&["CLUSTER", "FORGET", &nodes.id(n)]);
    }
    let store = nodes.connect();
    for plan in one_on_each(&nodes) {
        let at = open(&store, &plan) + 1;
        assert!(matches!(try_claim(&store, &plan, at, 1), Ok(Claim::Granted(_))));
    }
}

/// A slot that nobody has for a while is found again once somebody has it.
#[test]
fn a_slot_that_had_no_node_is_looked_for() {
    let nodes = Nodes::with_replicas(0, &["--cluster-require-full-coverage", "no"]);
    let store = nodes.connect();
    let plan = one_on_each(&nodes).remove(1);
    let at = open(&store, &plan) + 1;
    let (owner, slot) = nodes.owner(&bucket(&plan));
    let slot = slot.to_string();
    for server in &nodes.servers {
        let () = server.tell(&["CLUSTER", "DELSLOTS", &slot]);
    }
    until(|| {
        try_claim(&store, &plan, at, 1).err().filter(|error| error.to_string().contains("no node of the cluster"))
    });
    let () = nodes.servers[owner].tell(&["CLUSTER", "ADDSLOTS", &slot]);
    until(|| matches!(try_claim(&store, &plan, at, 1), Ok(Claim::Granted(_))).then_some(()));
}

/// Slow: a failover takes as long as the nodes wait for each other. Run by `scripts/soak`.
#[test]
#[ignore = "a failover takes several seconds; scripts/soak runs it"]
fn soak_a_master_fails_over_and_what_was_replicated_stays() {
    let mut nodes = Nodes::with_replicas(1, &[]);
    let store = nodes.connect_with(prompt().min_replicas(1, Duration::from_secs(1)));
    assert_eq!(store.describe().unwrap(), Durability::Replicated { acknowledged_by: 1 });
    for round in 0..2 {
        let plans = one_on_each(&nodes);
        let ats: Vec<_> = plans.iter().map(|plan| open(&store, plan) + 1).collect();
        let first = grant(&store, &request(&plans[round], ats[round], 1));
        nodes.servers[round].kill();
        let (plan, at) = (&plans[round], ats[round]);
        // Its replica takes over; each call meanwhile is a fault, never a grant of what is running.
        let lost = until(|| prompt().connect(&nodes.url()).ok());
        let held = until(|| lost.claim(&[request(plan, at, 2)]).ok());
        assert_eq!(held.value[0], Claim::Held);
        let again = until(|| lost.claim(&[request(plan, at + 1, 2)]).ok());
        let Claim::Granted(grant) = &again.value[0] else { panic!("{again:?}") };
        assert!(grant.fence > first.fence);
        let cursor = lost.plan(&[(plan.clone(), PlanOp::Read)]).unwrap().value[0].row.as_ref().unwrap().cursor;
        assert_eq!(cursor, Trigger::from_secs(at + 1));
        // The handle from before finds its way, and says that the new master has no replica to acknowledge.
        let error =
            until(|| store.claim(&[request(plan, at + 2, 3)]).err().filter(|e| e.kind() == StoreErrorKind::Full));
        assert!(error.outcome_unknown());
        nodes.servers[round].start_again();
        until(|| store.describe().ok());
    }
}
