//! Claims on a Redis server: through the public API, beside what the same client library does with the same commands by
//! itself, and beside `redis-benchmark` with the same round trips; and what a million settled slots change.
//!
//! `cargo run --release --bin redis [SLOTS [PART]]`: how many settled slots are made (1,000,000), and which part alone is
//! measured: `claims`, `settled` or `calls`.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use timertask::key::{Fingerprint, InstanceId, Namespace, Nonce, PlanId, PlanKey, RequestId, SlotKey};
use timertask::redis::{Redis, redis};
use timertask::seam::{Claim, ClaimRequest, EndOp, EndRequest, Ending, Gate, Ledger, Overlap, PlanOp, RunKind};
use timertask::time::Trigger;
use timertask::{Plan, Run, Scheduler};
use timertask_bench::{RedisServer, Verdict, percentile};

/// What stands in a request's id for a number of twelve digits.
const NUMBER: &str = "__rand_int__";
const ROUNDS: usize = 5;
/// How long each way of asking is measured in each round, about.
const SPAN: Duration = Duration::from_millis(600);
const GROUP: usize = 100;

fn main() {
    let slots = std::env::args().nth(1).map_or(1_000_000, |text| text.parse().expect("a number"));
    let mut verdict = Verdict::default();
    let part = std::env::args().nth(2);
    let wanted = |name: &str| part.as_ref().is_none_or(|part| part == name);
    if wanted("claims") {
        claims("nothing on disk", &[], &mut verdict);
        claims("appendfsync always", &["--appendonly", "yes", "--appendfsync", "always"], &mut verdict);
    }
    if wanted("settled") {
        settled(slots, &mut verdict);
    }
    if wanted("calls") {
        calls(&mut verdict);
    }
    verdict.end();
}

/// How long a call takes in three ways, one by one and in groups. Medians: what else the machine does falls on few calls.
fn claims(name: &str, arguments: &[&str], verdict: &mut Verdict) {
    println!("claims on one connection, {name}: µs a call (medians), and claims a second at that");
    println!(
        "{:>9}{:>17}{:>13}{:>11}{:>10}{:>10}{:>12}",
        "a group", "redis-benchmark", "redis crate", "timertask", "of crate", "of bench", "claims / s"
    );
    for group in [1, GROUP] {
        let server = RedisServer::start(arguments);
        let store = connect(&server);
        let plans: Vec<PlanKey> = (0..group).map(|n| plan_key(&format!("plan-{n:03}"))).collect();
        let at = open(&store, &plans);
        let command = captured(&server, &store, &plans, at);
        let mut connection = raw(&server);
        let (mut bench, mut library, mut ours) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            bench.push(by_benchmark(&server, &command, 1_000 / group.min(10)));
            let begin = Instant::now();
            while begin.elapsed() < SPAN {
                library.push(by_library(&mut connection, &command, ours.len()));
                ours.push(by_api(&store, &plans, at, ours.len()));
            }
        }
        bench.sort_by(f64::total_cmp);
        let bench = bench[ROUNDS / 2];
        let [library, ours] = [library, ours].map(|mut nanos| percentile(&mut nanos, 50.0) as f64 / 1e3);
        println!(
            "{group:>9}{bench:>17.0}{library:>13.0}{ours:>11.0}{:>10.2}{:>10.2}{:>12.0}",
            library / ours,
            bench / ours,
            group as f64 * 1e6 / ours
        );
        verdict.must(library >= 0.8 * ours, "at least 0.8 of the client library with the same commands");
    }
}

fn plan_key(id: &str) -> PlanKey {
    PlanKey::new(Namespace::default(), PlanId::new(id).expect("an id"))
}

/// Opens the plans, and answers a trigger point that counts.
fn open(store: &Redis, plans: &[PlanKey]) -> i64 {
    let op = PlanOp::Open { fingerprint: Fingerprint::from_bits(7), replaces: None };
    let requests: Vec<_> = plans.iter().map(|plan| (plan.clone(), op.clone())).collect();
    store.plan(&requests).expect("a server").now.trigger().as_secs() + 1
}

