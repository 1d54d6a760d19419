//! `quartz:`, the dialect of the crate `cron`, so that its users move over without rewriting.
//!
//! The crate reads the expression; what it understood becomes bit sets of ours. By itself it goes back in time
//! where clocks are put back, so the search and the rule for clock changes are this crate's.

use cron::TimeUnitSpec as _;

use super::error::{SpecError, SpecField, SpecProblem};
use super::fields::{ALL_DAYS, ALL_WEEKDAYS, DAY, Date, Fields, Marks, Steps};
use super::options::{Dst, ScheduleOptions};
use super::parse::{Part, low_32, words};
use super::{Kind, Schedule};
use chrono_tz::Tz;

/// The fields in their order, each with what the crate takes there.
const FIELDS: [(SpecField, &str); 7] = [
    (SpecField::Second, MINUTES),
    (SpecField::Minute, MINUTES),
    (SpecField::Hour, "what the crate cron takes: 0-23, *, a-b, and steps a/n, a-b/n, */n, separated by single commas"),
    (
        SpecField::DayOfMonth,
        "what the crate cron takes: 1-31, *, ?, a-b, and steps a/n, a-b/n, */n, separated by single commas",
    ),
    (
        SpecField::Month,
        "what the crate cron takes: 1-12 or names, *, a-b, and steps a/n, a-b/n, */n, separated by single commas",
    ),
    (
        SpecField::DayOfWeek,
        "what the crate cron takes: 1-7 or names, 1 is Sunday, *, ?, a-b, and steps a/n, a-b/n, */n, separated by single \
         commas",
    ),
    (
        SpecField::Year,
        "what the crate cron takes: 1970-2100, *, a-b, and steps a/n, a-b/n, */n, separated by single commas",
    ),
];
const MINUTES: &str = "what the crate cron takes: 0-59, *, a-b, and steps a/n, a-b/n, */n, separated by single commas";

/// Reads `body`, which begins with `quartz:`.
pub(super) fn schedule(body: Part<'_>, zone: Tz, options: &ScheduleOptions) -> Result<Schedule, SpecError> {
    let text = body.skip("quartz:".len()).trim();
    let (words, count) = words::<7>(text);
    if !(6..=7).contains(&count) {
        return Err(text.error(
            SpecProblem::FieldCount,
            SpecField::Expression,
            "6 or 7 fields: second minute hour day-of-month month day-of-week [year]",
        ));
    }
    // The crate also reads fields without a blank between them and lists with blanks in them. What a
    // field is, is decided here.
    for (word, (field, allowed)) in words.iter().zip(FIELDS).take(count) {
        for item in word.split(b',') {
            if !is_item(item) {
                return Err(item.error(SpecProblem::Syntax, field, allowed));
            }
        }
    }
    let read = text.text.parse::<cron::Schedule>().map_err(|_| refused(text, &words[..count]))?;
    let star = |word: Part<'_>| word.split(b',').any(|item| item.text.starts_with('*'));
    let (kind, years) = convert(&read, star(words[1]), star(words[2]), options.dst);
    if !can_fire(&kind, years.as_deref()) {
        return Err(text.skip(words[3].at - text.at).error(
            SpecProblem::Never,
            SpecField::DayOfMonth,
            "a day that one of the months and years has",
        ));
    }
    Ok(Schedule::with_years(Kind::Cron(kind), zone, years, options.calendar.clone()))
}

/// `*`, `?`, a value or a range, and a step or not.
fn is_item(item: Part<'_>) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let value = |text: &str| digits(text) || !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphabetic());
    let range = match item.cut(b'/') {
        Some((range, step)) if digits(step.text) => range,
        Some(_) => return false,
        None => item,
    };
    match range.cut(b'-') {
        Some((from, upto)) => value(from.text) && value(upto.text),
        None => matches!(range.text, "*" | "?") || value(range.text),
    }
}

/// Which field the crate refuses: each is tried alone.
fn refused(text: Part<'_>, words: &[Part<'_>]) -> SpecError {
    for (place, (word, (field, allowed))) in words.iter().zip(FIELDS).enumerate() {
        let mut alone = ["*"; 7];
        alone[place] = word.text;
        if alone.join(" ").parse::<cron::Schedule>().is_err() {
            return word.error(SpecProblem::Quartz, field, allowed);
        }
    }
    text.error(SpecProblem::Quartz, SpecField::Expression, "six or seven fields that the crate cron takes")
}

/// What the crate understood, as bit sets and a list of years, if those are restricted.
fn convert(read: &cron::Schedule, minute_star: bool, hour_star: bool, dst: Dst) -> (Fields, Option<Box<[i32]>>) {
    let bits = |ordinals: &mut dyn Iterator<Item = u32>| ordinals.fold(0_u64, |set, n| set | 1 << n);
    let years = (!read.years().is_all())
        .then(|| read.years().iter().filter_map(|year| i32::try_from(year).ok()).collect::<Box<[i32]>>());
    let days = low_32(bits(&mut read.days_of_month().iter()));
    // Its Sunday is 1, ours is 0.
    let weekdays = u8::try_from(bits(&mut read.days_of_week().iter()) >> 1).unwrap_or(0);
    let (gap, fold) = dst.pair(minute_star || hour_star);
    let ours = years.is_none() && (days == ALL_DAYS || weekdays == ALL_WEEKDAYS);
    let fields = Fields {
        seconds: bits(&mut read.seconds().iter()),
        minutes: bits(&mut read.minutes().iter()),
        hours: low_32(bits(&mut read.hours().iter())),
        days,
        months: u16::try_from(bits(&mut read.months().iter())).unwrap_or(0),
        weekdays,
        marks: Marks::default()
            .with(Marks::MINUTE_STAR, minute_star)
            .with(Marks::HOUR_STAR, hour_star)
            .with(Marks::QUARTZ, !ours),
        gap,
        fold,
    };
    (fields, years)
}

fn can_fire(fields: &Fields, years: Option<&[i32]>) -> bool {
    let Some(first) = years.map(|years| years.first().copied()) else {
        return fields.can_fire();
    };
    let start = first.map(|year| Date { year, month: 1, day: 1 }.days() * DAY);
    start.is_some_and(|start| fields.next_local(start, years, &mut Steps::new()).is_some())
}

/// A schedule of the crate `cron`, with options.
pub(super) fn from_cron(read: &cron::Schedule, options: &ScheduleOptions) -> Schedule {
    let (minute_star, hour_star) = stars(read);
    let (fields, years) = convert(read, minute_star, hour_star, options.dst);
    Schedule::with_years(Kind::Cron(fields), options.zone, years, options.calendar.clone())
}

/// Whether an item of the minute field, and one of the hour field, begins with `*`.
fn stars(read: &cron::Schedule) -> (bool, bool) {
    let source = read.source().trim();
    if source.starts_with('@') {
        return (false, source == "@hourly");
    }
    let words: Vec<&str> = source.split_whitespace().collect();
    let tight = words.iter().all(|word| word.split(',').all(|text| is_item(Part { text, at: 0 })));
    match words[..] {
        [_, minute, hour, ..] if tight && (6..=7).contains(&words.len()) => {
            let star = |word: &str| word.split(',').any(|item| item.starts_with('*'));
            (star(minute), star(hour))
        }
        // Written with blanks inside of lists, or none between fields: judged by what was understood.
        _ => (read.minutes().is_all(), read.hours().is_all()),
    }
}
