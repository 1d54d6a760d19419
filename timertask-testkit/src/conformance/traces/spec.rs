//! The versions of the plan that a trace works with.

use std::time::Duration;

use timertask_core::key::Fingerprint;
use timertask_core::seam::Overlap;
use timertask_core::time::Trigger;

use crate::random::Random;

/// How late a live slot may start.
pub(super) const START_WINDOW: i64 = 15;
/// How old a missed slot may be to be caught up.
pub(super) const CATCH_UP_WINDOW: i64 = 90;
/// The TTL of leases.
pub(super) const TTL: Duration = Duration::from_secs(30);
/// How often leases are renewed and swept.
pub(super) const INTERVAL: Duration = Duration::from_secs(10);
/// How far ahead is still taken for skew.
pub(super) const SKEW: Duration = Duration::from_secs(5);

/// What becomes of missed slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CatchUp {
    None,
    Latest,
    All(usize),
}

/// One version of the plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spec {
    pub(super) fingerprint: Fingerprint,
    period: i64,
    phase: i64,
    pub(super) overlap: Overlap,
    pub(super) catch_up: CatchUp,
    /// How many starts a slot may have.
    pub(super) attempts: u32,
}

impl Spec {
    /// Version `n`, with policies drawn anew.
    pub(super) fn draw(n: u64, random: &mut Random) -> Self {
        let period = [7, 10, 20, 45][pick(random, 4)];
        Self {
            fingerprint: Fingerprint::from_bits(u128::from(n) + 1),
            period,
            phase: i64::try_from(random.below(period.unsigned_abs())).unwrap_or(0),
            overlap: [Overlap::Skip, Overlap::QueueOne, Overlap::CancelPrevious, Overlap::Allow(2)][pick(random, 4)],
            catch_up: [CatchUp::None, CatchUp::Latest, CatchUp::All(3)][pick(random, 3)],
            attempts: [1, 1, 2, 3][pick(random, 4)],
        }
    }

    /// The slots in (`after`, `upto`].
    pub(super) fn slots(&self, after: Trigger, upto: Trigger) -> Vec<Trigger> {
        let first = after.as_secs() + 1;
        let first = first + (self.phase - first).rem_euclid(self.period);
        let step = usize::try_from(self.period).unwrap_or(1);
        (first..=upto.as_secs()).step_by(step).map(Trigger::from_secs).collect()
    }

    /// Whether `at` is a slot.
    pub(super) fn has(&self, at: Trigger) -> bool {
        at.as_secs().rem_euclid(self.period) == self.phase
    }

    /// The slot before `at`.
    pub(super) fn before(&self, at: Trigger) -> Trigger {
        let last = at.as_secs() - 1;
        Trigger::from_secs(last - (last - self.phase).rem_euclid(self.period))
    }
}

/// An index below `n`.
pub(super) fn pick(random: &mut Random, n: usize) -> usize {
    usize::try_from(random.below(n as u64)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_where_they_say() {
        let at = Trigger::from_secs;
        let spec = Spec { period: 10, phase: 3, ..Spec::draw(0, &mut Random::new(1)) };
        assert_eq!(spec.slots(at(3), at(33)), [at(13), at(23), at(33)]);
        assert_eq!((spec.before(at(13)), spec.before(at(14))), (at(3), at(13)));
        assert!(spec.has(at(3)) && !spec.has(at(4)));
    }
}
