//! A clock that a test moves, and that drives the engine's rooms.
//!
//! * `timeline`: the state, and who is next
//! * `drive`: giving turns, handing the driving role from thread to thread
//! * `wait`: waits within turns, of the test's thread, of other threads
//! * `view`: one instance's clock, with its skew, freeze and kill
//! * `trace`: what was done in which order

mod drive;
mod timeline;
mod trace;
mod view;
mod wait;

#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::TimeDelta;
use timertask_core::clock::{Clock, Driver, Signal, Until, Wake};
use timertask_core::time::Timestamp;

pub use trace::Trace;
pub use view::ClockView;

use timeline::{Goal, NEVER, State, Timeline, micros};

/// The real time without rest after which [`FakeClock::advance`] panics.
const PATIENCE: Duration = Duration::from_secs(10);

/// 2026-01-01T00:00:00Z, a Thursday: where a fake clock starts.
const START: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

/// The last instant that can be advanced to.
const END: i64 = NEVER - 1;

/// A clock that stands still until a test [advances](Self::advance) it. Clones are the same clock.
///
/// Given to `Builder::clock`, it drives the engine instead of threads: one room or job runs at a time, the next one
/// chosen in a fixed order ([`new`](Self::new)) or by a seed ([`seeded`](Self::seeded)). The same seed gives the
/// same [trace](Self::trace). `advance` goes through every deadline on the way in order, and returns when all are at
/// rest: every room, and every job that has neither returned nor waits on the clock, is done with what it had to do.
///
/// Wall and monotonic time are apart: [`step_wall`](Self::step_wall) is an operator who sets the clock,
/// [`suspend`](Self::suspend) a laptop that sleeps. Both count whole microseconds. A job waits by `run.wait(d)`
/// and thereby in simulated time; a job that sleeps for real holds the clock up.
///
/// The clock itself is the first of its own [views](ClockView), the one whose wall clock has no skew; each further
/// instance takes a [`view`](ClockView::view) of its own.
///
/// **Waiting on it.** Only rooms are driven; every other thread that waits on the clock has to be moved by somebody.
/// The test's thread (that which made the clock, or advanced it last) drives the rooms itself while it waits, and
/// advances as far as its wait goes, so that `scheduler.close(timeout)` just works. Other threads park until the
/// test's thread has set their signal or advanced to their deadline; a rest waits for them too, from their waking to
/// their next wait or end.
///
/// **Ending it.** Stopping the schedulers ends all rooms. A clock whose rooms are still there, and hold it, keeps its
/// threads until the process ends, unless [`shutdown`](Self::shutdown) is called.
///
/// ```
/// use std::time::Duration;
/// use timertask_core::clock::{Clock, Signal, Until, Wake};
/// use timertask_testkit::FakeClock;
///
/// let clock = FakeClock::new();
/// assert_eq!(clock.now().to_string(), "2026-01-01T00:00:00Z");
/// clock.advance(Duration::from_secs(90));
/// assert_eq!(clock.now().to_string(), "2026-01-01T00:01:30Z");
///
/// // Waits on the test's thread move time on by themselves.
/// let wake = clock.wait(&Signal::new(), Some(Until::Monotonic(Duration::from_secs(120))));
/// assert_eq!((wake, clock.monotonic()), (Wake::Time, Duration::from_secs(120)));
/// ```
#[derive(Clone)]
pub struct FakeClock(ClockView);

impl Default for FakeClock {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeClock {
    /// A clock that gives turns in a fixed order: round the rooms, in the order in which they came.
    #[must_use]
    pub fn new() -> Self {
        Self::with(None, false)
    }

    /// A clock that chooses by `seed` which of the runnable rooms is next, and answers [`Clock::entropy`] from it.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self::with(Some(seed), false)
    }

    /// A clock without a driver: the engine runs on its real threads, which wait on this clock. `advance` waits until
    /// all that it knows are parked; what threads do between two waits is real concurrency, and differs from run to run.
    ///
    /// A thread is known from its first wait on. After starting schedulers, call
    /// [`await_threads`](Self::await_threads) before the first `advance`.
    #[must_use]
    pub fn threaded() -> Self {
        Self::with(None, true)
    }

    fn with(seed: Option<u64>, threaded: bool) -> Self {
        Self(ClockView::first(Timeline::new(seed, threaded, START)))
    }

    /// The same clock, its wall time set to `start` before anything runs.
    #[must_use]
    pub fn starting_at(self, start: impl Into<Timestamp>) -> Self {
        let offset = start.into().as_micros().saturating_sub(self.0.line.mono());
        self.0.line.offset.store(offset, Ordering::Release);
        self
    }

