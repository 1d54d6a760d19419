//! Counters and histograms of one instance.

use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::plan_stats::PlanCounts;
use super::{Installed, Shared};
use crate::observer::Event;
use crate::record::{RunOutcome, RunRecord};
use crate::run::phase;
use crate::seam::{Ending, NotStarted};
use crate::time::{Timestamp, Trigger, micros};

/// How many buckets a [`Histogram`] has.
const BUCKETS: usize = 32;

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) due: AtomicU64,
    pub(crate) claimed: AtomicU64,
    pub(crate) started: AtomicU64,
    pub(crate) succeeded: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) failed_tries: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) orphaned: AtomicU64,
    not_started: [AtomicU64; NotStarted::ALL.len()],
    missed: AtomicU64,
    pub(crate) yielded: AtomicU64,
    pub(crate) given_back: AtomicU64,
    pub(crate) lease_lost: AtomicU64,
    pub(crate) store_calls: AtomicU64,
    pub(crate) store_faults: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) unrecorded: AtomicU64,
    pub(crate) source_failures: AtomicU64,
    /// When a run last ended well, in microseconds; 0: never.
    last_success: AtomicI64,
    pub(crate) lateness: Buckets,
    duration: Buckets,
    pub(crate) depth: Depth,
}

/// What waits in the claimer, as of its last turn.
#[derive(Default)]
pub(crate) struct Depth {
    pub(crate) due: AtomicUsize,
    pub(crate) gate: AtomicUsize,
    pub(crate) catch_up: AtomicUsize,
}

