//! From text to a schedule, or to the reason why not. One pass over at most 256 bytes, without allocation.

use std::str::FromStr as _;

use chrono::{DateTime, Datelike as _};
use chrono_tz::Tz;

use super::error::{SpecError, SpecField, SpecProblem};
use super::every::{self, Every};
use super::fields::{ALL_DAYS, ALL_WEEKDAYS, Fields, Marks};
use super::options::{Dialect, Dst, EveryBase, ScheduleOptions};
use super::{Kind, Schedule, limits, quartz};
use crate::time::Trigger;

/// The longest expression, in bytes.
const LONGEST: usize = 256;

/// A part of the text, with the number of bytes before it.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
}

impl<'a> Part<'a> {
    /// An error about this part. All text before it is ASCII or the error would have come earlier, so a byte is
    /// a column.
    pub(super) fn error(self, problem: SpecProblem, field: SpecField, allowed: &'static str) -> SpecError {
        SpecError::new(problem, field, self.at + 1, self.text, allowed)
    }

    pub(super) fn trim(self) -> Self {
        let text = self.text.trim_start_matches(BLANK);
        Part { text: text.trim_end_matches(BLANK), at: self.at + self.text.len() - text.len() }
    }

    /// What follows the first `n` bytes.
    pub(super) fn skip(self, n: usize) -> Self {
        Part { text: self.text.get(n..).unwrap_or(""), at: self.at + n }
    }

    fn first(self, n: usize) -> Self {
        Part { text: self.text.get(..n).unwrap_or(""), at: self.at }
    }

    /// The text up to the next blank, and what follows it.
    fn word(self) -> (Self, Self) {
        let end = self.text.find(BLANK).unwrap_or(self.text.len());
        (self.first(end), self.skip(end).trim())
    }

    /// The parts between single bytes `by`.
    pub(super) fn split(self, by: u8) -> impl Iterator<Item = Part<'a>> {
        let mut at = self.at;
        self.text.split(char::from(by)).map(move |text| {
            let part = Part { text, at };
            at += text.len() + 1;
            part
        })
    }

    /// The two sides of the first `by`, if there is one.
    pub(super) fn cut(self, by: u8) -> Option<(Self, Self)> {
        let place = self.text.bytes().position(|b| b == by)?;
        Some((self.first(place), self.skip(place + 1)))
    }
}

const BLANK: [char; 2] = [' ', '\t'];

/// Reads `text` with `options`.
pub(super) fn schedule(text: &str, options: &ScheduleOptions) -> Result<Schedule, SpecError> {
    let whole = Part { text, at: 0 };
    if text.len() > LONGEST {
        return Err(whole.error(SpecProblem::TooLong, SpecField::Expression, "at most 256 bytes"));
    }
    let (zone, body) = zone(whole.trim())?;
    let zone = zone.unwrap_or(options.zone);
    let schedule = if body.text.starts_with('@') {
        Schedule::of(at_sign(body, options)?, zone, options.calendar.clone())
    } else if starts_with(body.text, "quartz:") {
        quartz::schedule(body, zone, options)?
    } else {
        Schedule::of(Kind::Cron(five_or_six(body, options.dialect, options.dst)?), zone, options.calendar.clone())
    };
    limits::check(&schedule, &options.limits, body)?;
    Ok(schedule)
}

/// The zone in front, if any, and the rest.
fn zone(text: Part<'_>) -> Result<(Option<Tz>, Part<'_>), SpecError> {
    let prefix = if text.text.starts_with("CRON_TZ=") {
        8
    } else if text.text.starts_with("TZ=") {
        3
    } else {
        return Ok((None, text));
    };
    let (name, rest) = text.skip(prefix).word();
    match Tz::from_str(name.text) {
        Ok(zone) => Ok((Some(zone), rest)),
        Err(_) => Err(name.error(
            SpecProblem::UnknownZone,
            SpecField::Zone,
            "a name of the IANA zone database such as Europe/Berlin, in its own spelling",
        )),
    }
}

