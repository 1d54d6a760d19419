//! Mutual exclusion by leases, for services that have a lock service but no shared ledger.

use std::sync::Arc;
use std::time::Duration;

use super::StoreError;
use crate::key::{Fence, LockKey, Nonce};

/// A lock with leases, as ShedLock or Redis offer it. Its keys are leases and expire; what ran is not remembered.
///
/// With a mutex beside the volatile built-in ledger, "no second start" holds exactly while
/// `spread + start_window + 2 × max_skew < lock_ttl`; `Builder::start` checks that.
pub trait Mutex: Send + Sync {
    /// Takes the lock for `ttl`, or answers `None` where somebody else (also another nonce of the same process)
    /// holds it. The same nonce again, while it holds the lock, gets the same lease, its end moved to now + `ttl`.
    ///
    /// # Errors
    /// [`StoreError`] where the store could not decide.
    ///
    /// # Blocking
    /// As long as the store's own time-outs say.
    fn try_lock(&self, key: &LockKey, nonce: Nonce, ttl: Duration) -> Result<Option<Lease>, StoreError>;

    /// Moves the end of `lease` to now + `ttl`, if it is still the current one and has not lapsed.
    ///
    /// # Errors
    /// [`StoreError`] where the store could not decide.
    ///
    /// # Blocking
    /// As long as the store's own time-outs say.
    fn extend(&self, lease: &Lease, ttl: Duration) -> Result<Held, StoreError>;

    /// Gives the lock back, if `lease` is still the current one.
    ///
    /// # Errors
    /// [`StoreError`] where the store could not decide.
    ///
    /// # Blocking
    /// As long as the store's own time-outs say.
    fn unlock(&self, lease: &Lease) -> Result<Held, StoreError>;
}

impl<M: Mutex + ?Sized> Mutex for Arc<M> {
    fn try_lock(&self, key: &LockKey, nonce: Nonce, ttl: Duration) -> Result<Option<Lease>, StoreError> {
        (**self).try_lock(key, nonce, ttl)
    }
    fn extend(&self, lease: &Lease, ttl: Duration) -> Result<Held, StoreError> {
        (**self).extend(lease, ttl)
    }
    fn unlock(&self, lease: &Lease) -> Result<Held, StoreError> {
        (**self).unlock(lease)
    }
}

/// A term of a lock: which key, by which decision, with which fence. Names the term in each later call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The key.
    pub key: LockKey,
    /// Who holds it.
    pub nonce: Nonce,
    /// Rises with each grant of the same plan, also after the key has lapsed.
    pub fence: Fence,
}

/// Whether a term was still the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Held {
    /// It was; the call took effect.
    Held,
    /// It was not: lapsed, given back, or taken by another. Nothing was changed.
    Lost,
}
