//! Random traces: instances, operators and a bad network work on one ledger, by a seed; afterwards everything is healed,
//! and the promises are checked.
//!
//! A trace has two to four instances that do what the engine does, at the level of requests: they open generations, claim
//! live slots, catch up, renew, settle, give back, sweep by two looks, account. Requests get lost before or after they
//! take effect, are repeated, and arrive late, long after their sender has gone on. Instances crash and lose what they
//! knew, or freeze and go on as if nothing had happened. The clock jumps forwards and back. Operators edit, disable and
//! pause the plan, run it by hand, backfill, cancel and purge. What is checked:
//!
//! 1. with `OnOrphan::Record` a slot is started at most once;
//! 2. with `Rerun { max }` at most 1 + max times, each under a fence higher than any before it in the plan; of its
//!    settlements at most one is accepted;
//! 3. what has ended stays ended, and is granted to nobody, also after its record was purged;
//! 4. once all is healed, each slot after the plan's effective-from has ended, was not started, lies in a range record, or
//!    was purged;
//!
//! and at each step, that cursor and low water move as the contract says.
//!
//! The same seed gives the same trace on stores that give the same answers. The harness's clock must stand still between
//! calls.

mod instance;
mod log;
mod network;
mod spec;
mod world;

use std::ops::{AddAssign, Range};

use super::Step;

/// What traces did, in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// Traces.
    pub traces: u64,
    /// Requests that took effect, late and repeated ones included.
    pub calls: u64,
    /// Requests or answers that got lost, came late or came twice.
    pub faults: u64,
    /// Crashes, freezes and steps of the clock.
    pub accidents: u64,
    /// What operators did.
    pub operations: u64,
    /// Slots that were granted, repeats not counted.
    pub grants: u64,
    /// Runs that were entered.
    pub starts: u64,
    /// Ends that were accepted.
    pub ends: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.traces += other.traces;
        self.calls += other.calls;
        self.faults += other.faults;
        self.accidents += other.accidents;
        self.operations += other.operations;
        self.grants += other.grants;
        self.starts += other.starts;
        self.ends += other.ends;
    }
}

/// Runs one trace on a fresh store.
///
/// # Panics
/// Where a promise is broken. The message names the seed and what happened last.
pub fn trace<H: Step>(harness: &H, seed: u64) -> Tally {
    world::World::new(harness, seed).run()
}

/// Runs a trace for each seed, each on a fresh store.
///
/// # Panics
/// Where a promise is broken. The message names the seed, and [`trace`] with that seed does the same again.
pub fn traces<H: Step>(open: impl Fn() -> H, seeds: Range<u64>) -> Tally {
    let mut tally = Tally::default();
    for seed in seeds {
        tally += trace(&open(), seed);
    }
    tally
}
