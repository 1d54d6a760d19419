// What the examples of dialect.md begin with.
#[allow(unused_imports)]
pub use {
    chrono::{DateTime, Utc},
    timertask_core::{Dialect, Dst, EveryBase, Fold, Gap, Schedule, ScheduleOptions},
};

/// The next local times of an expression that is read in UTC.
#[allow(dead_code)]
pub fn next(text: &str, from: &str, n: usize) -> Vec<String> {
    let schedule = Schedule::parse(text).unwrap();
    let upcoming = schedule.upcoming(from.parse().unwrap()).take(n);
    upcoming.map(|o| o.local.format("%m-%d %H:%M").to_string()).collect()
}

/// The same in a zone and by a rule, with the offset from UTC.
#[allow(dead_code)]
pub fn zoned(zone: &str, dst: Dst, text: &str, from: &str, n: usize) -> Vec<String> {
    let schedule = ScheduleOptions::new().zone(zone.parse().unwrap()).dst(dst).parse(text).unwrap();
    let upcoming = schedule.upcoming(from.parse().unwrap()).take(n);
    upcoming.map(|o| o.local.format("%m-%d %H:%M %:z").to_string()).collect()
}

/// Why an expression is refused.
#[allow(dead_code)]
pub fn refused(text: &str) -> String {
    Schedule::parse(text).unwrap_err().to_string()
}
