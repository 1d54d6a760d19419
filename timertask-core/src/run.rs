//! A run: what a job sees of the slot that it runs, and the cell in which the engine keeps it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use crossbeam_channel::{Receiver, Sender};

use crate::clock::{Signal, Until, Wake};
use crate::engine::{Installed, Order, Shared};
use crate::key::{Fence, InstanceId, Nonce, SlotKey};
use crate::record::FailedTry;
use crate::seam::{Asked, Cancel, Grant, Lease, RunKind};
use crate::time::{Timestamp, Trigger, micros};

/// Why a run should stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Stop {
    /// The attempt's time-out or the end of the run's budget has passed.
    #[error("the deadline has passed")]
    Deadline,
    /// The store no longer vouches for the run; another instance may take its place. What it writes from now on must
    /// be refused by its fence.
    #[error("the lease is lost")]
    LeaseLost,
    /// An operator, a newer slot or the closing scheduler asked it to stop.
    #[error("cancelled")]
    Cancelled,
}

/// The span of business time that a run covers: later than `from`, up to and including `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The trigger point before; after an edit the end of what was accounted for under the old plan.
    pub from: DateTime<Utc>,
    /// This trigger point.
    pub to: DateTime<Utc>,
}

/// What a job sees of its run. Cheap to clone and to send to threads that the job starts.
#[derive(Clone)]
pub struct Run {
    pub(crate) cell: Arc<RunCell>,
    pub(crate) shared: Arc<Shared>,
}

impl Run {
    /// The plan's id.
    #[must_use]
    pub fn plan(&self) -> &str {
        self.cell.plan.id.as_str()
    }

    /// The name of the job that the plan asks for; by default the plan's id.
    #[must_use]
    pub fn job(&self) -> &str {
        self.cell.plan.job()
    }

    /// The slot: what is run at most once. Its text is the idempotency key.
    #[must_use]
    pub fn slot_key(&self) -> &SlotKey {
        &self.cell.slot
    }

    /// The trigger point.
    #[must_use]
    pub fn trigger(&self) -> DateTime<Utc> {
        self.cell.slot.at.to_datetime()
    }

    /// The span of business time that this run covers.
    #[must_use]
    pub fn window(&self) -> Window {
        Window { from: self.cell.window_from.to_datetime(), to: self.trigger() }
    }

