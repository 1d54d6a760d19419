//! Several schedulers on one store and one simulated clock, with the faults of machines and networks at one method call
//! each, and a check of every promise afterwards.
//!
//! * `build`: what a cluster is made of
//! * `befall`: what befalls it
//! * `health`: which instances are well, and since when
//! * `link`: one instance's way to the store
//! * `journal`: the jobs' own log
//! * `witness`: what the store was asked and answered
//! * `rewind`: setting a store back
//! * `check`: the promises, verified over all of it
//! * `timely`: the promise that a slot starts in its window
//! * `rows`: reading the whole store
//! * `expect`: helpers that name slot and instance when they fail

mod befall;
mod build;
mod check;
mod expect;
mod health;
mod journal;
mod link;
mod rewind;
mod rows;
mod timely;
mod witness;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use timertask_core::clock::Clock;
use timertask_core::key::{Fingerprint, Namespace, PlanKey};
use timertask_core::seam::{Ledger, Store};
use timertask_core::time::Timestamp;
use timertask_core::{Job, Plan, Scheduler};

pub use build::ClusterBuilder;
pub use check::{Promise, Summary, Violation};
pub use journal::{Left, Start};
pub use rewind::{Rewind, SavedStore};

use build::{Configure, Open, Opened};
use check::Expectation;
use journal::{Journal, Recorded};
use link::{Line, Link};
use witness::{Witness, Witnessed};

use crate::clock::{ClockView, FakeClock, Trace};
use crate::faulty::Faulty;

/// Several schedulers, one store, one clock.
///
/// ```
/// use std::time::Duration;
/// use timertask_core::Plan;
/// use timertask_testkit::Cluster;
///
/// let mut cluster = Cluster::builder().instances(2).seed(7).plans([Plan::new("report", "*/5 * * * *")]).build();
/// cluster.advance(Duration::from_secs(1800));
/// cluster.kill(0);
/// cluster.advance(Duration::from_secs(1800));
/// cluster.expect_starts("report", 12);
/// cluster.check();
/// ```
pub struct Cluster {
    clock: FakeClock,
    instances: Vec<Instance>,
    plans: Vec<Plan>,
    base: Faulty<Witnessed>,
    open: Open,
    rewind: Option<Box<dyn Rewind>>,
    configure: Configure,
    job: Arc<dyn Job>,
    concurrency: usize,
    namespace: Namespace,
    journal: Journal,
    witness: Witness,
    expected: HashMap<(PlanKey, Fingerprint), Expectation>,
    /// The latest wall time from which the clocks were stepped: what is not after it may be lived through once more.
    lived_until: Timestamp,
}

struct Instance {
    label: String,
    life: u32,
    /// `None` after a kill or a stop.
    live: Option<Life>,
}

struct Life {
    view: ClockView,
    scheduler: Scheduler,
    store: Faulty<Witnessed>,
    line: Arc<Line>,
    /// Since when nothing has been wrong with it, that the cluster did; `None` where something is.
    fit_since: Option<Timestamp>,
    /// The plans installed in it, under which fingerprint, and since when.
    installed: HashMap<(PlanKey, Fingerprint), Timestamp>,
}

