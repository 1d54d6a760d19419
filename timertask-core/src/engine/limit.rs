//! How many requests of operators an instance takes.

use std::sync::PoisonError;
use std::time::Duration;

use super::Shared;

/// So many at once,
const MOST: u32 = 60;
/// and one more each second.
const EVERY: Duration = Duration::from_secs(1);

/// A token bucket, kept as the time at which it will be full again.
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    full_at: Duration,
}

impl Bucket {
    /// Takes a token at `mono`, or says when there will be one.
    fn take(&mut self, mono: Duration) -> Result<(), Duration> {
        let full_at = self.full_at.max(mono) + EVERY;
        let too_much = full_at.saturating_sub(mono + EVERY * MOST);
        if too_much.is_zero() {
            self.full_at = full_at;
            return Ok(());
        }
        Err(too_much)
    }
}

impl Shared {
    /// Takes an operator's request, or says how long the next one has to wait: a loop gone wild is told so, before it has
    /// filled the ledger.
    ///
    /// # Errors
    /// How long.
    pub(crate) fn admit(&self) -> Result<(), Duration> {
        let mono = self.clock.monotonic();
        self.limit.lock().unwrap_or_else(PoisonError::into_inner).take(mono)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_sixty_and_then_one_a_second() {
        let mut bucket = Bucket::default();
        let at = Duration::from_millis;
        assert!((0..60).all(|_| bucket.take(at(500)).is_ok()));
        assert_eq!(bucket.take(at(500)), Err(at(1000)));
        assert_eq!(bucket.take(at(900)), Err(at(600)), "a refusal costs nothing");
        assert_eq!(bucket.take(at(1500)), Ok(()));
        assert_eq!(bucket.take(at(1500)), Err(at(1000)));
        assert!((0..60).all(|_| bucket.take(at(900_000)).is_ok()), "it fills up");
        assert!(bucket.take(at(900_000)).is_err());
    }
}
