//! Retention: old records of the plans that run here are purged, in small batches, when nothing else waits.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use super::Shared;
use crate::key::PlanId;

/// A plan is purged after so many of its slots were recorded here,
const AFTER: u32 = 64;
/// so many records at a time,
const BATCH: usize = 200;
/// with this long in between, so that purging never takes the store for itself.
const PACE: Duration = Duration::from_millis(200);
/// So many plans are counted; with more, counting begins anew. Those that seldom run are visited in turn.
const COUNTED: usize = 100_000;

/// Which plans have records to purge.
#[derive(Default)]
pub(crate) struct Keeping {
    recorded: HashMap<PlanId, u32>,
    queue: VecDeque<PlanId>,
    /// Those in the queue.
    queued: HashSet<PlanId>,
    not_before: Duration,
}

impl Keeping {
    /// A slot of the plan was recorded.
    pub(crate) fn recorded(&mut self, plan: &PlanId) {
        if self.recorded.len() >= COUNTED && !self.recorded.contains_key(plan) {
            self.recorded.clear();
        }
        let count = self.recorded.entry(plan.clone()).or_default();
        *count += 1;
        if *count >= AFTER {
            self.recorded.remove(plan);
            self.visit(plan);
        }
    }

    /// The plan is to be looked at.
    pub(crate) fn visit(&mut self, plan: &PlanId) {
        if self.queued.insert(plan.clone()) {
            self.queue.push_back(plan.clone());
        }
    }

    /// When there is something to do.
    pub(crate) fn due(&self) -> Option<Duration> {
        (!self.queue.is_empty()).then_some(self.not_before)
    }

    /// One batch of one plan. A fault is of no account: the plan's turn comes again.
    pub(crate) fn turn(&mut self, shared: &Shared, mono: Duration) {
        let Some(keep) = shared.config.retention.filter(|_| mono >= self.not_before) else { return };
        let Some(plan) = self.queue.pop_front() else { return };
        self.queued.remove(&plan);
        self.not_before = mono + PACE;
        // Records of plans that aren't installed here are an operator's to purge.
        if shared.registry().find(plan.as_str()).is_none() {
            return;
        }
        let key = shared.plan_key(&plan);
        if let Ok(answer) = shared.store("purge", |ledger| ledger.purge(&key, keep, BATCH))
            && answer.value.more
            && answer.value.deleted > 0
        {
            self.queued.insert(plan.clone());
            self.queue.push_front(plan);
        }
    }
}
