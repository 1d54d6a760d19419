//! What the rooms share: the seams, the configuration, the mailboxes, and how things stand.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use super::live::Live;
use super::mailbox::Mailbox;
use super::outbox::GenerationOp;
use super::pauses::Pauses;
use super::pool::Pool;
use super::reports::Reports;
use super::stats::Counters;
use super::{Installed, Registry};
use crate::budget::RetryBudget;
use crate::clock::{Clock, Signal};
use crate::engine::claimer::ClaimerMail;
use crate::engine::limit::Bucket;
use crate::engine::timer::{GroupKey, TimerMail};
use crate::engine::worker::Finished;
use crate::job::Job;
use crate::key::{InstanceId, Namespace, PlanId, PlanKey, RequestId, SlotKey};
use crate::observer::Event;
use crate::operate::notice::Notice;
use crate::plan::{CatchUp, OnOrphan, Pace};
use crate::record::StillRunning;
use crate::run::RunCell;
use crate::schedule::{Calendar, Dialect, Dst, SpecLimits};
use crate::seam::{Answer, Board, Durability, Ledger, Mutex, Outcome, Overlap, StoreError, StoreErrorKind};
use crate::time::{Timestamp, Trigger};

pub(crate) use crate::seam::matched;

/// A heartbeat lease lasts this long,
pub(crate) const LEASE: Duration = Duration::from_secs(30);
/// is renewed this often; the sweep comes as often.
pub(crate) const RENEW_EVERY: Duration = Duration::from_secs(10);
/// Trust ends this long before the lease does.
pub(crate) const MARGIN: Duration = Duration::from_secs(2);

/// What plans have where they don't say otherwise.
#[derive(Clone, Debug)]
pub(crate) struct Defaults {
    pub(crate) zone: chrono_tz::Tz,
    pub(crate) dst: Dst,
    pub(crate) dialect: Dialect,
    pub(crate) limits: SpecLimits,
    pub(crate) every_from_install: bool,
    pub(crate) overlap: Overlap,
    pub(crate) catch_up: CatchUp,
    pub(crate) start_window: Duration,
    pub(crate) on_orphan: OnOrphan,
    pub(crate) retry: Option<RetryBudget>,
}

/// What `start` fixed.
pub(crate) struct Config {
    pub(crate) namespace: Namespace,
    pub(crate) instance: InstanceId,
    pub(crate) version: Option<Arc<str>>,
    pub(crate) concurrency: usize,
    pub(crate) catch_up_pace: Pace,
    pub(crate) max_skew: Duration,
    pub(crate) defaults: Defaults,
    /// What the defaults contribute to derived fingerprints.
    pub(crate) defaults_fingerprint: crate::key::Fingerprint,
    /// The names that the router knows; `None`: any.
    pub(crate) job_names: Option<std::collections::HashSet<Arc<str>>>,
    pub(crate) calendars: std::collections::HashMap<Arc<str>, Arc<dyn Calendar>>,
    pub(crate) drop_guard: Option<crate::reconcile::DropGuard>,
    pub(crate) stale_sweep: Option<Box<dyn Fn() -> Result<(), crate::job::BoxError> + Send + Sync>>,
    /// What is kept of old records; `None` where the ledger forgets by itself.
    pub(crate) retention: Option<crate::seam::Retention>,
    /// What the ledger promised at the start.
    pub(crate) durability: Durability,
    /// The ledger is this scheduler's own: claims may run ahead, and nobody else changes a generation.
    pub(crate) exclusive: bool,
}

/// How far the scheduler has come in closing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Open = 0,
    /// No new starts; runs go on.
    Closing = 1,
    /// Rooms end as soon as they can; what is not recorded by then stays so.
    Leaving = 2,
}

