//! Schedules, rules and the engine of timertask.

pub mod clock;
pub mod key;
pub mod rules;
pub mod schedule;
pub mod seam;
pub mod time;
