//! A ledger whose caller does not look at answers: what another instance runs, or has run, counts as granted. With it the
//! program has to fail, and to say why; so a run that passes means something.

use std::sync::Arc;
use std::time::Duration;

use timertask::Ledger;
use timertask::key::{Fence, PlanKey};
use timertask::seam::{
    Claim, ClaimRequest, Durability, EndRequest, Ended, Grant, Outcome, Page, PlanOp, PlanState, Purged, Query,
    Renewal, Retention, StoreError, Term,
};

pub(crate) struct Careless(pub(crate) Arc<dyn Ledger>);

impl Ledger for Careless {
    fn describe(&self) -> Result<Durability, StoreError> {
        self.0.describe()
    }

    fn plan(&self, requests: &[(PlanKey, PlanOp)]) -> Outcome<Vec<PlanState>> {
        self.0.plan(requests)
    }

    fn claim(&self, requests: &[ClaimRequest]) -> Outcome<Vec<Claim>> {
        let mut answer = self.0.claim(requests)?;
        for (request, claim) in requests.iter().zip(&mut answer.value) {
            if matches!(claim, Claim::Held | Claim::Ended(_)) {
                *claim = Claim::Granted(Grant {
                    at: request.key.at,
                    fence: Fence::from_u64(u64::try_from(answer.now.as_micros()).unwrap_or(1)),
                    attempt: 1,
                    lease_end: answer.now.saturating_add(request.ttl),
                    cursor: request.key.at,
                    last_success: None,
                    window_from: None,
                });
            }
        }
        Ok(answer)
    }

    fn renew(&self, terms: &[Term], ttl: Duration) -> Outcome<Vec<Renewal>> {
        self.0.renew(terms, ttl)
    }

    fn end(&self, requests: &[EndRequest]) -> Outcome<Vec<Ended>> {
        self.0.end(requests)
    }

    fn read(&self, query: &Query) -> Outcome<Page> {
        self.0.read(query)
    }

    fn purge(&self, plan: &PlanKey, keep: Retention, at_most: usize) -> Outcome<Purged> {
        self.0.purge(plan, keep, at_most)
    }
}