/// What reaches the scribe.
pub(crate) enum ScribeMail {
    /// A run has ended or was given back.
    Finished(Finished),
    /// Generations to open and close, in order.
    Generations(Vec<GenerationOp>),
    /// An operator asked this instance for a backfill.
    Backfill(Notice),
    /// A backfill was withdrawn.
    Withdrawn(PlanId, RequestId),
    /// Something was put up on the notice board.
    LookAtBoard,
    /// A slot of this backfill was answered: go on at this monotonic time.
    Backfilled(u64, Duration),
    /// Slots of this plan may have been missed.
    Walk(Arc<Installed>),
    /// A missed slot was answered: go on with the plan's gap at this monotonic time.
    CaughtUp(Arc<Installed>, Duration),
    /// A calendar must be asked for a group's next trigger points.
    Survey(GroupKey, Trigger),
    /// The wall clock stepped back.
    SteppedBack,
    /// The claimer met a plan that the ledger does not know.
    Unknown(Arc<Installed>),
    /// A pause was ended here, of this plan or of all.
    Resumed(Option<PlanId>),
}

/// What the rooms share. Held by them and by runs; the user's handle holds it too and closes it on its drop.
pub(crate) struct Shared {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ledger: Arc<dyn Ledger>,
    /// Where operators in other processes leave their requests.
    pub(crate) board: Option<Arc<dyn Board>>,
    pub(crate) mutex: Option<Arc<dyn Mutex>>,
    pub(crate) job: Arc<dyn Job>,
    pub(crate) config: Config,
    pub(crate) reports: Reports,
    pub(crate) counters: Counters,
    pub(crate) live: Live,
    pub(crate) pauses: Pauses,
    registry: RwLock<Registry>,
    pub(crate) timer: Mailbox<TimerMail>,
    pub(crate) claimer: Mailbox<ClaimerMail>,
    pub(crate) pool: Pool,
    pub(crate) scribe: Mailbox<ScribeMail>,
    /// How many more requests of operators are taken for now.
    pub(crate) limit: std::sync::Mutex<Bucket>,
    /// Runs of slots that catch up; they have permits of their own.
    pub(crate) catching_up: AtomicUsize,
    /// The earliest monotonic deadline of a run that the scribe has not looked at, microseconds.
    deadline: AtomicU64,
    /// Reconciles so far.
    pub(crate) reconciles: AtomicU64,
    phase: AtomicU8,
    /// Notified when a run is recorded, and when a room has ended.
    pub(crate) progress: Signal,
    /// The signals of loops that reconcile; notified when the scheduler closes.
    pub(crate) loops: std::sync::Mutex<Vec<Signal>>,
    /// Whether it was closed by `close_now`.
    pub(crate) closed_now: AtomicBool,
    pub(crate) rooms_left: AtomicUsize,
    /// Rooms that may still hand something to the scribe.
    pub(crate) senders_left: AtomicUsize,
    pub(crate) pulse: Pulse,
}

/// How things stand, for `health()`.
#[derive(Default)]
pub(crate) struct Pulse {
    pub(crate) last_tick: AtomicI64,
    /// The earliest due instant of the timer's heap; the greatest number where it is empty.
    pub(crate) next_due: AtomicI64,
    pub(crate) store_faulty: AtomicBool,
    pub(crate) last_store_answer: AtomicI64,
    pub(crate) skew_micros: AtomicI64,
    pub(crate) skewed: AtomicBool,
    /// Whether the skew was told of, and not that it has passed.
    pub(crate) skew_told: AtomicBool,
    pub(crate) last_fault: std::sync::Mutex<Option<String>>,
    /// The ledger was away, and may have come back as another.
    pub(crate) describe_again: AtomicBool,
    /// What it promises since; `None`: what it did at the start.
    pub(crate) durability: std::sync::Mutex<Option<Durability>>,
    pub(crate) panicked: std::sync::Mutex<Vec<String>>,
}

