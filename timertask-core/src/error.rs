//! One error type per operation.

use std::time::Duration;

use crate::key::{IdError, PlanId};
use crate::seam::StoreError;

/// Why a scheduler could not be started. Nothing is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The store cannot be asked or is not fit for use; its source says why.
    #[error("the store is not usable")]
    Store(#[source] StoreError),
    /// A mutex beside a durable ledger. Where the ledger is shared the mutex adds nothing; where it isn't, catch-up would
    /// run what another host ran. Leave one of them out.
    #[error("a mutex and a durable ledger exclude each other: the ledger decides by itself; leave one of them out")]
    MutexAndLedger,
    /// With a mutex as the only shared part, a second start could not be excluded. Shorten the start window, or set a
    /// larger budget.
    #[error(
        "start window + 2 × max_skew is {sum:?}, which must be less than the lock's {ttl:?}; shorten the first or set a larger budget"
    )]
    LockTooShort {
        /// `start_window + 2 × max_skew`.
        sum: Duration,
        /// The lock's TTL, from the budget.
        ttl: Duration,
    },
    /// `every_from_install` where instances share a store: each would have slots of its own.
    #[error(
        "`every_from_install` gives each instance slots of its own and does not go with `mutex`, `ledger` or `store`; leave it out, for the grid that all instances share"
    )]
    EveryBaseShared,
    /// The start window is too short.
    #[error("start window of {0:?}; allowed are 2 s and more")]
    StartWindow(Duration),
    /// The default zone is unknown.
    #[error("unknown zone {0:?}; allowed are IANA names such as \"Europe/Berlin\"")]
    Zone(String),
    /// The label or the namespace is not allowed.
    #[error(transparent)]
    Id(#[from] IdError),
    /// A fraction that isn't one.
    #[error("drop guard with the fraction {0}; allowed are 0.0 to 1.0")]
    DropGuard(f64),
    /// The system refused a thread; its source says why.
    #[error("a thread could not be started")]
    Thread(#[source] std::io::Error),
}

/// Why a call on a scheduler was refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchedulerError {
    /// It is closing or closed. An instance is not restarted; start a new one.
    #[error("the scheduler is closing or closed, and cannot be started again; make a new one")]
    Stopped,
    /// A plan's id is not allowed.
    #[error("plan {index} of the set: {source}")]
    PlanId {
        /// Its place in the set, from 0.
        index: usize,
        /// What is wrong with it.
        source: IdError,
    },
    /// Two plans of the set have this id.
    #[error("plan id {0:?} twice in one set")]
    DuplicatePlan(PlanId),
    /// The set drops more plans than the guard allows. Nothing was changed; `reconcile_anyway` does it all the same.
    #[error("the set drops {dropped} of {installed} plans; the drop guard allows {allowed}")]
    DropGuard {
        /// How many it would drop.
        dropped: usize,
        /// How many are installed.
        installed: usize,
        /// How many it may drop.
        allowed: usize,
    },
    /// The plan given to `upsert` cannot be taken. A good version that was installed before goes on.
    #[error("plan {id:?}: {reason}")]
    Plan {
        /// Its id.
        id: PlanId,
        /// What is wrong with it.
        reason: crate::reconcile::PlanError,
    },
    /// The loop was ended by `close_now`.
    #[error("cancelled by close_now")]
    Cancelled,
    /// The stale-sweep hook failed; the loop did not begin.
    #[error("the stale-sweep hook failed: {0}")]
    StaleSweep(String),
    /// The system refused a thread; its source says why.
    #[error("a thread could not be started")]
    Thread(#[source] std::io::Error),
    /// No plan of this id is installed here. The ids are in [`plans`](crate::Scheduler::plans).
    #[error("no plan {0:?} is installed here")]
    NotInstalled(String),
    /// An operator's request came to nothing.
    #[error(transparent)]
    Operate(#[from] crate::operate::OperateError),
}

/// Why `close` did not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// It was called from inside a job, or from an observer, a plan source or a calendar that the engine had called,
    /// and would have waited for itself. The scheduler closes all the same.
    #[error("close was called from inside a job or another callback: it is signalled and does not wait")]
    FromInside,
}
