//! The budget of a run: how often and how long its job may try. The one source of TTLs of fixed leases.

use std::time::Duration;

/// How often a job may be tried within one run, how long each try may take, and how long it waits in between.
///
/// Without a budget there is one try and no time-out. With one, on the plan or the builder, a try that fails is followed
/// by another, all within one start of the slot, until `attempts` is used up, the error is
/// [`Permanent`](crate::Permanent), or [`lock_ttl`](Self::lock_ttl) after the claim has passed: the end of the budget, at
/// which the run's term is over. No try begins at or after it.
///
/// Between two tries the run is with no worker: that one runs other slots meanwhile. Once its back-off is over it takes
/// the next worker that gets free, before any new slot; if none does before the end of the budget, it ends as failed, with
/// what its last try said. A cancel ends a waiting run at once, and so does [`close`](crate::Scheduler::close): an instance
/// that leaves begins no further try.
///
/// A time-out tells the job to stop, through [`Run::check`](crate::Run::check), [`Run::wait`](crate::Run::wait) and
/// [`Run::cancelled`](crate::Run::cancelled): a thread cannot be stopped from outside. A job that does not look goes on,
/// is reported as stuck, and if it returns `Ok` in the end, the run has succeeded.
///
/// ```
/// # extern crate timertask_core as timertask;
/// use std::time::Duration;
/// use timertask::{Backoff, RetryBudget};
///
/// assert_eq!(RetryBudget::default().lock_ttl(), Duration::from_secs(220));
/// assert_eq!(RetryBudget::ZERO.lock_ttl(), Duration::from_secs(30));
///
/// // Waits of at most 2, 4, 8 and 10 s, at random.
/// let backoff = Backoff::Exponential { first: Duration::from_secs(2), max: Duration::from_secs(10) };
/// let budget = RetryBudget { attempts: 5, backoff, ..RetryBudget::default() };
/// assert_eq!(budget.lock_ttl(), Duration::from_secs(5 * 60 + 24 + 30));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RetryBudget {
    /// How many times the job is tried at most; 0 counts as 1.
    pub attempts: u32,
    /// How long one try may take until it is told to stop; zero: up to the end of the budget.
    pub timeout: Duration,
    /// How long to wait between two tries.
    pub backoff: Backoff,
    /// Room for all that isn't the job: hand-overs, store calls. Zero counts as 30 s.
    pub slack: Duration,
}

/// How long a run waits between two tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backoff {
    /// Always exactly so long.
    Fixed(Duration),
    /// At most `first` after the first try that fails, and after each further one at most twice as long, up to `max`.
    /// The wait is drawn anew each time from the upper half of that, so that runs that failed together do not come back
    /// together. With `first` equal to `max`: the same wait each time, but drawn.
    Exponential {
        /// The longest wait after the first try.
        first: Duration,
        /// The longest wait of all.
        max: Duration,
    },
}

impl From<Duration> for Backoff {
    fn from(d: Duration) -> Self {
        Self::Fixed(d)
    }
}

impl Backoff {
    /// The longest wait after try `tries`, from 1.
    fn at_most(self, tries: u32) -> Duration {
        match self {
            Self::Fixed(d) => d,
            Self::Exponential { first, max } => {
                let factor = 1_u32.checked_shl(tries.saturating_sub(1)).unwrap_or(u32::MAX);
                times(first, factor).min(max)
            }
        }
    }

    /// The wait after try `tries`, from 1; `entropy` is 64 random bits.
    pub(crate) fn wait(self, tries: u32, entropy: u64) -> Duration {
        let most = self.at_most(tries);
        match self {
            Self::Fixed(_) => most,
            Self::Exponential { .. } => {
                let half = most / 2;
                let span = u64::try_from((most - half).as_micros()).unwrap_or(u64::MAX).saturating_add(1);
                (half + Duration::from_micros(entropy % span)).min(most)
            }
        }
    }

    /// The sum of `waits` waits at their longest, saturating.
    fn sum(self, waits: u32) -> Duration {
        let (mut sum, mut at) = (Duration::ZERO, 0);
        // After so many it no longer grows.
        while at < waits.min(33) {
            at += 1;
            sum = sum.saturating_add(self.at_most(at));
        }
        sum.saturating_add(times(self.at_most(u32::MAX), waits - at))
    }
}

fn times(d: Duration, n: u32) -> Duration {
    d.checked_mul(n).unwrap_or(Duration::MAX)
}

impl Default for RetryBudget {
    /// 3 attempts of 60 s, 5 s apart, 30 s slack.
    fn default() -> Self {
        Self {
            attempts: 3,
            timeout: Duration::from_secs(60),
            backoff: Backoff::Fixed(Duration::from_secs(5)),
            slack: Duration::from_secs(30),
        }
    }
}

impl RetryBudget {
    /// All zero; counts as one attempt with 30 s slack.
    pub const ZERO: Self =
        Self { attempts: 0, timeout: Duration::ZERO, backoff: Backoff::Fixed(Duration::ZERO), slack: Duration::ZERO };

