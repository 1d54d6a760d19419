//! The one door to time. Every wait of the engine goes through [`Clock::wait`]; only this file reads the
//! system's clocks, so the real engine runs under a fake one and a seed.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

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

/// A flag that wakes whoever waits for it; a notification is kept until it is taken. Clones share the flag.
///
/// One waiter at a time is meant; with several, one of them takes the notification.
#[derive(Clone, Default)]
pub struct Signal(Arc<SignalInner>);

/// Flag and counters are atomics, so that looking costs no lock and notifying no system call while nobody is parked.
/// The lock only closes the gap between a parker's last look and its sleep.
#[derive(Default)]
struct SignalInner {
    set: AtomicBool,
    pokes: AtomicU64,
    parked: AtomicUsize,
    gate: std::sync::Mutex<()>,
    wake: Condvar,
}

impl Signal {
    /// A signal that is not set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
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

    /// Waits until the flag is set, somebody [`poke`](Self::poke)s, or `limit` of real time has passed. Does not
    /// take the flag. `since` is [`pokes`](Self::pokes) from before the caller looked whether it has to wait: a poke
    /// since then is not missed. For clocks; everybody else waits through [`Clock::wait`].
    ///
    /// # Blocking
    /// Up to `limit`, without one until set or poked.
    pub fn park(&self, since: u64, limit: Option<Duration>) {
        let inner = &*self.0;
        let gate = inner.gate.lock().unwrap_or_else(PoisonError::into_inner);
        inner.parked.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `ring`: either this thread sees the flag, or the notifier sees this thread.
        fence(Ordering::SeqCst);
        let asleep = |_: &mut ()| !self.is_set() && self.pokes() == since;
        match limit {
            Some(limit) => drop(inner.wake.wait_timeout_while(gate, limit, asleep)),
            None => drop(inner.wake.wait_while(gate, asleep)),
        }
        inner.parked.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether both are the same signal.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
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