    /// The plan's bytes for the job; empty where none were given.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.cell.plan.payload.as_deref().map_or(&[], |p| p)
    }

    /// Which start of the slot this is, from 1; above 1 only with `OnOrphan::Rerun`.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.cell.grant.attempt
    }

    /// Which try within this start it is, from 1; above 1 only with a retry budget.
    #[must_use]
    pub fn tries(&self) -> u32 {
        self.cell.tries.load(Ordering::Relaxed)
    }

    /// The number that rises with each grant within the plan. Hand it to whatever the job writes to.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.cell.fence()
    }

    /// Why the slot came about.
    #[must_use]
    pub fn kind(&self) -> RunKind {
        self.cell.kind
    }

    /// Who asked for the run and why, where an operator did.
    #[must_use]
    pub fn asked(&self) -> Option<&Asked> {
        self.cell.asked.as_deref()
    }

    /// The label of this instance.
    #[must_use]
    pub fn instance(&self) -> &InstanceId {
        &self.shared.config.instance
    }

    /// What names this run and no other; also the proof of its term in the ledger.
    #[must_use]
    pub fn nonce(&self) -> Nonce {
        self.cell.nonce
    }

    /// When it was due: the trigger point and the plan's spread; of a `run_now` the instant of its acceptance.
    #[must_use]
    pub fn due(&self) -> Timestamp {
        self.cell.due
    }

    /// When the job was entered.
    #[must_use]
    pub fn started_at(&self) -> Timestamp {
        Timestamp::from_micros(self.cell.started_at.load(Ordering::Relaxed))
    }

    /// How long until the token of this try fires; `None` where no budget is set.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.cell.deadline().map(|end| end.saturating_sub(self.shared.clock.monotonic()))
    }

    /// The latest trigger point of the plan that had succeeded when this run was granted.
    #[must_use]
    pub fn last_success(&self) -> Option<DateTime<Utc>> {
        self.cell.grant.last_success.map(Trigger::to_datetime)
    }

    /// How long the store still vouches for this run, without a further renewal; `None`: without end.
    #[must_use]
    pub fn trust_left(&self) -> Option<Duration> {
        self.cell.trust().left(self.shared.clock.now(), self.shared.clock.monotonic())
    }

    /// Whether the scheduler is closing. The run may go on; one that can stop early does the deploy a favour.
    #[must_use]
    pub fn closing(&self) -> bool {
        self.shared.is_closing()
    }

    /// Whether the run may go on. Ask often: at least between two writes.
    ///
    /// # Errors
    /// [`Stop`] where it may not. `LeaseLost` may pass when a late renewal is granted; the others stay.
    pub fn check(&self) -> Result<(), Stop> {
        self.cell.check(self.shared.clock.now(), self.shared.clock.monotonic())
    }

    /// A channel that is closed (`recv` gives an error) when the run is told to stop, for `select!`.
    #[must_use]
    pub fn cancelled(&self) -> Receiver<()> {
        self.cell.cancelled()
    }

    /// Who asked the run to stop and why, where somebody did.
    #[must_use]
    pub fn cancel(&self) -> Option<Arc<Cancel>> {
        self.cell.cancel.get().cloned()
    }

    /// Waits for `d`, or until the run is told to stop.
    ///
    /// # Errors
    /// [`Stop`] where the run may not go on.
    ///
    /// # Blocking
    /// Up to `d`.
    pub fn wait(&self, d: Duration) -> Result<(), Stop> {
        let clock = &self.shared.clock;
        let end = clock.monotonic().saturating_add(d);
        loop {
            self.check()?;
            let mono = clock.monotonic();
            if mono >= end {
                return Ok(());
            }
            let trust = self.cell.trust().left(clock.now(), mono).map_or(end, |left| mono.saturating_add(left));
            let until = end.min(trust).min(self.cell.deadline().unwrap_or(end));
            match clock.wait(&self.cell.signal, Some(Until::Monotonic(until))) {
                Wake::Signal | Wake::Time => {}
            }
        }
    }

    /// Tells the engine that the end of this run was written together with the job's own rows (`end_in` of a store
    /// calls it). Once the job has returned, the engine reads the slot back; what was not committed is failed.
    pub fn mark_ended_elsewhere(&self) {
        self.cell.ended_elsewhere.store(true, Ordering::Release);
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("slot", &format_args!("{}", self.cell.slot))
            .field("attempt", &self.attempt())
            .field("fence", &self.fence())
            .field("kind", &self.cell.kind)
            .finish_non_exhaustive()
    }
}

/// How long the store vouches for a run: `span` from the start of the call that granted or renewed it, judged by the
/// larger of wall and monotonic elapsed time (C. Gray, D. Cheriton, "Leases", 1989: the holder's clock must not run
/// slower than the grantor believes; a suspended host's monotonic clock stands still, so wall time counts too).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trust {
    pub(crate) wall: Timestamp,
    pub(crate) mono: Duration,
    /// `None`: without end.
    pub(crate) span: Option<Duration>,
}

impl Trust {
    /// What is left of it; `None`: without end.
    pub(crate) fn left(&self, now: Timestamp, mono: Duration) -> Option<Duration> {
        let elapsed = now.since(self.wall).max(mono.saturating_sub(self.mono));
        self.span.map(|span| span.saturating_sub(elapsed))
    }
}

/// Where a run stands within this process. Entry and give-back exclude each other by this one state.
pub(crate) mod phase {
    /// Claimed, waiting for a worker.
    pub(crate) const CLAIMED: u8 = 0;
    /// A worker has entered the job.
    pub(crate) const ENTERED: u8 = 1;
    /// Given back; never entered, whatever the answer.
    pub(crate) const GIVEN_BACK: u8 = 2;
    /// The job has returned for the last time; the run's end is being recorded.
    pub(crate) const RETURNED: u8 = 3;
    /// A try has failed and the next one is to come; no worker has it.
    pub(crate) const WAITING: u8 = 4;
}

