//! The one primitive under every wait. What it is made of comes from `sync`, so that a test can build it on a model of
//! threads and memory, and go through every interleaving.

use std::fmt;
use std::sync::PoisonError;
use std::time::Duration;

use crate::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Condvar, Gate, Ordering, fence};

/// A flag that wakes whoever waits for it; a notification is kept until it is taken. Clones share the flag.
///
/// One waiter at a time is meant; with several, one of them takes the notification.
#[derive(Clone)]
pub struct Signal(Arc<SignalInner>);

/// Flag and counters are atomics, so that looking costs no lock and notifying no system call while nobody is parked.
/// The lock only closes the gap between a parker's last look and its sleep.
struct SignalInner {
    set: AtomicBool,
    pokes: AtomicU64,
    parked: AtomicUsize,
    gate: Gate,
    wake: Condvar,
}

impl Signal {
    /// A signal that is not set.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(SignalInner {
            set: AtomicBool::new(false),
            pokes: AtomicU64::new(0),
            parked: AtomicUsize::new(0),
            gate: Gate::new(()),
            wake: Condvar::new(),
        }))
    }

    /// Whether both are the same flag.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Sets the flag and wakes a waiter. Cheap where it is set already, and where nobody waits.
    pub fn notify(&self) {
        // Always a write, also where the flag is set: what the caller did before becomes visible to the taker.
        if !self.0.set.swap(true, Ordering::AcqRel) {
            self.0.ring();
        }
    }

    /// Whether the flag is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.set.load(Ordering::Acquire)
    }

    /// Takes the notification: whether the flag was set, which it no longer is.
    #[must_use]
    pub fn take(&self) -> bool {
        self.is_set() && self.0.set.swap(false, Ordering::AcqRel)
    }

    /// Wakes those in [`park`](Self::park) without setting the flag. For clocks: time has passed, look again.
    pub fn poke(&self) {
        self.0.pokes.fetch_add(1, Ordering::Release);
        self.0.ring();
    }

    /// How often the signal was poked so far; for [`park`](Self::park).
    #[must_use]
    pub fn pokes(&self) -> u64 {
        self.0.pokes.load(Ordering::Acquire)
    }

    /// Waits until the flag is set, somebody [`poke`](Self::poke)s, or `limit` of real time has passed; with a limit it
    /// may also end before, so look again. Does not take the flag. `since` is [`pokes`](Self::pokes) from before the caller looked whether it has to wait: a poke
    /// since then is not missed. For clocks; everybody else waits through [`Clock::wait`](crate::Clock::wait).
    ///
    /// # Blocking
    /// Up to `limit`, without one until set or poked.
    pub fn park(&self, since: u64, limit: Option<Duration>) {
        let inner = &*self.0;
        let mut gate = inner.gate.lock().unwrap_or_else(PoisonError::into_inner);
        inner.parked.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `ring`: either this thread sees the flag, or the notifier sees this thread.
        fence(Ordering::SeqCst);
        while !self.is_set() && self.pokes() == since {
            let Some(limit) = limit else {
                gate = inner.wake.wait(gate).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(inner.wake.wait_timeout(gate, limit));
            break;
        }
        inner.parked.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether both are the same signal.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Default for Signal {
    fn default() -> Self {
        Self::new()
    }
}

impl SignalInner {
    fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.parked.load(Ordering::Relaxed) > 0 {
            // Through the gate once: a parker that has looked already is asleep by then.
            drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
            self.wake.notify_all();
        }
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signal").field("set", &self.is_set()).finish()
    }
}
