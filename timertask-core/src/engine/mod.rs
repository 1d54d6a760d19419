//! The engine: one way, four rooms. `timer → claimer → workers → scribe`.
//!
//! A room is a struct with a `turn(now)`; its thread is a thin loop around it, or a clock's driver gives the turns.
//! What the rooms share is [`Shared`]; they reach each other through mailboxes only.

mod answers;
mod backfill;
mod batch;
mod candidate;
mod choice;
mod claimer;
mod due;
mod installed;
mod lapses;
mod limit;
mod live;
mod mailbox;
mod make_up;
mod mutex_only;
mod order;
mod orders;
mod outbox;
mod pace;
mod pauses;
mod plan_stats;
mod pool;
mod registry;
mod reports;
mod requests;
mod retention;
mod retries;
mod rooms;
mod scribe;
mod shared;
mod shelf;
mod stats;
mod sweep;
mod timer;
mod walk;
mod watched;
mod worker;

pub(crate) use backfill::judge;
pub(crate) use claimer::{Claimer, ClaimerMail};
pub(crate) use installed::{Installed, Policy, state};
pub(crate) use make_up::count;
pub(crate) use order::{Order, Reply, Withdrawn};
pub(crate) use outbox::GenerationOp;
pub(crate) use plan_stats::PlanCounts;
pub use plan_stats::PlanStats;
pub(crate) use registry::{Registry, Wanted};
pub(crate) use reports::{OnRecord, Reports};
pub(crate) use requests::candidate as order_of;
pub(crate) use rooms::{Rooms, is_inside, is_inside_job};
pub(crate) use scribe::Scribe;
pub use shared::Health;
pub(crate) use shared::{Config, Defaults, Phase, ScribeMail, Shared};
pub(crate) use stats::Counters;
pub use stats::{Histogram, Reasons, Stats};
pub(crate) use timer::{GroupKey, Timer, TimerMail};
pub(crate) use watched::Watched;
pub(crate) use worker::{Finish, Finished, Worker, panic_text};
