//! A cron expression as bit sets, and the search on local time: a few bit scans, in both directions.
//!
//! Local times are seconds since 1970-01-01T00:00:00 of the wall clock. Nothing here knows a zone.

use super::options::{Fold, Gap};

/// Seconds of a day.
pub(crate) const DAY: i64 = 86_400;
/// All days of a month, bits 1 to 31.
pub(crate) const ALL_DAYS: u32 = !1;
/// All weekdays, bit 0 is Sunday.
pub(crate) const ALL_WEEKDAYS: u8 = 0b111_1111;

/// The least and greatest candidate days that one search may look at.
pub(crate) const MAX_DAYS: u32 = 12_000;

/// How many candidate days a search may still look at. Each search is bounded by counting, not by a date.
pub(crate) struct Steps(u32);

impl Steps {
    pub(crate) const fn new() -> Self {
        Self(MAX_DAYS)
    }

    /// Takes `days`; `None` once they are used up.
    pub(crate) fn take(&mut self, days: u32) -> Option<()> {
        self.0 = self.0.checked_sub(days)?;
        Some(())
    }
}

/// Marks of an expression that its bit sets don't show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Marks(u8);

impl Marks {
    /// A day matches if day-of-month *or* day-of-week does.
    pub(crate) const EITHER_DAY: Self = Self(1);
    /// An item of the minute field began with `*` or `?`.
    pub(crate) const MINUTE_STAR: Self = Self(2);
    /// An item of the hour field began with `*` or `?`.
    pub(crate) const HOUR_STAR: Self = Self(4);
    /// Written in the `quartz:` dialect and not expressible in ours.
    pub(crate) const QUARTZ: Self = Self(8);

    pub(crate) const fn has(self, mark: Self) -> bool {
        self.0 & mark.0 != 0
    }

    #[must_use]
    pub(crate) const fn with(self, mark: Self, on: bool) -> Self {
        if on { Self(self.0 | mark.0) } else { self }
    }

    #[must_use]
    pub(crate) const fn without(self, mark: Self) -> Self {
        Self(self.0 & !mark.0)
    }
}

/// A cron expression as a `Copy` value of 32 bytes; equal values fire at the same instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fields {
    pub(crate) seconds: u64,
    pub(crate) minutes: u64,
    pub(crate) hours: u32,
    pub(crate) days: u32,
    pub(crate) months: u16,
    pub(crate) weekdays: u8,
    pub(crate) marks: Marks,
    pub(crate) gap: Gap,
    pub(crate) fold: Fold,
}

/// A day of the proleptic Gregorian calendar, and the number of its month's first day since 1970-01-01.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Date {
    pub(crate) year: i32,
    pub(crate) month: u32,
    pub(crate) day: u32,
}

impl Date {
    /// From a number of days since 1970-01-01, for some 400,000 years to both sides.
    pub(crate) fn of(days: i64) -> Self {
        // Counting from a first of March puts the leap day last; 1,000 cycles of 400 years keep it positive.
        let n = (days + 719_468 + 146_097 * 1_000).unsigned_abs();
        let century = (4 * n + 3) / 146_097;
        let in_century = n - 146_097 * century / 4;
        let year = (4 * in_century + 3) / 1_461;
        let in_year = in_century - 1_461 * year / 4;
        let march = (5 * in_year + 2) / 153;
        let day = in_year - (153 * march + 2) / 5 + 1;
        let (month, next) = if march < 10 { (march + 3, 0) } else { (march - 9, 1) };
        Self {
            year: narrow(100 * century + year + next) - 400_000,
            month: narrow(month).unsigned_abs(),
            day: narrow(day).unsigned_abs(),
        }
    }

    /// Days since 1970-01-01.
    pub(crate) fn days(self) -> i64 {
        let (year, march) = if self.month > 2 { (self.year, self.month - 3) } else { (self.year - 1, self.month + 9) };
        let year = i64::from(year);
        365 * year + year.div_euclid(4) - year.div_euclid(100)
            + year.div_euclid(400)
            + i64::from((153 * march + 2) / 5 + self.day - 1)
            - 719_468
    }

    fn is_leap(year: i32) -> bool {
        year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
    }

    pub(crate) fn month_length(year: i32, month: u32) -> u32 {
        match month {
            2 if Self::is_leap(year) => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        }
    }
}

