//! All defaults in one place, and the checks across them.

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::budget::RetryBudget;
use crate::clock::{Clock, SystemClock};
use crate::engine::{Config, Defaults, OnRecord, Reports, Rooms, Shared, panic_text};
use crate::error::StartError;
use crate::fingerprint;
use crate::job::{BoxError, Job};
use crate::key::{InstanceId, Namespace};
use crate::memory::MemLedger;
use crate::observer::Observer;
use crate::plan::{CatchUp, OnOrphan, Pace};
use crate::reconcile::DropGuard;
use crate::record::RunRecord;
use crate::schedule::{Calendar, Dialect, Dst, SpecLimits};
use crate::scheduler::Scheduler;
use crate::seam::{Board, Durability, Ledger, Mutex, Overlap, Retention, Store, StoreError, StoreErrorKind};

/// Collects what a scheduler is made of. Nothing is checked before [`start`](Self::start).
///
/// | what | default |
/// |---|---|
/// | `concurrency` | 4 |
/// | `zone`, `dst`, `dialect` | UTC, `Dst::Auto`, `Dialect::FiveOrSix` |
/// | `overlap`, `catch_up`, `on_orphan` | `Skip`, `Latest`, `Record` |
/// | `catch_up_pace` | one at a time, a second apart |
/// | `start_window`, `max_skew` | 60 s, 5 s |
/// | `retry_budget` | none: one attempt, no time-out |
/// | `ledger` | one in memory: nothing is promised across processes |
/// | `instance` | host name and process id |
/// | `run_capacity` | 256 records |
/// | `retention` | 30 days or 1,000 records of a plan, the last 10 kept in any case |
/// | `drop_guard` | off |
#[must_use]
pub struct Builder {
    job: Arc<dyn Job>,
    clock: Arc<dyn Clock>,
    ledger: Option<Arc<dyn Ledger>>,
    board: Option<Arc<dyn Board>>,
    mutex: Option<Arc<dyn Mutex>>,
    observer: Option<Arc<dyn Observer>>,
    on_record: Option<OnRecord>,
    stale_sweep: Option<StaleSweep>,
    calendars: HashMap<Arc<str>, Arc<dyn Calendar>>,
    zone: Option<String>,
    dst: Dst,
    dialect: Dialect,
    limits: SpecLimits,
    every_from_install: bool,
    overlap: Overlap,
    catch_up: CatchUp,
    start_window: Duration,
    on_orphan: OnOrphan,
    retry: Option<RetryBudget>,
    concurrency: usize,
    catch_up_pace: Pace,
    max_skew: Duration,
    instance: Option<String>,
    version: Option<Arc<str>>,
    namespace: Option<String>,
    run_capacity: usize,
    retention: Retention,
    drop_guard: Option<DropGuard>,
}

type StaleSweep = Box<dyn Fn() -> Result<(), BoxError> + Send + Sync>;

impl Builder {
    pub(crate) fn new(job: Arc<dyn Job>) -> Self {
        Self {
            job,
            clock: Arc::new(SystemClock),
            ledger: None,
            board: None,
            mutex: None,
            observer: None,
            on_record: None,
            stale_sweep: None,
            calendars: HashMap::new(),
            zone: None,
            dst: Dst::Auto,
            dialect: Dialect::FiveOrSix,
            limits: SpecLimits::none(),
            every_from_install: false,
            overlap: Overlap::Skip,
            catch_up: CatchUp::Latest,
            start_window: Duration::from_secs(60),
            on_orphan: OnOrphan::Record,
            retry: None,
            concurrency: 4,
            catch_up_pace: Pace::default(),
            max_skew: Duration::from_secs(5),
            instance: None,
            version: None,
            namespace: None,
            run_capacity: 256,
            retention: Retention::default(),
            drop_guard: None,
        }
    }

    /// How many jobs run at once, each on a thread of its own; 0 counts as 1, which is strictly serial, more than 10,000
    /// as 10,000.
    pub fn concurrency(mut self, jobs: usize) -> Self {
        self.concurrency = jobs.clamp(1, 10_000);
        self
    }

    /// The IANA zone of plans that name none. The host's zone never decides: two instances would disagree.
    pub fn zone(mut self, name: impl Into<String>) -> Self {
        self.zone = Some(name.into());
        self
    }

