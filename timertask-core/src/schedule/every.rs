//! `@every`: a grid of instants, and Go's way to write a duration.

use std::fmt;

use super::error::{SpecError, SpecField, SpecProblem};
use super::parse::Part;
use crate::time::Trigger;

/// The longest period in seconds: 292 years, the range of Go's durations.
const LONGEST: u64 = 9_223_372_036;
const NANOS: u128 = 1_000_000_000;

/// `anchor + k × period` for every whole k; the anchor is kept within `0..period`, so that equal grids are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Every {
    period: i64,
    anchor: i64,
}

impl Every {
    pub(crate) fn new(period: i64, anchor: Trigger) -> Self {
        let period = period.max(1);
        Self { period, anchor: anchor.as_secs().rem_euclid(period) }
    }

    pub(crate) const fn period(self) -> i64 {
        self.period
    }

    /// The number of the last grid point at or before `instant`.
    fn number(self, instant: i64) -> i128 {
        (i128::from(instant) - i128::from(self.anchor)).div_euclid(i128::from(self.period))
    }

    /// The least grid point after `after`; callers keep to chrono's range, so nothing overflows.
    pub(crate) const fn next(self, after: i64) -> i64 {
        after - (after - self.anchor).rem_euclid(self.period) + self.period
    }

    /// The greatest grid point before `before`.
    pub(crate) const fn prev(self, before: i64) -> i64 {
        let last = before - 1;
        last - (last - self.anchor).rem_euclid(self.period)
    }

    /// How many grid points lie in `(after, upto]`.
    pub(crate) fn count(self, after: i64, upto: i64) -> u64 {
        u64::try_from(self.number(upto) - self.number(after)).unwrap_or(0)
    }
}

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (h, m, s) = (self.period / 3_600, self.period / 60 % 60, self.period % 60);
        f.write_str("@every ")?;
        for (n, unit) in [(h, 'h'), (m, 'm'), (s, 's')] {
            if n != 0 {
                write!(f, "{n}{unit}")?;
            }
        }
        Ok(())
    }
}

/// Reads a duration such as `1h30m` or `1.5h`: whole seconds in all, at least one.
pub(super) fn duration(text: Part<'_>) -> Result<i64, SpecError> {
    nanos(text.text)
        .filter(|nanos| nanos % NANOS == 0)
        .and_then(|nanos| u64::try_from(nanos / NANOS).ok())
        .filter(|seconds| (1..=LONGEST).contains(seconds))
        .and_then(|seconds| i64::try_from(seconds).ok())
        .ok_or_else(|| {
            text.error(
                SpecProblem::Duration,
                SpecField::Duration,
                "a duration such as 90s, 15m or 1h30m, in whole seconds, from 1s to 292 years",
            )
        })
}

fn nanos(mut text: &str) -> Option<u128> {
    const UNITS: [(&str, u128); 8] = [
        ("ns", 1),
        ("us", 1_000),
        ("\u{b5}s", 1_000),
        ("\u{3bc}s", 1_000),
        ("ms", 1_000_000),
        ("s", NANOS),
        ("m", 60 * NANOS),
        ("h", 3_600 * NANOS),
    ];
    let mut total = 0_u128;
    if text.is_empty() {
        return None;
    }
    while !text.is_empty() {
        let (whole, rest) = digits(text);
        let (fraction, rest) = match rest.strip_prefix('.') {
            Some(rest) => digits(rest),
            None => ("", rest),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let (unit, rest) = UNITS.iter().find_map(|(name, unit)| Some((*unit, rest.strip_prefix(name)?)))?;
        let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()? };
        let mut part = u128::from(whole).checked_mul(unit)?;
        let mut scale = unit;
        for digit in fraction.bytes().map(|b| u128::from(b - b'0')) {
            // A digit below a nanosecond would be lost; what isn't zero there is no whole second anyway.
            if scale % 10 != 0 && digit != 0 {
                return None;
            }
            scale /= 10;
            part += digit * scale;
        }
        total = total.checked_add(part)?;
        text = rest;
    }
    Some(total)
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len()))
}