#[derive(Default)]
pub(crate) struct Buckets {
    counts: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

impl Buckets {
    pub(crate) fn add(&self, d: Duration) {
        let micros = micros(d).unsigned_abs();
        let bucket = (u64::BITS - (micros / 64).leading_zeros()) as usize;
        self.counts[bucket.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(micros, Ordering::Relaxed);
    }

    fn snapshot(&self) -> Histogram {
        Histogram {
            counts: std::array::from_fn(|i| self.counts[i].load(Ordering::Relaxed)),
            sum: Duration::from_micros(self.sum.load(Ordering::Relaxed)),
        }
    }
}

/// The place of a reason in arrays of counts.
pub(crate) fn place(reason: NotStarted) -> usize {
    NotStarted::ALL.iter().position(|r| *r == reason).unwrap_or_default()
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: usize) {
        counter.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Counts how a slot came out, for its plan and in all.
    pub(crate) fn record(&self, plan: &PlanCounts, record: &RunRecord) {
        plan.record(record);
        let counter = match record.outcome {
            RunOutcome::Ended(Ending::Succeeded) => {
                self.last_success.fetch_max(record.ended_at.as_micros(), Ordering::Relaxed);
                &self.succeeded
            }
            RunOutcome::Ended(Ending::Failed) => &self.failed,
            RunOutcome::Ended(Ending::Cancelled) => &self.cancelled,
            RunOutcome::Ended(Ending::Orphaned) => &self.orphaned,
            RunOutcome::NotStarted(reason) => &self.not_started[place(reason)],
            RunOutcome::Yielded => &self.yielded,
            RunOutcome::GivenBack => &self.given_back,
            RunOutcome::LeaseLost => &self.lease_lost,
            RunOutcome::StoreFault => &self.dropped,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if let Some(started_at) = record.started_at {
            self.duration.add(record.ended_at.since(started_at));
        }
    }

    /// Counts slots that were missed, and the reason for which they stay so, if they do.
    pub(crate) fn missed(&self, plan: &PlanCounts, n: u64, reason: Option<NotStarted>) {
        plan.missed(n, reason);
        self.missed.fetch_add(n, Ordering::Relaxed);
        if let Some(reason) = reason {
            self.not_started[place(reason)].fetch_add(n, Ordering::Relaxed);
        }
    }
}

impl Shared {
    /// The turn of a slot that fell due has come.
    pub(crate) fn fell_due(&self, plan: &Installed, at: Trigger) {
        PlanCounts::add(&plan.counts().due);
        if self.reports.observed() {
            self.reports.event(&Event::Due { slot: &self.slot_key(&plan.id, at) });
        }
    }

    /// Slots of a plan were missed: counted and told. `reason`: why they are not made up.
    pub(crate) fn missed(&self, plan: &Installed, count: u64, reason: Option<NotStarted>) {
        self.counters.missed(plan.counts(), count, reason);
        if self.reports.observed() {
            self.reports.event(&Event::Missed { plan: &plan.id, count, reason });
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let (c, mono) = (&self.counters, self.clock.monotonic());
        let not_started_by = Reasons(std::array::from_fn(|i| get(&c.not_started[i])));
        let last_success = c.last_success.load(Ordering::Relaxed);
        Stats {
            due: get(&c.due),
            claimed: get(&c.claimed),
            started: get(&c.started),
            succeeded: get(&c.succeeded),
            failed: get(&c.failed),
            failed_tries: get(&c.failed_tries),
            cancelled: get(&c.cancelled),
            orphaned: get(&c.orphaned),
            not_started: not_started_by.iter().map(|(_, n)| n).sum(),
            not_started_by,
            missed: get(&c.missed),
            yielded: get(&c.yielded),
            given_back: get(&c.given_back),
            lease_lost: get(&c.lease_lost),
            store_calls: get(&c.store_calls),
            store_faults: get(&c.store_faults),
            dropped: get(&c.dropped),
            unrecorded: get(&c.unrecorded),
            source_failures: get(&c.source_failures),
            plans: self.registry().len(),
            running: self.live.len(),
            workers: self.config.concurrency,
            in_jobs: self.live.count(|cell| cell.phase() == phase::ENTERED),
            stuck: self.live.count(|cell| self.is_stuck(cell, mono)),
            due_waiting: c.depth.due.load(Ordering::Relaxed),
            queued: self.pool.queued(),
            retries_waiting: self.pool.waiting(),
            gate_waiting: c.depth.gate.load(Ordering::Relaxed),
            catch_up_waiting: c.depth.catch_up.load(Ordering::Relaxed),
            lateness: c.lateness.snapshot(),
            duration: c.duration.snapshot(),
            last_success: (last_success != 0).then(|| Timestamp::from_micros(last_success)),
            skew_micros: self.pulse.skew_micros.load(Ordering::Relaxed),
        }
    }
}

/// What this instance counted since its start, and what waits in it now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Slots that fell due here.
    pub due: u64,
    /// Slots asked for, repeated ones included.
    pub claimed: u64,
    /// Jobs entered, further tries of a run not counted.
    pub started: u64,
    /// Runs that ended well.
    pub succeeded: u64,
    /// Runs that failed.
    pub failed: u64,
    /// Tries that failed, those of runs that went well in the end among them.
    pub failed_tries: u64,
    /// Runs that stopped when told.
    pub cancelled: u64,
    /// Slots that this instance's sweep ended as orphaned.
    pub orphaned: u64,
    /// Slots accounted for as not started by this instance.
    pub not_started: u64,
    /// The same by reason.
    pub not_started_by: Reasons,
    /// Slots that nobody had started when their start windows closed, as far as this instance dealt with them: those that it
    /// made up, and those that it accounted for.
    pub missed: u64,
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
    /// Plans installed.
    pub plans: usize,
    /// Runs claimed here whose end is not recorded yet.
    pub running: usize,
    /// How many jobs may run at once.
    pub workers: usize,
    /// Workers that are inside a job.
    pub in_jobs: usize,
    /// Of those, the ones whose job was told to stop at least 10 s ago and has not come back.
    pub stuck: usize,
    /// Slots that are due and that nobody here has asked for: they wait for a worker.
    pub due_waiting: usize,
    /// Runs claimed and not yet with a worker. Where a ledger is shared next to nothing; a ledger of this process alone is
    /// asked ahead.
    pub queued: usize,
    /// Runs that wait for another try.
    pub retries_waiting: usize,
    /// Slots that wait until another of their plan has ended.
    pub gate_waiting: usize,
    /// Missed slots that wait to be made up.
    pub catch_up_waiting: usize,
    /// How late jobs were entered.
    pub lateness: Histogram,
    /// How long runs took, from the first entry of the job to its last return.
    pub duration: Histogram,
    /// When a run last ended well here.
    pub last_success: Option<Timestamp>,
    /// The store's clock less this instance's, in microseconds, as in [`Health`](crate::Health).
    pub skew_micros: i64,
}

/// Counts by reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reasons(pub(super) [u64; NotStarted::ALL.len()]);

impl Reasons {
    /// The count of one reason.
    #[must_use]
    pub fn of(&self, reason: NotStarted) -> u64 {
        self.0[place(reason)]
    }

    /// All reasons with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (NotStarted, u64)> + '_ {
        NotStarted::ALL.into_iter().zip(self.0)
    }
}

/// How long something took, by powers of two: bucket `i` counts what took less than 2^i × 64 µs and is not in a bucket
/// before; the last one, from 19 hours on, all that took longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    sum: Duration,
}

impl Histogram {
    /// The counts, each with the upper bound of its bucket; `None` for the last, which has none.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        self.counts.iter().enumerate().map(|(i, n)| {
            let bound = (i + 1 < BUCKETS).then(|| Duration::from_micros(64 << i));
            (bound, *n)
        })
    }

    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// How long all of them took together.
    #[must_use]
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// An upper bound that `percent` of them stay below; `None` where there was none, or only the last bucket holds it.
    #[must_use]
    pub fn percentile(&self, percent: u8) -> Option<Duration> {
        let total = self.count();
        let wanted = total.saturating_mul(u64::from(percent.min(100))).div_ceil(100);
        let mut seen = 0;
        self.buckets().find_map(|(bound, n)| {
            seen += n;
            (total > 0 && seen >= wanted).then_some(bound)
        })?
    }
}