fn request(plan: &PlanKey, at: i64, id: Option<String>) -> ClaimRequest {
    ClaimRequest {
        key: SlotKey {
            plan: plan.clone(),
            at: Trigger::from_secs(at),
            request: id.map(|id| RequestId::new(id).expect("an id")),
        },
        nonce: Nonce::from_bits(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
        fingerprint: Fingerprint::from_bits(7),
        prev: Some(Trigger::from_secs(at - 1)),
        kind: RunKind::Scheduled,
        gate: Gate::Policy(Overlap::Allow(u32::MAX)),
        attempts_allowed: 1,
        ttl: Duration::from_secs(30),
        instance: InstanceId::new("instance").expect("a label"),
        version: None,
        asked: None,
    }
}

/// What the library sends for a claim of a slot of each plan, as words; where ids of requests have a number, `NUMBER`.
fn captured(server: &RedisServer, store: &Redis, plans: &[PlanKey], at: i64) -> Vec<String> {
    let claim = |id: &str| {
        let requests: Vec<_> = plans.iter().map(|plan| request(plan, at, Some(id.to_owned()))).collect();
        granted(&store.claim(&requests).expect("a server").value);
    };
    // The first time the script's text goes along.
    claim("first");
    let mut monitor = raw(server);
    monitor.send_packed_command(&redis::cmd("MONITOR").get_packed_command()).expect("a server");
    monitor.recv_response().expect("a server");
    claim(NUMBER);
    loop {
        let line: String = redis::from_redis_value(monitor.recv_response().expect("a server")).expect("a text");
        if line.contains("\"EVALSHA\"") && !line.contains(" lua]") {
            return words(&line[line.find(']').expect("an address") + 1..]);
        }
    }
}

/// The quoted words of a line of MONITOR.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut inside, mut chars) = (Vec::new(), String::new(), false, line.chars());
    while let Some(c) = chars.next() {
        match c {
            '"' if inside => words.push(std::mem::take(&mut word)),
            '"' => {}
            '\\' => match chars.next() {
                Some('n') => word.push('\n'),
                Some(c @ ('"' | '\\')) => word.push(c),
                other => panic!("{other:?} after a backslash"),
            },
            c if inside => word.push(c),
            _ => {}
        }
        inside ^= c == '"';
    }
    words
}

/// Its median, in microseconds.
fn by_benchmark(server: &RedisServer, command: &[String], times: usize) -> f64 {
    let mut program = Command::new("redis-benchmark");
    program.args(["-p", &server.port.to_string(), "-c", "1", "-r", "1000000000000", "-q", "-n", &times.to_string()]);
    let output = program.args(command).output().expect("the program redis-benchmark");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let begin = text.rfind("p50=").unwrap_or_else(|| panic!("{text}")) + 4;
    text[begin..].split(' ').next().and_then(|word| word.parse::<f64>().ok()).expect("a number") * 1e3
}

/// Nanoseconds of one call.
fn by_library(connection: &mut redis::Connection, command: &[String], n: usize) -> u64 {
    let begin = Instant::now();
    let number = format!("1{n:011}");
    let mut call = redis::cmd(&command[0]);
    for word in &command[1..] {
        if word.contains(NUMBER) {
            call.arg(word.replace(NUMBER, &number))
        } else {
            call.arg(word)
        };
    }
    let answer: Vec<String> = call.query(connection).expect("a server");
    let took = begin.elapsed();
    assert_eq!(answer[2], "G", "granted");
    took.as_nanos() as u64
}

/// Nanoseconds of one call.
fn by_api(store: &Redis, plans: &[PlanKey], at: i64, n: usize) -> u64 {
    let requests: Vec<_> = plans.iter().map(|plan| request(plan, at, Some(format!("2{n:011}")))).collect();
    let begin = Instant::now();
    let answer = store.claim(&requests).expect("a server");
    let took = begin.elapsed();
    granted(&answer.value);
    took.as_nanos() as u64
}

fn granted(claims: &[Claim]) {
    assert!(claims.iter().all(|claim| matches!(claim, Claim::Granted(_))), "{claims:?}");
}

/// What many settled slots of one plan cost: memory, and the speed of its further claims.
fn settled(slots: usize, verdict: &mut Verdict) {
    let server = RedisServer::start(&[]);
    let store = connect(&server);
    let [full, empty] = ["full", "empty"].map(plan_key);
    let mut at = open(&store, &[full.clone(), empty.clone()]);
    let mut at_empty = at;
    let before = used(&server);
    let begin = Instant::now();
    for _ in 0..slots / GROUP {
        let requests: Vec<_> = (at..).take(GROUP).map(|at| request(&full, at, None)).collect();
        settle(&store, &requests);
        at += GROUP as i64;
    }
    let filled = begin.elapsed();
    let bytes = (used(&server) - before) / slots as f64;
    println!(
        "{slots} settled slots of one plan: {bytes:.0} bytes each; made at {:.0} a second in groups of {GROUP}",
        slots as f64 / filled.as_secs_f64()
    );
    verdict.must(bytes < 400.0, "a settled slot takes less than 400 bytes");
    // Turn by turn, so that what else the machine does falls on both.
    let (mut with, mut without) = (Vec::new(), Vec::new());
    let begin = Instant::now();
    while begin.elapsed() < 20 * SPAN {
        with.push(pair(&store, &full, &mut at));
        without.push(pair(&store, &empty, &mut at_empty));
    }
    let [with, without] = [with, without].map(|mut nanos| percentile(&mut nanos, 50.0) as f64 / 1e3);
    println!(
        "a claim and its end, one by one: {with:.0} µs with them, {without:.0} µs of a plan with few (medians): {:.2}",
        with / without
    );
    verdict.must(with <= 1.1 * without, "many settled slots make a claim no slower (1.1)");
}

