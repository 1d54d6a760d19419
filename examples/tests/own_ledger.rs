//! The ledger of the example `own_ledger` keeps the contract.

#[path = "../own_ledger/ledger.rs"]
mod ledger;

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use ledger::OwnLedger;
use timertask_testkit::FakeClock;
use timertask_testkit::conformance::{LedgerHarness, Step};

/// The ledger, on a clock that stands still until the suite lets time pass.
struct Own {
    clock: FakeClock,
    ledger: Arc<OwnLedger>,
}

impl Own {
    fn fresh() -> Self {
        let clock = FakeClock::new();
        Self { ledger: Arc::new(OwnLedger::new(Arc::new(clock.clone()))), clock }
    }
}

impl LedgerHarness for Own {
    type Ledger = Arc<OwnLedger>;

    fn handle(&self) -> Arc<OwnLedger> {
        Arc::clone(&self.ledger)
    }

    fn pass_time(&self, d: Duration) {
        self.clock.advance(d);
    }
}

impl Step for Own {
    fn step_back(&self, d: Duration) {
        self.clock.step_wall(-TimeDelta::from_std(d).unwrap_or(TimeDelta::MAX));
    }
}

timertask_testkit::ledger_conformance!(Own::fresh);
timertask_testkit::stepped_ledger_conformance!(Own::fresh);