    /// What happens on days on which clocks change, for plans that don't say.
    pub fn dst(mut self, dst: Dst) -> Self {
        self.dst = dst;
        self
    }

    /// Which expressions are accepted.
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// Refuses expressions that fire too often.
    pub fn spec_limits(mut self, limits: SpecLimits) -> Self {
        self.limits = limits;
        self
    }

    /// `@every` counts from the install of each plan in this process, as in the Go package; refused where instances
    /// share a store, since each would have slots of its own. Default: the shared grid from the Unix epoch.
    pub fn every_from_install(mut self) -> Self {
        self.every_from_install = true;
        self
    }

    /// A calendar that plans can name: days without trigger points. Asked on threads of the engine, never on the
    /// timer's, and without a lock. It must answer from memory: the thread that asks it also renews leases, so while one
    /// hangs, this instance's runs lose theirs.
    pub fn calendar(mut self, name: impl Into<Arc<str>>, calendar: impl Calendar + 'static) -> Self {
        self.calendars.insert(name.into(), Arc::new(calendar));
        self
    }

    /// What happens to missed slots, for plans that don't say.
    pub fn catch_up(mut self, catch_up: CatchUp) -> Self {
        self.catch_up = catch_up;
        self
    }

    /// How fast this instance makes up what was missed, over all of its plans.
    pub fn catch_up_pace(mut self, pace: Pace) -> Self {
        self.catch_up_pace = pace;
        self
    }

    /// What happens when a slot falls due while another of its plan runs, for plans that don't say.
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// How late a slot may start and still count as on time, for plans that don't say; at least 2 s.
    pub fn start_window(mut self, window: Duration) -> Self {
        self.start_window = window;
        self
    }

    /// What happens to a slot whose runner died, for plans that don't say.
    pub fn on_orphan(mut self, on_orphan: OnOrphan) -> Self {
        self.on_orphan = on_orphan;
        self
    }

    /// Sets a budget for plans that have none of their own: attempts repeat, each with a time-out.
    pub fn retry_budget(mut self, budget: RetryBudget) -> Self {
        self.retry = Some(budget);
        self
    }

    /// How far this instance's clock may be off the store's; beyond it nothing is started or accounted for.
    pub fn max_skew(mut self, skew: Duration) -> Self {
        self.max_skew = skew;
        self
    }

    /// Where time comes from. For tests: a fake clock.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// The label of this instance; for people, never proof of identity.
    pub fn instance(mut self, label: impl Into<String>) -> Self {
        self.instance = Some(label.into());
        self
    }

    /// The code version of this instance, for the records.
    pub fn version(mut self, version: impl Into<Arc<str>>) -> Self {
        self.version = Some(version.into());
        self
    }

    /// Keeps services apart that share a store: 1–64 of `A-Z a-z 0-9 _ . -`.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// A lock that instances share, where they share no ledger ("mutex only"). Leases are fixed, catch-up reaches no
    /// farther than the start window, and overlap, audit and history are this process's own.
    pub fn mutex(mut self, mutex: impl Mutex + 'static) -> Self {
        self.mutex = Some(Arc::new(mutex));
        self
    }

    /// The ledger that instances share, where there is no notice board beside it. Requests of operators in other processes
    /// are not found then, and a backfill ends with the instance that was asked for it.
    pub fn ledger(mut self, ledger: impl Ledger + 'static) -> Self {
        self.ledger = Some(Arc::new(ledger));
        self.board = None;
        self
    }

    /// The store that instances share: its ledger, and its notice board for the requests of
    /// [operators](crate::Operator).
    pub fn store(mut self, store: impl Store + 'static) -> Self {
        let store = Arc::new(store);
        self.ledger = Some(Arc::clone(&store) as Arc<dyn Ledger>);
        self.board = Some(store);
        self
    }

    /// Hears all events.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Hears each record once, for those who want them in a table or stream of their own. A panic is contained.
    pub fn on_record(mut self, f: impl Fn(&RunRecord) + Send + Sync + 'static) -> Self {
        self.on_record = Some(Box::new(f));
        self
    }

    /// How many records `run_history` keeps.
    pub fn run_capacity(mut self, records: usize) -> Self {
        self.run_capacity = records;
        self
    }

    /// What is kept of old records in the ledger, for each plan that is installed here. A ledger in memory forgets by
    /// its own rule instead.
    pub fn retention(mut self, keep: Retention) -> Self {
        self.retention = keep;
        self
    }