fn settle(store: &Redis, requests: &[ClaimRequest]) {
    let answer = store.claim(requests).expect("a server");
    let ends: Vec<_> = requests
        .iter()
        .zip(&answer.value)
        .map(|(request, claim)| {
            let Claim::Granted(grant) = claim else { panic!("{claim:?}") };
            let op = EndOp::Settle {
                nonce: request.nonce,
                ending: Ending::Succeeded,
                started_at: answer.now,
                ended_at: answer.now,
                tries: 1,
                detail: None,
            };
            EndRequest { key: request.key.clone(), fence: grant.fence, op }
        })
        .collect();
    assert_eq!(store.end(&ends).expect("a server").value.len(), ends.len());
}

/// Nanoseconds of a claim and its end.
fn pair(store: &Redis, plan: &PlanKey, at: &mut i64) -> u64 {
    let mut request = request(plan, *at, None);
    request.gate = Gate::Policy(Overlap::Skip);
    *at += 1;
    let begin = Instant::now();
    settle(store, &[request]);
    begin.elapsed().as_nanos() as u64
}

/// How often ten instances ask, in all, for what runs on one of them.
fn calls(verdict: &mut Verdict) {
    const INSTANCES: usize = 10;
    println!(
        "{INSTANCES} instances for 10 s: {:>8}{:>14}{:>20}{:>16}",
        "runs", "asked for", "asked for / slot", "store calls"
    );
    for plans in [1, 100, 1_000] {
        let server = RedisServer::start(&[]);
        let runs = Arc::new(AtomicUsize::new(0));
        let seen = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
        let schedulers: Vec<_> = (0..INSTANCES)
            .map(|_| {
                let (counted, seen) = (Arc::clone(&runs), Arc::clone(&seen));
                let job = move |run: &Run| {
                    counted.fetch_add(1, Ordering::Relaxed);
                    seen.lock().expect("nobody panics").insert(run.slot_key().to_string());
                    Ok(())
                };
                let store = connect(&server);
                let scheduler = Scheduler::builder(job).concurrency(1_000).store(store).start().expect("it starts");
                let plan = |n| Plan::new(format!("p{n}"), "@every 1s").overlap(Overlap::Allow(1_000));
                drop(scheduler.reconcile((0..plans).map(plan)).expect("good plans"));
                scheduler
            })
            .collect();
        std::thread::sleep(Duration::from_secs(10));
        let (mut asked, mut calls) = (0, 0);
        for scheduler in &schedulers {
            let _ = scheduler.close(Duration::from_secs(10));
            asked += scheduler.stats().claimed;
            calls += scheduler.stats().store_calls;
        }
        let (runs, slots) = (runs.load(Ordering::Relaxed), seen.lock().expect("nobody panics").len());
        println!("{plans:>19} plans:{runs:>8}{asked:>14}{:>20.2}{calls:>16}", asked as f64 / slots as f64);
        verdict.must(runs == slots, "no slot twice");
        verdict.must(asked as usize <= INSTANCES * slots, "each instance asks for a slot once at most");
    }
}

/// On a busy machine an answer may take its time.
fn connect(server: &RedisServer) -> Redis {
    Redis::options().response_timeout(Duration::from_secs(60)).connect(&server.url()).expect("a server")
}

fn raw(server: &RedisServer) -> redis::Connection {
    redis::Client::open(server.url()).and_then(|client| client.get_connection()).expect("a server")
}

/// Bytes of memory that the server's data takes.
fn used(server: &RedisServer) -> f64 {
    let info: String = redis::cmd("INFO").arg("memory").query(&mut raw(server)).expect("a server");
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("its memory");
    line.parse().expect("a number")
}
