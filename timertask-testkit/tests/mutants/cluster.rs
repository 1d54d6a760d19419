//! The same faults of a store, looked for by whole schedulers on it.

use std::collections::BTreeSet;

use timertask_testkit::simulation::{self, Trouble};

use crate::ledger::MutantLedger;
use crate::{MUTANTS, Mutant, panics};

/// How many runs may be needed at most, for those that are found soon, and for the others.
const LIMITS: (u64, u64) = (300, 3000);

/// Found by the ordinary runs.
const FOUND: &[Mutant] = &[
    Mutant::ExpiryGrants,
    Mutant::NoLowWater,
    Mutant::RunNowMovesTheCursor,
    Mutant::FencePerSlot,
    Mutant::FencesAsFloats,
    Mutant::ClaimByUpsert,
    Mutant::AStartedOpenSlotIsNotStarted,
    Mutant::ForeignClaimsLeaveNoRange,
    Mutant::TheCursorIgnoresGaps,
    Mutant::TheCursorMovesBack,
    Mutant::ALateSettlementWins,
    Mutant::SetBackKeepsRanges,
];

/// Found by runs that have the right kinds of trouble and no other, some after more than a hundred of them.
const FOUND_UNDER: &[(Mutant, &[Trouble])] = &[
    (Mutant::OpenMovesTheCursorBack, &[Trouble::StepWall, Trouble::Edit]),
    (Mutant::PurgePastUnfinishedSlots, &[Trouble::Purge, Trouble::Freeze, Trouble::CrashInCall]),
    (Mutant::NoReleasedNonces, &[Trouble::Echo, Trouble::Plague, Trouble::Restart]),
    (Mutant::AccountBeyondNow, &[Trouble::Calls, Trouble::Network, Trouble::StepWall]),
];

/// Not found by whole schedulers so far: the engine comes to them only in an order of events too rare for it. All but the
/// second are found by the random traces of requests (`traces_find_the_mutants_that_break_a_promise`), and each by its case.
const TOO_RARE: &[Mutant] = &[
    Mutant::RerunWithoutALimit,
    Mutant::AttemptsAtTheSweepOnly,
    Mutant::AccountWithoutCompare,
    Mutant::PurgePastTheCursor,
];

/// Those that by their nature break no promise, or none that anybody asks the store for: what catches each is its case.
const NO_PROMISE: &[(Mutant, &str)] = &[
    (Mutant::ExpiryOfWhatHasNotLapsed, "the engine asks for it only where it has looked twice"),
    (
        Mutant::ALookEndsWhatHasLapsed,
        "a run whose lease lapsed may be orphaned; that it could have gone on is lost work",
    ),
    (Mutant::ExpiryByName, "a later term that is ended too early starts nothing by itself"),
    (Mutant::ExpiryReopensTheCancelled, "a cancelled run is started again, within its limit"),
    (Mutant::CatchUpAccountsOnAFullGate, "a missed slot is accounted for, though it might have waited"),
    (Mutant::OpenByName, "in a rolling deploy generations flip more often than they need to"),
    (Mutant::CloseByName, "a generation that is closed by mistake is opened again"),
    (Mutant::ResumeOfAnyPause, "the pause that ends is the operator's loss, not a slot's"),
    (Mutant::RenewalByName, "a zombie's renewal lengthens a lease, and its settlement still is refused"),
    (Mutant::RenewalComparesTime, "a run that could have gone on is told to stop"),
    (Mutant::NoNonceRepeat, "a grant whose answer was lost is orphaned instead of asked for again"),
    (Mutant::ARepeatKeepsTheLease, "a lease that ends early is looked at twice, and renewed"),
    (Mutant::RequestsByInstant, "a request that is repeated at another instant is a slot of its own"),
    (Mutant::WhoAskedIsForgotten, "who asked for a run is told to people"),
    (Mutant::SupersededByTheFuture, "a slot is accounted for, though it might have started"),
    (Mutant::LapsedRunsLeaveTheGate, "two runs of a plan overlap, which no promise rules out"),
    (Mutant::PauseOfAllIgnored, "slots start under a pause, each of them once"),
];

/// The first seed whose run breaks a promise.
fn first_seed(mutant: Mutant, under: Option<&[Trouble]>) -> Option<u64> {
    let store = |clock| MutantLedger::new(clock, mutant);
    let limit = if under.is_none() { LIMITS.0 } else { LIMITS.1 };
    (1..=limit).find(|seed| {
        panics(|| match under {
            Some(troubles) => drop(simulation::run_under(*seed, troubles, store)),
            None => drop(simulation::run_rewinding(*seed, store)),
        })
    })
}

#[test]
fn each_mutant_is_found_by_runs_or_breaks_no_promise() {
    let found = FOUND.iter().chain(FOUND_UNDER.iter().map(|(mutant, _)| mutant));
    let found = found.chain(TOO_RARE);
    let names = found.chain(NO_PROMISE.iter().map(|(mutant, _)| mutant)).map(|mutant| format!("{mutant:?}"));
    let mut names: Vec<String> = names.collect();
    names.sort();
    let all: BTreeSet<String> = MUTANTS.iter().map(|(mutant, _)| format!("{mutant:?}")).collect();
    assert_eq!(names, all.into_iter().collect::<Vec<_>>(), "each once");
}

#[test]
fn runs_find_the_mutants_that_break_a_promise() {
    let seeds: Vec<_> = FOUND.iter().map(|mutant| (mutant, first_seed(*mutant, None))).collect();
    println!("{seeds:?}");
    assert!(seeds.iter().all(|(_, seed)| seed.is_some()), "{seeds:?}");
}

#[test]
#[ignore = "a soak: hundreds of runs"]
fn soak_runs_under_the_right_trouble_find_the_rarer_mutants() {
    let under = |(mutant, troubles): &(Mutant, &[Trouble])| (*mutant, first_seed(*mutant, Some(troubles)));
    let seeds: Vec<_> = FOUND_UNDER.iter().map(under).inspect(|found| println!("{found:?}")).collect();
    assert!(seeds.iter().all(|(_, seed)| seed.is_some()), "{seeds:?}");
}

#[test]
fn runs_find_nothing_in_a_sound_store_and_go_as_in_memory() {
    for seed in 1..=20 {
        let sound = simulation::run_rewinding(seed, |clock| MutantLedger::new(clock, Mutant::Sound));
        assert_eq!(sound, simulation::run(seed), "seed {seed}");
    }
}
