//! Schedules: from the text of a spec to its trigger points, exact in every zone.
//!
//! A [`Schedule`] stands on its own:
//!
//! ```
//! use chrono::{DateTime, Utc};
//! # extern crate timertask_core as timertask;
//! use timertask::Schedule;
//!
//! let schedule = Schedule::parse("CRON_TZ=Europe/Berlin 30 2 * * *")?;
//! let now: DateTime<Utc> = "2026-03-27T12:00:00Z".parse()?;
//! let next: Vec<String> = schedule.upcoming(now).take(3).map(|o| o.to_string()).collect();
//! assert_eq!(next, [
//!     "2026-03-28T02:30:00+01:00",
//!     "2026-03-29T03:00:00+02:00 (shifted from 2026-03-29T02:30:00)",
//!     "2026-03-30T02:30:00+02:00",
//! ]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Everything here is pure: no thread, lock or clock. The one thing kept is a table of each zone's offsets, read from
//! the compiled-in data at the zone's first use, which takes up to a millisecond. The grammar and the differences from
//! other implementations are on the page [`dialect`](crate::dialect).

mod display;
mod error;
mod every;
mod fields;
mod limits;
mod options;
mod parse;
mod quartz;
mod search;
mod upcoming;
mod zone;

#[cfg(test)]
mod tests;

use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use chrono_tz::Tz;

pub use error::{SpecError, SpecField, SpecProblem};
pub use options::{Calendar, Dialect, Dst, DstError, EveryBase, Fold, Gap, ScheduleOptions, SpecLimits};
pub use upcoming::{Between, Note, Occurrence, Swallowed, SwallowedTime, Upcoming};

use crate::time::Trigger;
use every::Every;
use fields::{DAY, Fields, Years};
use options::NamedCalendar;
use search::Matches;
use zone::Zone;

/// The version of the zone data that is compiled in, such as `2025b`.
///
/// Instances that share plans agree on trigger points as long as they have the same one. The data ends in
/// 2099; from then on a zone keeps its last offset.
pub const ZONE_DATA_VERSION: &str = chrono_tz::IANA_TZDB_VERSION;

/// Two days short of both ends of chrono's range, so that local times can be shown for every answer.
const EARLIEST: i64 = DateTime::<Utc>::MIN_UTC.timestamp() + 2 * DAY;
const LATEST: i64 = DateTime::<Utc>::MAX_UTC.timestamp() - 2 * DAY;

/// When something runs: an expression, its zone and its rule for the days on which clocks change.
///
/// It is cheap to clone. Two are equal where canonical form (as `Display` shows it), rule for clock changes, grid and
/// calendar name are: `@daily` equals `0 0 * * *`. Equal schedules have the same trigger points, so that they can be
/// kept, and computed, once.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Schedule {
    kind: Kind,
    zone: Tz,
    rare: Option<Arc<Rare>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Cron(Fields),
    Every(Every),
    At(Trigger),
}

/// What few schedules have.
struct Rare {
    years: Option<Box<[i32]>>,
    calendar: Option<NamedCalendar>,
}

impl Rare {
    fn key(&self) -> (Option<&[i32]>, Option<&str>) {
        (self.years.as_deref(), self.calendar.as_ref().map(|c| &*c.name))
    }
}

impl PartialEq for Rare {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Rare {}

impl Hash for Rare {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl Schedule {
    /// Reads an expression with the defaults of [`ScheduleOptions`]: UTC unless it names a zone.
    ///
    /// # Errors
    /// [`SpecError`] says which part is refused and what may stand there.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        ScheduleOptions::new().parse(text)
    }

    fn of(kind: Kind, zone: Tz, calendar: Option<NamedCalendar>) -> Self {
        Self::with_years(kind, zone, None, calendar)
    }

    fn with_years(kind: Kind, zone: Tz, years: Option<Box<[i32]>>, calendar: Option<NamedCalendar>) -> Self {
        let rare = (years.is_some() || calendar.is_some()).then(|| Arc::new(Rare { years, calendar }));
        Self { kind, zone, rare }
    }