    /// With the defaults in the place of zeros.
    #[must_use]
    pub fn normalised(self) -> Self {
        Self {
            attempts: self.attempts.max(1),
            slack: if self.slack.is_zero() { Self::default().slack } else { self.slack },
            ..self
        }
    }

    /// How long a run may take in all: `attempts × timeout`, the `attempts − 1` back-offs at their longest, and `slack`,
    /// saturating. With a fixed back-off: `attempts × timeout + (attempts − 1) × backoff + slack`.
    #[must_use]
    pub fn lock_ttl(self) -> Duration {
        let b = self.normalised();
        let waits = b.backoff.sum(b.attempts - 1);
        times(b.timeout, b.attempts).saturating_add(waits).saturating_add(b.slack)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn backoffs() -> impl Strategy<Value = Backoff> {
        let any =
            || (0_u64..=u64::MAX, 0_u32..1_000_000_000, 0_u32..60).prop_map(|(s, n, cut)| Duration::new(s >> cut, n));
        prop_oneof![
            any().prop_map(Backoff::Fixed),
            (any(), any()).prop_map(|(first, max)| Backoff::Exponential { first, max }),
        ]
    }

    proptest! {
        #[test]
        fn waits_are_within_what_the_formula_allows_for_them(
            backoff in backoffs(),
            tries in prop_oneof![1_u32..50, any::<u32>()],
            entropy in any::<u64>(),
        ) {
            let wait = backoff.wait(tries.max(1), entropy);
            match backoff {
                Backoff::Fixed(d) => prop_assert_eq!(wait, d),
                Backoff::Exponential { first, max } => {
                    let doubled = (1..tries.min(100)).fold(first, |d, _| d.saturating_mul(2));
                    // Beyond 32 doublings of less than a nanosecond each it grows no more.
                    prop_assert!(wait <= max && (wait <= doubled || first.is_zero()));
                    prop_assert!(wait >= first.min(max) / 2, "{:?}", wait);
                }
            }
        }

        #[test]
        fn the_budget_bounds_its_tries_and_any_waits_that_are_drawn(
            backoff in backoffs(),
            attempts in 0_u32..40,
            timeout in 0_u64..100_000,
            slack in 0_u64..1_000,
            entropy in any::<u64>(),
        ) {
            let [timeout, slack] = [timeout, slack].map(Duration::from_millis);
            let budget = RetryBudget { attempts, timeout, backoff, slack };
            let b = budget.normalised();
            prop_assert_eq!(b.normalised(), b);
            prop_assert!(b.attempts >= 1 && !b.slack.is_zero());
            let waits = (1..b.attempts).map(|tries| backoff.wait(tries, entropy.rotate_left(tries)));
            let used = waits.fold(timeout * b.attempts, Duration::saturating_add);
            prop_assert!(used.saturating_add(b.slack) <= budget.lock_ttl(), "{:?} of {:?}", used, budget.lock_ttl());
            // As the sum of its parts, each at its longest, and no more.
            let most = (1..b.attempts).map(|tries| backoff.at_most(tries)).fold(Duration::ZERO, Duration::saturating_add);
            prop_assert_eq!(budget.lock_ttl(), (timeout * b.attempts).saturating_add(most).saturating_add(b.slack));
        }

        #[test]
        fn a_fixed_back_off_counts_as_the_formula_says(
            attempts in any::<u32>(),
            timeout in 0_u32..100_000_000,
            backoff in 0_u32..100_000_000,
            slack in 1_u32..=u32::MAX,
        ) {
            let [t, b, s] = [timeout, backoff, slack].map(|n| Duration::from_secs(n.into()));
            let budget = RetryBudget { attempts, timeout: t, backoff: b.into(), slack: s };
            let n = u64::from(attempts.max(1));
            let wanted = n * u64::from(timeout) + (n - 1) * u64::from(backoff) + u64::from(slack);
            prop_assert_eq!(budget.lock_ttl(), Duration::from_secs(wanted));
        }
    }

    #[test]
    fn an_exponential_back_off_doubles_up_to_its_most_and_draws_from_the_upper_half() {
        let [first, max] = [2, 10].map(Duration::from_secs);
        let backoff = Backoff::Exponential { first, max };
        assert_eq!([1, 2, 3, 4, u32::MAX].map(|tries| backoff.at_most(tries).as_secs()), [2, 4, 8, 10, 10]);
        let drawn: Vec<_> = (0..1000_u64).map(|n| backoff.wait(3, n.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
        let (least, most) = (drawn.iter().min().unwrap(), drawn.iter().max().unwrap());
        let seconds = Duration::from_secs;
        assert!(*least >= seconds(4) && *least < seconds(4) + seconds(4) / 50, "{least:?}");
        assert!(*most <= seconds(8) && *most > seconds(8) - seconds(4) / 50, "{most:?}");
    }
}