fn narrow(n: u64) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// The weekday of a day since 1970-01-01, 0 is Sunday.
pub(crate) fn weekday(days: i64) -> u32 {
    narrow((days + 4).rem_euclid(7).unsigned_abs()).unsigned_abs()
}

/// The lowest set bit at or above `from`.
fn bit_from(bits: u64, from: u32) -> Option<u32> {
    let rest = if from < 64 { bits >> from << from } else { 0 };
    (rest != 0).then(|| rest.trailing_zeros())
}

/// The highest set bit at or below `upto`.
fn bit_upto(bits: u64, upto: u32) -> Option<u32> {
    let rest = bits & (u64::MAX >> (63 - upto.min(63)));
    (rest != 0).then(|| 63 - rest.leading_zeros())
}

fn lowest(bits: u64) -> u32 {
    bits.trailing_zeros()
}

fn highest(bits: u64) -> u32 {
    63 - (bits | 1).leading_zeros()
}

/// Which years a search may look at: `None` means all.
pub(crate) type Years<'a> = Option<&'a [i32]>;

impl Fields {
    /// Whether any day of any year matches.
    pub(crate) fn can_fire(&self) -> bool {
        self.seconds != 0
            && self.minutes != 0
            && self.hours != 0
            && self.months != 0
            && if self.marks.has(Marks::EITHER_DAY) {
                self.days != 0 || self.weekdays != 0
            } else {
                self.weekdays != 0 && (1..=12).any(|m| self.months >> m & 1 == 1 && self.days & valid(2_000, m) != 0)
            }
    }

    /// The least local time at or after `from` that matches.
    pub(crate) fn next_local(&self, from: i64, years: Years<'_>, steps: &mut Steps) -> Option<i64> {
        let day = from.div_euclid(DAY);
        let date = Date::of(day);
        if self.matches_day(day, date, years)
            && let Some(second) = self.next_second(from - day * DAY)
        {
            return Some(day * DAY + second);
        }
        let day = self.next_day(day, date, years, steps)?;
        let first = hms(lowest(self.hours.into()), lowest(self.minutes), lowest(self.seconds));
        Some(day * DAY + first)
    }

    /// The greatest local time at or before `upto` that matches.
    pub(crate) fn prev_local(&self, upto: i64, years: Years<'_>, steps: &mut Steps) -> Option<i64> {
        let day = upto.div_euclid(DAY);
        let date = Date::of(day);
        if self.matches_day(day, date, years)
            && let Some(second) = self.prev_second(upto - day * DAY)
        {
            return Some(day * DAY + second);
        }
        let day = self.prev_day(day, date, years, steps)?;
        let last = hms(highest(self.hours.into()), highest(self.minutes), highest(self.seconds));
        Some(day * DAY + last)
    }

    fn matches_day(&self, day: i64, date: Date, years: Years<'_>) -> bool {
        if self.months >> date.month & 1 == 0 {
            return false;
        }
        let of_month = self.days >> date.day & 1 == 1;
        let of_week = self.weekdays == ALL_WEEKDAYS || self.weekdays >> weekday(day) & 1 == 1;
        let matches = if self.marks.has(Marks::EITHER_DAY) { of_month || of_week } else { of_month && of_week };
        matches && years.is_none_or(|y| y.binary_search(&date.year).is_ok())
    }

    /// The days of a month that match, as bits 1 to 31.
    fn days_of(&self, year: i32, month: u32, first_weekday: u32) -> u32 {
        let week = u64::from(self.weekdays);
        let turned = (week << 7 | week) >> first_weekday & 0x7F;
        let by_weekday = turned << 1 | turned << 8 | turned << 15 | turned << 22 | turned << 29;
        let by_weekday = u32::try_from(by_weekday & u64::from(u32::MAX)).unwrap_or(0);
        let days = if self.marks.has(Marks::EITHER_DAY) { self.days | by_weekday } else { self.days & by_weekday };
        days & valid(year, month)
    }