    /// Called by `start_reconcile` and `spawn_reconcile` before their first reconcile, to sweep up what an earlier life
    /// of the process left in the caller's own tables.
    pub fn stale_sweep(mut self, f: impl Fn() -> Result<(), BoxError> + Send + Sync + 'static) -> Self {
        self.stale_sweep = Some(Box::new(f));
        self
    }

    /// Refuses sets of plans that drop more than this.
    pub fn drop_guard(mut self, guard: DropGuard) -> Self {
        self.drop_guard = Some(guard);
        self
    }

    /// Checks all of it and starts the engine's threads.
    ///
    /// # Errors
    /// [`StartError`] says what does not fit together. Nothing is left running.
    ///
    /// # Blocking
    /// As long as the store takes to describe itself.
    pub fn start(self) -> Result<Scheduler, StartError> {
        let shared_parts = self.ledger.is_some() || self.mutex.is_some();
        let namespace = self.namespace.map_or_else(|| Ok(Namespace::default()), Namespace::new)?;
        let instance = InstanceId::new(self.instance.unwrap_or_else(label))?;
        if self.start_window < Duration::from_secs(2) {
            return Err(StartError::StartWindow(self.start_window));
        }
        if let Some(guard) = self.drop_guard.filter(|guard| !(0.0..=1.0).contains(&guard.fraction)) {
            return Err(StartError::DropGuard(guard.fraction));
        }
        if self.every_from_install && shared_parts {
            return Err(StartError::EveryBaseShared);
        }
        let zone = match self.zone {
            None => chrono_tz::UTC,
            Some(name) => {
                chrono_tz::Tz::from_str(&name).map_err(|_| StartError::Zone(name.chars().take(40).collect()))?
            }
        };
        let exclusive = self.ledger.is_none() && self.mutex.is_none();
        let ledger = self.ledger.unwrap_or_else(|| Arc::new(MemLedger::with_clock(Arc::clone(&self.clock))));
        let durability = catch_unwind(AssertUnwindSafe(|| ledger.describe()))
            .unwrap_or_else(|panic| {
                let said = format!("describe panicked: {}", panic_text(panic));
                Err(StoreError::new(StoreErrorKind::Internal, said))
            })
            .map_err(StartError::Store)?;
        if self.mutex.is_some() {
            if durability != Durability::Volatile {
                return Err(StartError::MutexAndLedger);
            }
            let ttl = self.retry.unwrap_or_default().lock_ttl();
            let sum = self.start_window.saturating_add(self.max_skew.saturating_mul(2));
            if sum >= ttl {
                return Err(StartError::LockTooShort { sum, ttl });
            }
        }
        if !shared_parts {
            log::info!(target: "timertask::engine", "{instance}: no shared store: nothing is promised across processes");
        }
        let defaults = Defaults {
            zone,
            dst: self.dst,
            dialect: self.dialect,
            limits: self.limits,
            every_from_install: self.every_from_install,
            overlap: self.overlap,
            catch_up: self.catch_up,
            start_window: self.start_window,
            on_orphan: self.on_orphan,
            retry: self.retry,
        };
        let config = Config {
            namespace,
            instance,
            version: self.version,
            concurrency: self.concurrency,
            catch_up_pace: self.catch_up_pace,
            max_skew: self.max_skew,
            defaults_fingerprint: fingerprint::of_defaults(&defaults),
            defaults,
            job_names: self.job.names(),
            calendars: self.calendars,
            drop_guard: self.drop_guard,
            retention: (durability != Durability::Volatile).then_some(self.retention),
            durability,
            stale_sweep: self.stale_sweep,
            exclusive,
        };
        let reports = Reports::new(self.observer, self.on_record, self.run_capacity);
        let shared = Arc::new(Shared::new(self.clock, ledger, self.board, self.mutex, self.job, config, reports));
        let rooms = Rooms::start(&shared).map_err(StartError::Thread)?;
        Ok(Scheduler::new(shared, rooms))
    }
}

/// Host name and process id.
fn label() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = host.as_deref().map(str::trim).filter(|host| !host.is_empty() && host.len() < 200);
    format!("{}-{}", host.unwrap_or("host"), std::process::id())
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("concurrency", &self.concurrency)
            .field("ledger", &self.ledger.is_some())
            .field("mutex", &self.mutex.is_some())
            .finish_non_exhaustive()
    }
}