/// What the engine keeps of a claimed slot, from its grant until its end is recorded.
pub(crate) struct RunCell {
    pub(crate) plan: Arc<Installed>,
    pub(crate) slot: SlotKey,
    pub(crate) nonce: Nonce,
    pub(crate) grant: Grant,
    pub(crate) kind: RunKind,
    pub(crate) asked: Option<Arc<Asked>>,
    pub(crate) due: Timestamp,
    /// A live slot is not entered after it.
    pub(crate) start_by: Timestamp,
    pub(crate) window_from: Trigger,
    /// End of the term, monotonic; where a budget is set.
    pub(crate) term_end: Option<Duration>,
    /// Microseconds of monotonic time at which the current try times out; `u64::MAX` for never.
    pub(crate) try_end: AtomicU64,
    pub(crate) started_at: AtomicI64,
    pub(crate) tries: AtomicU32,
    /// The worker that has it, or had it last.
    pub(crate) worker: AtomicUsize,
    pub(crate) ended_elsewhere: AtomicBool,
    pub(crate) reported_long: AtomicBool,
    pub(crate) reported_stuck: AtomicBool,
    /// Microseconds of monotonic time at which the try was told to stop; `u64::MAX`: it was not.
    told_at: AtomicU64,
    failed: std::sync::Mutex<Vec<FailedTry>>,
    phase: AtomicU8,
    stop: AtomicU8,
    trust: std::sync::Mutex<Trust>,
    /// The lock it runs under, where a mutex is all that instances share.
    lease: OnceLock<Lease>,
    /// Who waits for its entry.
    pub(crate) order: Option<Arc<Order>>,
    cancel: OnceLock<Arc<Cancel>>,
    channel: std::sync::Mutex<Option<Token>>,
    signal: Signal,
}

/// The facts of a new cell.
pub(crate) struct NewRun {
    pub(crate) plan: Arc<Installed>,
    pub(crate) slot: SlotKey,
    pub(crate) nonce: Nonce,
    pub(crate) grant: Grant,
    pub(crate) kind: RunKind,
    pub(crate) asked: Option<Arc<Asked>>,
    pub(crate) due: Timestamp,
    pub(crate) start_by: Timestamp,
    pub(crate) window_from: Trigger,
    pub(crate) term_end: Option<Duration>,
    pub(crate) trust: Trust,
    pub(crate) order: Option<Arc<Order>>,
}

/// The channel of [`Run::cancelled`]; closed by dropping its sender.
type Token = (Option<Sender<()>>, Receiver<()>);

impl RunCell {
    pub(crate) fn new(new: NewRun) -> Self {
        Self {
            plan: new.plan,
            slot: new.slot,
            nonce: new.nonce,
            grant: new.grant,
            kind: new.kind,
            asked: new.asked,
            due: new.due,
            start_by: new.start_by,
            window_from: new.window_from,
            term_end: new.term_end,
            try_end: AtomicU64::new(u64::MAX),
            started_at: AtomicI64::new(0),
            tries: AtomicU32::new(0),
            worker: AtomicUsize::new(0),
            ended_elsewhere: AtomicBool::new(false),
            reported_long: AtomicBool::new(false),
            reported_stuck: AtomicBool::new(false),
            told_at: AtomicU64::new(u64::MAX),
            failed: std::sync::Mutex::default(),
            phase: AtomicU8::new(phase::CLAIMED),
            stop: AtomicU8::new(0),
            trust: std::sync::Mutex::new(new.trust),
            lease: OnceLock::new(),
            order: new.order,
            cancel: OnceLock::new(),
            channel: std::sync::Mutex::default(),
            signal: Signal::new(),
        }
    }

    pub(crate) fn phase(&self) -> u8 {
        self.phase.load(Ordering::Acquire)
    }

    /// Moves from one phase to another; whether it stood there.
    pub(crate) fn step(&self, from: u8, to: u8) -> bool {
        self.phase.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    pub(crate) fn set_lease(&self, lease: Lease) {
        let _ = self.lease.set(lease);
    }

    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.lease.get()
    }

    /// The fence for the job: a mutex's rises across processes, the ledger's beside it only within this one.
    pub(crate) fn fence(&self) -> Fence {
        self.lease.get().map_or(self.grant.fence, |lease| lease.fence)
    }

