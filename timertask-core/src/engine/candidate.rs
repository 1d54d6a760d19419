//! A slot that this instance would run, on its way to an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::batch::Line;
use super::order::Order;
use super::{Installed, Shared};
use crate::key::{Nonce, RequestId, SlotKey};
use crate::seam::{Asked, RunKind, SlotRow};
use crate::time::{Timestamp, Trigger};

/// Where a candidate comes from.
pub(crate) enum Origin {
    /// The timer: which trigger point of which line it is.
    Timer(Arc<Line>, u64),
    /// A walk, which waits for the answer.
    Walk,
    /// A sweep, which found it open.
    Sweep,
    /// An operator, who waits for the reply.
    Order(Arc<Order>),
    /// A backfill, which waits for the answer.
    Backfill(Arc<Errand>),
}

/// A backfill under way, as its candidates know it.
pub(crate) struct Errand {
    pub(crate) number: u64,
    /// It was withdrawn: what is not claimed yet is dropped.
    pub(crate) stopped: AtomicBool,
}

/// Whether runs of this kind have permits of their own, so that live slots go first.
pub(crate) fn has_own_permit(kind: RunKind) -> bool {
    matches!(kind, RunKind::CatchUp | RunKind::Backfill)
}

/// A slot that this instance would run.
pub(crate) struct Candidate {
    pub(crate) plan: Arc<Installed>,
    pub(crate) at: Trigger,
    /// The request of a `run_now`.
    pub(crate) request: Option<RequestId>,
    /// Who asked for it and why, where an operator did.
    pub(crate) asked: Option<Arc<Asked>>,
    /// The slot before it that has to be accounted for.
    pub(crate) prev: Option<Trigger>,
    /// The trigger point before it.
    pub(crate) from: Option<Trigger>,
    pub(crate) kind: RunKind,
    pub(crate) origin: Origin,
    /// This instance's decision, kept until it is answered for good.
    pub(crate) nonce: Nonce,
    /// Not before this monotonic time.
    pub(crate) not_before: Duration,
    /// When its plan was last found running, where it waits for that to end: its start window begins then.
    pub(super) waited: Option<Timestamp>,
    /// The decision to make it up holds until then.
    pub(crate) until: Option<Timestamp>,
    /// Whether it may have been granted already, by a call whose answer was lost.
    pub(super) unknown: bool,
    /// Whether it was given up here, and is kept only since it may have been granted.
    pub(super) given_up: bool,
}

impl Candidate {
    pub(crate) fn new(
        shared: &Shared,
        plan: Arc<Installed>,
        at: Trigger,
        prev: Option<Trigger>,
        kind: RunKind,
        origin: Origin,
    ) -> Self {
        Self {
            plan,
            at,
            request: None,
            asked: None,
            prev,
            from: prev,
            kind,
            origin,
            nonce: Nonce::random(&*shared.clock),
            not_before: Duration::ZERO,
            waited: None,
            until: None,
            unknown: false,
            given_up: false,
        }
    }

    /// A slot that was found open, taken up as `kind`.
    pub(crate) fn open(
        shared: &Shared,
        plan: Arc<Installed>,
        slot: &SlotRow,
        prev: Option<Trigger>,
        kind: RunKind,
    ) -> Self {
        let manual = slot.key.request.is_some();
        Self {
            request: slot.key.request.clone(),
            asked: slot.asked.clone(),
            prev: prev.filter(|_| !manual),
            from: prev,
            ..Self::new(shared, plan, slot.key.at, None, kind, Origin::Sweep)
        }
    }

    pub(super) fn slot_key(&self, shared: &Shared) -> SlotKey {
        SlotKey { request: self.request.clone(), ..shared.slot_key(&self.plan.id, self.at) }
    }

    pub(super) fn due(&self) -> Timestamp {
        if self.request.is_some() { self.at.timestamp() } else { self.plan.due(self.at) }
    }

    pub(super) fn order(&self) -> Option<&Arc<Order>> {
        match &self.origin {
            Origin::Order(order) => Some(order),
            Origin::Timer(..) | Origin::Walk | Origin::Sweep | Origin::Backfill(_) => None,
        }
    }

    /// Whether nobody wants it any more: its plan was removed or replaced, or its backfill withdrawn.
    pub(super) fn is_gone(&self) -> bool {
        let withdrawn = matches!(&self.origin, Origin::Backfill(errand) if errand.stopped.load(Ordering::Acquire));
        withdrawn || self.plan.is_gone()
    }

    pub(super) fn is_live(&self) -> bool {
        self.kind == RunKind::Scheduled
    }

    /// When its start window closes.
    pub(super) fn closes(&self) -> Timestamp {
        self.waited.unwrap_or_else(|| self.due()).saturating_add(self.plan.policy.start_window)
    }

    /// Whether it is still wanted: its plan is there, and nothing has come after what was decided.
    pub(super) fn is_wanted(&self, now: Timestamp) -> bool {
        !self.is_gone() && self.until.is_none_or(|until| now <= until)
    }

    /// Whether it may no longer start as a live slot, or a newer one has taken its place.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        let late = now > self.closes();
        let superseded = match &self.origin {
            Origin::Timer(line, number) => line.is_superseded(*number, self.plan.policy.at_once()),
            Origin::Walk | Origin::Sweep | Origin::Order(_) | Origin::Backfill(_) => false,
        };
        self.is_live() && (late || superseded)
    }
}
