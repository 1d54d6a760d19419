//! What the tests share: a directory of their own, a clock they set, requests, and themselves as other processes.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test file uses a part of it; a panic fails the test"
)]

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use timertask_core::clock::{Clock, Signal, SystemClock, Until, Wake};
use timertask_core::key::{Fingerprint, InstanceId, Namespace, Nonce, PlanId, PlanKey, SlotKey};
use timertask_core::seam::{
    Applied, Claim, ClaimRequest, EndOp, EndRequest, Ending, Gate, Grant, Ledger, Overlap, PlanOp, RunKind,
};
use timertask_core::time::{Timestamp, Trigger};

/// A directory that goes with the test.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("timertask-sqlite-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A clock that stands until it is set.
#[derive(Clone)]
pub struct SetClock(Arc<AtomicI64>);

impl SetClock {
    pub fn at(seconds: i64) -> Self {
        Self(Arc::new(AtomicI64::new(seconds * 1_000_000)))
    }

    pub fn step_back(&self, d: Duration) {
        self.0.fetch_sub(i64::try_from(d.as_micros()).unwrap(), Ordering::SeqCst);
    }

    pub fn advance(&self, d: Duration) {
        self.0.fetch_add(i64::try_from(d.as_micros()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
    fn monotonic(&self) -> Duration {
        Duration::from_micros(self.now().as_micros().try_into().unwrap())
    }
    fn wait(&self, _: &Signal, _: Option<Until>) -> Wake {
        Wake::Time
    }
    fn entropy(&self) -> u64 {
        SystemClock.entropy()
    }
}

pub const TTL: Duration = Duration::from_secs(30);

pub fn plan(id: &str) -> PlanKey {
    PlanKey::new(Namespace::default(), PlanId::new(id).unwrap())
}

pub fn slot(id: &str, at: i64) -> SlotKey {
    SlotKey { plan: plan(id), at: Trigger::from_secs(at), request: None }
}

pub fn nonce() -> Nonce {
    Nonce::random(&SystemClock)
}

pub fn fingerprint() -> Fingerprint {
    Fingerprint::from_bits(7)
}

/// A scheduled slot, whatever else of the plan runs.
pub fn request(key: SlotKey, nonce: Nonce) -> ClaimRequest {
    ClaimRequest {
        key,
        nonce,
        fingerprint: fingerprint(),
        prev: None,
        kind: RunKind::Scheduled,
        asked: None,
        gate: Gate::Policy(Overlap::Allow(1_000_000)),
        attempts_allowed: 1,
        ttl: TTL,
        instance: InstanceId::new("test").unwrap(),
        version: None,
    }
}

pub fn settle(request: &ClaimRequest, grant: &Grant, at: Timestamp) -> EndRequest {
    EndRequest {
        key: request.key.clone(),
        fence: grant.fence,
        op: EndOp::Settle {
            nonce: request.nonce,
            ending: Ending::Succeeded,
            started_at: at,
            ended_at: at,
            tries: 1,
            detail: None,
        },
    }
}

pub fn open_plan(ledger: &dyn Ledger, id: &str) {
    let op = PlanOp::Open { fingerprint: fingerprint(), replaces: None };
    let answer = ledger.plan(&[(plan(id), op)]).unwrap();
    assert_ne!(answer.value[0].applied, Applied::Conflict);
}

pub fn claim_one(ledger: &dyn Ledger, request: &ClaimRequest) -> Claim {
    ledger.claim(std::slice::from_ref(request)).unwrap().value.remove(0)
}

pub fn granted(claim: Claim) -> Grant {
    match claim {
        Claim::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

/// Another process: the test program itself, at its ignored test `child`, which plays `role`.
pub struct Other {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

/// What its lines begin with, to tell them from those of the test harness.
const MARK: &str = "child> ";

impl Other {
    pub fn start(role: &str, args: &[&str]) -> Self {
        Self::start_by(Command::new(std::env::current_exe().unwrap()), role, args)
    }

    /// In a mount namespace of its own, in which it is root, if the system allows that.
    pub fn start_in_namespace(role: &str, args: &[&str]) -> Self {
        let mut command = Command::new("unshare");
        command.arg("--mount");
        if !is_root() {
            command.arg("--map-root-user");
        }
        command.arg(std::env::current_exe().unwrap());
        Self::start_by(command, role, args)
    }

    fn start_by(mut command: Command, role: &str, args: &[&str]) -> Self {
        let mut child = command
            .args(["child", "--exact", "--ignored", "--nocapture"])
            .env("TIMERTASK_ROLE", role)
            .env("TIMERTASK_ARGS", args.join("\n"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { stdin: child.stdin.take(), child, lines }
    }

    /// Its next line; `None` once it has ended.
    pub fn line(&mut self) -> Option<String> {
        loop {
            let line = self.lines.next()?.unwrap();
            // The harness may begin the line: `test child ... `.
            if let Some((_, line)) = line.split_once(MARK) {
                return Some(line.to_owned());
            }
        }
    }

    #[track_caller]
    pub fn expect_line(&mut self, expected: &str) {
        assert_eq!(self.line().as_deref(), Some(expected));
    }

    /// Lets it go on where it waits in [`await_word`].
    pub fn go_on(&mut self) {
        writeln!(self.stdin.as_mut().unwrap(), "go").unwrap();
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// All its further lines, then how it ended by itself.
    pub fn finish(mut self) -> (Vec<String>, ExitStatus) {
        drop(self.stdin.take());
        let mut lines = Vec::new();
        while let Some(line) = self.line() {
            lines.push(line);
        }
        (lines, self.child.wait().unwrap())
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What this process is to play, if it is another's child.
pub fn role() -> Option<(String, Vec<String>)> {
    let role = std::env::var("TIMERTASK_ROLE").ok()?;
    let args = std::env::var("TIMERTASK_ARGS").unwrap_or_default();
    Some((role, args.lines().map(str::to_owned).collect()))
}

/// A line to the parent.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{line}").unwrap();
    out.flush().unwrap();
}

/// Waits for the parent's word; `false` once there is no parent any more.
pub fn await_word() -> bool {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap() > 0
}

pub fn is_root() -> bool {
    #[cfg(unix)]
    {
        std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0
    }
    #[cfg(not(unix))]
    {
        false
    }
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
