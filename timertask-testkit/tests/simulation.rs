//! Random runs of whole clusters: no promise is broken, and a seed replays exactly. A failing seed is printed, and
//! `SIMULATION_SEED=7 cargo test -p timertask-testkit --test simulation one_run -- --nocapture` runs it again.

use std::process::Command;
use std::time::Duration;

use timertask_core::clock::{Clock, SystemClock};
use timertask_testkit::simulation::{self, Tally};

/// Runs in an ordinary test run.
const RUNS: u64 = 3000;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

/// One half of the runs; in two tests, for two processors.
fn half(which: u64) {
    let half = number("SIMULATION_RUNS").unwrap_or(RUNS) / 2;
    println!("{}, no violation", simulation::runs(1 + which * half..1 + (which + 1) * half));
}

#[test]
fn random_runs_break_no_promise() {
    half(0);
}

#[test]
fn nor_do_more_of_them() {
    half(1);
}

/// The long form: as many runs as fit into the time given.
#[test]
fn soak_random_runs() {
    let seconds = number("TIMERTASK_SOAK_SECONDS");
    let until = SystemClock.monotonic() + Duration::from_secs(seconds.unwrap_or(0));
    let mut tally = Tally::default();
    // The long form takes other seeds each time, none of which the short form uses.
    for seed in seconds.map_or(1, |_| SystemClock.entropy() >> 1 | 1 << 32).. {
        tally += simulation::run(seed).tally;
        if SystemClock.monotonic() >= until {
            break;
        }
    }
    println!("{tally}, no violation");
}

#[test]
fn one_run_in_words() {
    let report = simulation::run(number("SIMULATION_SEED").unwrap_or(1));
    println!("{report}\n{:?}\n{}", report.summary, report.trace);
}

#[test]
fn a_seed_replays_exactly() {
    for seed in [5, 6] {
        assert_eq!(simulation::run(seed), simulation::run(seed));
    }
    assert_ne!(simulation::run(5).trace.hash, simulation::run(6).trace.hash);
}

#[test]
fn a_seed_replays_exactly_in_another_process() {
    let program = std::env::current_exe().expect("a test program");
    let output = Command::new(program)
        .args(["--exact", "one_run_in_words", "--nocapture"])
        .env("SIMULATION_SEED", "5")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let here = simulation::run(5).to_string();
    assert!(said.lines().any(|line| line.ends_with(&here)), "{here}\n{said}");
}
