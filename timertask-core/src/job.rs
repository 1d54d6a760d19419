//! Jobs, the router of jobs, and sources of plans: the user's code.

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::plan::Plan;
use crate::run::Run;

/// Any error of the user's code.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// What a plan runs. Closures and functions `Fn(&Run) -> Result<(), BoxError>` are jobs; a closure has to name the type
/// of its argument, `|run: &Run|`.
///
/// ```
/// # extern crate timertask_core as timertask;
/// use timertask::{BoxError, Run, Scheduler};
///
/// fn report(run: &Run) -> Result<(), BoxError> {
///     let text = std::str::from_utf8(run.payload())?; // `?` takes any error
///     println!("{} {text}", run.slot_key());
///     Ok(())
/// }
///
/// let scheduler = Scheduler::builder(report).start()?;
/// # drop(scheduler);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Runs on a worker's thread without any lock of ours. A panic is contained and counts as a failure (with
/// `panic = "abort"` it takes the process down, as it would anywhere). Return when [`Run::check`] says so.
pub trait Job: Send + Sync {
    /// Runs it.
    ///
    /// # Errors
    /// An error fails the run, or is tried again where the plan has a budget and it is not [`Permanent`].
    fn run(&self, run: &Run) -> Result<(), BoxError>;

    /// The names that plans may give as their job; `None` (the default): any. Asked once, at start. A plan that names
    /// another one fails at reconcile.
    fn names(&self) -> Option<HashSet<Arc<str>>> {
        None
    }
}

impl<F> Job for F
where
    F: Fn(&Run) -> Result<(), BoxError> + Send + Sync,
{
    fn run(&self, run: &Run) -> Result<(), BoxError> {
        self(run)
    }
}

impl<J: Job + ?Sized> Job for Arc<J> {
    fn run(&self, run: &Run) -> Result<(), BoxError> {
        (**self).run(run)
    }
    fn names(&self) -> Option<HashSet<Arc<str>>> {
        (**self).names()
    }
}

/// A router: each plan names its job, by default with its own id. A plan that names an unknown one fails at reconcile.
///
/// ```
/// # extern crate timertask_core as timertask;
/// use timertask::{Jobs, Run};
///
/// let jobs = Jobs::new()
///     .on("report", |run: &Run| { println!("{}", run.slot_key()); Ok(()) })
///     .on("mail", |_: &Run| Err("no mail server".into()));
/// # drop(jobs);
/// ```
#[derive(Default)]
pub struct Jobs {
    by_name: HashMap<Arc<str>, Box<dyn Job>>,
}

impl Jobs {
    /// A router without jobs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Plans whose job is `name` run `job`; a later one of the same name takes its place.
    #[must_use]
    pub fn on(mut self, name: impl Into<Arc<str>>, job: impl Job + 'static) -> Self {
        self.by_name.insert(name.into(), Box::new(job));
        self
    }
}

impl Job for Jobs {
    fn run(&self, run: &Run) -> Result<(), BoxError> {
        match self.by_name.get(run.job()) {
            Some(job) => job.run(run),
            None => Err(format!("no job {:?}", run.job()).into()),
        }
    }

    fn names(&self) -> Option<HashSet<Arc<str>>> {
        Some(self.by_name.keys().cloned().collect())
    }
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_name.keys()).finish()
    }
}

/// An error after which no further attempt makes sense.
///
/// ```
/// # extern crate timertask_core as timertask;
/// use timertask::{BoxError, Permanent};
///
/// fn job() -> Result<(), BoxError> {
///     Err(Permanent::new("the account is closed").into())
/// }
/// # assert!(job().is_err());
/// ```
#[derive(Debug)]
pub struct Permanent(BoxError);

impl Permanent {
    /// Marks `error` as permanent.
    #[must_use]
    pub fn new(error: impl Into<BoxError>) -> Self {
        Self(error.into())
    }
}

impl fmt::Display for Permanent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Permanent {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// Where the wanted plans come from, such as a table. Closures `Fn() -> Result<Vec<Plan>, BoxError>` are sources.
pub trait PlanSource: Send + Sync {
    /// All wanted plans. An answer that lacks a plan removes it.
    ///
    /// # Errors
    /// An error leaves all plans as they are; the source is asked again at the next interval.
    fn plans(&self) -> Result<Vec<Plan>, BoxError>;
}

impl<F> PlanSource for F
where
    F: Fn() -> Result<Vec<Plan>, BoxError> + Send + Sync,
{
    fn plans(&self) -> Result<Vec<Plan>, BoxError> {
        self()
    }
}

impl<S: PlanSource + ?Sized> PlanSource for Arc<S> {
    fn plans(&self) -> Result<Vec<Plan>, BoxError> {
        (**self).plans()
    }
}
