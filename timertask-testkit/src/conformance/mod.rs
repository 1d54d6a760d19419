//! Conformance: what every store must do, as named cases.
//!
//! The author of a store supplies a harness, a few lines, and one macro call in the store's `tests/` folder; each case
//! becomes a `#[test]` of its own, named after the sentence that it shows.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use timertask_core::memory::MemLedger;
//! use timertask_testkit::FakeClock;
//! use timertask_testkit::conformance::LedgerHarness;
//!
//! struct InMemory(FakeClock, MemLedger);
//!
//! impl InMemory {
//!     fn fresh() -> Self {
//!         let clock = FakeClock::new();
//!         let ledger = MemLedger::with_clock(Arc::new(clock.clone())).keeping(usize::MAX);
//!         Self(clock, ledger)
//!     }
//! }
//!
//! impl LedgerHarness for InMemory {
//!     type Ledger = MemLedger;
//!     fn handle(&self) -> MemLedger {
//!         self.1.clone()
//!     }
//!     fn pass_time(&self, d: Duration) {
//!         self.0.advance(d);
//!     }
//! }
//!
//! timertask_testkit::ledger_conformance!(InMemory::fresh);
//! # fn main() {}
//! ```
//!
//! | macro | for | harness |
//! |---|---|---|
//! | [`ledger_conformance!`](crate::ledger_conformance) | every [`Ledger`] | [`LedgerHarness`] |
//! | [`durable_ledger_conformance!`](crate::durable_ledger_conformance) | those that survive the process | [`Restart`] |
//! | [`stepped_ledger_conformance!`](crate::stepped_ledger_conformance) | those whose clock the harness can step | [`Step`] |
//! | [`mutex_conformance!`](crate::mutex_conformance) | every [`Mutex`] | [`MutexHarness`] |
//! | [`board_conformance!`](crate::board_conformance) | every [`Board`] | [`BoardHarness`] |
//! | [`clock_conformance!`](crate::clock_conformance) | every [`Clock`] | [`ClockHarness`] |
//! | [`stepped_clock_conformance!`](crate::stepped_clock_conformance) | those that the harness can step | [`StepClock`] |
//!
//! What a store cannot do it leaves out by leaving out the macro; no case returns early. The same lists are there
//! without macros, as [`ledger_cases`] and its sisters.
//!
//! A store under test forgets nothing by itself: where it purges on its own account (as `MemLedger` does), the harness
//! turns that off.

pub mod board;
pub mod clock;
pub mod ledger;
mod list;
pub mod mutex;
mod probe;
pub mod traces;

use std::time::Duration;

use timertask_core::clock::Clock;
use timertask_core::key::Namespace;
use timertask_core::seam::{Board, Ledger, Mutex};

pub use list::{
    board_cases, clock_cases, durable_ledger_cases, ledger_cases, mutex_cases, stepped_clock_cases,
    stepped_ledger_cases,
};

/// A named case: a sentence of the contract, and the function that panics where it does not hold.
pub type Case<H> = (&'static str, fn(&H));

/// One store under test. Each case gets a harness of its own, whose store is empty.
pub trait LedgerHarness: Sync {
    /// A handle on the store.
    type Ledger: Ledger;

    /// Another handle on this harness's store, as another instance would have it.
    fn handle(&self) -> Self::Ledger;

    /// Lets time pass: afterwards the store's clock shows at least `d` more. A store with a clock of its own may have to
    /// sleep for it; no case asks for more than a few seconds in all.
    fn pass_time(&self, d: Duration);

    /// The namespace to work in; the empty one unless the store needs another.
    fn namespace(&self) -> Namespace {
        Namespace::default()
    }
}

/// A store that survives its process.
pub trait Restart: LedgerHarness {
    /// What happens to the store where every process ends and a new one starts: what the harness itself holds open is
    /// closed, and opened again. The case has dropped its handles before.
    fn restart(&self);
}

/// A store whose clock the harness can step, as a host's clock is when it is corrected.
pub trait Step: LedgerHarness {
    /// Sets the store's clock back by `d`.
    fn step_back(&self, d: Duration);
}

/// One mutex under test. Each case gets a harness of its own, with nothing locked.
pub trait MutexHarness: Sync {
    /// A handle on the store.
    type Mutex: Mutex;

    /// Another handle on this harness's store, as another instance would have it.
    fn handle(&self) -> Self::Mutex;

    /// Lets time pass: leases that were to end within `d` have lapsed afterwards.
    fn pass_time(&self, d: Duration);

    /// The namespace to work in; the empty one unless the store needs another.
    fn namespace(&self) -> Namespace {
        Namespace::default()
    }
}

/// One notice board under test. Each case gets a harness of its own, whose board is empty.
pub trait BoardHarness: Sync {
    /// A handle on the store.
    type Board: Board;

    /// Another handle on this harness's store, as another instance would have it.
    fn handle(&self) -> Self::Board;

    /// The namespace to work in; the empty one unless the store needs another.
    fn namespace(&self) -> Namespace {
        Namespace::default()
    }
}

/// One clock under test.
pub trait ClockHarness: Sync {
    /// A handle on the clock.
    type Clock: Clock;

    /// A handle on this harness's clock, as another thread of the same instance would have it.
    fn clock(&self) -> Self::Clock;

    /// Lets time pass: afterwards wall and monotonic time are at least `d` further. No case asks for more than some
    /// milliseconds.
    fn pass_time(&self, d: Duration);
}

/// A clock whose wall time the harness can step.
pub trait StepClock: ClockHarness {
    /// Sets wall time back by `d`.
    fn step_back(&self, d: Duration);
}
