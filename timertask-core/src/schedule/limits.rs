//! How often an expression fires at most, for [`SpecLimits`].

use super::error::{SpecError, SpecField, SpecProblem};
use super::fields::{DAY, Date, Fields, Steps, Years};
use super::options::SpecLimits;
use super::parse::Part;
use super::{Kind, Schedule};

/// Refuses what fires more often than `limits` allow.
pub(super) fn check(schedule: &Schedule, limits: &SpecLimits, text: Part<'_>) -> Result<(), SpecError> {
    let Some(least) = limits.min_interval else {
        return Ok(());
    };
    let shortest = match &schedule.kind {
        Kind::Cron(fields) => fields.shortest_interval(schedule.years()),
        Kind::Every(every) => Some(every.period()),
        Kind::At(_) => None,
    };
    match shortest.and_then(|seconds| u64::try_from(seconds).ok()) {
        Some(seconds) if std::time::Duration::from_secs(seconds) < least => Err(SpecError::new(
            SpecProblem::TooOften,
            SpecField::Expression,
            text.at + 1,
            text.text,
            format!("intervals of at least {least:?}, here {seconds}s"),
        )),
        _ => Ok(()),
    }
}

impl Fields {
    /// The least number of seconds between two matching local times, if there are two.
    fn shortest_interval(&self, years: Years<'_>) -> Option<i64> {
        let seconds = Line::of(self.seconds, 1, 0);
        let minutes = Line::of(self.minutes, 60, seconds.length);
        let hours = Line::of(self.hours.into(), 3_600, minutes.length);
        let within = [seconds.least, minutes.least, hours.least].into_iter().flatten().min();
        if within.is_some_and(|least| least <= 60) {
            return within;
        }
        let across = self.shortest_days(years).map(|days| days * DAY - hours.length);
        [within, across].into_iter().flatten().min()
    }

    /// The least number of days between two matching days, in the years that a search looks at.
    fn shortest_days(&self, years: Years<'_>) -> Option<i64> {
        let first = years.and_then(<[i32]>::first).copied().unwrap_or(2_000);
        let mut steps = Steps::new();
        let mut day = self.day_from(Date { year: first, month: 1, day: 1 }.days(), years, &mut steps)?;
        let mut least: Option<i64> = None;
        while let Some(next) = self.day_from(day + 1, years, &mut steps) {
            least = Some(least.map_or(next - day, |l| l.min(next - day)));
            if least == Some(1) {
                break;
            }
            day = next;
        }
        least
    }

    fn day_from(&self, day: i64, years: Years<'_>, steps: &mut Steps) -> Option<i64> {
        self.next_local(day * DAY, years, steps).map(|local| local.div_euclid(DAY))
    }
}

/// One unit of a day: the least distance between two of its values, less what the smaller units take up, and
/// the distance from the first value to the last of all units so far.
struct Line {
    least: Option<i64>,
    length: i64,
}

impl Line {
    fn of(bits: u64, unit: i64, smaller: i64) -> Self {
        let mut values = (0..64_i64).filter(|n| bits >> n & 1 == 1);
        let first = values.next().unwrap_or(0);
        let mut last = first;
        let mut least: Option<i64> = None;
        for value in values {
            least = Some(least.map_or(value - last, |l| l.min(value - last)));
            last = value;
        }
        Self { least: least.map(|steps| steps * unit - smaller), length: (last - first) * unit + smaller }
    }
}