fn starts_with(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// `@daily` and the like, `@every`, `@at`.
fn at_sign(text: Part<'_>, options: &ScheduleOptions) -> Result<Kind, SpecError> {
    const NAMES: [(&str, &str); 7] = [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
    ];
    let (name, rest) = text.word();
    if name.text.eq_ignore_ascii_case("@every") {
        let period = every::duration(rest)?;
        let base = match (options.anchor, options.every_base) {
            (Some(anchor), _) | (None, EveryBase::Install(anchor)) => anchor,
            (None, EveryBase::Epoch) => Trigger::default(),
        };
        return Ok(Kind::Every(Every::new(period, base)));
    }
    if name.text.eq_ignore_ascii_case("@at") {
        return at(rest).map(Kind::At);
    }
    let Some((_, expression)) = NAMES.iter().find(|(n, _)| name.text.eq_ignore_ascii_case(n)) else {
        return Err(name.error(
            SpecProblem::UnknownMacro,
            SpecField::Macro,
            "@yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly, @every <duration>, @at <instant>",
        ));
    };
    if !rest.text.is_empty() {
        return Err(rest.error(SpecProblem::Syntax, SpecField::Macro, "nothing behind the name"));
    }
    five_or_six(Part { text: expression, at: text.at }, Dialect::Five, options.dst).map(Kind::Cron)
}

/// The instant of `@at`.
fn at(text: Part<'_>) -> Result<Trigger, SpecError> {
    // chrono would take U+2212 for a minus. A leap second has more than a second's worth of nanoseconds and is refused
    // with the fractions; offsets lead out of the years that four digits can write, and the canonical form is in UTC.
    Some(text.text)
        .filter(|text| text.is_ascii())
        .and_then(|text| DateTime::parse_from_rfc3339(text).ok())
        .map(|instant| instant.to_utc())
        .filter(|instant| instant.timestamp_subsec_nanos() == 0 && (0..=9_999).contains(&instant.year()))
        .map(Trigger::from)
        .ok_or_else(|| {
            text.error(
                SpecProblem::Instant,
                SpecField::Instant,
                "an instant of RFC 3339 in whole seconds, such as 2030-01-31T12:00:00Z",
            )
        })
}

/// The words of a text, up to `N`, and how many there are in all.
pub(super) fn words<const N: usize>(text: Part<'_>) -> ([Part<'_>; N], usize) {
    let mut words = [Part { text: "", at: text.at }; N];
    let mut count = 0;
    let mut rest = text;
    while !rest.text.is_empty() {
        let (word, next) = rest.word();
        if let Some(place) = words.get_mut(count) {
            *place = word;
        }
        count += 1;
        rest = next;
    }
    (words, count)
}

fn five_or_six(text: Part<'_>, dialect: Dialect, dst: Dst) -> Result<Fields, SpecError> {
    let (words, count) = words::<6>(text);
    let wanted = match dialect {
        Dialect::Five => "5 fields: minute hour day-of-month month day-of-week",
        Dialect::Six => "6 fields: second minute hour day-of-month month day-of-week",
        Dialect::FiveOrSix => "5 or 6 fields: [second] minute hour day-of-month month day-of-week",
    };
    let leading = match (dialect, count) {
        (Dialect::Five | Dialect::FiveOrSix, 5) => 0,
        (Dialect::Six | Dialect::FiveOrSix, 6) => 1,
        _ => {
            return Err(text.error(SpecProblem::FieldCount, SpecField::Expression, wanted));
        }
    };
    let second = if leading == 0 { Set { bits: 1, star: false, whole: false } } else { set(words[0], &SECOND)? };
    let minute = set(words[leading], &MINUTE)?;
    let hour = set(words[leading + 1], &HOUR)?;
    let day = set(words[leading + 2], &DAY_OF_MONTH)?;
    let month = set(words[leading + 3], &MONTH)?;
    let week = set(words[leading + 4], &DAY_OF_WEEK)?;

    let (gap, fold) = dst.pair(minute.star || hour.star);
    // Sunday is 0 and 7.
    let weekdays = (week.bits | week.bits >> 7) & u64::from(ALL_WEEKDAYS);
    let fields = Fields {
        seconds: second.bits,
        minutes: minute.bits,
        hours: low_32(hour.bits),
        days: low_32(day.bits),
        months: u16::try_from(month.bits).unwrap_or(0),
        weekdays: u8::try_from(weekdays).unwrap_or(0),
        marks: Marks::default()
            .with(Marks::MINUTE_STAR, minute.star)
            .with(Marks::HOUR_STAR, hour.star)
            .with(Marks::EITHER_DAY, !day.whole && !week.whole),
        gap,
        fold,
    }
    .every_day_is_every_day();
    if !fields.can_fire() {
        let (day, month) = (words[leading + 2], words[leading + 3]);
        let both = text.skip(day.at - text.at).first(month.at + month.text.len() - day.at);
        return Err(both.error(SpecProblem::Never, SpecField::DayOfMonth, "a day that one of the months has"));
    }
    Ok(fields)
}

pub(super) fn low_32(bits: u64) -> u32 {
    u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(0)
}

impl Fields {
    /// "Each day of the month or …" is each day: written once, so that equal schedules are equal.
    fn every_day_is_every_day(mut self) -> Self {
        let all = self.days == ALL_DAYS || self.weekdays == ALL_WEEKDAYS;
        if self.marks.has(Marks::EITHER_DAY) && all {
            self.days = ALL_DAYS;
            self.weekdays = ALL_WEEKDAYS;
            self.marks = self.marks.without(Marks::EITHER_DAY);
        }
        self
    }
}

