//! The one door to time. Every wait of the engine goes through [`Clock::wait`]; only this file reads the
//! system's clocks, so the real engine runs under a fake one and a seed.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

pub use crate::signal::Signal;
use crate::time::Timestamp;

/// How far towards a wall-clock instant the system clock sleeps at most in one go, so that a step of the clock
/// and a suspended host are noticed.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Where time comes from, and the only place where the engine waits.
///
/// Wall time may step and stands still for nobody; monotonic time never goes back and may stand still while the
/// host is suspended. Both matter: due instants are wall time, elapsed trust is the larger of the two.
pub trait Clock: Send + Sync {
    /// Wall time, UTC. Called often; must not block.
    fn now(&self) -> Timestamp;

    /// Time since an origin of the clock's own choice; never goes back. Must not block.
    fn monotonic(&self) -> Duration;

    /// Waits until `signal` is notified or `until` is reached, and takes the notification where there is one. A
    /// notification that came before the call is not lost: the call returns at once.
    ///
    /// A wait for a wall instant also ends, with [`Wake::Time`], when wall time is noticed to have been set back, so that
    /// whoever planned by it can plan anew.
    ///
    /// # Blocking
    /// Blocks up to `until`; without one until the signal is notified.
    fn wait(&self, signal: &Signal, until: Option<Until>) -> Wake;

    /// 64 unpredictable bits; nonces and jitter are made of them. A simulated clock answers from its seed.
    fn entropy(&self) -> u64;

    /// Who gives the engine's rooms their turns. `None` (the default): the engine starts a thread for each.
    /// A simulated clock answers `Some`, and then no thread of the engine exists.
    fn driver(&self) -> Option<Arc<dyn Driver>> {
        None
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
    fn monotonic(&self) -> Duration {
        (**self).monotonic()
    }
    fn wait(&self, signal: &Signal, until: Option<Until>) -> Wake {
        (**self).wait(signal, until)
    }
    fn entropy(&self) -> u64 {
        (**self).entropy()
    }
    fn driver(&self) -> Option<Arc<dyn Driver>> {
        (**self).driver()
    }
}

/// Until when to wait, as an absolute instant, so that a wait that is taken up again does not grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Wall time; follows steps of the clock.
    Wall(Timestamp),
    /// Monotonic time, as [`Clock::monotonic`] counts it.
    Monotonic(Duration),
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Wake {
    /// The signal was notified; the notification is taken.
    Signal,
    /// The instant was reached, or wall time was set back while it was waited for.
    Time,
}

/// One part of the engine that does a bounded piece of work and says when it wants to go on.
///
/// The engine's threads are thin loops around it; a [`Driver`] gives the turns instead where there is one.
pub trait Room: Send {
    /// The name its thread would have.
    fn name(&self) -> &str;
    /// What wakes it before its time.
    fn signal(&self) -> &Signal;
    /// One piece of work. May call a store or a job, and thereby wait; holds no lock while it does.
    fn turn(&mut self, now: Timestamp) -> Turn;
}

/// What a room wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Turn {
    /// Its next turn when its signal is notified, or at this instant.
    Wait(Option<Until>),
    /// Nothing: it has ended and can be dropped.
    Done,
}

/// Gives rooms their turns in the place of threads; what a simulated clock brings along.
pub trait Driver: Send + Sync {
    /// Takes over `room`, and drops it after [`Turn::Done`]. Its first turn comes later, never within this call.
    fn adopt(&self, room: Box<dyn Room>);
}

/// The clocks of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

#[expect(clippy::disallowed_methods, reason = "this is the door")]
fn instant() -> Instant {
    Instant::now()
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    fn now(&self) -> Timestamp {
        let micros = match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
            Ok(d) => i64::try_from(d.as_micros()).unwrap_or(i64::MAX),
            Err(e) => i64::try_from(e.duration().as_micros()).map_or(i64::MIN, |m| -m),
        };
        Timestamp::from_micros(micros)
    }

    fn monotonic(&self) -> Duration {
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        instant().saturating_duration_since(*ORIGIN.get_or_init(instant))
    }

    fn wait(&self, signal: &Signal, until: Option<Until>) -> Wake {
        let mut seen = Timestamp::from_micros(i64::MIN);
        loop {
            let since = signal.pokes();
            if signal.take() {
                return Wake::Signal;
            }
            let limit = match until {
                None => None,
                Some(Until::Wall(t)) => {
                    let now = self.now();
                    if now < seen {
                        return Wake::Time;
                    }
                    seen = now;
                    Some(t.since(now).min(LONGEST_SLEEP))
                }
                Some(Until::Monotonic(Duration::ZERO)) => Some(Duration::ZERO),
                Some(Until::Monotonic(t)) => Some(t.saturating_sub(self.monotonic())),
            };
            if limit.is_some_and(|d| d.is_zero()) {
                return Wake::Time;
            }
            signal.park(since, limit);
        }
    }

    fn entropy(&self) -> u64 {
        // Each `RandomState` of std has keys of its own, derived from the system's randomness.
        RandomState::new().build_hasher().finish()
    }
}
