//! The kit proves itself: a store that is sound passes every case, and each fault built into it is caught by the case
//! that was written for it.

#![expect(clippy::expect_used, reason = "tests, and what helps them")]

mod cluster;
mod ledger;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};
use std::time::Duration;

use timertask_core::memory::MemLedger;
use timertask_testkit::FakeClock;
use timertask_testkit::conformance::{self, LedgerHarness, Step, traces};

use ledger::MutantLedger;

macro_rules! mutants {
    ($($(#[doc = $what:literal])* $name:ident: $($case:ident),+;)+) => {
        /// A fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Mutant {
            /// None: a sound store.
            Sound,
            $($(#[doc = $what])* $name,)+
        }

        /// Each fault, and the cases that are meant to catch it.
        pub(crate) const MUTANTS: &[(Mutant, &[&str])] = &[$((Mutant::$name, &[$(stringify!($case)),+])),+];
    };
}

mutants! {
    /// A lease that has lapsed is granted to whoever claims next.
    ExpiryGrants: expiry_never_grants;
    /// Purging deletes, and low water stays.
    NoLowWater: a_purged_slot_is_too_old;
    /// A decision that was given back or swept is forgotten.
    NoReleasedNonces: a_released_nonce_is_refused, eight_released_nonces_are_remembered;
    /// A sweep ends a lease at first sight, lapsed or not.
    ExpiryOfWhatHasNotLapsed: a_sweep_ends_only_what_has_lapsed, a_renewed_lease_is_not_swept;
    /// One look at a lapsed lease is enough to end it.
    ALookEndsWhatHasLapsed: a_look_ends_nothing;
    /// A sweep ends whatever term the slot is in.
    ExpiryByName: a_sweep_names_its_term;
    /// A run that was told to stop is run again after a sweep.
    ExpiryReopensTheCancelled: a_cancelled_slot_is_not_run_again;
    /// A repeated `run_now` is another run where it names another instant.
    RequestsByInstant: a_repeated_request_keeps_its_first_instant;
    WhoAskedIsForgotten: who_asked_is_kept;
    RunNowMovesTheCursor: run_now_leaves_the_cursor_alone;
    PurgePastTheCursor: purge_never_passes_the_cursor;
    PurgePastUnfinishedSlots: purge_never_passes_a_running_slot, purge_never_passes_an_open_slot;
    AccountWithoutCompare: account_compares_the_cursor;
    AccountBeyondNow: account_is_refused_beyond_now;
    CatchUpAccountsOnAFullGate: catch_up_waits_at_a_full_gate;
    OpenMovesTheCursorBack: an_edit_never_moves_the_cursor_back;
    OpenByName: an_edit_names_what_it_replaces;
    CloseByName: close_names_its_generation;
    ResumeOfAnyPause: resume_names_its_pause;
    RerunWithoutALimit: a_swept_slot_opens_while_starts_are_left, reruns_have_a_limit;
    AttemptsAtTheSweepOnly: attempts_are_compared_in_the_claim;
    RenewalByName: a_renewal_names_its_term;
    /// A renewal of a lapsed lease is refused, though its runner lives.
    RenewalComparesTime: a_lapsed_lease_is_renewed;
    FencePerSlot: fences_rise_with_each_grant_of_a_plan;
    FencesAsFloats: fences_are_exact_integers;
    ClaimByUpsert: a_running_slot_is_held, an_ended_slot_stays_ended;
    AStartedOpenSlotIsNotStarted: a_started_slot_is_resolved_as_orphaned, a_started_slot_waits_at_a_full_gate;
    ForeignClaimsLeaveNoRange: a_foreign_claim_leaves_a_range_behind;
    TheCursorIgnoresGaps: a_gap_holds_the_cursor;
    TheCursorMovesBack: the_cursor_never_moves_back;
    NoNonceRepeat: the_same_nonce_gets_the_same_grant_and_a_longer_lease;
    ARepeatKeepsTheLease: the_same_nonce_gets_the_same_grant_and_a_longer_lease;
    ALateSettlementWins: a_late_settlement_is_lost;
    SupersededByTheFuture: a_slot_ahead_of_now_supersedes_nothing;
    LapsedRunsLeaveTheGate: a_lapsed_run_fills_the_gate;
    PauseOfAllIgnored: a_pause_of_all_covers_later_plans;
    SetBackKeepsRanges: a_cursor_ahead_of_now_is_set_back, ranges_from_the_future_are_withdrawn;
}

/// A store with or without a fault, on a clock that stands still.
struct Harness {
    clock: FakeClock,
    ledger: MutantLedger,
}

impl Harness {
    fn with(mutant: Mutant) -> Self {
        let clock = FakeClock::new();
        Self { ledger: MutantLedger::new(clock.clone(), mutant), clock }
    }

    fn sound() -> Self {
        Self::with(Mutant::Sound)
    }
}

impl LedgerHarness for Harness {
    type Ledger = MutantLedger;
    fn handle(&self) -> MutantLedger {
        self.ledger.clone()
    }
    fn pass_time(&self, d: Duration) {
        self.clock.advance(d);
    }
}

impl Step for Harness {
    fn step_back(&self, d: Duration) {
        self.clock.step_wall(-chrono::TimeDelta::from_std(d).expect("a few days at most"));
    }
}

mod sound {
    timertask_testkit::ledger_conformance!(super::Harness::sound);
    timertask_testkit::stepped_ledger_conformance!(super::Harness::sound);
}

thread_local! {
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Whether `act` panics; what it says is not printed.
fn panics(act: impl FnOnce()) -> bool {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !EXPECTED.get() && std::thread::current().name().is_some() {
                loud(info);
            }
        }));
    });
    EXPECTED.set(true);
    let caught = catch_unwind(AssertUnwindSafe(act)).is_err();
    EXPECTED.set(false);
    caught
}

