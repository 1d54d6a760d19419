//! What the tests share: servers of their own, started on free ports of the loopback interface with folders of their own,
//! and stopped with the test; a plan in one, and short calls.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "each test file uses a part of it; a panic fails the test"
)]

pub mod clock;
pub mod nodes;
pub mod proxy;

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use timertask_core::clock::{Clock, Signal, SystemClock, Until};
use timertask_core::key::{Fingerprint, InstanceId, Namespace, Nonce, PlanId, PlanKey, SlotKey};
use timertask_core::seam::{
    Applied, Claim, ClaimRequest, EndOp, EndRequest, Ending, Gate, Grant, Ledger, Overlap, PlanOp, RunKind, StoreError,
};
use timertask_core::time::{Timestamp, Trigger};
use timertask_redis::Redis;

/// A time-out that no test waits for.
pub const PATIENT: Duration = Duration::from_secs(60);
/// A time-out that tests wait for.
pub const SHORT: Duration = Duration::from_millis(300);

/// Arguments of a server that has each write on the disk before it acknowledges it. (With `everysec` it may hold writes back
/// for two seconds where the disk is slow, and then a kill loses them.)
pub const APPENDS: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

/// A `redis-server` that lives as long as this value.
pub struct Server {
    child: Child,
    port: u16,
    dir: PathBuf,
    arguments: Vec<String>,
}

impl Server {
    /// One that keeps all in memory, with further arguments.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_on(arguments, free_port)
    }

    /// A node of a cluster, which listens on a second port, 10,000 above.
    pub fn start_node(arguments: &[&str]) -> Self {
        Self::start_on(arguments, node_port)
    }

    /// One that speaks TLS alone, with its certificates among the arguments.
    pub fn start_encrypted(arguments: &[String]) -> Self {
        Self::start_encrypted_on(arguments, "127.0.0.1")
    }

    /// Likewise, on another address of this machine.
    pub fn start_encrypted_on(arguments: &[String], address: &str) -> Self {
        let dir = folder();
        for _ in 0..20 {
            let port = node_port();
            let tls = port.to_string();
            let mut all = arguments.to_vec();
            all.extend(["--tls-port", &tls, "--bind", address].map(str::to_owned));
            // The last word on an option counts.
            if let Some(child) = launch(&dir, 0, &all, READY) {
                return Self { child, port, dir, arguments: all };
            }
        }
        panic!("no redis-server with TLS could be started");
    }

    /// A sentinel that speaks TLS alone, with its certificates in the configuration.
    pub fn start_encrypted_sentinel(config: &str) -> Self {
        Self::start_sentinel_with(config, |port| ["--port", "0", "--tls-port", port].map(str::to_owned).to_vec())
    }

    /// A sentinel with this configuration, which it rewrites.
    pub fn start_sentinel(config: &str) -> Self {
        Self::start_sentinel_with(config, |port| ["--port", port].map(str::to_owned).to_vec())
    }

    fn start_sentinel_with(config: &str, listen: impl Fn(&str) -> Vec<String>) -> Self {
        let dir = folder();
        std::fs::write(dir.join("sentinel.conf"), config).unwrap();
        for _ in 0..20 {
            let port = free_port();
            let mut command = Command::new("redis-server");
            command.arg(dir.join("sentinel.conf")).arg("--sentinel").args(listen(&port.to_string()));
            if let Some(child) = launched(command, "Sentinel ID is") {
                return Self { child, port, dir, arguments: Vec::new() };
            }
        }
        panic!("no sentinel could be started");
    }

    fn start_on(arguments: &[&str], mut port: impl FnMut() -> u16) -> Self {
        let dir = folder();
        let arguments: Vec<_> = arguments.iter().map(|text| (*text).to_owned()).collect();
        // Somebody else may take the port between our look and the server's.
        for _ in 0..20 {
            let port = port();
            if let Some(child) = launch(&dir, port, &arguments, READY) {
                return Self { child, port, dir, arguments };
            }
        }
        panic!("no redis-server could be started");
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// A handle with connections of its own, whose time-outs no healthy server meets.
    pub fn connect(&self) -> Redis {
        Redis::options()
            .connect_timeout(PATIENT)
            .response_timeout(PATIENT)
            .pool_wait(PATIENT)
            .connect(&self.url())
            .unwrap()
    }

    /// As [`connect`](Self::connect), where it may fail.
    pub fn try_connect(&self) -> Result<Redis, StoreError> {
        Redis::options().connect_timeout(PATIENT).response_timeout(PATIENT).connect(&self.url())
    }

    /// A handle whose calls come back soon.
    pub fn connect_impatiently(&self) -> Redis {
        let options = Redis::options().connect_timeout(SHORT).response_timeout(SHORT).pool_wait(SHORT).connections(1);
        options.connect(&self.url()).unwrap()
    }

    /// A connection of the test's own.
    pub fn raw(&self) -> redis::Connection {
        redis::Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    /// What the server answers to `command`.
    pub fn tell<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        let mut cmd = redis::cmd(command[0]);
        cmd.arg(&command[1..]);
        cmd.query(&mut self.raw()).unwrap()
    }

    /// Kills it as a power switch would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }

    /// Starts it again after [`kill`](Self::kill), on the same port and folder.
    pub fn start_again(&mut self) {
        self.child = launch(&self.dir, self.port, &self.arguments, READY).expect("the port is still free");
    }

    /// Likewise, with further arguments from now on.
    pub fn start_again_with(&mut self, arguments: &[&str]) {
        self.arguments.extend(arguments.iter().map(|text| (*text).to_owned()));
        self.start_again();
    }

    /// Likewise, with further arguments, and without waiting for more than the beginning.
    pub fn start_loading(&mut self, arguments: &[&str]) {
        let mut all = self.arguments.clone();
        all.extend(arguments.iter().map(|text| (*text).to_owned()));
        self.child = launch(&self.dir, self.port, &all, "Loading RDB").expect("the port is still free");
    }

    /// Stops all its threads, as a frozen host does; it goes on when the answer is dropped.
    pub fn freeze(&self) -> Frozen {
        let frozen = Frozen(self.child.id());
        frozen.signal("-STOP");
        frozen
    }
}

