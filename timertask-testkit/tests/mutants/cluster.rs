//! The same faults of a store, looked for by whole schedulers on it.

#[path = "../chaos/run.rs"]
mod run;

use crate::ledger::MutantLedger;
use crate::{Mutant, panics};

/// The first seed whose run breaks a promise, up to `limit`.
fn first_seed(mutant: Mutant, limit: u64) -> Option<u64> {
    (1..=limit).find(|seed| panics(|| drop(run::trace_on(*seed, |clock| MutantLedger::new(clock, mutant)))))
}

/// The faults that show under the engine soon. The others it never meets (it does not purge a volatile store, nor run
/// by hand yet), meets only in a rare order of events, or they break no promise; each has a case of its own.
const FOUND_BY_CLUSTERS: &[Mutant] = &[
    Mutant::ExpiryGrants,
    Mutant::FencePerSlot,
    Mutant::FencesAsFloats,
    Mutant::ClaimByUpsert,
    Mutant::TheCursorIgnoresGaps,
    Mutant::TheCursorMovesBack,
    Mutant::ALateSettlementWins,
    Mutant::SetBackKeepsRanges,
    Mutant::ForeignClaimsLeaveNoRange,
];

/// Those that take longer.
const FOUND_LATER: &[Mutant] = &[Mutant::CatchUpAccountsOnAFullGate, Mutant::OpenMovesTheCursorBack];

fn find(mutants: &[Mutant], limit: u64) {
    let mut missed = Vec::new();
    for mutant in mutants {
        match first_seed(*mutant, limit) {
            Some(seed) => println!("{mutant:?}: {seed} runs"),
            None => missed.push(mutant),
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

#[test]
fn clusters_find_the_mutants_that_break_a_promise_under_the_engine() {
    find(FOUND_BY_CLUSTERS, 100);
}

#[test]
#[ignore = "a soak: hundreds of runs"]
fn clusters_find_the_rarer_mutants_too() {
    find(FOUND_LATER, 400);
}

#[test]
fn clusters_find_nothing_in_a_sound_store_and_go_as_in_memory() {
    for seed in 1..=20 {
        let sound = run::trace_on(seed, |clock| MutantLedger::new(clock, Mutant::Sound));
        assert_eq!(sound, run::trace(seed), "seed {seed}");
    }
}