    pub(crate) fn trust(&self) -> Trust {
        *self.trust.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_trust(&self, trust: Trust) {
        *self.trust.lock().unwrap_or_else(PoisonError::into_inner) = trust;
    }

    /// The earlier end of the try and of the term, monotonic.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let try_end = match self.try_end.load(Ordering::Acquire) {
            u64::MAX => None,
            micros => Some(Duration::from_micros(micros)),
        };
        match (try_end, self.term_end) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Begins a try that is over at this monotonic time.
    pub(crate) fn begin_try(&self, end: Option<Duration>) {
        let end = end.map_or(u64::MAX, |end| micros(end).unsigned_abs());
        self.try_end.store(end, Ordering::Release);
        self.tries.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes back the token of a try that has timed out, so that the next one starts fresh.
    pub(crate) fn clear_deadline(&self) {
        self.try_end.store(u64::MAX, Ordering::Release);
        self.stop.fetch_and(!Stop::Deadline.bit(), Ordering::AcqRel);
        let mut channel = self.channel();
        if self.stopped().is_none() {
            self.told_at.store(u64::MAX, Ordering::Release);
            self.reported_stuck.store(false, Ordering::Relaxed);
            *channel = None;
        }
    }

    /// Notes that a try has failed.
    pub(crate) fn note_failed(&self, failed: FailedTry) {
        let mut all = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= FailedTry::KEPT {
            all.remove(0);
        }
        all.push(failed);
    }

    /// The tries that have failed, which are no longer kept here.
    pub(crate) fn take_failed(&self) -> Vec<FailedTry> {
        std::mem::take(&mut self.failed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the last try that failed said.
    pub(crate) fn last_error(&self) -> Option<Arc<str>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).last().and_then(|failed| failed.error.clone())
    }

    /// Since when, in monotonic time, it has been told to stop: by its token, or by a deadline that has passed.
    pub(crate) fn told(&self, mono: Duration) -> Option<Duration> {
        let fired = match self.told_at.load(Ordering::Acquire) {
            u64::MAX => None,
            at => Some(Duration::from_micros(at)),
        };
        let passed = self.deadline().filter(|end| *end <= mono);
        fired.into_iter().chain(passed).min()
    }

    /// The stop that was fired, without a look at the clock.
    pub(crate) fn stopped(&self) -> Option<Stop> {
        Stop::of_bits(self.stop.load(Ordering::Acquire))
    }

    pub(crate) fn check(&self, now: Timestamp, mono: Duration) -> Result<(), Stop> {
        if let Some(stop) = self.stopped() {
            return Err(stop);
        }
        if self.deadline().is_some_and(|end| mono >= end) {
            return Err(Stop::Deadline);
        }
        if self.trust().left(now, mono).is_some_and(|left| left.is_zero()) {
            return Err(Stop::LeaseLost);
        }
        Ok(())
    }

    /// Fires the token at `mono`. A reason does not go when another one comes: the end of a try may be taken back, a
    /// cancel not.
    pub(crate) fn fire(&self, stop: Stop, mono: Duration) {
        self.stop.fetch_or(stop.bit(), Ordering::AcqRel);
        self.told_at.fetch_min(micros(mono).unsigned_abs(), Ordering::AcqRel);
        if let Some((sender, _)) = self.channel().as_mut() {
            *sender = None;
        }
        self.signal.notify();
    }

    fn channel(&self) -> MutexGuard<'_, Option<Token>> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes who asked and fires the token; whether this is news.
    pub(crate) fn fire_cancel(&self, cancel: Arc<Cancel>, mono: Duration) -> bool {
        let news = self.cancel.set(cancel).is_ok();
        self.fire(Stop::Cancelled, mono);
        news
    }

    fn cancelled(&self) -> Receiver<()> {
        let mut channel = self.channel();
        let (sender, receiver) = channel.get_or_insert_with(|| {
            let (sender, receiver) = crossbeam_channel::bounded(0);
            (Some(sender), receiver)
        });
        // The token may have fired before the channel was there.
        if self.stopped().is_some() {
            *sender = None;
        }
        receiver.clone()
    }
}

impl Stop {
    const fn bit(self) -> u8 {
        match self {
            Self::Deadline => 1,
            Self::LeaseLost => 2,
            Self::Cancelled => 4,
        }
    }

    /// The gravest of those whose bits are set.
    fn of_bits(bits: u8) -> Option<Self> {
        [Self::Cancelled, Self::LeaseLost, Self::Deadline].into_iter().find(|stop| bits & stop.bit() != 0)
    }
}
