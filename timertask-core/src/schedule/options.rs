//! What a schedule is read with: dialect, zone, the rule for the days on which clocks change, limits, calendar.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use chrono::NaiveDate;
use chrono_tz::Tz;

use crate::time::Trigger;

/// How many fields an expression may have.
///
/// Guessing by count can change a configuration's meaning silently; a service that knows which one it has says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Minute, hour, day of month, month, day of week.
    Five,
    /// The same with leading seconds.
    Six,
    /// Either.
    #[default]
    FiveOrSix,
}

/// What happens to a local time that does not exist, since clocks jumped over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gap {
    /// It gives no instant.
    Skip,
    /// It gives the first instant after the gap.
    Shift,
}

/// What happens to a local time that comes twice, since clocks were put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fold {
    /// The earlier instant counts.
    First,
    /// Both instants count.
    Both,
}

/// The rule for the days on which clocks change.
///
/// It reads from `auto`, `cron` and pairs such as `shift+first`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dst {
    /// Decided by the text of the hour and minute fields: where an item of either begins with `*` or `?`, as
    /// [`Dst::Cron`], so that interval jobs follow elapsed time; else [`Gap::Shift`] and [`Fold::First`], so that
    /// a daily job runs once on every day.
    #[default]
    Auto,
    /// [`Gap::Skip`] and [`Fold::Both`], as robfig/cron and Kubernetes do.
    Cron,
    /// This pair, whatever the expression.
    Exact(Gap, Fold),
}

impl Dst {
    /// The pair for an expression; `star` says that an item of its hour or minute field begins with `*` or `?`.
    pub(crate) const fn pair(self, star: bool) -> (Gap, Fold) {
        match self {
            Self::Exact(gap, fold) => (gap, fold),
            Self::Auto if !star => (Gap::Shift, Fold::First),
            Self::Auto | Self::Cron => (Gap::Skip, Fold::Both),
        }
    }
}

impl fmt::Display for Dst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Cron => "cron",
            Self::Exact(Gap::Skip, Fold::First) => "skip+first",
            Self::Exact(Gap::Skip, Fold::Both) => "skip+both",
            Self::Exact(Gap::Shift, Fold::First) => "shift+first",
            Self::Exact(Gap::Shift, Fold::Both) => "shift+both",
        })
    }
}

/// A text that names no [`Dst`] rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown rule for clock changes, allowed: auto, cron, skip+first, skip+both, shift+first, shift+both")]
#[non_exhaustive]
pub struct DstError;

impl FromStr for Dst {
    type Err = DstError;

    /// # Errors
    /// For any text that is none of the six that `Display` gives.
    fn from_str(text: &str) -> Result<Self, DstError> {
        Ok(match text {
            "auto" => Self::Auto,
            "cron" => Self::Cron,
            "skip+first" => Self::Exact(Gap::Skip, Fold::First),
            "skip+both" => Self::Exact(Gap::Skip, Fold::Both),
            "shift+first" => Self::Exact(Gap::Shift, Fold::First),
            "shift+both" => Self::Exact(Gap::Shift, Fold::Both),
            _ => return Err(DstError),
        })
    }
}

/// Limits on what a user may write, beyond what can be understood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct SpecLimits {
    /// Refuse what fires more often than this; `None` allows every second.
    ///
    /// Counted on local time: on a day on which clocks change, two instants may come closer together.
    pub min_interval: Option<Duration>,
}

impl SpecLimits {
    /// No limits.
    #[must_use]
    pub const fn none() -> Self {
        Self { min_interval: None }
    }

    /// Refuse what fires more often than every `interval`.
    #[must_use]
    pub const fn min_interval(mut self, interval: Duration) -> Self {
        self.min_interval = Some(interval);
        self
    }
}

/// Where the grid of `@every` starts, unless an anchor is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EveryBase {
    /// At the Unix epoch: all instances agree without talking, and a restart moves nothing.
    #[default]
    Epoch,
    /// At this instant, the one of the installation: the first run comes one period after it. Each process has
    /// a grid of its own then, so it is of use inside one process only.
    Install(Trigger),
}

/// Days on which a schedule has no trigger points, such as holidays.
///
/// It is asked during the search for the day of the local time that matched, so it answers quickly, always
/// alike, and from memory. A panic passes through the search to its caller.
pub trait Calendar: Send + Sync {
    /// Whether `day` has no trigger points.
    fn excludes(&self, day: NaiveDate) -> bool;
}

impl<F: Fn(NaiveDate) -> bool + Send + Sync> Calendar for F {
    fn excludes(&self, day: NaiveDate) -> bool {
        self(day)
    }
}

/// A calendar under the name by which it is known; the name alone decides equality.
#[derive(Clone)]
pub(crate) struct NamedCalendar {
    pub(crate) name: Arc<str>,
    pub(crate) calendar: Arc<dyn Calendar>,
}

/// How a schedule is read. The default: UTC, [`Dst::Auto`], five or six fields, no limits.
///
/// ```
/// # extern crate timertask_core as timertask;
/// use timertask::{Dialect, ScheduleOptions};
///
/// let options = ScheduleOptions::new().zone(chrono_tz::Europe::Berlin).dialect(Dialect::Five);
/// let schedule = options.parse("0 3 * * *")?;
/// assert_eq!(schedule.to_string(), "CRON_TZ=Europe/Berlin 0 3 * * *");
/// assert!(options.parse("0 0 3 * * *").is_err());
/// # Ok::<(), timertask_core::SpecError>(())
/// ```
#[derive(Clone, Default)]
pub struct ScheduleOptions {
    pub(crate) zone: Tz,
    pub(crate) dst: Dst,
    pub(crate) dialect: Dialect,
    pub(crate) limits: SpecLimits,
    pub(crate) anchor: Option<Trigger>,
    pub(crate) every_base: EveryBase,
    pub(crate) calendar: Option<NamedCalendar>,
}

impl ScheduleOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The zone of expressions without a `CRON_TZ=` of their own.
    #[must_use]
    pub fn zone(mut self, zone: Tz) -> Self {
        self.zone = zone;
        self
    }

    /// The rule for the days on which clocks change.
    #[must_use]
    pub fn dst(mut self, dst: Dst) -> Self {
        self.dst = dst;
        self
    }

    /// Five fields, six, or either.
    #[must_use]
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// Limits on what may be written.
    #[must_use]
    pub fn limits(mut self, limits: SpecLimits) -> Self {
        self.limits = limits;
        self
    }

    /// A point of the grid of `@every`; it goes before [`ScheduleOptions::every_base`].
    #[must_use]
    pub fn anchor(mut self, anchor: Option<Trigger>) -> Self {
        self.anchor = anchor;
        self
    }

    /// Where the grid of `@every` starts.
    #[must_use]
    pub fn every_base(mut self, base: EveryBase) -> Self {
        self.every_base = base;
        self
    }

    /// Days without trigger points. Schedules with calendars of the same name count as equal.
    #[must_use]
    pub fn calendar(mut self, name: impl Into<Arc<str>>, calendar: Arc<dyn Calendar>) -> Self {
        self.calendar = Some(NamedCalendar { name: name.into(), calendar });
        self
    }
}

impl fmt::Debug for ScheduleOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScheduleOptions")
            .field("zone", &self.zone.name())
            .field("dst", &self.dst)
            .field("dialect", &self.dialect)
            .field("limits", &self.limits)
            .field("anchor", &self.anchor)
            .field("every_base", &self.every_base)
            .field("calendar", &self.calendar.as_ref().map(|c| &*c.name))
            .finish()
    }
}
