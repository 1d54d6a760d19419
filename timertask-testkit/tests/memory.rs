//! The built-in stores keep the contract.

#![expect(clippy::expect_used, reason = "tests, and what helps them")]

use std::sync::Arc;
use std::time::Duration;

use timertask_core::memory::{LocalMutex, MemLedger};
use timertask_testkit::FakeClock;
use timertask_testkit::conformance::{BoardHarness, LedgerHarness, MutexHarness, Step};

/// A ledger and a mutex in memory, on a clock that stands still.
struct Memory {
    clock: FakeClock,
    ledger: MemLedger,
    mutex: LocalMutex,
}

impl Memory {
    fn fresh() -> Self {
        Self::keeping(usize::MAX)
    }

    fn keeping(records: usize) -> Self {
        let clock = FakeClock::new();
        Self {
            ledger: MemLedger::with_clock(Arc::new(clock.clone())).keeping(records),
            mutex: LocalMutex::with_clock(Arc::new(clock.clone())),
            clock,
        }
    }
}

impl LedgerHarness for Memory {
    type Ledger = MemLedger;
    fn handle(&self) -> MemLedger {
        self.ledger.clone()
    }
    fn pass_time(&self, d: Duration) {
        self.clock.advance(d);
    }
}

impl Step for Memory {
    fn step_back(&self, d: Duration) {
        self.clock.step_wall(-chrono::TimeDelta::from_std(d).expect("a few days at most"));
    }
}

impl MutexHarness for Memory {
    type Mutex = LocalMutex;
    fn handle(&self) -> LocalMutex {
        self.mutex.clone()
    }
    fn pass_time(&self, d: Duration) {
        self.clock.advance(d);
    }
}

impl BoardHarness for Memory {
    type Board = MemLedger;
    fn handle(&self) -> MemLedger {
        self.ledger.clone()
    }
}

mod ledger {
    timertask_testkit::ledger_conformance!(super::Memory::fresh);
    timertask_testkit::stepped_ledger_conformance!(super::Memory::fresh);
}

mod mutex {
    timertask_testkit::mutex_conformance!(super::Memory::fresh);
}

mod board {
    timertask_testkit::board_conformance!(super::Memory::fresh);
}

mod traces {
    use std::time::Duration;

    use timertask_core::clock::{Clock, SystemClock};
    use timertask_testkit::conformance::traces::{self, Tally};

    use super::Memory;

    // In two tests, for two processors.
    #[test]
    fn random_traces_break_no_promise() {
        println!("{:?}", traces::traces(Memory::fresh, 0..500));
    }

    #[test]
    fn nor_do_more_of_them() {
        println!("{:?}", traces::traces(Memory::fresh, 500..1_000));
    }

    /// The long form: as many traces as fit into the time given.
    #[test]
    fn soak_traces_of_the_ledger() {
        let seconds = std::env::var("TIMERTASK_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        let until = SystemClock.monotonic() + Duration::from_secs(seconds);
        let mut tally = Tally::default();
        // Seeds that the short form does not use.
        for first in (10_000..).step_by(100) {
            tally += traces::traces(Memory::fresh, first..first + 100);
            if SystemClock.monotonic() >= until {
                break;
            }
        }
        println!("{tally:?}");
    }

    #[test]
    fn nor_where_the_ledger_forgets_by_itself() {
        println!("{:?}", traces::traces(|| Memory::keeping(5), 1_000..1_500));
    }
}
