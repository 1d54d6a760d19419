//! What a server may answer instead of deciding, provoked for real, and what it is told as. None may look like "another
//! has it", none may start anything, and none leaves half of a request behind.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use common::*;
use timertask_core::key::{Fence, Nonce, PlanKey};
use timertask_core::seam::{
    Board, Claim, ClaimRequest, Cover, Durability, EndOp, EndRequest, Ended, Ending, Gate, Ledger, Mutex, NotStarted,
    PlanOp, Query, Refusal, Retention, SlotState, StoreError, StoreErrorKind, Term,
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

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.0 >> 33) % n as u64).unwrap()
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// What does not belong into any field of a row: none of it is the code of a state.
const GARBAGE: [&[u8]; 12] = [
    b"-1",
    b"255",
    b"nan",
    b"inf",
    b"1e9",
    b"0x1",
    b" ",
    b"9223372036854775808",
    b"99999999999999999999999999999999999999",
    b"\xc3\x28",
    b"\0",
    b"2026-01-01T00:00:00Z",
];

/// A row of which a field was replaced, doubled or lost, two were exchanged (but for the first, which is the state: a row
/// that stands in another state is a row like any other), or that was cut off, or has become something else.
fn damaged(row: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut fields: Vec<&[u8]> = row.split(|byte| *byte == b'\n').collect();
    // What a row says first matters most.
    let at = if dice.below(3) == 0 { 0 } else { dice.below(fields.len()) };
    let other = dice.below(fields.len());
    match dice.below(6) {
        0 => fields[at] = dice.pick::<&[u8]>(&GARBAGE),
        1 => fields.insert(at, fields[at]),
        2 => drop(fields.remove(at)),
        3 if at > 0 && other > 0 => fields.swap(at, other),
        4 => return row[..dice.below(row.len().max(1))].to_vec(),
        _ => return dice.pick::<&[u8]>(&GARBAGE).to_vec(),
    }
    fields.join(&b'\n')
}

/// Damages one of the values, and says which and how. A row of a slot that is gone altogether is no damage that a store could
/// see.
fn damage_one(raw: &mut redis::Connection, dice: &mut Dice) -> (String, String) {
    let rows = if dice.below(2) == 0 { "*:slots:*" } else { "*" };
    let mut keys: Vec<String> = redis::cmd("KEYS").arg(rows).query(raw).unwrap();
    keys.sort();
    let key = dice.pick(&keys).clone();
    let kind: String = redis::cmd("TYPE").arg(&key).query(raw).unwrap();
    if dice.below(8) == 0 {
        let () = redis::cmd("SET").arg(&key).arg("of another type").query(raw).unwrap();
        return (key, "another type".to_owned());
    }
    let how = if kind == "hash" {
        let mut fields: Vec<Vec<u8>> = redis::cmd("HKEYS").arg(&key).query(raw).unwrap();
        fields.sort();
        let field = dice.pick(&fields).clone();
        let row: Vec<u8> = redis::cmd("HGET").arg(&key).arg(&field).query(raw).unwrap();
        let row = damaged(&row, dice);
        let _: i64 = redis::cmd("HSET").arg(&key).arg(&field).arg(&row).query(raw).unwrap();
        format!("{:?} = {:?}", String::from_utf8_lossy(&field), String::from_utf8_lossy(&row))
    } else {
        let members: Vec<Vec<u8>> = redis::cmd("ZRANGE").arg(&key).arg(0).arg(-1).query(raw).unwrap();
        let member = dice.pick(&members).clone();
        let lost = dice.below(2) == 0;
        if lost {
            let _: i64 = redis::cmd("ZREM").arg(&key).arg(&member).query(raw).unwrap();
        }
        let more = damaged(&member, dice);
        let _: i64 = redis::cmd("ZADD").arg(&key).arg(dice.below(3)).arg(&more).query(raw).unwrap();
        format!("{:?} beside {:?} (lost: {lost})", String::from_utf8_lossy(&more), String::from_utf8_lossy(&member))
    };
    (key, how)
}