    fn next_day(&self, day: i64, date: Date, years: Years<'_>, steps: &mut Steps) -> Option<i64> {
        let Date { mut year, mut month, day: of_month } = date;
        let mut first = day - i64::from(of_month) + 1;
        // Bits above the day itself; the 31st leaves none.
        let mut above = (!1_u32).checked_shl(of_month).unwrap_or(0);
        let mut passed = of_month;
        loop {
            let allowed = years.is_none_or(|y| y.binary_search(&year).is_ok());
            if allowed && self.months >> month & 1 == 1 {
                let days = self.days_of(year, month, weekday(first)) & above;
                if days != 0 {
                    steps.take(days.trailing_zeros() - passed)?;
                    return Some(first - 1 + i64::from(days.trailing_zeros()));
                }
                steps.take(Date::month_length(year, month) - passed)?;
            }
            passed = 0;
            match bit_from(self.months.into(), month + 1).filter(|_| allowed) {
                Some(m) => month = m,
                None => {
                    steps.take(1)?;
                    year = match years {
                        None => year + 1,
                        Some(list) => *list.get(list.partition_point(|y| *y <= year))?,
                    };
                    month = lowest(self.months.into());
                }
            }
            first = Date { year, month, day: 1 }.days();
            above = u32::MAX;
        }
    }

    fn prev_day(&self, day: i64, date: Date, years: Years<'_>, steps: &mut Steps) -> Option<i64> {
        let Date { mut year, mut month, day: of_month } = date;
        let mut first = day - i64::from(of_month) + 1;
        let mut below = (1_u32 << of_month) - 1;
        let mut of_month = Some(of_month);
        loop {
            let allowed = years.is_none_or(|y| y.binary_search(&year).is_ok());
            if allowed && self.months >> month & 1 == 1 {
                let days = self.days_of(year, month, weekday(first)) & below;
                let last = of_month.take().map_or(Date::month_length(year, month), |day| day - 1);
                if days != 0 {
                    steps.take(last + 1 - (31 - days.leading_zeros()))?;
                    return Some(first - 1 + i64::from(31 - days.leading_zeros()));
                }
                steps.take(last)?;
            }
            of_month = None;
            match bit_upto(self.months.into(), month - 1).filter(|_| allowed) {
                Some(m) => month = m,
                None => {
                    steps.take(1)?;
                    year = match years {
                        None => year - 1,
                        Some(list) => *list[..list.partition_point(|y| *y < year)].last()?,
                    };
                    month = highest(self.months.into());
                }
            }
            first = Date { year, month, day: 1 }.days();
            below = u32::MAX;
        }
    }

    /// The least matching second of a day at or after `from`.
    fn next_second(&self, from: i64) -> Option<i64> {
        let (hour, minute, second) = split(from);
        let hours = u64::from(self.hours);
        if hours >> hour & 1 == 1 {
            if self.minutes >> minute & 1 == 1
                && let Some(s) = bit_from(self.seconds, second)
            {
                return Some(hms(hour, minute, s));
            }
            if let Some(m) = bit_from(self.minutes, minute + 1) {
                return Some(hms(hour, m, lowest(self.seconds)));
            }
        }
        let hour = bit_from(hours, hour + 1)?;
        Some(hms(hour, lowest(self.minutes), lowest(self.seconds)))
    }

    /// The greatest matching second of a day at or before `upto`.
    fn prev_second(&self, upto: i64) -> Option<i64> {
        let (hour, minute, second) = split(upto);
        let hours = u64::from(self.hours);
        if hours >> hour & 1 == 1 {
            if self.minutes >> minute & 1 == 1
                && let Some(s) = bit_upto(self.seconds, second)
            {
                return Some(hms(hour, minute, s));
            }
            if minute > 0
                && let Some(m) = bit_upto(self.minutes, minute - 1)
            {
                return Some(hms(hour, m, highest(self.seconds)));
            }
        }
        let hour = bit_upto(hours, hour.checked_sub(1)?)?;
        Some(hms(hour, highest(self.minutes), highest(self.seconds)))
    }
}

/// The days that exist in a month, as bits 1 to 31.
fn valid(year: i32, month: u32) -> u32 {
    (u32::MAX >> (31 - Date::month_length(year, month))) & ALL_DAYS
}

fn split(second_of_day: i64) -> (u32, u32, u32) {
    let s = u32::try_from(second_of_day).unwrap_or(0);
    (s / 3_600, s / 60 % 60, s % 60)
}

fn hms(hour: u32, minute: u32, second: u32) -> i64 {
    i64::from(hour * 3_600 + minute * 60 + second)
}
