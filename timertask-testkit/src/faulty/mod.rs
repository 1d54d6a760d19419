//! A store that fails as stores do: in words a test gives, or at random from a seed.

mod script;
mod stores;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use timertask_core::clock::{Clock, Signal, Until};
use timertask_core::seam::{Claim, ClaimRequest, StoreError, StoreErrorKind};

pub use script::{Call, Fault};

use script::{Script, When};

/// A store around a store, in which calls fail, get lost, come late or twice, as a test wants it.
///
/// It is a `Ledger`, `Mutex` and `Board` where the one inside is. Faults are for the calls made through this handle;
/// [`handle`](Self::handle) gives each instance one of its own to the same store. It waits through the clock, so a
/// slow or hanging store costs no real time. Clones are the same handle.
///
/// ```
/// # use std::sync::Arc;
/// # use timertask_testkit::{Call, FakeClock, Fault, Faulty};
/// # use timertask_core::seam::StoreErrorKind;
/// # let store = ();
/// let clock = FakeClock::seeded(7);
/// let faulty = Faulty::new(store, Arc::new(clock));
/// faulty.on(Call::Claim).nth(3, Fault::LostAnswer);
/// faulty.on(Call::Renew).next(2, Fault::Error(StoreErrorKind::Busy));
/// faulty.on_any().chance(0.01, Fault::LostRequest);
/// ```
pub struct Faulty<S> {
    store: Arc<S>,
    common: Arc<Common>,
    script: Arc<Script>,
    clock: Arc<dyn Clock>,
    twist: Arc<std::sync::Mutex<Option<Twist>>>,
}

type Twist = Arc<dyn Fn(&[ClaimRequest], Vec<Claim>) -> Vec<Claim> + Send + Sync>;

/// What all handles share.
#[derive(Default)]
struct Common {
    /// What is on its way to the store, with the monotonic time at which it arrives: the death of an asker does not hold up
    /// what it has sent.
    late: std::sync::Mutex<Vec<(Duration, Request)>>,
    /// How many calls met a fault.
    faults: AtomicU64,
}

type Request = Box<dyn FnOnce() + Send>;

impl<S> Clone for Faulty<S> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            common: Arc::clone(&self.common),
            script: Arc::clone(&self.script),
            clock: Arc::clone(&self.clock),
            twist: Arc::clone(&self.twist),
        }
    }
}

impl<S> Faulty<S> {
    /// Around `store`; faultless until told otherwise. Its randomness comes from the clock, once.
    #[must_use]
    pub fn new(store: S, clock: Arc<dyn Clock>) -> Self {
        Self::with(Arc::new(store), Arc::default(), clock)
    }

    /// Another handle to the same store, for an instance with this clock: with rules and counters of its own.
    #[must_use]
    pub fn handle(&self, clock: Arc<dyn Clock>) -> Self {
        Self::with(Arc::clone(&self.store), Arc::clone(&self.common), clock)
    }

    /// A handle around `other`, the same store by another connection.
    #[must_use]
    pub fn handle_by<T>(&self, other: T, clock: Arc<dyn Clock>) -> Faulty<T> {
        Faulty::with(Arc::new(other), Arc::clone(&self.common), clock)
    }

    fn with(store: Arc<S>, common: Arc<Common>, clock: Arc<dyn Clock>) -> Self {
        let script = Arc::new(Script::new(clock.entropy()));
        Self { store, common, script, clock, twist: Arc::default() }
    }

    /// The store inside, without faults.
    #[must_use]
    pub fn inner(&self) -> &S {
        &self.store
    }

