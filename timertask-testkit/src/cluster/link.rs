//! One instance's way to the store: nothing passes after its death, nor while it is cut off.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use timertask_core::clock::Clock;
use timertask_core::key::PlanKey;
use timertask_core::seam::{
    Claim, ClaimRequest, Durability, EndRequest, Ended, Ledger, Outcome, Page, PlanOp, PlanState, Purged, Query,
    Renewal, Retention, StoreError, StoreErrorKind, Term,
};
use timertask_core::time::Timestamp;

use super::witness::Witnessed;
use crate::clock::{ClockView, FakeClock};
use crate::faulty::Faulty;

/// What the cluster and the link of one instance's life share.
pub(super) struct Line {
    pub(super) cut: AtomicBool,
    /// When a call last failed, in microseconds of wall time; `i64::MIN` for never.
    last_fault: AtomicI64,
}

impl Default for Line {
    fn default() -> Self {
        Self { cut: AtomicBool::new(false), last_fault: AtomicI64::new(i64::MIN) }
    }
}

impl Line {
    /// When a call last failed.
    pub(super) fn last_fault(&self) -> Option<Timestamp> {
        match self.last_fault.load(Ordering::Acquire) {
            i64::MIN => None,
            micros => Some(Timestamp::from_micros(micros)),
        }
    }
}

/// The ledger that a scheduler of the cluster is given.
pub(super) struct Link {
    pub(super) view: ClockView,
    pub(super) clock: FakeClock,
    pub(super) line: Arc<Line>,
    pub(super) store: Faulty<Witnessed>,
}

impl Link {
    fn call<T>(&self, call: impl FnOnce(&Faulty<Witnessed>) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let result = if !self.view.goes_on() {
            Err(StoreError::new(StoreErrorKind::Unreachable, "this instance was killed"))
        } else if self.line.cut.load(Ordering::Acquire) {
            Err(StoreError::new(StoreErrorKind::Unreachable, "this instance is cut off"))
        } else {
            call(&self.store)
        };
        if result.is_err() {
            self.line.last_fault.store(self.clock.now().as_micros(), Ordering::Release);
        }
        result
    }
}

impl Ledger for Link {
    fn describe(&self) -> Result<Durability, StoreError> {
        self.call(Ledger::describe)
    }

    fn plan(&self, requests: &[(PlanKey, PlanOp)]) -> Outcome<Vec<PlanState>> {
        self.call(|store| store.plan(requests))
    }

    fn claim(&self, requests: &[ClaimRequest]) -> Outcome<Vec<Claim>> {
        self.call(|store| store.claim(requests))
    }

    fn renew(&self, terms: &[Term], ttl: Duration) -> Outcome<Vec<Renewal>> {
        self.call(|store| store.renew(terms, ttl))
    }

    fn end(&self, requests: &[EndRequest]) -> Outcome<Vec<Ended>> {
        self.call(|store| store.end(requests))
    }

    fn read(&self, query: &Query) -> Outcome<Page> {
        self.call(|store| store.read(query))
    }

    fn purge(&self, plan: &PlanKey, keep: Retention, at_most: usize) -> Outcome<Purged> {
        self.call(|store| store.purge(plan, keep, at_most))
    }
}
