//! What this instance has last seen of pauses: for snapshots, which ask no store. Claims are judged by the ledger itself.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use crate::key::{PlanId, PlanKey};
use crate::seam::{Pause, PlanRow};

#[derive(Default)]
pub(crate) struct Pauses(std::sync::Mutex<Seen>);

#[derive(Default)]
struct Seen {
    all: Option<Arc<Pause>>,
    plans: HashMap<PlanId, Arc<Pause>>,
}

impl Pauses {
    /// The plan, or all, has this pause, or none.
    pub(crate) fn note(&self, plan: Option<&PlanId>, pause: Option<Arc<Pause>>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).note(plan, pause);
    }

    /// Notes these rows of the ledger, as just read.
    pub(crate) fn saw<'a>(&self, rows: impl IntoIterator<Item = (&'a PlanKey, Option<&'a PlanRow>)>) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, row) in rows {
            seen.note(key.plan.as_ref(), row.and_then(|row| row.pause.clone()));
        }
    }

    /// Why a plan is paused, if it is: the pause of all first.
    pub(crate) fn of(&self, plan: &PlanId) -> Option<Arc<Pause>> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.all.as_ref().or_else(|| seen.plans.get(plan)).cloned()
    }
}

impl Seen {
    fn note(&mut self, plan: Option<&PlanId>, pause: Option<Arc<Pause>>) {
        match (plan, pause) {
            (None, pause) => self.all = pause,
            (Some(plan), Some(pause)) => drop(self.plans.insert(plan.clone(), pause)),
            (Some(plan), None) => drop(self.plans.remove(plan)),
        }
    }
}
