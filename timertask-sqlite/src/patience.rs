//! Real time. Decisions are made by the injected clock; how long a call waits for a lock is not one of them, and
//! a simulated clock would never let it end. So these few waits go by the system's clock, whatever the handle's is.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use timertask_core::clock::{Clock, Signal, SystemClock, Until};
use timertask_core::key::Nonce;

/// An instant of real time up to which a call is ready to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Duration);

impl Deadline {
    /// `wait` from now.
    pub(crate) fn after(wait: Duration) -> Self {
        Self(SystemClock.monotonic().saturating_add(wait))
    }

    /// What is left until then; zero once it has passed.
    pub(crate) fn left(self) -> Duration {
        self.0.saturating_sub(SystemClock.monotonic())
    }

    pub(crate) fn has_passed(self) -> bool {
        self.left().is_zero()
    }
}

/// How long SQLite may wait for a lock on one connection, shared with that connection's busy handler.
#[derive(Clone, Debug)]
pub(crate) struct Patience(Arc<std::sync::Mutex<Deadline>>);

impl Patience {
    pub(crate) fn new(deadline: Deadline) -> Self {
        Self(Arc::new(std::sync::Mutex::new(deadline)))
    }

    pub(crate) fn set(&self, deadline: Deadline) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = deadline;
    }

    /// The busy handler. SQLite's own backs off to 100 ms a step and starves whoever came first; short jittered steps
    /// cut the longest wait about fourteenfold where several processes share the file.
    pub(crate) fn busy_handler(&self) -> impl FnMut(i32) -> bool + Send + use<> {
        let patience = self.clone();
        let mut jitter = SystemClock.entropy() | 1;
        move |round| {
            let left = patience.0.lock().unwrap_or_else(PoisonError::into_inner).left();
            if left.is_zero() {
                return false;
            }
            jitter ^= jitter << 13;
            jitter ^= jitter >> 7;
            jitter ^= jitter << 17;
            let micros = match round {
                ..3 => 50,
                3..20 => 150,
                _ => 400 + jitter % 300,
            };
            nap(Duration::from_micros(micros).min(left));
            true
        }
    }
}

/// Sleeps for real.
pub(crate) fn nap(d: Duration) {
    let until = Until::Monotonic(SystemClock.monotonic().saturating_add(d));
    let _ = SystemClock.wait(&Signal::new(), Some(until));
}

/// Bits for the id of a new store.
pub(crate) fn random_bits() -> u128 {
    Nonce::random(&SystemClock).bits()
}
