//! The ledger as the engine calls it, as a ledger: panics are contained, faults noted, skew is measured.

use std::time::Duration;

use super::Shared;
use crate::key::PlanKey;
use crate::seam::{
    Claim, ClaimRequest, Durability, EndRequest, Ended, Ledger, Outcome, Page, PlanOp, PlanState, Purged, Query,
    Renewal, Retention, StoreError, Term,
};

/// For what is written against a ledger, and is called by the engine or through a scheduler.
pub(crate) struct Watched<'a>(pub(crate) &'a Shared);

impl Ledger for Watched<'_> {
    fn describe(&self) -> Result<Durability, StoreError> {
        self.0.contained("describe", || self.0.ledger.describe())
    }
    fn plan(&self, requests: &[(PlanKey, PlanOp)]) -> Outcome<Vec<PlanState>> {
        self.0.store("plan", |ledger| ledger.plan(requests))
    }
    fn claim(&self, requests: &[ClaimRequest]) -> Outcome<Vec<Claim>> {
        self.0.store("claim", |ledger| ledger.claim(requests))
    }
    fn renew(&self, terms: &[Term], ttl: Duration) -> Outcome<Vec<Renewal>> {
        self.0.store("renew", |ledger| ledger.renew(terms, ttl))
    }
    fn end(&self, requests: &[EndRequest]) -> Outcome<Vec<Ended>> {
        self.0.store("end", |ledger| ledger.end(requests))
    }
    fn read(&self, query: &Query) -> Outcome<Page> {
        self.0.store("read", |ledger| ledger.read(query))
    }
    fn purge(&self, plan: &PlanKey, keep: Retention, at_most: usize) -> Outcome<Purged> {
        self.0.store("purge", |ledger| ledger.purge(plan, keep, at_most))
    }
}