    /// The least trigger point strictly after `after`, if there is one.
    ///
    /// ```
    /// # use timertask_core::Schedule;
    /// let leap_day = Schedule::parse("0 0 29 2 *")?;
    /// let next = leap_day.next_after("2096-03-01T00:00:00Z".parse()?);
    /// assert_eq!(next, Some("2104-02-29T00:00:00Z".parse()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// Only where a [`Calendar`] does.
    #[must_use]
    pub fn next_after(&self, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.next_trigger(after.into()).map(Trigger::to_datetime)
    }

    /// The greatest trigger point strictly before `before`, if there is one.
    ///
    /// # Panics
    /// Only where a [`Calendar`] does.
    #[must_use]
    pub fn prev_before(&self, before: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.prev_trigger(ceiling(before)).map(Trigger::to_datetime)
    }

    /// [`Schedule::next_after`] on whole seconds. It does not allocate, apart from a zone's first use.
    ///
    /// # Panics
    /// Only where a [`Calendar`] does.
    #[must_use]
    pub fn next_trigger(&self, after: Trigger) -> Option<Trigger> {
        let after = after.as_secs().max(EARLIEST - 1);
        if after >= LATEST {
            return None;
        }
        let next = match (&self.kind, self.calendar()) {
            (Kind::Cron(fields), _) => self.matches(fields).next(Zone::of(self.zone), after),
            (Kind::Every(every), None) => Some(every.next(after)),
            (Kind::Every(every), Some(calendar)) => search::next_every(*every, Zone::of(self.zone), calendar, after),
            (Kind::At(at), _) => self.once(*at).filter(|at| *at > after),
        };
        next.filter(|next| *next <= LATEST).map(Trigger::from_secs)
    }

    /// [`Schedule::prev_before`] on whole seconds. It does not allocate, apart from a zone's first use.
    ///
    /// # Panics
    /// Only where a [`Calendar`] does.
    #[must_use]
    pub fn prev_trigger(&self, before: Trigger) -> Option<Trigger> {
        let before = before.as_secs().min(LATEST + 1);
        if before <= EARLIEST {
            return None;
        }
        let prev = match (&self.kind, self.calendar()) {
            (Kind::Cron(fields), _) => self.matches(fields).prev(Zone::of(self.zone), before),
            (Kind::Every(every), None) => Some(every.prev(before)),
            (Kind::Every(every), Some(calendar)) => search::prev_every(*every, Zone::of(self.zone), calendar, before),
            (Kind::At(at), _) => self.once(*at).filter(|at| *at < before),
        };
        prev.filter(|prev| *prev >= EARLIEST).map(Trigger::from_secs)
    }

    /// The one instant of `@at`, unless the calendar excludes its day.
    fn once(&self, at: Trigger) -> Option<i64> {
        let at = at.as_secs();
        let local = at + Zone::of(self.zone).at(at).offset;
        let excluded = self.calendar().is_some_and(|calendar| search::excludes(calendar, local));
        (!excluded).then_some(at)
    }

    /// How many trigger points lie in `(after, upto]`; counting ends at `limit`.
    ///
    /// For `@every` without a calendar this is arithmetic, else one step for each.
    ///
    /// # Panics
    /// Only where a [`Calendar`] does.
    #[must_use]
    pub fn count_between(&self, after: Trigger, upto: Trigger, limit: u64) -> u64 {
        if after >= upto {
            return 0;
        }
        if let (Kind::Every(every), None) = (&self.kind, self.calendar()) {
            let clamp = |t: Trigger| t.as_secs().clamp(EARLIEST - 1, LATEST);
            return every.count(clamp(after), clamp(upto)).min(limit);
        }
        let mut count = 0;
        let mut last = after;
        while count < limit {
            match self.next_trigger(last) {
                Some(next) if next <= upto => last = next,
                _ => break,
            }
            count += 1;
        }
        count
    }

    /// Whether `instant` is a trigger point.
    ///
    /// # Panics
    /// Only where a [`Calendar`] does.
    #[must_use]
    pub fn is_due_at(&self, instant: DateTime<Utc>) -> bool {
        let trigger = Trigger::from(instant);
        instant.timestamp_subsec_nanos() == 0
            && self.next_trigger(Trigger::from_secs(trigger.as_secs() - 1)) == Some(trigger)
    }

    /// The trigger points strictly after `after`, each with its local time and a note where clocks changed.
    pub fn upcoming(&self, after: DateTime<Utc>) -> Upcoming<'_> {
        Upcoming::new(self, after)
    }

