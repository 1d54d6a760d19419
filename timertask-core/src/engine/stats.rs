//! Counters and the lateness histogram of one instance.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::record::{RunOutcome, RunRecord};
use crate::seam::Ending;
use crate::time::micros;

/// How many buckets the lateness histogram has: bucket `i` counts starts less than 2^i × 64 µs late (and not counted
/// before); the last one counts all later ones.
pub const LATENESS_BUCKETS: usize = 24;

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) due: AtomicU64,
    pub(crate) claimed: AtomicU64,
    pub(crate) started: AtomicU64,
    pub(crate) succeeded: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) orphaned: AtomicU64,
    pub(crate) not_started: AtomicU64,
    pub(crate) yielded: AtomicU64,
    pub(crate) given_back: AtomicU64,
    pub(crate) lease_lost: AtomicU64,
    pub(crate) store_calls: AtomicU64,
    pub(crate) store_faults: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) unrecorded: AtomicU64,
    pub(crate) source_failures: AtomicU64,
    lateness: [AtomicU64; LATENESS_BUCKETS],
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: usize) {
        counter.fetch_add(n as u64, Ordering::Relaxed);
    }

    pub(crate) fn lateness(&self, d: Duration) {
        let units = micros(d).unsigned_abs() / 64;
        let bucket = (u64::BITS - units.leading_zeros()) as usize;
        self.lateness[bucket.min(LATENESS_BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn record(&self, record: &RunRecord) {
        let counter = match record.outcome {
            RunOutcome::Ended(Ending::Succeeded) => &self.succeeded,
            RunOutcome::Ended(Ending::Failed) => &self.failed,
            RunOutcome::Ended(Ending::Cancelled) => &self.cancelled,
            RunOutcome::Ended(Ending::Orphaned) => &self.orphaned,
            RunOutcome::NotStarted(_) => &self.not_started,
            RunOutcome::Yielded => &self.yielded,
            RunOutcome::GivenBack => &self.given_back,
            RunOutcome::LeaseLost => &self.lease_lost,
            RunOutcome::StoreFault => &self.dropped,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self, running: usize, plans: usize) -> Stats {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        Stats {
            due: get(&self.due),
            claimed: get(&self.claimed),
            started: get(&self.started),
            succeeded: get(&self.succeeded),
            failed: get(&self.failed),
            cancelled: get(&self.cancelled),
            orphaned: get(&self.orphaned),
            not_started: get(&self.not_started),
            yielded: get(&self.yielded),
            given_back: get(&self.given_back),
            lease_lost: get(&self.lease_lost),
            store_calls: get(&self.store_calls),
            store_faults: get(&self.store_faults),
            dropped: get(&self.dropped),
            unrecorded: get(&self.unrecorded),
            source_failures: get(&self.source_failures),
            running,
            plans,
            lateness: Lateness(std::array::from_fn(|i| get(&self.lateness[i]))),
        }
    }
}

/// What this instance counted since its start.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Slots that fell due here.
    pub due: u64,
    /// Slots asked for, repeated ones included.
    pub claimed: u64,
    /// Jobs entered.
    pub started: u64,
    /// Runs that ended well.
    pub succeeded: u64,
    /// Runs that failed.
    pub failed: u64,
    /// Runs that stopped when told.
    pub cancelled: u64,
    /// Slots that this instance's sweep ended as orphaned.
    pub orphaned: u64,
    /// Slots accounted for as not started by this instance.
    pub not_started: u64,
    /// Slots that another instance had.
    pub yielded: u64,
    /// Slots claimed and given back before the job was entered.
    pub given_back: u64,
    /// Runs whose term was over before their end could be recorded.
    pub lease_lost: u64,
    /// Calls to the store.
    pub store_calls: u64,
    /// Calls to the store that failed.
    pub store_faults: u64,
    /// Slots dropped here because the store was out of reach through their start window.
    pub dropped: u64,
    /// Ends that could not be recorded before the scheduler had to stop; their leases lapse.
    pub unrecorded: u64,
    /// Times the source of plans failed or panicked.
    pub source_failures: u64,
    /// Runs claimed here whose end is not recorded yet.
    pub running: usize,
    /// Plans installed.
    pub plans: usize,
    /// How late jobs were entered.
    pub lateness: Lateness,
}

/// A histogram of how late jobs were entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lateness([u64; LATENESS_BUCKETS]);

impl Lateness {
    /// The counts, each with the upper bound of its bucket; `None` for the last, which has none.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        self.0.iter().enumerate().map(|(i, n)| {
            let bound = (i + 1 < LATENESS_BUCKETS).then(|| Duration::from_micros(64 << i));
            (bound, *n)
        })
    }

    /// An upper bound of the lateness that `percent` of the starts stay below; `None` where nothing was started or
    /// only the last bucket holds it.
    #[must_use]
    pub fn percentile(&self, percent: u8) -> Option<Duration> {
        let total: u64 = self.0.iter().sum();
        let wanted = total.saturating_mul(u64::from(percent.min(100))).div_ceil(100);
        let mut seen = 0;
        self.buckets().find_map(|(bound, n)| {
            seen += n;
            (total > 0 && seen >= wanted).then_some(bound)
        })?
    }
}
