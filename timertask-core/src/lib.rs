//! Schedules, rules and the engine of timertask.

pub mod clock;
pub mod key;
pub mod memory;
pub mod rules;
pub mod schedule;
pub mod seam;
pub mod time;

pub use schedule::{
    Between, Calendar, Dialect, Dst, DstError, EveryBase, Fold, Gap, Note, Occurrence, Schedule,
    ScheduleOptions, SpecError, SpecField, SpecLimits, SpecProblem, SpecWarning, Swallowed,
    SwallowedTime, Upcoming, ZONE_DATA_VERSION,
};

#[doc = include_str!("../docs/dialect.md")]
pub mod dialect {}
