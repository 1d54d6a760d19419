//! The search on instants: local matches, mapped through the spans of a zone, forward and back.
//!
//! The set of a schedule's instants is the union, over all matching local times, of the instants that each
//! local time stands for under the rule for gaps and folds. `next` is the least member after an instant.
//! Within one span of constant offset, local and real order agree, so a search takes the next local match and
//! looks whether it still lies in the span; only a change of offset needs more.

use chrono::NaiveDate;

use super::every::Every;
use super::fields::{DAY, Fields, Steps, Years};
use super::options::{Calendar, Fold, Gap};
use super::zone::Zone;

/// A search may enter this many spans of a zone.
pub(crate) const MAX_SPANS: usize = 64;
/// No offset is as large, and no fold as long, as this half of two days.
const FAR: i64 = 2 * DAY;

/// The local times that match: an expression less the days of a calendar.
pub(crate) struct Matches<'a> {
    pub(crate) fields: &'a Fields,
    pub(crate) years: Years<'a>,
    pub(crate) calendar: Option<&'a dyn Calendar>,
}

impl Matches<'_> {
    /// The least matching local time at or after `from`.
    pub(crate) fn next_local(&self, from: i64, steps: &mut Steps) -> Option<i64> {
        self.next_local_before(i64::MAX, from, steps)
    }

    /// The same, if it lies before `end`. A calendar is not asked for what lies behind.
    pub(crate) fn next_local_before(&self, end: i64, from: i64, steps: &mut Steps) -> Option<i64> {
        let mut local = self.fields.next_local(from, self.years, steps)?;
        if let Some(calendar) = self.calendar {
            while local < end && excludes(calendar, local) {
                steps.take(1)?;
                let tomorrow = (local.div_euclid(DAY) + 1) * DAY;
                local = self.fields.next_local(tomorrow, self.years, steps)?;
            }
        }
        (local < end).then_some(local)
    }

    /// The greatest matching local time at or before `upto`.
    pub(crate) fn prev_local(&self, upto: i64, steps: &mut Steps) -> Option<i64> {
        let mut local = self.fields.prev_local(upto, self.years, steps)?;
        if let Some(calendar) = self.calendar {
            while excludes(calendar, local) {
                steps.take(1)?;
                let yesterday = local.div_euclid(DAY) * DAY - 1;
                local = self.fields.prev_local(yesterday, self.years, steps)?;
            }
        }
        Some(local)
    }

    /// The least instant after `after`.
    pub(crate) fn next(&self, zone: &Zone, after: i64) -> Option<i64> {
        let mut steps = Steps::new();
        let mut index = zone.index(after);
        let mut span = zone.span(index);
        // `found` is the least match at or after `base`.
        let mut base = after + 1 + span.offset;
        if self.fields.fold == Fold::First && span.after_fold() {
            base = base.max(span.begin + span.before);
        }
        let mut found = self.next_local(base, &mut steps);
        for _ in 0..MAX_SPANS {
            if let Some(local) = found
                && local - span.offset < span.end
            {
                return Some(local - span.offset);
            }
            if index + 1 >= zone.len() {
                return None;
            }
            // The very next span may repeat local times before `base`. Unless it does, spans that end long before the
            // match hold none.
            let next = zone.span(index + 1);
            let repeats = self.fields.fold == Fold::Both && next.begin + next.offset < base;
            index = match found {
                Some(local) if !repeats => (index + 1).max(zone.index(local - FAR)),
                _ => index + 1,
            };
            span = zone.span(index);
            let gone = span.begin + span.before;
            let mut start = span.begin + span.offset;
            if span.after_gap() && found.is_some_and(|local| (gone..start).contains(&local)) {
                if self.fields.gap == Gap::Shift {
                    return Some(span.begin);
                }
            } else if span.after_fold() && self.fields.fold == Fold::First {
                start = gone;
            }
            // A match may be gone, or counted before.
            if repeats || found.is_some_and(|local| local < start) {
                base = start;
                found = self.next_local(base, &mut steps);
            } else if found.is_none() {
                return None;
            }
        }
        None
    }

    /// The greatest instant before `before`.
    pub(crate) fn prev(&self, zone: &Zone, before: i64) -> Option<i64> {
        let mut steps = Steps::new();
        let mut index = zone.index(before - 1);
        let mut span = zone.span(index);
        // `found` is the greatest match at or before `top`.
        let mut top = before - 1 + span.offset;
        let mut found = self.prev_local(top, &mut steps);
        for _ in 0..MAX_SPANS {
            if index == 0 {
                return found.map(|local| local - span.offset);
            }
            let gone = span.begin + span.before;
            let twice = span.after_fold() && self.fields.fold == Fold::First;
            let start = if twice { gone } else { span.begin + span.offset };
            match found {
                Some(local) if local >= start => return Some(local - span.offset),
                Some(local) if local >= gone && self.fields.gap == Gap::Shift => {
                    return Some(span.begin);
                }
                // What begins long after the match holds none; but the span before may hold local times
                // after `top` that this one repeats, and a match may be gone.
                Some(local) if local < gone && top >= gone - 1 => {
                    index = (index - 1).min(zone.index(local + FAR));
                    span = zone.span(index);
                }
                None if top >= gone - 1 => return None,
                _ => {
                    index -= 1;
                    span = zone.span(index);
                    top = gone - 1;
                    found = self.prev_local(top, &mut steps);
                }
            }
        }
        None
    }
}

/// The least grid point after `after` that lies on no excluded day.
pub(crate) fn next_every(every: Every, zone: &Zone, calendar: &dyn Calendar, after: i64) -> Option<i64> {
    let mut steps = Steps::new();
    let mut instant = every.next(after);
    loop {
        let span = zone.at(instant);
        let local = instant + span.offset;
        if !excludes(calendar, local) {
            return Some(instant);
        }
        steps.take(1)?;
        let tomorrow = (local.div_euclid(DAY) + 1) * DAY - span.offset;
        instant = every.next(tomorrow.min(span.end) - 1);
    }
}

/// The greatest grid point before `before` that lies on no excluded day.
pub(crate) fn prev_every(every: Every, zone: &Zone, calendar: &dyn Calendar, before: i64) -> Option<i64> {
    let mut steps = Steps::new();
    let mut instant = every.prev(before);
    loop {
        let span = zone.at(instant);
        let local = instant + span.offset;
        if !excludes(calendar, local) {
            return Some(instant);
        }
        steps.take(1)?;
        let today = local.div_euclid(DAY) * DAY - span.offset;
        instant = every.prev(today.max(span.begin));
    }
}

/// Whether the calendar excludes the day of a local time; days beyond chrono's range it is not asked for.
pub(crate) fn excludes(calendar: &dyn Calendar, local: i64) -> bool {
    // 1970-01-01 is day 719,163 of the common era.
    i32::try_from(local.div_euclid(DAY) + 719_163)
        .ok()
        .and_then(NaiveDate::from_num_days_from_ce_opt)
        .is_some_and(|day| calendar.excludes(day))
}