/// Everything that an engine asks of a store. The errors, each with what was asked.
fn ask_for_all(store: &Redis, plan: &PlanKey, terms: &[(Term, i64)]) -> Vec<(&'static str, StoreError)> {
    let (namespace, after) = (plan.namespace.clone(), Trigger::from_secs(0));
    let upto = Trigger::from_secs(1 << 40);
    let mut errors = Vec::new();
    let lapsed = Query::Lapsed { namespace: namespace.clone(), max_skew: Duration::ZERO, after: None, limit: 10 };
    let history = Query::History { plan: plan.clone(), after, upto, page: None, limit: 10 };
    let plans = Query::Plans { namespace, after: None, limit: 10 };
    for query in [lapsed, Query::Unfinished { plan: plan.clone(), limit: 10 }, history, plans] {
        errors.extend(store.read(&query).err().map(|error| ("read", error)));
    }
    for op in [PlanOp::Read, PlanOp::SetBack { max_skew: Duration::ZERO }] {
        errors.extend(store.plan(&[(plan.clone(), op)]).err().map(|error| ("plan", error)));
    }
    for (term, _) in terms {
        let renewed = store.renew(std::slice::from_ref(term), Duration::from_secs(30));
        errors.extend(renewed.err().map(|error| ("renew", error)));
        let expire = EndOp::Expire { attempts_allowed: 1 };
        let ended = store.end(&[EndRequest { key: term.key.clone(), fence: term.fence, op: expire }]);
        errors.extend(ended.err().map(|error| ("end", error)));
    }
    let keep = Retention { age: None, count: Some(1_000), keep_last: 10 };
    errors.extend(store.purge(plan, keep, 9).err().map(|error| ("purge", error)));
    errors
}

/// Of 400 kinds of damage none starts a slot a second time, and all that is told is that the values are corrupt, or not ours.
#[test]
fn damaged_values_never_start_a_slot_a_second_time() {
    let server = Server::start(&[]);
    let store = server.connect();
    let (plan, sound) = (plan_key("p"), plan_key("sound"));
    let (mut seen, mut unseen) = (0, 0);
    for seed in 1..=400 {
        let () = server.tell(&["FLUSHALL"]);
        let now = open(&store, &plan).max(open(&store, &sound));
        let run = |plan, at, nonce| {
            let request = request(plan, at, nonce);
            let grant = grant(&store, &request);
            (Term { key: request.key.clone(), nonce: request.nonce, fence: grant.fence }, request, grant)
        };
        let running = run(&plan, now + 1, 1);
        let over = run(&plan, now + 2, 2);
        let other = run(&sound, now + 1, 3);
        for (_, request, grant) in [&over, &other] {
            assert!(matches!(store.end(&[success(request, grant)]).unwrap().value[0], Ended::Recorded(_)));
        }
        let (key, how) = damage_one(&mut server.raw(), &mut Dice(seed));
        let context = format!("seed {seed}: {key}: {how}");

        let terms = [(running.0, now + 1), (over.0, now + 2)];
        let mut errors = ask_for_all(&store, &plan, &terms);
        for (_, at) in &terms {
            // Of a slot that counted as open by mistake, starts would be left.
            let again = ClaimRequest { attempts_allowed: 9, gate: Gate::Force, ..request(&plan, *at, 77) };
            match store.claim(&[again]) {
                Ok(answer) => assert!(!matches!(answer.value[0], Claim::Granted(_)), "{context}: started again"),
                Err(error) => errors.push(("claim", error)),
            }
        }
        if errors.is_empty() {
            unseen += 1
        } else {
            seen += 1
        }
        // A key of another type is taken for another program's.
        let foreign = how == "another type";
        let kind = if foreign { StoreErrorKind::Misconfigured } else { StoreErrorKind::Corrupt };
        for (asked, error) in &errors {
            assert_eq!(error.kind(), kind, "{context}: {asked}: {}", everything_said(error));
        }
        // What lies in another bucket is not touched by it.
        if !key.starts_with(&bucket(&sound)) && !key.contains(":all}") {
            let again = claim(&store, &request(&sound, now + 1, 78));
            assert_eq!(again, Claim::Ended(Ending::Succeeded), "{context}");
        }
    }
    println!("{seen} damages were told, {unseen} changed no answer");
    assert!(seen > 150, "{seen} told, {unseen} not");
}
