//! Counters of one plan: made when the first slot of it falls due here, and kept when the plan is edited.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::Installed;
use super::stats::{Reasons, place};
use crate::key::PlanId;
use crate::record::{RunOutcome, RunRecord};
use crate::seam::{Ending, NotStarted};
use crate::time::{Trigger, micros};

/// No trigger point yet.
const NEVER: i64 = i64::MIN;

/// 32 bits each, which a plan that fires each second fills in a lifetime.
pub(crate) struct PlanCounts {
    pub(crate) due: AtomicU32,
    pub(crate) started: AtomicU32,
    succeeded: AtomicU32,
    failed: AtomicU32,
    pub(crate) failed_tries: AtomicU32,
    cancelled: AtomicU32,
    pub(crate) orphaned: AtomicU32,
    not_started: [AtomicU32; NotStarted::ALL.len()],
    missed: AtomicU32,
    yielded: AtomicU32,
    given_back: AtomicU32,
    lease_lost: AtomicU32,
    dropped: AtomicU32,
    /// Seconds of the latest trigger point that went well here, and on any instance as far as this one has seen.
    success_here: AtomicI64,
    success: AtomicI64,
    duration: AtomicU64,
}

impl Default for PlanCounts {
    fn default() -> Self {
        let zero = || AtomicU32::new(0);
        Self {
            due: zero(),
            started: zero(),
            succeeded: zero(),
            failed: zero(),
            failed_tries: zero(),
            cancelled: zero(),
            orphaned: zero(),
            not_started: std::array::from_fn(|_| zero()),
            missed: zero(),
            yielded: zero(),
            given_back: zero(),
            lease_lost: zero(),
            dropped: zero(),
            success_here: AtomicI64::new(NEVER),
            success: AtomicI64::new(NEVER),
            duration: AtomicU64::new(0),
        }
    }
}

impl PlanCounts {
    pub(crate) fn add(counter: &AtomicU32) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn record(&self, record: &RunRecord) {
        Self::add(match record.outcome {
            RunOutcome::Ended(Ending::Succeeded) => {
                self.success_here.fetch_max(record.slot.at.as_secs(), Ordering::Relaxed);
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
        });
        if let Some(started_at) = record.started_at {
            let took = micros(record.ended_at.since(started_at)).unsigned_abs();
            self.duration.fetch_add(took, Ordering::Relaxed);
        }
    }

    pub(super) fn missed(&self, n: u64, reason: Option<NotStarted>) {
        let n = u32::try_from(n).unwrap_or(u32::MAX);
        self.missed.fetch_add(n, Ordering::Relaxed);
        if let Some(reason) = reason {
            self.not_started[place(reason)].fetch_add(n, Ordering::Relaxed);
        }
    }

    /// The ledger's latest success of the plan.
    pub(crate) fn saw_success(&self, at: Option<Trigger>) {
        if let Some(at) = at.map(Trigger::as_secs)
            && at > self.success.load(Ordering::Relaxed)
        {
            self.success.fetch_max(at, Ordering::Relaxed);
        }
    }

    fn snapshot(&self, id: PlanId) -> PlanStats {
        let get = |c: &AtomicU32| u64::from(c.load(Ordering::Relaxed));
        let instant = |secs: i64| (secs != NEVER).then(|| Trigger::from_secs(secs).to_datetime());
        let here = self.success_here.load(Ordering::Relaxed);
        let not_started_by = Reasons(std::array::from_fn(|i| get(&self.not_started[i])));
        PlanStats {
            id,
            due: get(&self.due),
            started: get(&self.started),
            succeeded: get(&self.succeeded),
            failed: get(&self.failed),
            failed_tries: get(&self.failed_tries),
            cancelled: get(&self.cancelled),
            orphaned: get(&self.orphaned),
            not_started: not_started_by.iter().map(|(_, n)| n).sum(),
            not_started_by,
            missed: get(&self.missed),
            yielded: get(&self.yielded),
            given_back: get(&self.given_back),
            lease_lost: get(&self.lease_lost),
            dropped: get(&self.dropped),
            last_success_here: instant(here),
            last_success: instant(self.success.load(Ordering::Relaxed).max(here)),
            duration: Duration::from_micros(self.duration.load(Ordering::Relaxed)),
        }
    }
}

/// What this instance counted of one plan, also over edits of it; begins anew when the plan is removed and comes back. The
/// counts are those of [`Stats`](crate::Stats).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanStats {
    /// The plan.
    pub id: PlanId,
    /// Slots that fell due here and whose turn came; those that newer ones had superseded by then are not among them.
    pub due: u64,
    /// Jobs entered, further tries of a run not counted.
    pub started: u64,
    /// Runs that ended well.
    pub succeeded: u64,
    /// Runs that failed.
    pub failed: u64,
    /// Tries that failed.
    pub failed_tries: u64,
    /// Runs that stopped when told.
    pub cancelled: u64,
    /// Slots that this instance's sweep ended as orphaned.
    pub orphaned: u64,
    /// Slots accounted for as not started by this instance.
    pub not_started: u64,
    /// The same by reason.
    pub not_started_by: Reasons,
    /// Slots that nobody had started when their start windows closed, as far as this instance dealt with them.
    pub missed: u64,
    /// Slots that another instance had.
    pub yielded: u64,
    /// Slots claimed and given back before the job was entered.
    pub given_back: u64,
    /// Runs whose term was over before their end could be recorded.
    pub lease_lost: u64,
    /// Slots dropped here because the store was out of reach through their start window.
    pub dropped: u64,
    /// The latest trigger point whose run went well on this instance.
    pub last_success_here: Option<DateTime<Utc>>,
    /// The latest trigger point whose run went well on any instance, as far as this one has seen: it looks at the ledger's
    /// rows with each grant and every 10 s, at a thousand plans each time.
    pub last_success: Option<DateTime<Utc>>,
    /// How long its runs took in all, from the first entry of the job to its last return.
    pub duration: Duration,
}

impl Installed {
    /// Its counters, as they are now; `None` where no slot of it has fallen due here.
    pub(crate) fn stats(&self) -> Option<PlanStats> {
        Some(self.counts_if_any()?.snapshot(self.id.clone()))
    }
}
