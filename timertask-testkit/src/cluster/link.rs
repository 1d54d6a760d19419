//! One instance's way to the store: nothing passes after its death, nor while it is cut off.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use timertask_core::clock::Clock;
use timertask_core::key::{Namespace, PlanKey};
use timertask_core::seam::{
    Board, Claim, ClaimRequest, Durability, EndRequest, Ended, Ledger, Outcome, Page, PlanOp, PlanState, Posting,
    PostingKind, Purged, Query, Renewal, Retention, StoreError, StoreErrorKind, Term,
};
use timertask_core::time::Timestamp;

use super::witness::Witnessed;
use crate::clock::{ClockView, FakeClock};
use crate::faulty::Faulty;

/// What the cluster and the link of one instance's life share.
pub(super) struct Line {
    pub(super) cut: AtomicBool,
    /// When a call last failed, or came back late, in microseconds of wall time; `i64::MIN` for never.
    last_fault: AtomicI64,
    /// How many calls are under way.
    calls: AtomicUsize,
}

impl Default for Line {
    fn default() -> Self {
        Self { cut: AtomicBool::new(false), last_fault: AtomicI64::new(i64::MIN), calls: AtomicUsize::new(0) }
    }
}

impl Line {
    /// Whether a call is under way: at rest, one that hangs.
    pub(super) fn hangs(&self) -> bool {
        self.calls.load(Ordering::Acquire) > 0
    }

    /// Clocks were stepped: what was noted under the old ones says nothing.
    pub(super) fn forget(&self) {
        self.last_fault.store(i64::MIN, Ordering::Release);
    }

    /// When a call last failed, or came back late.
    pub(super) fn last_fault(&self) -> Option<Timestamp> {
        match self.last_fault.load(Ordering::Acquire) {
            i64::MIN => None,
            micros => Some(Timestamp::from_micros(micros)),
        }
    }
}

/// The store that a scheduler of the cluster is given.
pub(super) struct Link {
    pub(super) view: ClockView,
    pub(super) clock: FakeClock,
    pub(super) line: Arc<Line>,
    pub(super) store: Faulty<Witnessed>,
}

impl Link {
    fn call<T>(&self, call: impl FnOnce(&Faulty<Witnessed>) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let began = self.clock.monotonic();
        let result = if !self.view.goes_on() {
            Err(StoreError::new(StoreErrorKind::Unreachable, "this instance was killed"))
        } else if self.line.cut.load(Ordering::Acquire) {
            Err(StoreError::new(StoreErrorKind::Unreachable, "this instance is cut off"))
        } else {
            let _under_way = UnderWay::new(&self.line.calls);
            call(&self.store)
        };
        if result.is_err() || self.clock.monotonic() > began {
            if let Err(error) = &result {
                self.clock.note_with(|| format!("instance {}: {error}", self.view.label()));
            } else {
                self.clock.note_with(|| format!("instance {}: a call of the store came back late", self.view.label()));
            }
            self.line.last_fault.store(self.clock.now().as_micros(), Ordering::Release);
        }
        result
    }
}

/// Counts a call, until it is over or unwound.
struct UnderWay<'a>(&'a AtomicUsize);

impl<'a> UnderWay<'a> {
    fn new(calls: &'a AtomicUsize) -> Self {
        calls.fetch_add(1, Ordering::AcqRel);
        Self(calls)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
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

impl Board for Link {
    fn post(&self, posting: &Posting) -> Outcome<()> {
        self.call(|store| store.post(posting))
    }

    fn list(&self, namespace: &Namespace, kind: PostingKind) -> Outcome<Vec<Posting>> {
        self.call(|store| store.list(namespace, kind))
    }

    fn take(&self, namespace: &Namespace, kind: PostingKind, key: &str) -> Outcome<Option<Posting>> {
        self.call(|store| store.take(namespace, kind, key))
    }
}
