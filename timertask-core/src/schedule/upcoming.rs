//! Occurrences for people: the instant, the local time, and what clocks did to it.

use std::fmt;
use std::iter::FusedIterator;

use chrono::{DateTime, NaiveDateTime, Offset as _, Utc};
use chrono_tz::Tz;

use super::fields::{Fields, Steps};
use super::options::{Fold, Gap};
use super::zone::Zone;
use super::{EARLIEST, Kind, LATEST, Schedule};
use crate::time::Trigger;

/// What clocks did to a trigger point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Note {
    /// Nothing.
    Regular,
    /// The local time that was meant does not exist; this is the first instant after the gap.
    ShiftedFrom(NaiveDateTime),
    /// The local time comes a second time.
    Repeated {
        /// The first time.
        first: DateTime<Utc>,
    },
}

/// One trigger point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Occurrence {
    /// The instant.
    pub instant: DateTime<Utc>,
    /// The same in the schedule's zone.
    pub local: DateTime<Tz>,
    /// What clocks did to it.
    pub note: Note,
}

impl Occurrence {
    /// The instant as a trigger point.
    #[must_use]
    pub fn trigger(&self) -> Trigger {
        self.instant.into()
    }
}

impl fmt::Display for Occurrence {
    /// The local time, and the note if there is one.
    ///
    /// It is RFC 3339 but for offsets with seconds, such as `-00:44:30`, which that form has not; zones had them until
    /// 1972.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole_minutes = self.local.offset().fix().local_minus_utc() % 60 == 0;
        let form = if whole_minutes { "%Y-%m-%dT%H:%M:%S%:z" } else { "%Y-%m-%dT%H:%M:%S%::z" };
        write!(f, "{}", self.local.format(form))?;
        match self.note {
            Note::Regular => Ok(()),
            Note::ShiftedFrom(local) => {
                write!(f, " (shifted from {})", local.format("%Y-%m-%dT%H:%M:%S"))
            }
            Note::Repeated { .. } => f.write_str(" (second time)"),
        }
    }
}

/// The trigger points after an instant; see [`Schedule::upcoming`].
#[derive(Clone, Debug)]
#[must_use = "iterators do nothing unless consumed"]
pub struct Upcoming<'a> {
    schedule: &'a Schedule,
    after: Option<Trigger>,
}

impl<'a> Upcoming<'a> {
    pub(super) fn new(schedule: &'a Schedule, after: DateTime<Utc>) -> Self {
        Self { schedule, after: Some(after.into()) }
    }

    /// The local times that gaps swallow from here on; see [`Schedule::swallowed`].
    pub fn swallowed(&self) -> Swallowed<'a> {
        let after = self.after.unwrap_or(Trigger::from_secs(i64::MAX));
        Swallowed::new(self.schedule, after.to_datetime())
    }
}

impl Iterator for Upcoming<'_> {
    type Item = Occurrence;

    fn next(&mut self) -> Option<Occurrence> {
        self.after = self.schedule.next_trigger(self.after?);
        self.after.map(|trigger| self.schedule.occurrence(trigger))
    }
}

impl FusedIterator for Upcoming<'_> {}

/// The trigger points between two instants; see [`Schedule::between`].
#[derive(Clone, Debug)]
#[must_use = "iterators do nothing unless consumed"]
pub struct Between<'a> {
    upcoming: Upcoming<'a>,
    upto: DateTime<Utc>,
}

impl<'a> Between<'a> {
    pub(super) fn new(schedule: &'a Schedule, after: DateTime<Utc>, upto: DateTime<Utc>) -> Self {
        Self { upcoming: Upcoming::new(schedule, after), upto }
    }
}

impl Iterator for Between<'_> {
    type Item = Occurrence;

    fn next(&mut self) -> Option<Occurrence> {
        let next = self.upcoming.next().filter(|next| next.instant <= self.upto);
        if next.is_none() {
            self.upcoming.after = None;
        }
        next
    }
}

impl FusedIterator for Between<'_> {}

impl Schedule {
    fn occurrence(&self, trigger: Trigger) -> Occurrence {
        let instant = trigger.to_datetime();
        let note = match &self.kind {
            Kind::Cron(fields) => self.note(fields, trigger.as_secs()),
            Kind::Every(_) | Kind::At(_) => Note::Regular,
        };
        Occurrence { instant, local: instant.with_timezone(&self.zone), note }
    }

    fn note(&self, fields: &Fields, instant: i64) -> Note {
        let span = Zone::of(self.zone).at(instant);
        let local = instant + span.offset;
        if span.after_fold() && fields.fold == Fold::Both && local < span.begin + span.before {
            return Note::Repeated { first: utc(local - span.before) };
        }
        if span.after_gap() && instant == span.begin {
            let gone = self.matches(fields).next_local_before(local, span.begin + span.before, &mut Steps::new());
            if let Some(gone) = gone
                && !self.is_match(fields, local)
            {
                return Note::ShiftedFrom(utc(gone).naive_utc());
            }
        }
        Note::Regular
    }

    fn is_match(&self, fields: &Fields, local: i64) -> bool {
        self.matches(fields).next_local_before(local + 1, local, &mut Steps::new()) == Some(local)
    }
}

fn utc(seconds: i64) -> DateTime<Utc> {
    Trigger::from_secs(seconds).to_datetime()
}

/// A local time that a gap swallowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct SwallowedTime {
    /// The local time, which does not exist.
    pub local: NaiveDateTime,
    /// The first instant after the gap.
    pub gap_ends: DateTime<Utc>,
}

/// The local times that gaps swallow; see [`Schedule::swallowed`].
#[derive(Clone, Debug)]
#[must_use = "iterators do nothing unless consumed"]
pub struct Swallowed<'a> {
    schedule: &'a Schedule,
    /// The span after the gap that is looked at.
    span: usize,
    /// Where to go on in that gap.
    from: i64,
}

impl<'a> Swallowed<'a> {
    pub(super) fn new(schedule: &'a Schedule, after: DateTime<Utc>) -> Self {
        let after = Trigger::from(after).as_secs().clamp(EARLIEST, LATEST);
        Self { schedule, span: Zone::of(schedule.zone).index(after) + 1, from: i64::MIN }
    }
}

impl Iterator for Swallowed<'_> {
    type Item = SwallowedTime;

    fn next(&mut self) -> Option<SwallowedTime> {
        let Kind::Cron(fields) = &self.schedule.kind else {
            return None;
        };
        let zone = Zone::of(self.schedule.zone);
        while fields.gap == Gap::Skip && self.span < zone.len() {
            let span = zone.span(self.span);
            let (from, end) = (self.from.max(span.begin + span.before), span.begin + span.offset);
            if let Some(local) = self.schedule.matches(fields).next_local_before(end, from, &mut Steps::new()) {
                self.from = local + 1;
                return Some(SwallowedTime { local: utc(local).naive_utc(), gap_ends: utc(span.begin) });
            }
            self.span += 1;
            self.from = i64::MIN;
        }
        None
    }
}

impl FusedIterator for Swallowed<'_> {}
