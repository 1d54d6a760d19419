//! Snapshots of plans.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::Inner;
use crate::engine::{Installed, state};
use crate::key::{Fingerprint, PlanId};
use crate::schedule::Schedule;
use crate::seam::Pause;
use crate::time::Trigger;

/// How an installed plan stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PlanStatus {
    /// The ledger has not opened it yet; it starts nothing. Passes by itself once the store can be reached.
    Pending,
    /// It runs at its trigger points.
    Active,
    /// It, or all, is paused, as far as this instance has seen: nothing of it starts; its slots wait.
    Paused,
    /// Its calendar panicked; searched again at the next reconcile.
    Failed,
}

/// An installed plan, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanView {
    /// Its id.
    pub id: PlanId,
    /// Its expression in canonical form, with its zone.
    pub spec: String,
    /// The name of its zone.
    pub zone: &'static str,
    /// Its trigger points.
    pub schedule: Arc<Schedule>,
    /// From a trigger point until the slot is due: the plan's share of its spread.
    pub offset: Duration,
    /// How late a slot may start and still count as on time.
    pub start_window: Duration,
    /// Its fingerprint.
    pub fingerprint: Fingerprint,
    /// How it stands.
    pub status: PlanStatus,
    /// Its last trigger point, whether it was run or not; `None` before the first since it was opened.
    pub previous: Option<DateTime<Utc>>,
    /// Its next trigger point.
    pub next: Option<DateTime<Utc>>,
    /// The pause that it is under, by itself or with all.
    pub pause: Option<Arc<Pause>>,
    /// Why it does not run, or is not what the last set wanted.
    pub why_not: Option<String>,
}

impl Inner {
    pub(super) fn views(&self) -> Vec<PlanView> {
        let mut plans: Vec<_> = self.shared.registry().iter().cloned().collect();
        plans.sort_by(|a, b| a.id.cmp(&b.id));
        plans.iter().map(|plan| self.view(plan)).collect()
    }

    pub(super) fn view_of(&self, id: &str) -> Option<PlanView> {
        let plan = self.shared.registry().find(id).cloned()?;
        Some(self.view(&plan))
    }

    fn view(&self, plan: &Arc<Installed>) -> PlanView {
        let now = self.shared.clock.now().trigger();
        let pause = self.shared.pauses.of(&plan.id);
        let status = match plan.state() {
            state::ACTIVE if pause.is_some() => PlanStatus::Paused,
            state::ACTIVE => PlanStatus::Active,
            state::FAILED => PlanStatus::Failed,
            _ => PlanStatus::Pending,
        };
        // A calendar is user code.
        let around = catch_unwind(AssertUnwindSafe(|| {
            let previous = plan.schedule.prev_trigger(Trigger::from_secs(now.as_secs().saturating_add(1)));
            (previous, plan.schedule.next_trigger(now))
        }));
        let (previous, next) = around.unwrap_or_default();
        let failed =
            self.shared.registry().failed(plan.id.as_str()).map(|why| format!("the last set's version failed: {why}"));
        let why_not = match status {
            PlanStatus::Pending => Some("the ledger has not opened it yet".to_owned()),
            PlanStatus::Failed => Some("its calendar panicked; searched again at the next reconcile".to_owned()),
            PlanStatus::Paused => pause.as_ref().map(ToString::to_string),
            PlanStatus::Active if self.shared.is_skewed() => Some("the clock is too far off the store's".to_owned()),
            PlanStatus::Active if next.is_none() && failed.is_none() => Some("it has no trigger point left".to_owned()),
            PlanStatus::Active => failed,
        };
        PlanView {
            id: plan.id.clone(),
            spec: plan.schedule.to_string(),
            zone: plan.schedule.zone().name(),
            schedule: Arc::clone(&plan.schedule),
            offset: Duration::from_secs(u64::from(plan.offset)),
            start_window: plan.policy.start_window,
            fingerprint: plan.fingerprint,
            status,
            previous: previous.filter(|at| *at > plan.effective_from()).map(Trigger::to_datetime),
            next: next.map(Trigger::to_datetime),
            pause,
            why_not,
        }
    }
}
