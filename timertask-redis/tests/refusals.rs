//! What a server may answer instead of deciding, provoked for real, and what it is told as. None may look like "another
//! has it", none may start anything, and none leaves half of a request behind.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use common::*;
use timertask_core::key::{Fence, Nonce};
use timertask_core::seam::{
    Board, Claim, Cover, Durability, EndOp, EndRequest, Ended, Ending, Ledger, Mutex, NotStarted, PlanOp, Query,
    Refusal, Retention, SlotState, StoreError, StoreErrorKind, Term,
};
use timertask_core::time::Trigger;
use timertask_redis::Redis;

fn try_claim(store: &Redis, at: i64, nonce: u128) -> Result<Claim, StoreError> {
    store.claim(&[request(&plan_key("p"), at, nonce)]).map(|mut answer| answer.value.remove(0))
}

#[track_caller]
fn told<T: std::fmt::Debug>(result: Result<T, StoreError>, kind: StoreErrorKind) -> StoreError {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{}", everything_said(&error));
    error
}

/// All that a person may get to see of an error.
fn everything_said(error: &StoreError) -> String {
    let mut said = format!("{error} / {error:?}");
    let mut cause: Option<&dyn Error> = error.source();
    while let Some(error) = cause {
        said += &format!(" / {error} / {error:?}");
        cause = error.source();
    }
    said
}

