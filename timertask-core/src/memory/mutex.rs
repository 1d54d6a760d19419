//! [`LocalMutex`]: leases in memory.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::key::{Fence, LockKey, Nonce};
use crate::rules;
use crate::seam::{Held, Lease, Mutex, StoreError, StoreErrorKind};
use crate::time::Timestamp;

/// A [`Mutex`] in this process's memory, for schedulers of one process and for tests. Clones share it.
///
/// It goes by its clock's wall time, as a lock service does: a clock that steps back only ever prolongs a lease, and
/// a slot that falls due again by such a step is still guarded.
///
/// # Blocking
/// No call waits for anything but the one lock, which is held over no call of anybody else's code.
#[derive(Clone)]
pub struct LocalMutex(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    state: std::sync::Mutex<State>,
}

#[derive(Default)]
struct State {
    held: HashMap<LockKey, Term>,
    /// The held keys by the end of their leases.
    ends: BTreeSet<(Timestamp, LockKey)>,
    /// The last fence; rising over all plans, it rises in each.
    fence: Fence,
}

#[derive(Clone, Copy)]
struct Term {
    nonce: Nonce,
    fence: Fence,
    end: Timestamp,
}

impl LocalMutex {
    /// No lock taken, on the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// No lock taken, on `clock`.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner { clock, state: std::sync::Mutex::default() }))
    }

    /// The clock's now, and the state under its lock without what has lapsed.
    fn enter(&self) -> (Timestamp, MutexGuard<'_, State>) {
        let now = self.0.clock.now();
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.drop_lapsed(now);
        (now, state)
    }
}

impl State {
    fn drop_lapsed(&mut self, now: Timestamp) {
        while self.ends.first().is_some_and(|(end, _)| *end <= now) {
            if let Some((_, key)) = self.ends.pop_first() {
                self.held.remove(&key);
            }
        }
    }

    /// The term of `lease`, if it is still the current one.
    fn current(&self, lease: &Lease) -> Option<Term> {
        let term = self.held.get(&lease.key)?;
        (term.nonce == lease.nonce && term.fence == lease.fence).then_some(*term)
    }

    fn hold(&mut self, key: &LockKey, term: Term) {
        if let Some(before) = self.held.insert(key.clone(), term) {
            self.ends.remove(&(before.end, key.clone()));
        }
        self.ends.insert((term.end, key.clone()));
    }
}

impl Default for LocalMutex {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for LocalMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("LocalMutex").field("held", &state.held.len()).finish()
    }
}

impl Mutex for LocalMutex {
    fn try_lock(&self, key: &LockKey, nonce: Nonce, ttl: Duration) -> Result<Option<Lease>, StoreError> {
        let (now, mut state) = self.enter();
        let end = now.saturating_add(ttl);
        let fence = match state.held.get(key) {
            Some(term) if term.nonce == nonce => term.fence,
            Some(_) => return Ok(None),
            None => {
                let used_up = || StoreError::new(StoreErrorKind::Internal, "lock a key: the fences are used up");
                state.fence = rules::next_fence(state.fence, now).ok_or_else(used_up)?;
                state.fence
            }
        };
        state.hold(key, Term { nonce, fence, end });
        Ok(Some(Lease { key: key.clone(), nonce, fence }))
    }

    fn extend(&self, lease: &Lease, ttl: Duration) -> Result<Held, StoreError> {
        let (now, mut state) = self.enter();
        let Some(term) = state.current(lease) else { return Ok(Held::Lost) };
        state.hold(&lease.key, Term { end: now.saturating_add(ttl), ..term });
        Ok(Held::Held)
    }

    fn unlock(&self, lease: &Lease) -> Result<Held, StoreError> {
        let (_, mut state) = self.enter();
        let Some(term) = state.current(lease) else { return Ok(Held::Lost) };
        state.held.remove(&lease.key);
        state.ends.remove(&(term.end, lease.key.clone()));
        Ok(Held::Held)
    }
}
