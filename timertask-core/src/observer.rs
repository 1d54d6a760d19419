//! What happens inside, told to whoever listens: the seam for metrics and tracing.

use std::sync::Arc;
use std::time::Duration;

use crate::key::{PlanId, SlotKey};
use crate::reconcile::ReconcileReport;
use crate::record::{FailedTry, RunRecord, StillRunning};
use crate::seam::{Cancel, NotStarted, StoreError};

/// Hears each [`Event`]. Called on the engine's threads without any lock of ours; be quick. A panic is contained,
/// logged once and otherwise ignored.
pub trait Observer: Send + Sync {
    /// Something happened.
    fn event(&self, event: &Event<'_>) {
        let _ = event;
    }
}

impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn event(&self, event: &Event<'_>) {
        (**self).event(event);
    }
}

/// What happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A slot has fallen due, and its turn has come: it is asked for, or passed over since it is too late for it.
    Due {
        /// The slot.
        slot: &'a SlotKey,
    },
    /// A job is entered, for the first try of a run.
    Started {
        /// The slot.
        slot: &'a SlotKey,
        /// How late: from due to now.
        lateness: Duration,
    },
    /// A try has failed: its job returned an error or panicked.
    TryFailed {
        /// The slot.
        slot: &'a SlotKey,
        /// Which try of the run it was, when, and what it said.
        failed: &'a FailedTry,
        /// In how long the next one may begin; `None`: it was the last one, and the run ends.
        next_in: Option<Duration>,
    },
    /// A run has ended and that is recorded, or a slot was not started, or yielded to another instance.
    Record(&'a RunRecord),
    /// A run's term is over before it ended: another instance may have taken its place, or it was swept.
    LeaseLost {
        /// The slot.
        slot: &'a SlotKey,
    },
    /// A run was told to stop by an operator or by `Overlap::CancelPrevious`.
    CancelAsked {
        /// The slot.
        slot: &'a SlotKey,
        /// Who and why.
        cancel: &'a Cancel,
    },
    /// A run goes on longer than its budget, or than the default budget where none was set. Told once a run.
    LongRun(&'a StillRunning),
    /// A job was told to stop and has not come back: by now its worker is lost to other slots, until it does. Told once a
    /// try, 10 to 20 s after its token fired.
    Stuck(&'a StillRunning),
    /// A slot whose runner was not heard of any more was ended as orphaned, or opened for a rerun.
    Orphaned {
        /// The slot.
        slot: &'a SlotKey,
        /// Whether it may be run again.
        rerun: bool,
    },
    /// A gap shows: slots of a plan were missed, and a walk begins that accounts for them or makes them up.
    Gap {
        /// The plan.
        plan: &'a PlanId,
    },
    /// Slots of a plan were missed, and this instance has dealt with them.
    Missed {
        /// The plan.
        plan: &'a PlanId,
        /// How many.
        count: u64,
        /// Why they were recorded as not started; `None` where they are made up, by a run that ends with a
        /// [`Record`](Self::Record) of its own.
        reason: Option<NotStarted>,
    },
    /// A call to the store failed.
    StoreFault {
        /// The method.
        call: &'static str,
        /// The fault.
        error: &'a StoreError,
    },
    /// The store answers again after faults.
    StoreBack,
    /// This instance's clock differs from the store's by more than half of `max_skew`, by more than `max_skew`, or no longer
    /// does. Told on changes only.
    Skew {
        /// Store's clock less this instance's, in microseconds.
        micros: i64,
        /// Whether it is beyond `max_skew`: nothing is started, accounted for or swept up until it no longer is.
        beyond: bool,
    },
    /// A reconcile took place.
    Reconciled(&'a ReconcileReport),
    /// The source of plans failed or panicked; the plans stay as they are.
    SourceFailed {
        /// What it said.
        error: &'a str,
    },
    /// A thread of the engine panicked. Please report it; `health()` shows it from now on.
    RoomPanicked {
        /// Its name.
        room: &'a str,
    },
}