impl Cluster {
    /// What to make one of.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::new()
    }

    fn start(builder: ClusterBuilder) -> Self {
        let clock = builder.clock;
        let (open, rewind) = match builder.open {
            Some(open) => (open, builder.rewind),
            None => ClusterBuilder::default_store(&clock),
        };
        let witness = Witness::default();
        let Opened { ledger, board } = open(Arc::new(clock.clone()));
        let ledger = Witnessed { ledger, board, witness: witness.clone() };
        let base = Faulty::new(ledger, Arc::new(clock.clone()));
        let labels = (0..builder.instances).map(|index| (builder.labels)(index));
        let mut cluster = Self {
            instances: labels.map(|label| Instance { label, life: 0, live: None }).collect(),
            plans: builder.plans,
            base,
            open,
            rewind,
            configure: builder.configure,
            job: builder.job,
            concurrency: builder.concurrency,
            namespace: Namespace::default(),
            journal: Journal::default(),
            witness,
            expected: HashMap::new(),
            lived_until: Timestamp::EPOCH,
            clock,
        };
        for index in 0..builder.instances {
            if index > 0 {
                cluster.clock.advance(builder.stagger);
            }
            cluster.restart(index);
        }
        cluster
    }

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> &FakeClock {
        &self.clock
    }

    /// Wall time, without any instance's skew.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// What was done so far, in which order.
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.clock.trace()
    }

    /// How many instances, dead ones included.
    #[must_use]
    pub fn instances(&self) -> usize {
        self.instances.len()
    }

    /// Moves time on; see [`FakeClock::advance`].
    ///
    /// # Panics
    /// As [`FakeClock::advance`].
    ///
    /// # Blocking
    /// Until all are at rest.
    pub fn advance(&mut self, d: Duration) {
        self.clock.advance(d);
    }

    /// The scheduler of an instance that lives.
    ///
    /// # Panics
    /// Where it does not.
    pub fn scheduler(&self, index: usize) -> &Scheduler {
        &self.life(index).scheduler
    }

    /// The way of this instance to the store, in its present life: for faults of single calls.
    ///
    /// # Panics
    /// Where it does not live.
    #[must_use]
    pub fn store_of(&self, index: usize) -> &Faulty<impl Ledger + use<>> {
        &self.life(index).store
    }

    /// The clock of this instance, in its present life.
    ///
    /// # Panics
    /// Where it does not live.
    #[must_use]
    pub fn view(&self, index: usize) -> &ClockView {
        &self.life(index).view
    }

    /// The store, without anybody's faults: for what operators and tools do, a purge or a pause, say.
    #[must_use]
    pub fn ledger(&self) -> &dyn Ledger {
        self.base.inner()
    }

    /// How many calls of the store met a fault so far, over all instances and their lives.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.base.faults_by_anybody()
    }

    /// The store with its notice board, without anybody's faults: for an operator beside the instances.
    ///
    /// # Panics
    /// Where it has no notice board.
    #[must_use]
    pub fn store(&self) -> impl Store + Clone + use<> {
        assert!(self.base.inner().board.is_some(), "the cluster's store has no notice board");
        self.base.clone()
    }

    /// Whether the instance lives: was started, and neither killed nor stopped.
    #[must_use]
    pub fn lives(&self, index: usize) -> bool {
        self.instances[index].live.is_some()
    }

    fn life(&self, index: usize) -> &Life {
        match self.instances.get(index).map(|instance| &instance.live) {
            Some(Some(life)) => life,
            Some(None) => panic!("instance {index} does not live"),
            None => panic!("there is no instance {index}; there are {}", self.instances.len()),
        }
    }

    fn life_mut(&mut self, index: usize) -> &mut Life {
        let n = self.instances.len();
        match self.instances.get_mut(index).map(|instance| &mut instance.live) {
            Some(Some(life)) => life,
            Some(None) => panic!("instance {index} does not live"),
            None => panic!("there is no instance {index}; there are {n}"),
        }
    }

    /// Starts an instance that was killed or stopped, as a new process; one that lives is killed first. It reconciles the
    /// present plans.
    ///
    /// # Panics
    /// Where it does not start, or refuses the plans.
    ///
    /// # Blocking
    /// Until all are at rest.
    pub fn restart(&mut self, index: usize) {
        self.clock.note_with(|| format!("instance {index} starts"));
        if self.lives(index) {
            self.kill(index);
        }
        let instance = &mut self.instances[index];
        instance.life += 1;
        let (label, life) = (instance.label.clone(), instance.life);
        let view = self.clock.view(&format!("{index}.{life}"));
        let Opened { ledger, board } = (self.open)(Arc::new(view.clone()));
        let has_board = board.is_some();
        let ledger = Witnessed { ledger, board, witness: self.witness.clone() };
        let store = self.base.handle_by(ledger, Arc::new(view.clone()));
        let line = Arc::new(Line::default());
        let link =
            Link { view: view.clone(), clock: self.clock.clone(), line: Arc::clone(&line), store: store.clone() };
        let job = Recorded {
            job: Arc::clone(&self.job),
            journal: self.journal.clone(),
            clock: self.clock.clone(),
            view: view.clone(),
            instance: index,
            life,
        };
        let builder = Scheduler::builder(job).clock(view.clone()).instance(label);
        let builder = if has_board { builder.store(link) } else { builder.ledger(link) };
        let scheduler = match (self.configure)(index, builder.concurrency(self.concurrency)).start() {
            Ok(scheduler) => scheduler,
            Err(error) => panic!("instance {index} did not start: {error}"),
        };
        let fit_since = Some(self.clock.now());
        if self.clock.is_threaded() {
            // Its threads are known to the clock from their first wait on.
            let others =
                self.instances.iter().filter_map(|i| i.live.as_ref()).map(|l| l.scheduler.health().threads_alive);
            self.clock.await_threads(others.sum::<usize>() + scheduler.health().threads_alive);
        }
        self.instances[index].live = Some(Life { view, scheduler, store, line, fit_since, installed: HashMap::new() });
        self.reconcile_on(index, self.plans.clone());
        self.clock.settle();
    }

    /// Makes these the plans of all instances that live, and of those that are started later.
    ///
    /// # Panics
    /// Where an instance refuses the set or one of the plans.
    ///
    /// # Blocking
    /// Until all are at rest.
    pub fn reconcile(&mut self, plans: impl IntoIterator<Item = Plan>) {
        self.plans = plans.into_iter().collect();
        for index in 0..self.instances.len() {
            if self.lives(index) {
                self.reconcile_on(index, self.plans.clone());
            }
        }
        self.clock.settle();
    }

    /// Makes these the plans of one instance, as in the midst of a rolling deploy. Does not settle.
    ///
    /// # Panics
    /// Where it refuses the set or one of the plans, or does not live.
    pub fn reconcile_on(&mut self, index: usize, plans: impl IntoIterator<Item = Plan>) {
        self.clock.note_with(|| format!("instance {index} reconciles"));
        match self.life(index).scheduler.reconcile(plans) {
            Ok(report) if report.failed.is_empty() => {}
            Ok(report) => panic!("instance {index} refuses plans: {:?}", report.failed),
            Err(error) => panic!("instance {index} refuses the plans: {error}"),
        }
        self.learn(index);
    }

    /// Remembers what the installed plans expect, by fingerprint.
    fn learn(&mut self, index: usize) {
        let Ok(views) = self.life(index).scheduler.plans() else { return };
        let now = self.clock.now();
        let mut installed = HashMap::new();
        for view in views {
            let plan = PlanKey::new(self.namespace.clone(), view.id);
            let version = (plan, view.fingerprint);
            installed.insert(version.clone(), self.life(index).installed.get(&version).copied().unwrap_or(now));
            let expected =
                Expectation { schedule: view.schedule, offset: view.offset, start_window: view.start_window };
            self.expected.entry(version).or_insert(expected);
        }
        self.life_mut(index).installed = installed;
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Handles first: they only signal. What is left of the rooms goes with the clock.
        self.instances.clear();
        self.clock.shutdown();
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let live: Vec<usize> = (0..self.instances.len()).filter(|index| self.lives(*index)).collect();
        f.debug_struct("Cluster")
            .field("now", &self.now())
            .field("seed", &self.clock.seed())
            .field("live", &live)
            .finish_non_exhaustive()
    }
}