/// How an instance is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Time since the timer last looked at its heap; it does so at each due instant and when plans change.
    pub last_tick_age: Option<Duration>,
    /// How long an instant that is due has waited for the timer. Next to nothing, however rare the plans' trigger points
    /// are, unless the process is starved: a bound for a health check, which the age of a tick is not.
    pub timer_late: Duration,
    /// Whether the last call to the store succeeded.
    pub store_reachable: bool,
    /// Time since the store last answered; `None` where it never did.
    pub store_answer_age: Option<Duration>,
    /// The last fault of the store, in words, where it is not reachable.
    pub store_fault: Option<String>,
    /// What the ledger promises, as it described itself at the start, and again after each outage: a server may come back
    /// with other settings.
    pub durability: Durability,
    /// The store's clock less this instance's, in microseconds, beyond what the call itself explains.
    pub skew_micros: i64,
    /// Whether the skew is beyond `max_skew`: nothing is started until it no longer is.
    pub skewed: bool,
    /// Runs that go on for longer than their budget, or than the default budget where none is set.
    pub long_runs: Vec<StillRunning>,
    /// Jobs that were told to stop at least 10 s ago and have not come back. Each has a worker to itself until it does.
    pub stuck_runs: Vec<StillRunning>,
    /// How many of the engine's threads are alive.
    pub threads_alive: usize,
    /// Threads of the engine that panicked; empty unless we have a bug.
    pub threads_panicked: Vec<String>,
    /// Whether the scheduler is closing or closed.
    pub closing: bool,
}

