//! The canonical form of a schedule: what is equal reads alike, and reads back to what it was.

use std::fmt::{self, Write as _};

use chrono_tz::Tz;

use super::fields::{Fields, Marks, Years};
use super::{Kind, Schedule};

impl fmt::Display for Schedule {
    /// The canonical expression, which [`Schedule::parse`] reads back: UTC, its default, is not written. Rule for clock
    /// changes, anchor and calendar are no part of an expression and are not shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.zone() != Tz::UTC {
            write!(f, "CRON_TZ={} ", self.zone().name())?;
        }
        match &self.kind {
            Kind::Cron(fields) if fields.marks.has(Marks::QUARTZ) => quartz(f, fields, self.years()),
            Kind::Cron(fields) => cron(f, fields),
            Kind::Every(every) => every.fmt(f),
            Kind::At(trigger) => write!(f, "@at {trigger}"),
        }
    }
}

fn cron(f: &mut fmt::Formatter<'_>, fields: &Fields) -> fmt::Result {
    let either = fields.marks.has(Marks::EITHER_DAY);
    if fields.seconds != 1 {
        set(f, fields.seconds, 0..=59, Star::Free)?;
        f.write_char(' ')?;
    }
    time_and_days(f, fields)?;
    // Where both restrict, `*` would say that one of them doesn't.
    set(f, fields.weekdays.into(), 0..=6, if either { Star::StepOnly } else { Star::Free })
}

fn quartz(f: &mut fmt::Formatter<'_>, fields: &Fields, years: Years<'_>) -> fmt::Result {
    f.write_str("quartz:")?;
    set(f, fields.seconds, 0..=59, Star::Free)?;
    f.write_char(' ')?;
    time_and_days(f, fields)?;
    set(f, u64::from(fields.weekdays) << 1, 1..=7, Star::Free)?;
    if let Some(years) = years {
        f.write_char(' ')?;
        list(f, years)?;
    }
    Ok(())
}

/// Minute, hour, day of month, month, each with a blank behind it.
fn time_and_days(f: &mut fmt::Formatter<'_>, fields: &Fields) -> fmt::Result {
    let star = |mark| {
        if fields.marks.has(mark) { Star::Must } else { Star::Never }
    };
    set(f, fields.minutes, 0..=59, star(Marks::MINUTE_STAR))?;
    f.write_char(' ')?;
    set(f, fields.hours.into(), 0..=23, star(Marks::HOUR_STAR))?;
    f.write_char(' ')?;
    let days = if fields.marks.has(Marks::EITHER_DAY) { Star::StepOnly } else { Star::Free };
    set(f, fields.days.into(), 1..=31, days)?;
    f.write_char(' ')?;
    set(f, fields.months.into(), 1..=12, Star::Free)?;
    f.write_char(' ')
}

/// Whether a field may be written with `*`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Star {
    /// An item begins with it.
    Must,
    /// It would change the meaning.
    Never,
    /// It makes no difference.
    Free,
    /// `*/n` makes no difference, `*` would.
    StepOnly,
}

fn set(f: &mut fmt::Formatter<'_>, bits: u64, range: std::ops::RangeInclusive<u32>, star: Star) -> fmt::Result {
    let (min, max) = range.into_inner();
    let mut rest = bits;
    if star != Star::Never {
        let steps = if star == Star::StepOnly { 2 } else { 1 }..=max - min;
        let covered = steps.map(|step| (step, every(min, max, step))).find(|(_, run)| bits & run == *run);
        // Where it makes no difference, `*/n` is written only if it says all, and saves something.
        let covered =
            covered.filter(|(step, run)| star == Star::Must || *run == bits && (*step == 1 || run.count_ones() > 2));
        if let Some((step, run)) = covered {
            f.write_char('*')?;
            if step > 1 {
                write!(f, "/{step}")?;
            }
            rest &= !run;
            if rest == 0 {
                return Ok(());
            }
            f.write_char(',')?;
        }
    }
    let values: Vec<i32> = (0..64).filter(|n| rest >> n & 1 == 1).collect();
    list(f, &values)
}

/// `min`, `min + step`, … up to `max`.
fn every(min: u32, max: u32, step: u32) -> u64 {
    (min..=max).step_by(step as usize).fold(0, |bits, n| bits | 1 << n)
}

/// Rising values as a list of ranges, or as one range with a step.
fn list(f: &mut fmt::Formatter<'_>, values: &[i32]) -> fmt::Result {
    if let [first, second, _, .., last] = values {
        let step = second - first;
        if step > 1 && values.windows(2).all(|pair| pair[1] - pair[0] == step) {
            return write!(f, "{first}-{last}/{step}");
        }
    }
    let mut rest = values;
    let mut comma = "";
    while let [first, ..] = rest {
        let run = rest.iter().zip(*first..).take_while(|(value, n)| *value == n).count();
        let last = rest[run - 1];
        match run {
            1 => write!(f, "{comma}{first}")?,
            2 => write!(f, "{comma}{first},{last}")?,
            _ => write!(f, "{comma}{first}-{last}")?,
        }
        comma = ",";
        rest = &rest[run..];
    }
    Ok(())
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schedule({self}")?;
        if let Kind::Cron(Fields { gap, fold, .. }) = &self.kind {
            write!(f, "; {gap:?}+{fold:?}")?;
        }
        if let Some(name) = self.calendar_name() {
            write!(f, "; calendar {name:?}")?;
        }
        f.write_char(')')
    }
}
