//! Several schedulers on one store and one simulated clock, with the faults of machines and networks at one method call
//! each, and a check of every promise afterwards.
//!
//! * `build`: what a cluster is made of
//! * `link`: one instance's way to the store
//! * `journal`: the jobs' own log
//! * `witness`: what the store was asked and answered
//! * `check`: the promises, verified over all of it
//! * `expect`: helpers that name slot and instance when they fail

mod build;
mod check;
mod expect;
mod journal;
mod link;
mod witness;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::TimeDelta;
use timertask_core::clock::Clock;
use timertask_core::key::{Fingerprint, Namespace, PlanKey};
use timertask_core::seam::{Ledger, Store};
use timertask_core::time::Timestamp;
use timertask_core::{Job, Plan, Scheduler};

pub use build::ClusterBuilder;
pub use check::{Promise, Summary, Violation};
pub use journal::{Left, Start};

use build::{Configure, Open, Opened};
use check::Expectation;
use journal::{Journal, Recorded};
use link::{Line, Link};
use witness::{Witness, Witnessed};

use crate::clock::{ClockView, FakeClock, Trace};
use crate::faulty::Faulty;

/// How far an instance's clock may be off the store's before it stops starting; the engine's default.
const MAX_SKEW: TimeDelta = TimeDelta::seconds(5);

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
    configure: Configure,
    job: Arc<dyn Job>,
    concurrency: usize,
    namespace: Namespace,
    journal: Journal,
    witness: Witness,
    expected: HashMap<(PlanKey, Fingerprint), Expectation>,
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
        let open = builder.open.unwrap_or_else(|| ClusterBuilder::default_store(&clock));
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
            configure: builder.configure,
            job: builder.job,
            concurrency: builder.concurrency,
            namespace: Namespace::default(),
            journal: Journal::default(),
            witness,
            expected: HashMap::new(),
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

    /// The store, without anybody's faults.
    #[must_use]
    pub fn ledger(&self) -> &dyn Ledger {
        &*self.base.inner().ledger
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
            let window = view.offset.saturating_add(view.start_window);
            let expected = Expectation { schedule: view.schedule, window };
            self.expected.entry(version).or_insert(expected);
        }
        self.life_mut(index).installed = installed;
    }

    /// Kills a process, as SIGKILL does; see [`ClockView::kill`].
    ///
    /// # Panics
    /// Where it does not live.
    ///
    /// # Blocking
    /// Until its stacks are unwound.
    pub fn kill(&mut self, index: usize) {
        self.life(index).view.kill();
        self.clock.note_with(|| format!("instance {index} is killed"));
        self.instances[index].live = None;
    }

    /// Closes an instance, as a deploy does, with so much time for its runs.
    ///
    /// # Panics
    /// Where it does not live.
    ///
    /// # Blocking
    /// Until it is closed; that takes as much simulated time as its runs want, at most `timeout` and two seconds.
    pub fn stop(&mut self, index: usize, timeout: Duration) {
        self.clock.note_with(|| format!("instance {index} is stopped"));
        if let Err(error) = self.life(index).scheduler.close(timeout) {
            panic!("instance {index} did not close: {error}");
        }
        // The process exits with whatever it still holds.
        self.life(index).view.kill();
        self.instances[index].live = None;
    }

    /// Stops a process where it stands, as SIGSTOP does.
    ///
    /// # Panics
    /// Where it does not live.
    pub fn freeze(&mut self, index: usize) {
        self.clock.note_with(|| format!("instance {index} is frozen"));
        self.life(index).view.freeze();
        self.refit(index);
    }

    /// Puts an instance's host to sleep, until [`thaw`](Self::thaw).
    ///
    /// # Panics
    /// Where it does not live.
    pub fn suspend(&mut self, index: usize) {
        self.clock.note_with(|| format!("the host of instance {index} sleeps"));
        self.life(index).view.suspend();
        self.refit(index);
    }

    /// Lets a frozen or suspended process go on.
    ///
    /// # Panics
    /// Where it does not live.
    ///
    /// # Blocking
    /// Until all are at rest.
    pub fn thaw(&mut self, index: usize) {
        self.clock.note_with(|| format!("instance {index} goes on"));
        self.life(index).view.thaw();
        self.refit(index);
        self.clock.settle();
    }

    /// Sets how far an instance's wall clock is ahead of all others (behind, where negative).
    ///
    /// # Panics
    /// Where it does not live.
    ///
    /// # Blocking
    /// Until all are at rest.
    pub fn skew(&mut self, index: usize, skew: TimeDelta) {
        self.clock.note_with(|| format!("instance {index} is skewed by {skew}"));
        self.life(index).view.set_skew(skew);
        self.refit(index);
        self.clock.settle();
    }

    /// Steps all wall clocks, the store's too; see [`FakeClock::step_wall`].
    ///
    /// # Blocking
    /// Until all are at rest.
    pub fn step_wall(&mut self, by: TimeDelta) {
        self.clock.note_with(|| format!("wall clocks are stepped by {by}"));
        self.clock.step_wall(by);
        let now = self.clock.now();
        for life in self.instances.iter_mut().filter_map(|instance| instance.live.as_mut()) {
            life.fit_since = life.fit_since.map(|_| now);
            life.line.forget();
        }
        self.clock.settle();
    }

    /// All hosts sleep for `d`; see [`FakeClock::suspend`].
    ///
    /// # Blocking
    /// Until all are at rest.
    pub fn suspend_all(&mut self, d: Duration) {
        self.step_wall(TimeDelta::from_std(d).unwrap_or(TimeDelta::MAX));
    }

    /// Cuts an instance off the store: each call fails at once as unreachable.
    ///
    /// # Panics
    /// Where it does not live.
    pub fn cut_off(&mut self, index: usize) {
        self.clock.note_with(|| format!("instance {index} is cut off"));
        self.life(index).line.cut.store(true, Ordering::Release);
        self.refit(index);
    }

    /// Undoes [`cut_off`](Self::cut_off).
    ///
    /// # Panics
    /// Where it does not live.
    pub fn reconnect(&mut self, index: usize) {
        self.clock.note_with(|| format!("instance {index} is connected"));
        self.life(index).line.cut.store(false, Ordering::Release);
        self.refit(index);
    }

    /// Whether the instance is fit has changed, or may have.
    fn refit(&mut self, index: usize) {
        let now = self.clock.now();
        let life = self.life_mut(index);
        let fit =
            !life.view.is_frozen() && !life.line.cut.load(Ordering::Acquire) && life.view.skew().abs() <= MAX_SKEW;
        life.fit_since = fit.then(|| life.fit_since.unwrap_or(now));
    }

    /// The lives that nothing is wrong with, and since when it has been so.
    fn fit(&self) -> impl Iterator<Item = (usize, &Life, Timestamp)> {
        let now = self.clock.now();
        let live = self.instances.iter().enumerate().filter_map(|(i, instance)| Some((i, instance.live.as_ref()?)));
        live.filter_map(move |(i, life)| {
            let well = life.view.is_alive() && !life.view.is_frozen() && !life.line.hangs();
            let thawed = life.view.thawed_ago().map(|ago| now.saturating_sub(ago));
            let since = life.fit_since.filter(|_| well)?;
            Some((i, life, [thawed, life.line.last_fault()].into_iter().flatten().fold(since, Timestamp::max)))
        })
    }

    /// Since when the fittest of them has been fit, and has reached the store.
    fn healthy_since(&self) -> Option<Timestamp> {
        self.fit().map(|(_, _, since)| since).min()
    }

    /// The same for each version of a plan: since when an instance has been fit in which it is installed.
    fn cared_for_since(&self) -> HashMap<(PlanKey, Fingerprint), Timestamp> {
        let mut by_plan: HashMap<(PlanKey, Fingerprint), Timestamp> = HashMap::new();
        for (_, life, since) in self.fit() {
            for (plan, installed) in &life.installed {
                let since = since.max(*installed);
                by_plan.entry(plan.clone()).and_modify(|there| *there = since.min(*there)).or_insert(since);
            }
        }
        by_plan
    }

    /// Whether a fit instance has a free worker.
    fn free_worker(&self) -> bool {
        self.journal.read(|starts| {
            self.fit().any(|(index, ..)| {
                let life = self.instances[index].life;
                let busy = starts.iter().filter(|s| s.instance == index && s.life == life && s.left.is_none()).count();
                busy < self.concurrency.max(1)
            })
        })
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