    /// The trigger points in `(after, upto]`.
    pub fn between(&self, after: DateTime<Utc>, upto: DateTime<Utc>) -> Between<'_> {
        Between::new(self, after, upto)
    }

    /// The local times that would have matched after `after` but don't exist, since a gap swallowed them.
    ///
    /// ```
    /// # use timertask_core::{Dst, ScheduleOptions};
    /// let options = ScheduleOptions::new().zone(chrono_tz::Europe::Berlin).dst(Dst::Cron);
    /// let schedule = options.parse("30 2 * * *")?;
    /// let lost = schedule.swallowed("2026-01-01T00:00:00Z".parse()?).next().unwrap();
    /// assert_eq!(lost.local.to_string(), "2026-03-29 02:30:00");
    /// assert_eq!(lost.gap_ends.to_string(), "2026-03-29 01:00:00 UTC");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Under [`Gap::Shift`] nothing is lost. The iterator ends with the zone's data.
    pub fn swallowed(&self, after: DateTime<Utc>) -> Swallowed<'_> {
        Swallowed::new(self, after)
    }

    /// The distance between the next two trigger points after `after`.
    ///
    /// # Panics
    /// Only where a [`Calendar`] does.
    #[must_use]
    pub fn period_after(&self, after: Trigger) -> Option<Duration> {
        let first = self.next_trigger(after)?;
        let second = self.next_trigger(first)?;
        u64::try_from(second.as_secs() - first.as_secs()).ok().map(Duration::from_secs)
    }

    /// The zone in which the expression is read.
    #[must_use]
    pub const fn zone(&self) -> Tz {
        self.zone
    }

    /// Whether a calendar excludes days.
    #[must_use]
    pub fn has_calendar(&self) -> bool {
        self.calendar().is_some()
    }

    /// The name of the calendar, if there is one.
    #[must_use]
    pub fn calendar_name(&self) -> Option<&str> {
        self.rare.as_ref()?.calendar.as_ref().map(|c| &*c.name)
    }

    /// What is accepted, but not advisable.
    #[must_use]
    pub fn lint(&self) -> Vec<SpecWarning> {
        let name = self.zone.name();
        let old = !name.contains('/') && !matches!(name, "UTC" | "GMT");
        old.then_some(SpecWarning::LegacyZone { name }).into_iter().collect()
    }

    fn calendar(&self) -> Option<&dyn Calendar> {
        self.rare.as_ref()?.calendar.as_ref().map(|c| &*c.calendar)
    }

    fn years(&self) -> Years<'_> {
        self.rare.as_ref()?.years.as_deref()
    }

    fn matches<'a>(&'a self, fields: &'a Fields) -> Matches<'a> {
        Matches { fields, years: self.years(), calendar: self.calendar() }
    }
}

impl ScheduleOptions {
    /// Reads an expression.
    ///
    /// # Errors
    /// [`SpecError`] says which part is refused and what may stand there.
    pub fn parse(&self, text: &str) -> Result<Schedule, SpecError> {
        parse::schedule(text, self)
    }

    /// Takes over a schedule of the crate `cron`, which has no zone of its own. Limits are not looked at.
    #[must_use]
    pub fn convert(&self, schedule: &cron::Schedule) -> Schedule {
        quartz::from_cron(schedule, self)
    }
}

impl FromStr for Schedule {
    type Err = SpecError;

    /// [`Schedule::parse`].
    fn from_str(text: &str) -> Result<Self, SpecError> {
        Self::parse(text)
    }
}

impl From<cron::Schedule> for Schedule {
    /// In UTC and with [`Dst::Auto`]; [`ScheduleOptions::convert`] takes others.
    fn from(schedule: cron::Schedule) -> Self {
        ScheduleOptions::new().convert(&schedule)
    }
}

/// What [`Schedule::lint`] found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecWarning {
    /// A zone name that is kept for old systems only; its rules may not be those of any place.
    #[error("`{name}` is an old zone name, better an Area/City such as Europe/Berlin")]
    #[non_exhaustive]
    LegacyZone {
        /// The name.
        name: &'static str,
    },
}

/// The first whole second at or after `instant`.
fn ceiling(instant: DateTime<Utc>) -> Trigger {
    let second = Trigger::from(instant);
    if instant.timestamp_subsec_nanos() == 0 { second } else { Trigger::from_secs(second.as_secs() + 1) }
}