#[test]
fn each_mutant_is_caught_by_the_case_meant_for_it() {
    let mut cases = conformance::ledger_cases::<Harness>();
    cases.extend(conformance::stepped_ledger_cases::<Harness>());
    let names: BTreeSet<_> = cases.iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), cases.len(), "each case has a name of its own");
    let mut missed = Vec::new();
    for (mutant, meant) in MUTANTS {
        for name in *meant {
            let (_, case) = cases.iter().find(|(case, _)| case == name).expect("a mutant names a case");
            if !panics(|| case(&Harness::with(*mutant))) {
                missed.push(format!("{mutant:?} passes {name}"));
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn no_mutant_is_caught_by_everything() {
    // A store that nothing works with would be caught by any case, and prove none.
    let cases = conformance::ledger_cases::<Harness>();
    for (mutant, meant) in MUTANTS {
        let caught = cases.iter().filter(|(_, case)| panics(|| case(&Harness::with(*mutant)))).count();
        assert!(caught * 2 < cases.len(), "{mutant:?}, meant for {meant:?}, fails {caught} of {}", cases.len());
    }
}

/// The faults that random traces find soon. The others break no promise by themselves (they start less than they should,
/// or forget what only matters in a rare order of events), which is why each has a case of its own.
const FOUND_BY_TRACES: &[Mutant] = &[
    Mutant::ExpiryGrants,
    Mutant::NoLowWater,
    Mutant::RunNowMovesTheCursor,
    Mutant::PurgePastTheCursor,
    Mutant::AccountWithoutCompare,
    Mutant::OpenMovesTheCursorBack,
    Mutant::RerunWithoutALimit,
    Mutant::FencePerSlot,
    Mutant::FencesAsFloats,
    Mutant::ClaimByUpsert,
    Mutant::AStartedOpenSlotIsNotStarted,
    Mutant::ForeignClaimsLeaveNoRange,
    Mutant::TheCursorIgnoresGaps,
    Mutant::TheCursorMovesBack,
    Mutant::ALateSettlementWins,
];

/// The first seed whose trace breaks a promise.
fn first_seed(mutant: Mutant, limit: u64) -> Option<u64> {
    let breaks = |seed: &u64| {
        panics(|| {
            traces::trace(&Harness::with(mutant), *seed);
        })
    };
    (0..limit).find(breaks)
}

#[test]
fn traces_find_the_mutants_that_break_a_promise() {
    let mut missed = Vec::new();
    for mutant in FOUND_BY_TRACES {
        match first_seed(*mutant, 300) {
            Some(seed) => println!("{mutant:?}: {} traces", seed + 1),
            None => missed.push(mutant),
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

/// `MemLedger` on the same kind of clock.
struct InMemory(FakeClock, MemLedger);

impl InMemory {
    fn fresh() -> Self {
        let clock = FakeClock::new();
        Self(clock.clone(), MemLedger::with_clock(Arc::new(clock)).keeping(usize::MAX))
    }
}

impl LedgerHarness for InMemory {
    type Ledger = MemLedger;
    fn handle(&self) -> MemLedger {
        self.1.clone()
    }
    fn pass_time(&self, d: Duration) {
        self.0.advance(d);
    }
}

impl Step for InMemory {
    fn step_back(&self, d: Duration) {
        self.0.step_wall(-chrono::TimeDelta::from_std(d).expect("a few days at most"));
    }
}

#[test]
fn traces_find_nothing_in_a_sound_store_and_go_as_in_memory() {
    // A trace that got another answer somewhere would go another way from there on.
    for seed in 0..200 {
        assert_eq!(traces::trace(&Harness::sound(), seed), traces::trace(&InMemory::fresh(), seed), "seed {seed}");
    }
}
