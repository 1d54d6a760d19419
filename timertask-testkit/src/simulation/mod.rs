//! Random runs of whole clusters, by seed: real schedulers on one store and one clock, under everything that can befall
//! machines, networks, clocks and stores; afterwards every promise is checked.
//!
//! A run draws from its seed what it is about: two to four instances; plans with policies of their own, in several
//! versions, some in zones whose clocks are about to change; jobs that are fast, slow, or deaf to being told to stop; and
//! which kinds of [trouble](Trouble) there are, and how much of each. Since few kinds at a time go deeper than all at
//! once, most runs have some of them only. Time goes on by random steps, the promises are checked between all of them,
//! and at last all are well again, jobs too: then every slot has to be accounted for, and nothing may starve.
//!
//! ```
//! use timertask_testkit::simulation;
//!
//! let report = simulation::run(7);
//! println!("{report}");
//! // The same seed, the same run.
//! assert_eq!(report.trace, simulation::run(7).trace);
//! ```
//!
//! A run panics where a promise is broken. The message names the seed, and running that seed again does exactly the same.
//! [`run_on`] and [`run_opened`] do it on a store of your own, [`run_rewinding`] on one that can also be set back as a
//! failover does that loses acknowledged writes.
//!
//! What it cannot show: threads that really run at the same time (one room runs at a time; `FakeClock::threaded` and the
//! tests of `Signal` are for that), a store's own behaviour under power loss, and the clock of a server that keeps its own.

mod scene;
mod trouble;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{AddAssign, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use chrono::TimeDelta;
use timertask_core::clock::Clock;
use timertask_core::key::{Namespace, PlanKey};
use timertask_core::seam::{PlanOp, Query};
use timertask_core::{MemLedger, Plan, Store};

pub use trouble::Trouble;

use crate::clock::{FakeClock, Trace};
use crate::cluster::{Cluster, ClusterBuilder, Rewind, SavedStore, Summary};
use scene::Scene;

/// What one run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// What was done in which order.
    pub trace: Trace,
    /// What the last check counted.
    pub summary: Summary,
    /// What happened, in numbers.
    pub tally: Tally,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, hash {:016x}: {}", self.seed, self.trace.hash, self.tally)
    }
}

/// What happened in one run or many, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// Runs.
    pub runs: u64,
    /// Steps of all rooms.
    pub steps: u64,
    /// Entries into jobs.
    pub starts: u64,
    /// Slots that the schedules expected at the end.
    pub expected: u64,
    /// What befell them, by kind.
    pub troubles: BTreeMap<Trouble, u64>,
    /// Calls of the store that failed, got lost, hung, came late or came twice.
    pub faults: u64,
}

impl Tally {
    /// All that was injected: troubles, and calls of the store that met a fault.
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.troubles.values().sum::<u64>() + self.faults
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.runs += other.runs;
        self.steps += other.steps;
        self.starts += other.starts;
        self.expected += other.expected;
        self.faults += other.faults;
        for (trouble, n) in other.troubles {
            *self.troubles.entry(trouble).or_default() += n;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { runs, steps, starts, faults, .. } = self;
        write!(
            f,
            "{runs} runs, {steps} steps, {starts} starts, {} faults injected ({faults} calls of the store",
            self.injected()
        )?;
        self.troubles.iter().try_for_each(|(trouble, n)| write!(f, ", {trouble} {n}"))?;
        f.write_str(")")
    }
}

/// A run on the built-in ledger, which is also set back.
///
/// # Panics
/// Where a promise is broken, with the seed.
///
/// # Blocking
/// Until it is over: some ten milliseconds.
#[must_use]
pub fn run(seed: u64) -> Report {
    run_rewinding(seed, |clock| MemLedger::with_clock(Arc::new(clock)).keeping(usize::MAX))
}

/// A run for each of the seeds.
///
/// # Panics
/// As [`run`].
///
/// # Blocking
/// Until all are over.
#[must_use]
pub fn runs(seeds: Range<u64>) -> Tally {
    let mut tally = Tally::default();
    for seed in seeds {
        tally += run(seed).tally;
    }
    tally
}

/// A run on a store made by `make`, whose clones share it and whose time is that of the given clock.
///
/// # Panics
/// As [`run`].
///
/// # Blocking
/// Until it is over.
#[must_use]
pub fn run_on<L: Store + Clone + 'static>(seed: u64, make: impl FnOnce(FakeClock) -> L) -> Report {
    let scene = Scene::draw(seed, false, None);
    let ledger = make(scene.clock.clone());
    play(scene, |builder| builder.store(move |_| ledger.clone()))
}

/// As [`run_on`], on a store that can be set back, and is.
///
/// # Panics
/// As [`run`].
///
/// # Blocking
/// Until it is over.
#[must_use]
pub fn run_rewinding<L: Rewind + Clone + 'static>(seed: u64, make: impl FnOnce(FakeClock) -> L) -> Report {
    let scene = Scene::draw(seed, true, None);
    let ledger = make(scene.clock.clone());
    play(scene, |builder| builder.rewinding_store(ledger))
}