impl Shared {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        ledger: Arc<dyn Ledger>,
        board: Option<Arc<dyn Board>>,
        mutex: Option<Arc<dyn Mutex>>,
        job: Arc<dyn Job>,
        config: Config,
        reports: Reports,
    ) -> Self {
        let claimer = Mailbox::new();
        let pool = Pool::new(config.concurrency, config.exclusive, claimer.signal().clone());
        Self {
            clock,
            ledger,
            board,
            mutex,
            job,
            config,
            reports,
            counters: Counters::default(),
            live: Live::default(),
            pauses: Pauses::default(),
            registry: RwLock::new(Registry::default()),
            timer: Mailbox::new(),
            claimer,
            pool,
            scribe: Mailbox::new(),
            limit: std::sync::Mutex::default(),
            catching_up: AtomicUsize::new(0),
            deadline: AtomicU64::new(u64::MAX),
            reconciles: AtomicU64::new(0),
            phase: AtomicU8::new(Phase::Open as u8),
            progress: Signal::new(),
            loops: std::sync::Mutex::default(),
            closed_now: AtomicBool::new(false),
            rooms_left: AtomicUsize::new(0),
            senders_left: AtomicUsize::new(0),
            pulse: Pulse {
                next_due: AtomicI64::new(i64::MAX),
                last_store_answer: AtomicI64::new(i64::MIN),
                ..Pulse::default()
            },
        }
    }

    pub(crate) fn registry(&self) -> RwLockReadGuard<'_, Registry> {
        self.registry.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn registry_mut(&self) -> RwLockWriteGuard<'_, Registry> {
        self.registry.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn plan_key(&self, id: &PlanId) -> PlanKey {
        PlanKey::new(self.config.namespace.clone(), id.clone())
    }

    pub(crate) fn slot_key(&self, id: &PlanId, at: Trigger) -> SlotKey {
        SlotKey { plan: self.plan_key(id), at, request: None }
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Open,
            1 => Phase::Closing,
            _ => Phase::Leaving,
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.phase() != Phase::Open
    }

    /// Goes on to `phase`, never back, and wakes everybody.
    pub(crate) fn go_to(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
        self.timer.signal().notify();
        self.claimer.signal().notify();
        self.scribe.signal().notify();
        self.pool.wake_all();
        self.loops.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(Signal::notify);
        self.progress.notify();
    }

    /// A run has this deadline from now on; the scribe fires its token then.
    pub(crate) fn note_deadline(&self, at: Duration) {
        let at = crate::time::micros(at).unsigned_abs();
        if self.deadline.fetch_min(at, Ordering::AcqRel) > at {
            self.scribe.signal().notify();
        }
    }

    /// The earliest deadline noted.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        match self.deadline.load(Ordering::Acquire) {
            u64::MAX => None,
            at => Some(Duration::from_micros(at)),
        }
    }

    /// Forgets it, before all runs are looked through.
    pub(crate) fn clear_deadline(&self) {
        self.deadline.store(u64::MAX, Ordering::Release);
    }

    /// Slots of this plan may have been missed. Told once until the scribe reads it, so that a stuck scribe's mail does not
    /// grow.
    pub(crate) fn want_walk(&self, plan: &Arc<Installed>) {
        if plan.ask_walk() {
            self.scribe.send(ScribeMail::Walk(Arc::clone(plan)));
        }
    }

    /// Calls the mutex, or asks the ledger what it promises: contains panics, notes faults. Never called under a lock.
    pub(crate) fn contained<T>(
        &self,
        call: &'static str,
        f: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        Counters::add(&self.counters.store_calls, 1);
        let answer = catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| Err(panicked(call, panic)));
        answer.inspect_err(|error| self.note_fault(call, error))
    }

    /// Calls the ledger: contains panics, measures skew, notes faults. Never called under a lock.
    pub(crate) fn store<T>(
        &self,
        call: &'static str,
        f: impl FnOnce(&dyn Ledger) -> Outcome<T>,
    ) -> Result<Answer<T>, StoreError> {
        self.ask(call, || f(&*self.ledger))
    }

    /// Calls the notice board as [`store`](Self::store) calls the ledger; `None` where there is none.
    pub(crate) fn on_board<T>(
        &self,
        call: &'static str,
        f: impl FnOnce(&dyn Board) -> Outcome<T>,
    ) -> Option<Result<Answer<T>, StoreError>> {
        let board = self.board.as_ref()?;
        Some(self.ask(call, || f(&**board)))
    }

    fn ask<T>(&self, call: &'static str, f: impl FnOnce() -> Outcome<T>) -> Result<Answer<T>, StoreError> {
        Counters::add(&self.counters.store_calls, 1);
        let before = self.clock.now();
        let answer = catch_unwind(AssertUnwindSafe(f));
        let answer = answer.unwrap_or_else(|panic| Err(panicked(call, panic)));
        match &answer {
            Ok(answer) => {
                self.measure_skew(before, answer.now, self.clock.now());
                self.pulse.last_store_answer.store(answer.now.as_micros(), Ordering::Relaxed);
                if self.pulse.store_faulty.swap(false, Ordering::Relaxed) {
                    log::info!(target: "timertask::store", "{}: the store answers again", self.config.instance);
                    self.pulse.describe_again.store(true, Ordering::Release);
                    self.reports.event(&Event::StoreBack);
                }
            }
            Err(error) => self.note_fault(call, error),
        }
        answer
    }

    /// Notes a fault of a store's call.
    pub(crate) fn note_fault(&self, call: &'static str, error: &StoreError) {
        Counters::add(&self.counters.store_faults, 1);
        let text = match std::error::Error::source(error) {
            None => error.to_string(),
            Some(source) => format!("{error}: {source}"),
        };
        if !self.pulse.store_faulty.swap(true, Ordering::Relaxed) {
            log::warn!(target: "timertask::store", "{}: {call}: {text}", self.config.instance);
        }
        *self.pulse.last_fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        self.reports.event(&Event::StoreFault { call, error });
    }

    /// What the ledger promises, as far as it was asked.
    pub(crate) fn durability(&self) -> Durability {
        let known = self.pulse.durability.lock().unwrap_or_else(PoisonError::into_inner).clone();
        known.unwrap_or_else(|| self.config.durability.clone())
    }

    /// After an outage the ledger is asked once more what it promises. Where it can't say, it is asked again after the
    /// next.
    pub(crate) fn look_at_durability(&self) {
        if !self.pulse.describe_again.swap(false, Ordering::AcqRel) {
            return;
        }
        let Ok(found) = self.contained("describe", || self.ledger.describe()) else { return };
        let known = self.durability();
        if found != known {
            let instance = &self.config.instance;
            log::warn!(target: "timertask::store", "{instance}: the store came back as {found:?}; it was {known:?}");
            *self.pulse.durability.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        }
    }

    /// The store's now lies within the call where the clocks agree; what it lies outside is skew.
    fn measure_skew(&self, before: Timestamp, store: Timestamp, after: Timestamp) {
        let skew = if store < before {
            store.as_micros().saturating_sub(before.as_micros())
        } else if store > after.max(before) {
            store.as_micros().saturating_sub(after.max(before).as_micros())
        } else {
            0
        };
        self.pulse.skew_micros.store(skew, Ordering::Relaxed);
        let (off, max) = (u128::from(skew.unsigned_abs()), self.config.max_skew);
        let beyond = off > max.as_micros();
        // Told of from a half on; where it was told of, it has to come well below, so that the log does not flutter.
        let told = self.pulse.skew_told.load(Ordering::Acquire);
        let tell = off > (if told { max / 4 } else { max / 2 }).as_micros();
        let crossed = self.pulse.skewed.swap(beyond, Ordering::AcqRel) != beyond;
        if !crossed && self.pulse.skew_told.swap(tell, Ordering::AcqRel) == tell {
            return;
        }
        self.pulse.skew_told.store(tell, Ordering::Release);
        let instance = &self.config.instance;
        if beyond {
            log::error!(target: "timertask::engine", "{instance}: clock is {skew} µs off the store's, more than {max:?}: starts nothing until it isn't");
        } else if tell {
            log::warn!(target: "timertask::engine", "{instance}: clock is {skew} µs off the store's; beyond {max:?} nothing is started");
        } else {
            log::info!(target: "timertask::engine", "{instance}: clock agrees with the store's again");
        }
        if crossed {
            self.claimer.signal().notify();
            // It measures each second while it is beyond.
            self.scribe.signal().notify();
        }
        self.reports.event(&Event::Skew { micros: skew, beyond });
    }

    pub(crate) fn is_skewed(&self) -> bool {
        self.pulse.skewed.load(Ordering::Acquire)
    }

    pub(crate) fn health(&self) -> Health {
        let now = self.clock.now();
        let age = |at: i64| now.since(Timestamp::from_micros(at));
        let tick = self.pulse.last_tick.load(Ordering::Relaxed);
        let answered = self.pulse.last_store_answer.load(Ordering::Relaxed);
        let faulty = self.pulse.store_faulty.load(Ordering::Relaxed);
        let (live, mono) = (self.live.all(), self.clock.monotonic());
        let running = |which: &dyn Fn(&RunCell) -> bool| {
            live.iter().filter(|cell| which(cell)).map(|cell| self.still_running(cell)).collect()
        };
        Health {
            last_tick_age: (tick != 0).then(|| age(tick)),
            timer_late: age(self.pulse.next_due.load(Ordering::Relaxed)),
            store_reachable: !faulty,
            store_answer_age: (answered != i64::MIN).then(|| age(answered)),
            store_fault: if faulty {
                self.pulse.last_fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
            } else {
                None
            },
            durability: self.durability(),
            skew_micros: self.pulse.skew_micros.load(Ordering::Relaxed),
            skewed: self.is_skewed(),
            long_runs: running(&|cell| self.is_long(cell, now)),
            stuck_runs: running(&|cell| self.is_stuck(cell, mono)),
            threads_alive: self.rooms_left.load(Ordering::Acquire),
            threads_panicked: self.pulse.panicked.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            closing: self.is_closing(),
        }
    }
}

fn panicked(call: &str, panic: Box<dyn std::any::Any + Send>) -> StoreError {
    let said = super::worker::panic_text(panic);
    StoreError::new(StoreErrorKind::Internal, format!("{call} panicked: {said}")).unknown_outcome()
}
