//! Random runs of a cluster under everything that can befall it; every promise is checked afterwards. A failing seed is
//! printed and replays exactly: `CHAOS_SEED=7 cargo test -p timertask-testkit --test chaos`.

mod run;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Traces in an ordinary test run.
const TRACES: u64 = 150;

#[test]
fn random_traces_break_no_promise() {
    if let Some(seed) = std::env::var("CHAOS_SEED").ok().and_then(|seed| seed.parse().ok()) {
        let (trace, summary, _) = run::trace(seed);
        println!("{trace}{summary:?}");
        return;
    }
    let traces = std::env::var("CHAOS_TRACES").ok().and_then(|n| n.parse().ok()).unwrap_or(TRACES);
    let (mut starts, mut blows) = (0, 0);
    for seed in 1..=traces {
        match catch_unwind(AssertUnwindSafe(|| run::trace(seed))) {
            Ok((_, summary, steps)) => {
                starts += summary.starts;
                blows += steps;
            }
            Err(panic) => {
                println!("CHAOS_SEED={seed} replays it");
                resume_unwind(panic);
            }
        }
    }
    println!("{traces} traces, {blows} faults injected, {starts} starts, no violation");
}

#[test]
fn a_trace_replays_exactly() {
    assert_eq!(run::trace(5), run::trace(5));
}
