//! Schedules, rules and the engine of timertask.
//!
//! Most users depend on the crate `timertask`, which re-exports this one with the stores.

mod budget;
mod builder;
pub mod clock;
mod engine;
mod error;
mod fingerprint;
mod job;
pub mod key;
pub mod memory;
mod observer;
pub mod operate;
mod plan;
mod reconcile;
mod record;
pub mod rules;
mod run;
pub mod schedule;
mod scheduler;
pub mod seam;
mod signal;
mod sync;
pub mod time;

/// The crate of the dates in our signatures.
#[doc(no_inline)]
pub use chrono;
/// The crate of the zones in our signatures.
#[doc(no_inline)]
pub use chrono_tz;

pub use budget::{Backoff, RetryBudget};
pub use builder::Builder;
pub use clock::{Clock, SystemClock};
pub use engine::{Health, Histogram, PlanStats, Reasons, Stats};
pub use error::{CloseError, SchedulerError, StartError};
pub use job::{BoxError, Job, Jobs, Permanent, PlanSource};
pub use key::{Fence, Fingerprint, IdError, InstanceId, Namespace, PlanId, RequestId, SlotKey};
pub use memory::{LocalMutex, MemLedger};
pub use observer::{Event, Observer};
pub use operate::{Backfill, OperateError, Operator, Resume, RunNow, Scope};
pub use plan::{CatchUp, OnOrphan, Pace, Plan};
pub use reconcile::{DropGuard, PlanChange, PlanError, PlanFailure, PlansFailed, ReconcileReport, UnknownJob};
pub use record::{FailedTry, RunOutcome, RunRecord, StillRunning};
pub use run::{Run, Stop, Window};
pub use schedule::{
    Between, Calendar, Dialect, Dst, DstError, EveryBase, Fold, Gap, Note, Occurrence, Schedule, ScheduleOptions,
    SpecError, SpecField, SpecLimits, SpecProblem, SpecWarning, Swallowed, SwallowedTime, Upcoming, ZONE_DATA_VERSION,
};
pub use scheduler::{CloseReport, PlanStatus, PlanView, Scheduler};
pub use seam::{
    Asked, Board, Ending, Ledger, Mutex, NotStarted, Overlap, Retention, RunKind, Store, StoreError, StoreErrorKind,
};
pub use time::{Timestamp, Trigger};

#[doc = include_str!("../docs/dialect.md")]
pub mod dialect {}
