//! A plan as the engine holds it: small, shared by all rooms, its changing parts atomic.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::PlanCounts;
use crate::budget::RetryBudget;
use crate::key::{Fingerprint, PlanId, SlotKey};
use crate::plan::{CatchUp, OnOrphan};
use crate::schedule::Schedule;
use crate::seam::{Generation, Overlap, PlanRow};
use crate::time::{Timestamp, Trigger};

/// What many plans have in common; interned.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Policy {
    pub(crate) job: Option<Arc<str>>,
    pub(crate) overlap: Overlap,
    pub(crate) catch_up: CatchUp,
    pub(crate) catch_up_window: Option<Duration>,
    pub(crate) start_window: Duration,
    pub(crate) on_orphan: OnOrphan,
    /// The budget, where one is set.
    pub(crate) retry: Option<RetryBudget>,
}

impl Policy {
    /// How many slots of the plan may run at once.
    pub(crate) fn at_once(&self) -> usize {
        match self.overlap {
            Overlap::Allow(n) => n.max(1) as usize,
            Overlap::Skip | Overlap::QueueOne | Overlap::CancelPrevious => 1,
        }
    }
}

/// What plans of one schedule, policy and offset share; interned.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) schedule: Arc<Schedule>,
    pub(crate) policy: Arc<Policy>,
    /// Whole seconds from trigger to due: the plan's spread.
    pub(crate) offset: u32,
}

impl PartialEq for Common {
    fn eq(&self, other: &Self) -> bool {
        // Its parts are interned themselves.
        Arc::ptr_eq(&self.schedule, &other.schedule)
            && Arc::ptr_eq(&self.policy, &other.policy)
            && self.offset == other.offset
    }
}
impl Eq for Common {}
impl Hash for Common {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (Arc::as_ptr(&self.schedule), Arc::as_ptr(&self.policy), self.offset).hash(state);
    }
}

/// The state of an installed plan.
pub(crate) mod state {
    /// The ledger has not opened its generation yet; it starts nothing.
    pub(crate) const PENDING: u8 = 0;
    /// It runs.
    pub(crate) const ACTIVE: u8 = 1;
    /// Removed or replaced; what still refers to it drops it.
    pub(crate) const GONE: u8 = 2;
    /// Its calendar panicked; searched again at the next reconcile.
    pub(crate) const FAILED: u8 = 3;
}

/// An installed plan; what it has in common with others reads as its own.
pub(crate) struct Installed {
    pub(crate) id: PlanId,
    pub(crate) fingerprint: Fingerprint,
    common: Arc<Common>,
    /// Without the counters of an `Arc`, since nobody else holds it for long.
    pub(crate) payload: Option<Box<[u8]>>,
    /// Slots at or before it are not this plan's to start live: the later of effective-from and the cursor when opened.
    start: AtomicI64,
    effective_from: AtomicI64,
    /// Install order.
    pub(crate) seq: u32,
    state: AtomicU8,
    /// Whether the scribe was told that slots may have been missed, and has not read it.
    walk_asked: AtomicBool,
    /// Made when a slot falls due, so that plans which never do cost no memory for it.
    counts: OnceLock<Arc<PlanCounts>>,
}

impl Deref for Installed {
    type Target = Common;

    fn deref(&self) -> &Common {
        &self.common
    }
}

impl Installed {
    pub(crate) fn new(
        id: PlanId,
        fingerprint: Fingerprint,
        common: Arc<Common>,
        payload: Option<Box<[u8]>>,
        seq: u32,
    ) -> Self {
        Self {
            id,
            fingerprint,
            common,
            payload,
            start: AtomicI64::new(i64::MAX),
            effective_from: AtomicI64::new(i64::MAX),
            seq,
            state: AtomicU8::new(state::PENDING),
            walk_asked: AtomicBool::new(false),
            counts: OnceLock::new(),
        }
    }

    pub(crate) fn counts(&self) -> &PlanCounts {
        self.counts.get_or_init(Arc::default)
    }

    pub(crate) fn counts_if_any(&self) -> Option<&PlanCounts> {
        self.counts.get().map(|counts| &**counts)
    }

    /// Goes on with the counters of the version that it replaces.
    pub(crate) fn count_on(&self, before: &Self) {
        if let Some(counts) = before.counts.get() {
            let _ = self.counts.set(Arc::clone(counts));
        }
    }

    pub(crate) fn job(&self) -> &str {
        self.policy.job.as_deref().unwrap_or(self.id.as_str())
    }

    pub(crate) fn state(&self) -> u8 {
        self.state.load(Ordering::Acquire)
    }

    pub(crate) fn set_state(&self, state: u8) {
        self.state.store(state, Ordering::Release);
    }

    /// From pending or failed to active; whether it is active now. One that is gone stays so.
    pub(crate) fn activate(&self) -> bool {
        let go = |from: u8| self.state.compare_exchange(from, state::ACTIVE, Ordering::AcqRel, Ordering::Acquire);
        let _ = go(state::PENDING).or_else(|_| go(state::FAILED));
        self.is_active()
    }

    /// From active to `state`, unless it is gone.
    pub(crate) fn deactivate(&self, to: u8) {
        let _ = self.state.compare_exchange(state::ACTIVE, to, Ordering::AcqRel, Ordering::Acquire);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.state() == state::GONE
    }

    pub(crate) fn is_active(&self) -> bool {
        self.state() == state::ACTIVE
    }

    /// Whether a walk is to be asked for: nobody has since the last [`walk_read`](Self::walk_read).
    pub(crate) fn ask_walk(&self) -> bool {
        !self.walk_asked.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn walk_read(&self) {
        self.walk_asked.store(false, Ordering::Release);
    }

    pub(crate) fn start(&self) -> Trigger {
        Trigger::from_secs(self.start.load(Ordering::Acquire))
    }

    pub(crate) fn effective_from(&self) -> Trigger {
        Trigger::from_secs(self.effective_from.load(Ordering::Acquire))
    }

    /// Takes over what the ledger says of the plan.
    pub(crate) fn follow(&self, row: &PlanRow) {
        self.effective_from.store(row.generation.effective_from.as_secs(), Ordering::Release);
        self.start.store(row.cursor.max(row.generation.effective_from).as_secs(), Ordering::Release);
    }

    /// The generation under which the ledger confirmed it; `None` before that.
    pub(crate) fn generation(&self) -> Option<Generation> {
        let effective_from = self.effective_from();
        (effective_from.as_secs() != i64::MAX).then_some(Generation { fingerprint: self.fingerprint, effective_from })
    }

    /// When a trigger point of it is due.
    pub(crate) fn due(&self, at: Trigger) -> Timestamp {
        at.timestamp().saturating_add(Duration::from_secs(u64::from(self.offset)))
    }

    /// When a slot of it is due; a `run_now` at once.
    pub(crate) fn due_of(&self, slot: &SlotKey) -> Timestamp {
        if slot.request.is_some() { slot.at.timestamp() } else { self.due(slot.at) }
    }

    /// The latest trigger point whose start window has closed at `now`, whether it is on the schedule or not.
    pub(crate) fn closed_upto(&self, now: Timestamp) -> Trigger {
        let back = self.policy.start_window.saturating_add(Duration::from_secs(u64::from(self.offset)));
        // A window that ends within this second is still open.
        Trigger::from_secs(now.saturating_sub(back).trigger().as_secs().saturating_sub(1))
    }

    /// How long one slot of it keeps a fixed lease, and after which age a run counts as long.
    pub(crate) fn lock_ttl(&self) -> Duration {
        self.policy.retry.unwrap_or_default().lock_ttl()
    }
}