/// What a server says once it answers.
const READY: &str = "Ready to accept connections";

/// A folder of one server's own.
fn folder() -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("timertask-redis-{}-{n}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Below the ports that the system gives out by itself, with a start of each process's own.
fn node_port() -> u16 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed) + u64::from(std::process::id()) * 37;
    10_000 + (n % 12_000) as u16
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Waits until the server has `said` so; `None` where it ended instead.
fn launch(dir: &Path, port: u16, arguments: &[String], said: &str) -> Option<Child> {
    let port = port.to_string();
    let mut command = Command::new("redis-server");
    command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(dir).args(arguments);
    launched(command, said)
}

fn launched(mut command: Command, said: &str) -> Option<Child> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child =
        command.spawn().expect("the tests need the program redis-server (on Debian the package redis-server)");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    if lines.any(|line| line.is_ok_and(|line| line.contains(said))) {
        return Some(child);
    }
    child.wait().unwrap();
    None
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A server whose threads stand still.
pub struct Frozen(u32);

impl Frozen {
    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.0.to_string()]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.signal("-CONT");
    }
}

/// Lets real time pass: a server has a clock of its own.
pub fn wait(d: Duration) {
    let until = Until::Monotonic(SystemClock.monotonic().saturating_add(d));
    let _ = SystemClock.wait(&Signal::new(), Some(until));
}

/// Asks until `ready` says so; for what comes by itself, soon.
pub fn until<T>(mut ready: impl FnMut() -> Option<T>) -> T {
    for _ in 0..6_000 {
        if let Some(value) = ready() {
            return value;
        }
        wait(Duration::from_millis(10));
    }
    panic!("what was waited for did not come");
}

/// Waits until the server's clock has come to `at`, so that slots up to it can be accounted for.
pub fn until_time(ledger: &impl Ledger, at: i64) {
    until(|| (ledger.plan(&[]).unwrap().now.trigger().as_secs() >= at).then_some(()));
}

pub fn fingerprint(n: u128) -> Fingerprint {
    Fingerprint::from_bits(n)
}

pub fn plan_key(plan: &str) -> PlanKey {
    PlanKey::new(Namespace::default(), PlanId::new(plan).unwrap())
}

/// The key of a plan's bucket; of a namespace that of its row.
pub fn bucket(plan: &PlanKey) -> String {
    if plan.plan.is_none() {
        return "timertask:1:{:all}".to_owned();
    }
    let hash = plan
        .plan_str()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    format!("timertask:1:{{:{:02x}}}", hash & 0xff)
}

/// Opens a plan under fingerprint 1, and answers since when it counts.
pub fn open(ledger: &impl Ledger, plan: &PlanKey) -> i64 {
    let op = PlanOp::Open { fingerprint: fingerprint(1), replaces: None };
    let state = ledger.plan(&[(plan.clone(), op)]).unwrap().value.remove(0);
    assert_ne!(state.applied, Applied::Conflict);
    state.row.unwrap().generation.effective_from.as_secs()
}

/// A live claim of the plan's slot at `at`, a second after the one before.
pub fn request(plan: &PlanKey, at: i64, nonce: u128) -> ClaimRequest {
    ClaimRequest {
        key: SlotKey { plan: plan.clone(), at: Trigger::from_secs(at), request: None },
        nonce: Nonce::from_bits(nonce),
        fingerprint: fingerprint(1),
        prev: Some(Trigger::from_secs(at - 1)),
        kind: RunKind::Scheduled,
        asked: None,
        gate: Gate::Policy(Overlap::Allow(1_000_000)),
        attempts_allowed: 1,
        ttl: Duration::from_secs(30),
        instance: InstanceId::new("test").unwrap(),
        version: None,
    }
}

/// The answer to one claim.
pub fn claim(ledger: &impl Ledger, request: &ClaimRequest) -> Claim {
    ledger.claim(std::slice::from_ref(request)).unwrap().value.remove(0)
}

pub fn grant(ledger: &impl Ledger, request: &ClaimRequest) -> Grant {
    match claim(ledger, request) {
        Claim::Granted(grant) => grant,
        other => panic!("{} is granted, not {other:?}", request.key),
    }
}

/// How the run of `request` went well.
pub fn success(request: &ClaimRequest, grant: &Grant) -> EndRequest {
    let ended_at = Timestamp::from_micros(1);
    EndRequest {
        key: request.key.clone(),
        fence: grant.fence,
        op: EndOp::Settle {
            nonce: request.nonce,
            ending: Ending::Succeeded,
            started_at: ended_at,
            ended_at,
            tries: 1,
            detail: None,
        },
    }
}
