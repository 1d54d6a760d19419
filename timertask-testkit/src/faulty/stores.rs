//! The seams, forwarded through the faults.

use std::sync::PoisonError;
use std::time::Duration;

use timertask_core::key::{LockKey, Namespace, Nonce, PlanKey};
use timertask_core::seam::{
    Board, Claim, ClaimRequest, Durability, EndRequest, Ended, Held, Lease, Ledger, Mutex, Outcome, Page, PlanOp,
    PlanState, Posting, PostingKind, Purged, Query, Renewal, Retention, StoreError, Term,
};

use super::{Call, Faulty};

impl<S: Ledger + 'static> Ledger for Faulty<S> {
    fn describe(&self) -> Result<Durability, StoreError> {
        self.call(Call::Describe, S::describe, || Box::new(|_| {}))
    }

    fn plan(&self, requests: &[(PlanKey, PlanOp)]) -> Outcome<Vec<PlanState>> {
        self.call(
            Call::Plan,
            |s| s.plan(requests),
            || {
                let requests = requests.to_vec();
                Box::new(move |s| drop(s.plan(&requests)))
            },
        )
    }

    fn claim(&self, requests: &[ClaimRequest]) -> Outcome<Vec<Claim>> {
        let mut answer = self.call(
            Call::Claim,
            |s| s.claim(requests),
            || {
                let requests = requests.to_vec();
                Box::new(move |s| drop(s.claim(&requests)))
            },
        )?;
        let twist = self.twist.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(twist) = twist {
            answer.value = twist(requests, answer.value);
        }
        Ok(answer)
    }

    fn renew(&self, terms: &[Term], ttl: Duration) -> Outcome<Vec<Renewal>> {
        self.call(
            Call::Renew,
            |s| s.renew(terms, ttl),
            || {
                let terms = terms.to_vec();
                Box::new(move |s| drop(s.renew(&terms, ttl)))
            },
        )
    }

    fn end(&self, requests: &[EndRequest]) -> Outcome<Vec<Ended>> {
        self.call(
            Call::End,
            |s| s.end(requests),
            || {
                let requests = requests.to_vec();
                Box::new(move |s| drop(s.end(&requests)))
            },
        )
    }

    fn read(&self, query: &Query) -> Outcome<Page> {
        self.call(Call::Read, |s| s.read(query), || Box::new(|_| {}))
    }

    fn purge(&self, plan: &PlanKey, keep: Retention, at_most: usize) -> Outcome<Purged> {
        self.call(
            Call::Purge,
            |s| s.purge(plan, keep, at_most),
            || {
                let plan = plan.clone();
                Box::new(move |s| drop(s.purge(&plan, keep, at_most)))
            },
        )
    }
}

impl<S: Mutex + 'static> Mutex for Faulty<S> {
    fn try_lock(&self, key: &LockKey, nonce: Nonce, ttl: Duration) -> Result<Option<Lease>, StoreError> {
        self.call(
            Call::TryLock,
            |s| s.try_lock(key, nonce, ttl),
            || {
                let key = key.clone();
                Box::new(move |s| drop(s.try_lock(&key, nonce, ttl)))
            },
        )
    }

    fn extend(&self, lease: &Lease, ttl: Duration) -> Result<Held, StoreError> {
        self.call(
            Call::Extend,
            |s| s.extend(lease, ttl),
            || {
                let lease = lease.clone();
                Box::new(move |s| drop(s.extend(&lease, ttl)))
            },
        )
    }

    fn unlock(&self, lease: &Lease) -> Result<Held, StoreError> {
        self.call(
            Call::Unlock,
            |s| s.unlock(lease),
            || {
                let lease = lease.clone();
                Box::new(move |s| drop(s.unlock(&lease)))
            },
        )
    }
}

impl<S: Board + 'static> Board for Faulty<S> {
    fn post(&self, posting: &Posting) -> Outcome<()> {
        self.call(
            Call::Post,
            |s| s.post(posting),
            || {
                let posting = posting.clone();
                Box::new(move |s| drop(s.post(&posting)))
            },
        )
    }

    fn list(&self, namespace: &Namespace, kind: PostingKind) -> Outcome<Vec<Posting>> {
        self.call(Call::List, |s| s.list(namespace, kind), || Box::new(|_| {}))
    }

    fn take(&self, namespace: &Namespace, kind: PostingKind, key: &str) -> Outcome<Option<Posting>> {
        self.call(
            Call::Take,
            |s| s.take(namespace, kind, key),
            || {
                let (namespace, key) = (namespace.clone(), key.to_owned());
                Box::new(move |s| drop(s.take(&namespace, kind, &key)))
            },
        )
    }
}
