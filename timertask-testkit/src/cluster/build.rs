//! What a cluster is made of, before it starts.

use std::sync::Arc;
use std::time::Duration;

use timertask_core::clock::Clock;
use timertask_core::{Board, BoxError, Builder, Job, Ledger, MemLedger, Plan, Run, Store};

use super::{Cluster, Rewind};
use crate::clock::FakeClock;

pub(super) type Open = Box<dyn Fn(Arc<dyn Clock>) -> Opened + Send>;

/// A store, as it was opened.
pub(super) struct Opened {
    pub(super) ledger: Arc<dyn Ledger>,
    pub(super) board: Option<Arc<dyn Board>>,
}

impl Opened {
    fn of(store: impl Store + 'static) -> Self {
        let store = Arc::new(store);
        Self { ledger: Arc::clone(&store) as Arc<dyn Ledger>, board: Some(store) }
    }
}

pub(super) type Configure = Box<dyn Fn(usize, Builder) -> Builder + Send>;

/// What a [`Cluster`] is made of: by default one instance, a fixed order, a [`MemLedger`] that forgets nothing, no plans,
/// and a job that does nothing.
#[must_use = "nothing starts before `build`"]
pub struct ClusterBuilder {
    pub(super) instances: usize,
    pub(super) clock: FakeClock,
    pub(super) stagger: Duration,
    pub(super) open: Option<Open>,
    pub(super) rewind: Option<Box<dyn Rewind>>,
    pub(super) plans: Vec<Plan>,
    pub(super) job: Arc<dyn Job>,
    pub(super) configure: Configure,
    pub(super) labels: Box<dyn Fn(usize) -> String + Send>,
    pub(super) concurrency: usize,
}

impl ClusterBuilder {
    pub(super) fn new() -> Self {
        Self {
            instances: 1,
            clock: FakeClock::new(),
            stagger: Duration::ZERO,
            open: None,
            rewind: None,
            plans: Vec::new(),
            job: Arc::new(|_: &Run| -> Result<(), BoxError> { Ok(()) }),
            configure: Box::new(|_, builder| builder),
            labels: Box::new(|index| format!("instance-{index}")),
            concurrency: 4,
        }
    }

    /// How many schedulers.
    pub fn instances(mut self, n: usize) -> Self {
        self.instances = n;
        self
    }

    /// Chooses by this seed who runs next; the same seed gives the same run. In the place of [`clock`](Self::clock).
    pub fn seed(self, seed: u64) -> Self {
        self.clock(FakeClock::seeded(seed))
    }

    /// The clock, for a test that wants it before the cluster is there: for its jobs, or with a start of its own.
    pub fn clock(mut self, clock: FakeClock) -> Self {
        self.clock = clock;
        self
    }

    /// Lets so much time pass between the starts of two instances.
    pub fn stagger(mut self, d: Duration) -> Self {
        self.stagger = d;
        self
    }

    /// The store that all share. Called once for each start of an instance, with that instance's clock, which may be
    /// skewed: a store whose time is its own (a server) is opened once before, on a clock of its own, and cloned here; one
    /// that tells time by its host (a file) takes the clock. Also called once for the cluster itself, for what
    /// [`Cluster::check`] reads.
    ///
    /// A store that waits for another process of the same host, such as a locked file, never has to: one instance runs at
    /// a time.
    pub fn store<S: Store + 'static>(mut self, open: impl Fn(Arc<dyn Clock>) -> S + Send + 'static) -> Self {
        self.open = Some(Box::new(move |clock| Opened::of(open(clock))));
        self
    }

    /// As [`store`](Self::store), of a ledger without a notice board.
    pub fn ledger<L: Ledger + 'static>(mut self, open: impl Fn(Arc<dyn Clock>) -> L + Send + 'static) -> Self {
        self.open = Some(Box::new(move |clock| Opened { ledger: Arc::new(open(clock)), board: None }));
        self
    }

    /// As [`store`](Self::store), for a store whose clones share it, whose time is its own, and which can be set back:
    /// see [`Cluster::save_store`].
    pub fn rewinding_store<L: Rewind + Clone + 'static>(mut self, store: L) -> Self {
        self.rewind = Some(Box::new(store.clone()));
        self.store(move |_| store.clone())
    }

    /// The plans of the first reconcile.
    pub fn plans(mut self, plans: impl IntoIterator<Item = Plan>) -> Self {
        self.plans.extend(plans);
        self
    }

    /// The job of all instances; `Jobs` routes by name. It is recorded by itself: see [`Cluster::starts`].
    pub fn job(mut self, job: impl Job + 'static) -> Self {
        self.job = Arc::new(job);
        self
    }

    /// Workers of each instance; 4 unless set.
    pub fn concurrency(mut self, workers: usize) -> Self {
        self.concurrency = workers;
        self
    }

    /// The label of each instance, by its number. Labels may be equal: they prove nothing.
    pub fn labels(mut self, label: impl Fn(usize) -> String + Send + 'static) -> Self {
        self.labels = Box::new(label);
        self
    }

    /// The last word on each scheduler's builder, by the instance's number: policies, an observer. Clock, ledger, label
    /// and concurrency are the cluster's.
    pub fn configure(mut self, f: impl Fn(usize, Builder) -> Builder + Send + 'static) -> Self {
        self.configure = Box::new(f);
        self
    }

    /// Starts the instances, one after the other, and reconciles the plans on each.
    ///
    /// # Panics
    /// Where one does not start, or refuses the plans.
    ///
    /// # Blocking
    /// Until all are at rest.
    #[must_use]
    pub fn build(self) -> Cluster {
        Cluster::start(self)
    }

    pub(super) fn default_store(clock: &FakeClock) -> (Open, Option<Box<dyn Rewind>>) {
        let ledger = MemLedger::with_clock(Arc::new(clock.clone())).keeping(usize::MAX);
        let rewind = ledger.clone();
        (Box::new(move |_| Opened::of(ledger.clone())), Some(Box::new(rewind)))
    }
}