#[test]
fn full_where_memory_has_run_out() {
    let server = Server::start(&[]);
    let store = server.connect();
    let at = open(&store, &plan_key("p")) + 1;
    let running = request(&plan_key("p"), at, 1);
    let grant = grant(&store, &running);
    let () = server.tell(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = told(try_claim(&store, at + 1, 2), StoreErrorKind::Full);
    assert!(!error.outcome_unknown(), "refused before the first write");
    told(store.end(&[success(&running, &grant)]), StoreErrorKind::Full);
    assert_eq!(claim(&store, &request(&plan_key("p"), at, 3)), Claim::Held, "what needs no memory is answered");
    let () = server.tell(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(matches!(try_claim(&store, at + 1, 2), Ok(Claim::Granted(_))), "goes on by itself");
}

#[test]
fn a_script_that_was_flushed_is_given_again() {
    let server = Server::start(&[]);
    let store = server.connect();
    let at = open(&store, &plan_key("p")) + 1;
    for n in 0..3 {
        let () = server.tell(&["SCRIPT", "FLUSH"]);
        assert!(matches!(try_claim(&store, at + n, 1), Ok(Claim::Granted(_))));
    }
}

/// Every key and what it holds.
fn dump(server: &Server) -> BTreeMap<String, Vec<u8>> {
    let keys: Vec<String> = server.tell(&["KEYS", "*"]);
    keys.into_iter().map(|key| (key.clone(), server.tell(&["DUMP", &key]))).collect()
}

/// Each kind of write, each of which would take effect.
type Write = Box<dyn Fn(&Redis) -> Option<StoreError>>;

fn writes(at: i64, fence: Fence) -> Vec<(&'static str, Write)> {
    let plan = plan_key("p");
    let running = request(&plan, at, 1);
    let plan_op = |op: PlanOp| -> Write {
        let plan = plan_key("p");
        Box::new(move |store| store.plan(&[(plan.clone(), op.clone())]).err())
    };
    let (from, to) = (Trigger::from_secs(at), Trigger::from_secs(at + 1));
    let account = |cover| PlanOp::Account { fingerprint: fingerprint(1), from, to, cover };
    let (renewed, ended, cancelled) = (running.clone(), running.clone(), running.clone());
    vec![
        ("claim", Box::new(move |store| try_claim(store, at + 1, 9).err())),
        (
            "renew",
            Box::new(move |store| {
                let term = Term { key: renewed.key.clone(), nonce: renewed.nonce, fence };
                store.renew(&[term], Duration::from_secs(900)).err()
            }),
        ),
        (
            "give back",
            Box::new(move |store| {
                let op = EndOp::GiveBack { nonce: ended.nonce };
                store.end(&[EndRequest { key: ended.key.clone(), fence, op }]).err()
            }),
        ),
        ("edit", plan_op(PlanOp::Open { fingerprint: fingerprint(2), replaces: None })),
        ("account rows", plan_op(account(Cover::Slots(vec![to], NotStarted::TooLate)))),
        ("account a range", plan_op(account(Cover::Range { count: None, reason: NotStarted::TooLate }))),
        ("set back", plan_op(PlanOp::SetBack { max_skew: Duration::ZERO })),
        (
            "cancel",
            Box::new(move |store| {
                let cancel = timertask_core::seam::Cancel { by: "b".into(), why: "w".into() };
                let op = PlanOp::Cancel { at: cancelled.key.at, request: None, cancel };
                store.plan(&[(cancelled.key.plan.clone(), op)]).err()
            }),
        ),
    ]
}

/// A key of ours that somebody else has taken: what needs it fails as a whole, before it has written anything.
#[test]
fn misconfigured_where_a_key_is_anothers_and_nothing_is_half_done() {
    let server = Server::start(&[]);
    let store = server.connect();
    let at = open(&store, &plan_key("p")) + 1;
    let granted = grant(&store, &request(&plan_key("p"), at, 1));
    until_time(&store, at + 1);
    let keys: Vec<String> = server.tell(&["KEYS", "*"]);
    assert_eq!(keys.len(), 6, "rows, ids, ends, grants of the bucket; slots and index of the plan: {keys:?}");
    let mut failures = 0;
    for key in keys {
        for (what, write) in writes(at, granted.fence) {
            let () = server.tell(&["RENAME", &key, "aside"]);
            let _: i64 = server.tell(&["RPUSH", &key, "somebody else's"]);
            let before = dump(&server);
            if let Some(error) = write(&store) {
                assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{what}: {}", everything_said(&error));
                assert_eq!(dump(&server), before, "{what} left something behind with {key} in the way");
                failures += 1;
            } else {
                panic!("{what} went through with {key} in the way");
            }
            let () = server.tell(&["RENAME", "aside", &key]);
        }
    }
    assert_eq!(failures, 6 * 8);
}

#[test]
fn misconfigured_where_a_lock_is_anothers() {
    let server = Server::start(&[]);
    let store = server.connect();
    let key = request(&plan_key("p"), 1, 1).key;
    store.try_lock(&key, Nonce::from_bits(1), Duration::from_secs(9)).unwrap().unwrap();
    let locks: Vec<String> = server.tell(&["KEYS", "*:lock:*"]);
    let _: i64 = server.tell(&["DEL", &locks[0]]);
    let _: i64 = server.tell(&["RPUSH", &locks[0], "somebody else's"]);
    told(store.try_lock(&key, Nonce::from_bits(2), Duration::from_secs(9)), StoreErrorKind::Misconfigured);
    let () = server.tell(&["SET", &locks[0], "nonsense"]);
    told(store.try_lock(&key, Nonce::from_bits(2), Duration::from_secs(9)), StoreErrorKind::Corrupt);
}

#[test]
fn corrupt_where_a_row_is_damaged() {
    let server = Server::start(&[]);
    let store = server.connect();
    let plan = plan_key("p");
    let at = open(&store, &plan) + 1;
    grant(&store, &request(&plan, at, 1));
    let slots: Vec<String> = server.tell(&["KEYS", "*:slots:p"]);
    let names: Vec<String> = server.tell(&["HKEYS", &slots[0]]);
    let row: String = server.tell(&["HGET", &slots[0], &names[0]]);
    let in_no_state = |state: &str| row.replacen('0', state, 1);
    for damage in ["", "0\n1", &"x\n".repeat(19), &in_no_state(""), &in_no_state("7"), &row.replace("\n1\n", "\nnan\n")]
    {
        let _: i64 = server.tell(&["HSET", &slots[0], &names[0], damage]);
        told(try_claim(&store, at, 1), StoreErrorKind::Corrupt);
        told(store.read(&Query::Slots(vec![request(&plan, at, 1).key])), StoreErrorKind::Corrupt);
    }
    let _: i64 = server.tell(&["HDEL", &slots[0], &names[0]]);
    told(store.read(&Query::Unfinished { plan: plan.clone(), limit: 9 }), StoreErrorKind::Corrupt);
    let bucket = slots[0].split(":slots:").next().unwrap();
    let _: i64 = server.tell(&["HSET", bucket, "p", "not a row"]);
    told(try_claim(&store, at + 1, 2), StoreErrorKind::Corrupt);
    let keep = Retention { age: None, count: Some(0), keep_last: 0 };
    told(store.purge(&plan, keep, 9), StoreErrorKind::Corrupt);
    // Of a group, what came before the damaged row stands, and the error says that it may.
    let after = open(&store, &plan_key("q")) + 1;
    let group = [request(&plan_key("q"), after, 1), request(&plan, at, 1)];
    assert!(told(store.claim(&group), StoreErrorKind::Corrupt).outcome_unknown());
    assert_eq!(claim(&store, &request(&plan_key("q"), after, 2)), Claim::Held);
}

/// Two range records lie behind a cursor that goes back; of the damaged one nothing is known, and the other stays whole.
#[test]
fn corrupt_where_a_range_is_damaged_and_nothing_is_half_done() {
    let server = Server::start(&[]);
    let store = server.connect();
    let plan = plan_key("p");
    let now = open(&store, &plan);
    let bucket = bucket(&plan);
    let row: String = server.tell(&["HGET", &bucket, "p"]);
    let mut fields: Vec<String> = row.split('\n').map(str::to_owned).collect();
    fields[3] = (now + 100_000).to_string();
    let _: i64 = server.tell(&["HSET", &bucket, "p", &fields.join("\n")]);
    let range = |upto: i64, rest: &str| format!("4{}{}{rest}", (1_i64 << 52) + upto, (1_i64 << 52) + now - 9);
    for member in [range(now + 50_000, "\n3\n0\n1"), range(now + 90_000, "")] {
        let _: i64 = server.tell(&["ZADD", &format!("{bucket}:index:p"), "0", &member]);
    }
    let before = dump(&server);
    let set_back = [(plan, PlanOp::SetBack { max_skew: Duration::ZERO })];
    told(store.plan(&set_back), StoreErrorKind::Corrupt);
    assert!(dump(&server) == before);
}

#[test]
fn auth_where_access_is_refused_and_passwords_stay_secret() {
    let server = Server::start(&["--requirepass", "sesame-open"]);
    let at = |user: &str| format!("redis://{user}127.0.0.1:{}/", server.port());
    let mut said = String::new();
    for user in ["", ":wrong-guess@", "nobody:wrong-guess@"] {
        said += &everything_said(&told(Redis::connect(&at(user)), StoreErrorKind::Auth));
    }
    let mut raw = redis::Client::open(at(":sesame-open@")).unwrap().get_connection().unwrap();
    let () = redis::cmd("ACL")
        .arg(&["SETUSER", "reader", "on", ">sesame-read", "~timertask:*", "+info", "+config|get", "+select"])
        .query(&mut raw)
        .unwrap();
    let reader = Redis::connect(&at("reader:sesame-read@")).unwrap();
    said += &everything_said(&told(try_claim(&reader, 1, 1), StoreErrorKind::Auth));
    let store = Redis::connect(&at(":sesame-open@")).unwrap();
    open(&store, &plan_key("p"));
    said += &format!("{store:?} {reader:?} {:?}", Redis::options());
    for url in [":sesame-open@[::", ":sesame-open@127.0.0.1:port", ":sesame-open@127.0.0.1:1/x", "\0:sesame-open@"] {
        let error = told(Redis::connect(&format!("redis://{url}")), StoreErrorKind::Misconfigured);
        said += &everything_said(&error);
    }
    let error = told(Redis::connect(&format!("{}99", at(":sesame-open@"))), StoreErrorKind::Misconfigured);
    said += &everything_said(&error);
    for secret in ["sesame", "wrong-guess"] {
        assert!(!said.contains(secret), "{said}");
    }
    let () = redis::cmd("CONFIG").arg(&["SET", "requirepass", "changed"]).query(&mut raw).unwrap();
}

#[test]
fn busy_while_the_server_loads_its_data() {
    let mut server = Server::start(&["--enable-debug-command", "yes"]);
    let store = server.connect_impatiently();
    let () = server.tell(&["DEBUG", "POPULATE", "20000"]);
    let () = server.tell(&["SAVE"]);
    server.kill();
    // Slow enough for a look; it answers between the keys.
    server.start_loading(&["--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024"]);
    let error = told(server.try_connect(), StoreErrorKind::Busy);
    assert!(!error.outcome_unknown());
    let error = until(|| try_claim(&store, 1, 1).err().filter(|e| e.kind() != StoreErrorKind::Unreachable));
    assert_eq!((error.kind(), error.outcome_unknown()), (StoreErrorKind::Busy, false), "{}", everything_said(&error));
}

#[test]
fn busy_where_there_are_too_many_clients() {
    let server = Server::start(&[]);
    let mut raw = server.raw();
    let () = redis::cmd("CONFIG").arg(&["SET", "maxclients", "1"]).query(&mut raw).unwrap();
    let error = server.try_connect().unwrap_err();
    // The server hangs up after it has said why; which of the two is seen first is chance.
    assert!(matches!(error.kind(), StoreErrorKind::Busy | StoreErrorKind::Unreachable), "{}", everything_said(&error));
}

#[test]
fn misconfigured_where_the_server_evicts() {
    let server = Server::start(&["--maxmemory-policy", "allkeys-lru"]);
    let error = told(server.try_connect(), StoreErrorKind::Misconfigured);
    assert!(error.to_string().contains("noeviction"), "it says what to do: {error}");
    let store = Redis::options().accept_eviction().connect(&server.url()).unwrap();
    assert_eq!(store.describe().unwrap(), Durability::UntilRestart);
    let server = Server::start(&[]);
    let store = server.connect();
    let () = server.tell(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    told(store.describe(), StoreErrorKind::Misconfigured);
}

#[test]
fn durability_is_what_the_server_is_set_up_for() {
    let server = Server::start(&[]);
    let store = server.connect();
    assert_eq!(store.describe().unwrap(), Durability::UntilRestart);
    let () = server.tell(&["CONFIG", "SET", "appendonly", "yes"]);
    assert_eq!(store.describe().unwrap(), Durability::Durable { synced: false });
    let () = server.tell(&["CONFIG", "SET", "appendfsync", "always"]);
    assert_eq!(store.describe().unwrap(), Durability::Durable { synced: true });
}

/// The newer protocol, which a URL may ask for, has other shapes for the same answers.
#[test]
fn the_newer_protocol_is_understood() {
    let server = Server::start(APPENDS);
    let store = Redis::connect(&format!("{}?protocol=resp3", server.url())).unwrap();
    assert_eq!(store.describe().unwrap(), Durability::Durable { synced: true });
    let plan = plan_key("p");
    let at = open(&store, &plan) + 1;
    let first = request(&plan, at, 1);
    let end = success(&first, &grant(&store, &first));
    assert_eq!(store.end(&[end]).unwrap().value, [Ended::Recorded(SlotState::Ended(Ending::Succeeded))]);
    assert_eq!(store.read(&Query::Slots(vec![first.key])).unwrap().value.slots.len(), 1);
}

#[test]
fn read_only_where_the_server_is_a_replica() {
    let master = Server::start(&[]);
    let server = Server::start(&[]);
    let store = server.connect();
    let at = open(&store, &plan_key("p")) + 1;
    let () = server.tell(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    told(try_claim(&store, at, 1), StoreErrorKind::ReadOnly);
    told(store.describe(), StoreErrorKind::ReadOnly);
    told(server.try_connect(), StoreErrorKind::ReadOnly);
    until(|| (master.connect().describe().unwrap() == Durability::Replicated { acknowledged_by: 0 }).then_some(()));
}

#[test]
fn full_where_too_few_replicas_are_well() {
    let server = Server::start(&[]);
    let store = server.connect();
    let at = open(&store, &plan_key("p")) + 1;
    let () = server.tell(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let error = told(try_claim(&store, at, 1), StoreErrorKind::Full);
    assert!(!error.outcome_unknown() && everything_said(&error).contains("NOREPLICAS"), "{}", everything_said(&error));
    let () = server.tell(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    assert!(matches!(try_claim(&store, at, 1), Ok(Claim::Granted(_))));
}

#[test]
fn busy_where_a_replica_has_lost_its_master() {
    let server = Server::start(&["--replica-serve-stale-data", "no"]);
    let store = server.connect();
    let at = open(&store, &plan_key("p")) + 1;
    let () = server.tell(&["REPLICAOF", "127.0.0.1", "1"]);
    let error = told(try_claim(&store, at, 1), StoreErrorKind::Busy);
    assert!(!error.outcome_unknown() && everything_said(&error).contains("MasterDown"), "{}", everything_said(&error));
}

#[test]
fn a_trigger_point_beyond_the_layout_is_refused() {
    let server = Server::start(&[]);
    let store = server.connect();
    open(&store, &plan_key("p"));
    for at in [i64::MAX, i64::MIN] {
        let mut far = request(&plan_key("p"), 0, 1);
        far.key.at = Trigger::from_secs(at);
        told(store.claim(&[far]), StoreErrorKind::Internal);
    }
    let unknown = claim(&store, &request(&plan_key("unknown"), 1, 1));
    assert_eq!(unknown, Claim::Refused(Refusal::Unknown));
    assert_eq!(store.list(&plan_key("p").namespace, timertask_core::seam::PostingKind::View).unwrap().value, []);
}
