//! The budget of a run: how often and how long its job may try. The one source of TTLs of fixed leases.

use std::time::Duration;

/// How often a job may be tried within one run, how long each try may take, and how long it waits in between.
///
/// Without a budget there is one try and no time-out. With one, on the plan or the builder, a try that fails is followed
/// by another, all within one start of the slot, until `attempts` is used up or the error is
/// [`Permanent`](crate::Permanent). [`lock_ttl`](Self::lock_ttl) after the claim the run's term is over.
///
/// A time-out tells the job to stop, through [`Run::check`](crate::Run::check), [`Run::wait`](crate::Run::wait) and
/// [`Run::cancelled`](crate::Run::cancelled): a thread cannot be stopped from outside. A job that does not look goes on,
/// and if it returns `Ok` in the end, the run has succeeded.
///
/// ```
/// # extern crate timertask_core as timertask;
/// use std::time::Duration;
/// use timertask::RetryBudget;
///
/// assert_eq!(RetryBudget::default().lock_ttl(), Duration::from_secs(220));
/// assert_eq!(RetryBudget::ZERO.lock_ttl(), Duration::from_secs(30));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RetryBudget {
    /// How many times the job is tried at most; 0 counts as 1.
    pub attempts: u32,
    /// How long one try may take until it is told to stop.
    pub timeout: Duration,
    /// How long to wait between two tries.
    pub backoff: Duration,
    /// Room for all that isn't the job: hand-overs, store calls. Zero counts as 30 s.
    pub slack: Duration,
}

impl Default for RetryBudget {
    /// 3 attempts of 60 s, 5 s apart, 30 s slack.
    fn default() -> Self {
        Self {
            attempts: 3,
            timeout: Duration::from_secs(60),
            backoff: Duration::from_secs(5),
            slack: Duration::from_secs(30),
        }
    }
}

impl RetryBudget {
    /// All zero; counts as one attempt with 30 s slack.
    pub const ZERO: Self =
        Self { attempts: 0, timeout: Duration::ZERO, backoff: Duration::ZERO, slack: Duration::ZERO };

    /// With the defaults in the place of zeros.
    #[must_use]
    pub fn normalised(self) -> Self {
        Self {
            attempts: self.attempts.max(1),
            slack: if self.slack.is_zero() { Self::default().slack } else { self.slack },
            ..self
        }
    }

    /// `attempts × timeout + (attempts − 1) × backoff + slack`, saturating.
    #[must_use]
    pub fn lock_ttl(self) -> Duration {
        let b = self.normalised();
        let tries = b.timeout.checked_mul(b.attempts).unwrap_or(Duration::MAX);
        let waits = b.backoff.checked_mul(b.attempts - 1).unwrap_or(Duration::MAX);
        tries.saturating_add(waits).saturating_add(b.slack)
    }
}