    /// Begins a rule about the calls of one method.
    #[must_use = "say which of the calls, and what befalls them"]
    pub fn on(&self, call: Call) -> Rules<'_, S> {
        Rules { faulty: self, call: Some(call) }
    }

    /// Begins a rule about all calls.
    #[must_use = "say which of the calls, and what befalls them"]
    pub fn on_any(&self) -> Rules<'_, S> {
        Rules { faulty: self, call: None }
    }

    /// From here on every call fails as unreachable. Rules made before come first.
    pub fn cut_off(&self) {
        self.on_any().always(Fault::Error(StoreErrorKind::Unreachable));
    }

    /// Forgets all rules, and lets stalled calls go on.
    pub fn heal(&self) {
        self.script.clear();
        self.release();
    }

    /// Lets stalled calls go on.
    pub fn release(&self) {
        self.script.release();
    }

    /// How many calls are stalled.
    #[must_use]
    pub fn stalled(&self) -> usize {
        self.script.stalled()
    }

    /// Draws the chances from this seed.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        self.script.seed(seed);
        self
    }

    /// How often the method was called, faults included.
    #[must_use]
    pub fn calls(&self, call: Call) -> u64 {
        self.script.calls(call)
    }

    /// How often it met a fault.
    #[must_use]
    pub fn faults(&self, call: Call) -> u64 {
        self.script.faults(call)
    }

    /// How often any method was called.
    #[must_use]
    pub fn calls_in_all(&self) -> u64 {
        Call::ALL.iter().map(|call| self.calls(*call)).sum()
    }

    /// How often any met a fault.
    #[must_use]
    pub fn faults_in_all(&self) -> u64 {
        Call::ALL.iter().map(|call| self.faults(*call)).sum()
    }

    /// How often a call met a fault, over all handles to the store.
    pub(crate) fn faults_by_anybody(&self) -> u64 {
        self.common.faults.load(Ordering::Relaxed)
    }

    /// Lets `twist` change what `claim` answers: for tests of what an engine does with a store that lies.
    pub fn twist_claims(&self, twist: impl Fn(&[ClaimRequest], Vec<Claim>) -> Vec<Claim> + Send + Sync + 'static) {
        *self.twist.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(twist));
    }

    /// Carries out what is due of the late requests.
    fn deliver_late(&self) {
        let now = self.clock.monotonic();
        loop {
            let mut late = self.common.late.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(index) = late.iter().position(|(at, _)| *at <= now) else { return };
            let (_, request) = late.remove(index);
            drop(late);
            request();
        }
    }

    fn wait(&self, d: Duration) {
        let until = Until::Monotonic(self.clock.monotonic().saturating_add(d));
        let _ = self.clock.wait(&Signal::new(), Some(until));
    }

    /// One call: its fault, if it has one, and what it is without. `again` makes the same call for later.
    fn call<T>(
        &self,
        call: Call,
        carry_out: impl Fn(&S) -> Result<T, StoreError>,
        again: impl FnOnce() -> Box<dyn FnOnce(&S) + Send>,
    ) -> Result<T, StoreError>
    where
        S: Send + Sync + 'static,
    {
        self.deliver_late();
        let store = &*self.store;
        let (number, fault) = self.script.next(call);
        if fault.is_some() {
            self.common.faults.fetch_add(1, Ordering::Relaxed);
        }
        let error = |kind, what: &str| StoreError::new(kind, format!("{what} ({call} {number}, injected)"));
        let lost = |what: &str| error(StoreErrorKind::TimedOut, what).unknown_outcome();
        let later = |d: Duration| {
            let at = self.clock.monotonic().saturating_add(d);
            let (again, store) = (again(), Arc::clone(&self.store));
            let mut late = self.common.late.lock().unwrap_or_else(PoisonError::into_inner);
            late.push((at, Box::new(move || again(&store))));
        };
        match fault {
            None => carry_out(store),
            Some(Fault::Error(kind)) => Err(error(kind, "refused to work")),
            Some(Fault::LostAnswer) => {
                drop(carry_out(store));
                Err(lost("the answer was lost"))
            }
            Some(Fault::LostRequest) => Err(lost("the request was lost")),
            Some(Fault::Straggler(d)) => {
                later(d);
                Err(lost("the request is late"))
            }
            Some(Fault::Slow(d)) => {
                self.wait(d);
                carry_out(store)
            }
            Some(Fault::SlowAnswer(d)) => {
                let answer = carry_out(store);
                self.wait(d);
                answer
            }
            Some(Fault::Duplicate) => {
                let answer = carry_out(store);
                drop(carry_out(store));
                answer
            }
            Some(Fault::DuplicateLater(d)) => {
                let answer = carry_out(store);
                later(d);
                answer
            }
            Some(Fault::Stall) => {
                let released = self.script.stall();
                let _ = self.clock.wait(&released, None);
                carry_out(store)
            }
            Some(Fault::Before(f)) => {
                f();
                carry_out(store)
            }
            Some(Fault::After(f)) => {
                let answer = carry_out(store);
                f();
                answer
            }
        }
    }
}

impl<S> fmt::Debug for Faulty<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty")
            .field("calls", &self.calls_in_all())
            .field("faults", &self.faults_in_all())
            .finish_non_exhaustive()
    }
}

/// A rule in the making: which of the calls, and what befalls them. Of several rules the oldest that applies decides.
pub struct Rules<'a, S> {
    faulty: &'a Faulty<S>,
    call: Option<Call>,
}

impl<S> Rules<'_, S> {
    fn add(&self, when: When, fault: Fault) {
        self.faulty.script.add(self.call, when, fault);
    }

    /// The nth from now on, counted from 1.
    pub fn nth(&self, n: u64, fault: Fault) {
        self.add(When::Nth(n), fault);
    }

    /// The next `n`.
    pub fn next(&self, n: u64, fault: Fault) {
        self.add(When::Next(n), fault);
    }

    /// Each.
    pub fn always(&self, fault: Fault) {
        self.add(When::Always, fault);
    }

    /// Each with this probability.
    pub fn chance(&self, probability: f64, fault: Fault) {
        self.add(When::Chance(probability), fault);
    }
}