/// What a field may hold.
pub(super) struct Unit {
    pub(super) field: SpecField,
    pub(super) min: u32,
    pub(super) max: u32,
    /// Where `*` and `a/n` end: 6 for weekdays, where 7 is another name of 0.
    pub(super) last: u32,
    pub(super) names: &'static [&'static str],
    pub(super) values: &'static str,
    pub(super) steps: &'static str,
}

const SECOND: Unit =
    Unit { field: SpecField::Second, min: 0, max: 59, last: 59, names: &[], values: "0-59", steps: "a step of 1-59" };
const MINUTE: Unit = Unit { field: SpecField::Minute, ..SECOND };
const HOUR: Unit =
    Unit { field: SpecField::Hour, max: 23, last: 23, values: "0-23", steps: "a step of 1-23", ..SECOND };
const DAY_OF_MONTH: Unit =
    Unit { field: SpecField::DayOfMonth, min: 1, max: 31, last: 31, values: "1-31", steps: "a step of 1-30", ..SECOND };
const MONTH: Unit = Unit {
    field: SpecField::Month,
    min: 1,
    max: 12,
    last: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    values: "1-12 or JAN-DEC",
    steps: "a step of 1-11",
};
const DAY_OF_WEEK: Unit = Unit {
    field: SpecField::DayOfWeek,
    min: 0,
    max: 7,
    last: 6,
    names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
    values: "0-7 or SUN-SAT, 0 and 7 are Sunday",
    steps: "a step of 1-7",
};

/// One field, read.
pub(super) struct Set {
    pub(super) bits: u64,
    /// An item begins with `*` or `?`.
    pub(super) star: bool,
    /// An item is `*`, `?` or `*/1`: the field does not restrict.
    pub(super) whole: bool,
}

fn set(text: Part<'_>, unit: &Unit) -> Result<Set, SpecError> {
    let mut set = Set { bits: 0, star: false, whole: false };
    for item in text.split(b',') {
        let (range, step) = match item.cut(b'/') {
            Some((range, step)) => (range, Some(step)),
            None => (item, None),
        };
        let star = range.text == "*" || range.text == "?" && step.is_none();
        let (from, upto) = if star {
            (unit.min, unit.last)
        } else if let Some((from, upto)) = range.cut(b'-') {
            let bounds = (value(from, item, unit)?, value(upto, item, unit)?);
            if bounds.0 > bounds.1 {
                return Err(range.error(SpecProblem::Reversed, unit.field, "a range that rises, or a list of two"));
            }
            bounds
        } else {
            let from = value(range, item, unit)?;
            (from, if step.is_some() { unit.last.max(from) } else { from })
        };
        let step = match step {
            None => 1,
            Some(step) => step_of(step, item, unit)?,
        };
        set.star |= star;
        set.whole |= star && step == 1;
        set.bits |= run(from, upto, step);
    }
    Ok(set)
}

/// The bits from `from` to `upto`, every `step`-th.
fn run(from: u32, upto: u32, step: u32) -> u64 {
    if step == 1 {
        return (u64::MAX >> (63 - (upto - from))) << from;
    }
    let mut bits = 0;
    let mut n = from;
    while n <= upto {
        bits |= 1 << n;
        n += step;
    }
    bits
}

fn step_of(text: Part<'_>, item: Part<'_>, unit: &Unit) -> Result<u32, SpecError> {
    match number(text.text) {
        Some(step) if (1..=unit.max - unit.min).contains(&step) => Ok(step),
        Some(_) => Err(text.error(SpecProblem::Step, unit.field, unit.steps)),
        None => Err(item.error(SpecProblem::Syntax, unit.field, ITEM)),
    }
}

const ITEM: &str = "values, a-b, *, ?, and steps a/n, a-b/n, */n, separated by single commas";

/// A number or name; `item` is what an error shows where the text is neither.
fn value(text: Part<'_>, item: Part<'_>, unit: &Unit) -> Result<u32, SpecError> {
    if let Some(number) = number(text.text) {
        if (unit.min..=unit.max).contains(&number) {
            return Ok(number);
        }
        return Err(text.error(SpecProblem::OutOfRange, unit.field, unit.values));
    }
    let is_word = !text.text.is_empty() && text.text.bytes().all(|b| b.is_ascii_alphabetic());
    if !is_word {
        return Err(item.error(SpecProblem::Syntax, unit.field, ITEM));
    }
    match (unit.min..).zip(unit.names).find(|(_, name)| text.text.eq_ignore_ascii_case(name)) {
        Some((number, _)) => Ok(number),
        None => Err(text.error(SpecProblem::OutOfRange, unit.field, unit.values)),
    }
}

/// Digits alone; what is beyond 32 bits is the greatest number, which no field takes.
pub(super) fn number(text: &str) -> Option<u32> {
    if text.is_empty() {
        return None;
    }
    text.bytes().try_fold(0_u32, |n, b| {
        let digit = b.is_ascii_digit().then(|| u32::from(b - b'0'))?;
        Some(n.saturating_mul(10).saturating_add(digit))
    })
}