    /// The same clock, with another bound on the real time that passes without rest before `advance` panics (10 s).
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        self.0.line.lock().patience = patience;
        self
    }

    /// The seed; 0 for a clock with a fixed order.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.0.line.seed
    }

    /// Moves both clocks on by `d`, through every deadline on the way in order, each brought to rest before the next.
    ///
    /// # Panics
    /// With the panic of a room that panicked in its turn (jobs' panics are the engine's and stay there); where real
    /// time passes 10 s without rest, naming who is busy; and where it is called from inside a turn.
    ///
    /// # Blocking
    /// Until all are at rest.
    pub fn advance(&self, d: Duration) {
        let target = self.0.line.mono().saturating_add(micros(d)).min(END);
        self.0.line.run(Goal { target, stop_on: None, only_dying: false });
    }

    /// Advances until wall time is `t`; only settles where that has passed.
    ///
    /// # Panics
    /// As [`advance`](Self::advance).
    ///
    /// # Blocking
    /// Until all are at rest.
    pub fn advance_to(&self, t: impl Into<Timestamp>) {
        self.advance(t.into().since(self.0.line.wall()));
    }

    /// Brings all to rest without moving time on.
    ///
    /// # Panics
    /// As [`advance`](Self::advance).
    ///
    /// # Blocking
    /// Until all are at rest.
    pub fn settle(&self) {
        self.advance(Duration::ZERO);
    }

    /// Steps the wall clocks of all views, as an operator or a time server does; monotonic time stays. Nobody gets a turn
    /// before the next `advance` or `settle`.
    pub fn step_wall(&self, by: TimeDelta) {
        let by = by.num_microseconds().unwrap_or(if by < TimeDelta::zero() { i64::MIN } else { i64::MAX });
        let mut state = self.0.line.lock();
        let offset = self.0.line.offset.load(Ordering::Relaxed).saturating_add(by);
        self.0.line.offset.store(offset, Ordering::Release);
        if by < 0 {
            state.set_back(None);
        }
        state.poke_parked();
    }

    /// All hosts sleep for `d`: wall time goes on, monotonic time does not. Nobody gets a turn before the next `advance`
    /// or `settle`. For one host among several see [`ClockView::suspend`].
    pub fn suspend(&self, d: Duration) {
        self.step_wall(TimeDelta::microseconds(micros(d)));
    }

    /// Whether it was made by [`threaded`](Self::threaded).
    #[must_use]
    pub fn is_threaded(&self) -> bool {
        self.0.line.threaded
    }

    /// Waits until `n` threads other than the clock's own are known and parked; for [`threaded`](Self::threaded).
    ///
    /// # Panics
    /// Where they are not within 10 s of real time.
    ///
    /// # Blocking
    /// Until they are.
    pub fn await_threads(&self, n: usize) {
        let state = self.0.line.lock();
        let patience = state.patience;
        let parked = |s: &State| s.participants.iter().filter(|p| p.parked.is_some()).count();
        let waited = self.0.line.changed.wait_timeout_while(state, patience, |s| parked(s) < n);
        let (state, timeout) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        if timeout.timed_out() {
            let known: Vec<_> = state.participants.iter().map(|p| p.name.clone()).collect();
            drop(state);
            panic!("fewer than {n} threads wait on the fake clock after {patience:?}; known: {known:?}");
        }
    }

    /// What was done so far, in which order.
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.0.line.lock().log.show()
    }

    /// Adds a line to the [trace](Self::trace).
    pub fn note(&self, text: &str) {
        let wall = self.0.line.wall();
        self.0.line.lock().log.note(wall, text);
    }

    /// As [`note`](Self::note), made here.
    pub(crate) fn note_with(&self, text: impl FnOnce() -> String) {
        self.note(&text());
    }

    /// How many rooms it drives.
    #[must_use]
    pub fn rooms(&self) -> usize {
        self.0.line.lock().entries.len()
    }

    /// Kills all views and ends the clock's threads.
    ///
    /// # Panics
    /// From inside a turn.
    ///
    /// # Blocking
    /// Until all stacks are unwound and the threads have ended.
    pub fn shutdown(&self) {
        assert!(drive::driving(&self.0.line).is_none(), "a fake clock was shut down from inside a turn");
        self.0.line.kill_all();
        self.0.line.run(Goal { target: 0, stop_on: None, only_dying: true });
        let threads = self.0.line.lock().stop_idle();
        for thread in threads {
            // It holds no panic: those are caught, and surface in `advance`.
            let _ = thread.join();
        }
    }
}

impl Deref for FakeClock {
    type Target = ClockView;

    fn deref(&self) -> &ClockView {
        &self.0
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }
    fn wait(&self, signal: &Signal, until: Option<Until>) -> Wake {
        self.0.wait(signal, until)
    }
    fn entropy(&self) -> u64 {
        self.0.entropy()
    }
    fn driver(&self) -> Option<Arc<dyn Driver>> {
        self.0.driver()
    }
}

impl fmt::Debug for FakeClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeClock").field("now", &self.now()).field("monotonic", &self.monotonic()).finish()
    }
}
