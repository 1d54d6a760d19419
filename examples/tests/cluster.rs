//! What the demonstration does when it is not left alone: interrupted, killed, or without a server to start.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic fails the test")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use timertask::clock::{Clock, SystemClock, Until};

fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cluster"));
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn pid(process: u32) -> Pid {
    Pid::from_raw(i32::try_from(process).unwrap()).unwrap()
}

/// Reads on until a line has `wanted` in it; answers what it has read.
fn until_said(child: &mut Child, wanted: &str) -> String {
    let (mut said, mut line) = (String::new(), [0]);
    let output = child.stdout.as_mut().unwrap();
    while !said.contains(wanted) {
        assert_eq!(output.read(&mut line).unwrap(), 1, "it ended without saying {wanted:?}: {said}");
        said.push(char::from(line[0]));
    }
    said
}

/// The processes that `process` has started.
fn children(process: u32) -> Vec<u32> {
    let listed = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap();
    listed.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

/// Whether it runs, and is not only waited for.
fn is_alive(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    test_kill_process(pid(process)).is_ok() && !stat.contains(") Z ")
}

fn until_gone(processes: &[u32]) {
    for _ in 0..2_000 {
        if !processes.iter().any(|process| is_alive(*process)) {
            return;
        }
        let soon = SystemClock.monotonic() + Duration::from_millis(10);
        let _ = SystemClock.wait(&timertask::clock::Signal::new(), Some(Until::Monotonic(soon)));
    }
    panic!("of {processes:?} some outlived the demonstration");
}

#[test]
fn a_killed_conductor_leaves_no_process_and_no_file_behind() {
    let mut child = start(&["--seconds", "10", "--store", "redis:"]);
    // A frozen process could not notice anything by itself.
    until_said(&mut child, "is frozen");
    let mut processes = children(child.id());
    processes.retain(|process| is_alive(*process));
    assert!(processes.len() >= 4, "a guard, a server and at least two instances: {processes:?}");
    let commands = |process: &u32| std::fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default();
    assert!(processes.iter().map(commands).any(|command| command.contains("redis-server")));
    child.kill().unwrap();
    child.wait().unwrap();
    until_gone(&processes);
    let made_up = std::env::temp_dir().join(format!("timertask-cluster-{}.db", child.id()));
    assert!(!made_up.exists());
}

#[test]
fn an_interrupted_demonstration_says_so_and_is_neither_passed_nor_failed() {
    for (arguments, when) in
        [(&["--seconds", "60"][..], "slots started once"), (&["--seconds", "12", "--outage"][..], "server is killed")]
    {
        let mut child = start(arguments);
        until_said(&mut child, when);
        let processes = children(child.id());
        kill_process(pid(child.id()), Signal::INT).unwrap();
        let mut rest = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_to_string(&mut rest).unwrap();
        let last = rest.lines().last().unwrap();
        assert!(last.starts_with("INTERRUPTED after "), "{arguments:?}: {rest}");
        assert_eq!(child.wait().unwrap().code(), Some(130), "{arguments:?}");
        until_gone(&processes);
    }
}

#[test]
fn without_a_redis_server_it_says_what_to_install() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cluster"));
    let output = command.args(["--store", "redis:"]).env("PATH", "/nowhere").output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("apt-get install redis-server"), "{said}");
    let last = output.stdout.lines().last().unwrap().unwrap();
    assert!(last.starts_with("FAIL"), "{last}");
}

#[test]
fn an_outage_of_somebody_elses_server_is_refused() {
    for store in ["redis://127.0.0.1:1/", "sqlite:/nowhere/cluster.db"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cluster"));
        let output = command.args(["--outage", "--store", store]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("it takes one of its own"), "{said}");
    }
}
