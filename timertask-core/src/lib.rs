//! Schedules, rules and the engine of timertask.

pub mod schedule;
pub mod time;