/// As [`run_rewinding`], with these kinds of trouble and no other: to look closely at what a store does under them.
///
/// # Panics
/// As [`run`].
///
/// # Blocking
/// Until it is over.
#[must_use]
pub fn run_under<L: Rewind + Clone + 'static>(
    seed: u64,
    troubles: &[Trouble],
    make: impl FnOnce(FakeClock) -> L,
) -> Report {
    let scene = Scene::draw(seed, true, Some(troubles));
    let ledger = make(scene.clock.clone());
    play(scene, |builder| builder.rewinding_store(ledger))
}

/// A run on a store that each instance opens with its own clock, skewed as that is: one whose time is its host's.
///
/// # Panics
/// As [`run`].
///
/// # Blocking
/// Until it is over.
#[must_use]
pub fn run_opened<L: Store + 'static>(seed: u64, open: impl Fn(Arc<dyn Clock>) -> L + Send + 'static) -> Report {
    play(Scene::draw(seed, false, None), |builder| builder.store(open))
}

/// Tells the seed, and what happened last, where a run ends by a panic, whatever that says.
struct Told(u64, FakeClock);

/// How many lines of what happened last.
const LAST: usize = 100;

impl Drop for Told {
    fn drop(&mut self) {
        if thread::panicking() {
            let recent = self.1.trace().recent;
            for line in &recent[recent.len().saturating_sub(LAST)..] {
                eprintln!("{line}");
            }
            eprintln!("the simulation with seed {} failed; running that seed again does the same", self.0);
        }
    }
}

/// A run, as it goes.
struct Play {
    scene: Scene,
    cluster: Cluster,
    /// The version of the plans that the instances are to have.
    version: u64,
    saved: Option<SavedStore>,
    tally: Tally,
}

fn play(scene: Scene, store: impl FnOnce(ClusterBuilder) -> ClusterBuilder) -> Report {
    let _told = Told(scene.seed, scene.clock.clone());
    let builder = store(scene.builder());
    let mut play =
        Play { cluster: builder.build(), version: 0, saved: None, tally: Tally { runs: 1, ..Tally::default() }, scene };
    for _ in 0..play.scene.steps {
        let step = play.scene.step();
        play.cluster.advance(step);
        // Most promises hold at each instant.
        play.cluster.check();
        if let Some(trouble) = play.scene.trouble()
            && play.befall(trouble)
        {
            *play.tally.troubles.entry(trouble).or_default() += 1;
        }
    }
    play.cluster.check();
    play.recover();
    play.report()
}

impl Play {
    fn plans(&self, version: u64) -> Vec<Plan> {
        self.scene.plans(version)
    }

    /// Everybody is well again, with the same plans and jobs that return at once, for long enough.
    fn recover(&mut self) {
        self.scene.calm.store(true, Ordering::Relaxed);
        for key in self.plan_keys() {
            self.resume(&key);
        }
        for index in 0..self.cluster.instances() {
            if self.cluster.lives(index) && self.cluster.view(index).is_alive() {
                self.cluster.store_of(index).heal();
                self.cluster.reconnect(index);
                self.cluster.skew(index, TimeDelta::zero());
                self.cluster.thaw(index);
            } else {
                self.cluster.restart(index);
            }
        }
        // Who finds another generation than its own at two reconciles running opens its own again.
        let plans = self.plans(self.version);
        for _ in 0..3 {
            self.cluster.reconcile(plans.clone());
            self.cluster.advance(Duration::from_secs(20));
        }
        self.cluster.advance(Duration::from_secs(900));
    }

    fn report(mut self) -> Report {
        let summary = self.cluster.check();
        // Nothing starves behind what its plan runs now.
        let now = self.cluster.now();
        if let Some(oldest) = summary.oldest_pending {
            let age = now.since(oldest.timestamp());
            assert!(age <= Duration::from_secs(420), "seed {}: pending since {oldest}, at {now}", self.scene.seed);
        }
        let trace = self.cluster.trace();
        self.tally.steps = trace.steps;
        self.tally.starts = summary.starts as u64;
        self.tally.expected = summary.expected as u64;
        self.tally.faults = self.cluster.faults();
        Report { seed: self.scene.seed, trace, summary, tally: self.tally }
    }

    /// The keys of the plans that the store knows, and of all together.
    fn plan_keys(&self) -> Vec<PlanKey> {
        let namespace = Namespace::default();
        let query = Query::Plans { namespace: namespace.clone(), after: None, limit: 1000 };
        let plans = match self.cluster.ledger().read(&query) {
            Ok(answer) => answer.value.plans,
            Err(error) => panic!("the store cannot be read: {error}"),
        };
        [PlanKey::whole(namespace)].into_iter().chain(plans.into_iter().map(|(key, _)| key)).collect()
    }

    /// Ends the pause of a plan, or of all, if there is one.
    fn resume(&self, key: &PlanKey) -> bool {
        let Some(pause) = self.plan(key, PlanOp::Read).and_then(|row| row.pause) else { return false };
        let resumed = self.plan(key, PlanOp::Resume { since: pause.since, lapsed_only: false });
        resumed.is_some_and(|row| row.pause.is_none())
    }
}
