//! Plans: what should run and when, with its policies, as the caller's database says.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::budget::RetryBudget;
use crate::key::{Fingerprint, PlanId};
use crate::schedule::Dst;
use crate::seam::Overlap;
use crate::time::Trigger;
use chrono::{DateTime, Utc};

/// What happens to slots that were missed: everybody was down, or busy, or the store was out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum CatchUp {
    /// They are not started, and recorded so.
    None,
    /// The latest one is made up, the older ones are recorded. The default.
    #[default]
    Latest,
    /// They are made up, old to new, at most the newest `cap`.
    All {
        /// The most slots that are made up for one gap, at most 10,000. 0 counts as [`CatchUp::None`].
        cap: u32,
    },
}

/// How fast an instance makes up slots, over all of its plans: those that were missed, those whose runner died and that
/// may run again, and those that an operator fills in.
///
/// An instance that comes back after a day with a thousand plans would otherwise start a thousand runs at once. Each
/// instance has a pace of its own; three that come back together are three times as fast. Slots are made up old to new;
/// within one plan one after the other is claimed, so that they also start in this order.
///
/// Live slots go first: as long as they leave no worker free, nothing is made up. But a slot that could start and has
/// waited half a minute for a worker gets the next one, so that catching up goes on where live slots take all workers, also
/// where there is only one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// How many such runs there are at once; 0 counts as 1. They take workers like all runs, so that more than
    /// `concurrency` has no effect.
    pub at_once: usize,
    /// The least time from one start to the next; zero for none.
    pub stagger: Duration,
}

impl Pace {
    pub(crate) fn at_once(&self) -> usize {
        self.at_once.max(1)
    }
}

impl Default for Pace {
    /// One at a time, a second apart.
    fn default() -> Self {
        Self { at_once: 1, stagger: Duration::from_secs(1) }
    }
}

/// What happens to a slot whose runner was not heard of any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum OnOrphan {
    /// It ends as orphaned; nobody runs it again. The default: at most one start, ever.
    #[default]
    Record,
    /// It is started again, at most `max` times, each time under a higher fence.
    Rerun {
        /// The most further starts.
        max: u32,
    },
}

impl OnOrphan {
    /// How many starts a slot may have in all.
    #[must_use]
    pub const fn attempts_allowed(self) -> u32 {
        match self {
            Self::Record => 1,
            Self::Rerun { max } => max.saturating_add(1),
        }
    }
}

/// What should run and when. A value; nothing is checked before it is given to a scheduler.
///
/// What isn't set comes from the scheduler's defaults.
///
/// ```
/// # extern crate timertask_core as timertask;
/// use std::time::Duration;
/// use timertask::{CatchUp, Plan};
///
/// let plan = Plan::new("nightly-report", "30 2 * * *")
///     .zone("Europe/Berlin")
///     .job("report")
///     .payload("{\"tenant\":7}")
///     .catch_up(CatchUp::Latest)
///     .start_window(Duration::from_secs(600));
/// assert_eq!(plan.id(), "nightly-report");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Plan {
    pub(crate) id: Arc<str>,
    pub(crate) spec: Arc<str>,
    pub(crate) fingerprint: Option<Arc<str>>,
    pub(crate) enabled: bool,
    pub(crate) payload: Option<Arc<[u8]>>,
    pub(crate) rest: Rest,
}

/// What is often the same for many plans.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct Rest {
    pub(crate) job: Option<Arc<str>>,
    pub(crate) zone: Option<Arc<str>>,
    pub(crate) dst: Option<Dst>,
    pub(crate) calendar: Option<Arc<str>>,
    pub(crate) anchor: Option<Trigger>,
    pub(crate) spread: Duration,
    pub(crate) retry: Option<RetryBudget>,
    pub(crate) overlap: Option<Overlap>,
    pub(crate) catch_up: Option<CatchUp>,
    pub(crate) catch_up_window: Option<Duration>,
    pub(crate) start_window: Option<Duration>,
    pub(crate) on_orphan: Option<OnOrphan>,
}

impl Plan {
    /// A plan with this id (1–255 bytes, no control characters) and schedule expression.
    #[must_use]
    pub fn new(id: impl Into<Arc<str>>, spec: impl Into<Arc<str>>) -> Self {
        Self {
            id: id.into(),
            spec: spec.into(),
            fingerprint: None,
            enabled: true,
            payload: None,
            rest: Rest::default(),
        }
    }

    /// What stands for all behaviour of the plan, such as the row's version or `updated_at`: as long as it is the
    /// same, a reconcile leaves the plan alone. Empty (the default): derived from all that changes behaviour.
    #[must_use]
    pub fn fingerprint(mut self, text: impl Into<Arc<str>>) -> Self {
        let text = text.into();
        self.fingerprint = (!text.is_empty()).then_some(text);
        self
    }

    /// A disabled plan is as good as absent. Enabled is the default; this takes the row's column as it is.
    #[must_use]
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// The name of the job in [`Jobs`](crate::Jobs). Default: the plan's id.
    #[must_use]
    pub fn job(mut self, name: impl Into<Arc<str>>) -> Self {
        self.rest.job = Some(name.into());
        self
    }

    /// Bytes for the job; never logged.
    #[must_use]
    pub fn payload(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.payload = Some(Arc::from(bytes.as_ref()));
        self
    }

    /// The IANA zone in which the expression is meant; a `CRON_TZ=` prefix in it comes first.
    #[must_use]
    pub fn zone(mut self, name: impl Into<Arc<str>>) -> Self {
        self.rest.zone = Some(name.into());
        self
    }

    /// What happens on days on which clocks change.
    #[must_use]
    pub fn dst(mut self, dst: Dst) -> Self {
        self.rest.dst = Some(dst);
        self
    }

    /// The name of a calendar registered with the builder; the plan has no slots on the days that it excludes.
    #[must_use]
    pub fn calendar(mut self, name: impl Into<Arc<str>>) -> Self {
        self.rest.calendar = Some(name.into());
        self
    }

    /// The grid of an `@every` expression goes through this instant (whole seconds). Default: the Unix epoch.
    #[must_use]
    pub fn anchor(mut self, at: DateTime<Utc>) -> Self {
        self.rest.anchor = Some(at.into());
        self
    }

    /// Delays the plan's slots by a fixed offset in `[0, spread)`, whole seconds, made from its id, so that plans with
    /// the same expression do not all start at once. The slot's identity stays.
    #[must_use]
    pub fn spread(mut self, spread: Duration) -> Self {
        self.rest.spread = spread;
        self
    }

    /// Sets a budget: attempts repeat, each with a time-out.
    #[must_use]
    pub fn retry(mut self, budget: RetryBudget) -> Self {
        self.rest.retry = Some(budget);
        self
    }

    /// What happens when a slot falls due while another of the plan runs.
    #[must_use]
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.rest.overlap = Some(overlap);
        self
    }

    /// What happens to missed slots.
    #[must_use]
    pub fn catch_up(mut self, catch_up: CatchUp) -> Self {
        self.rest.catch_up = Some(catch_up);
        self
    }

    /// How old a missed slot may be to be made up. Default: one day or one period of the plan, the longer, at most 31
    /// days.
    #[must_use]
    pub fn catch_up_window(mut self, window: Duration) -> Self {
        self.rest.catch_up_window = Some(window);
        self
    }

    /// How late a slot may start and still count as on time; at least 2 s.
    #[must_use]
    pub fn start_window(mut self, window: Duration) -> Self {
        self.rest.start_window = Some(window);
        self
    }

    /// What happens to a slot whose runner died.
    #[must_use]
    pub fn on_orphan(mut self, on_orphan: OnOrphan) -> Self {
        self.rest.on_orphan = Some(on_orphan);
        self
    }

    /// The id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The schedule expression.
    #[must_use]
    pub fn spec(&self) -> &str {
        &self.spec
    }

    /// Whether it is enabled.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }
}

impl fmt::Debug for Plan {
    /// Without the payload.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan")
            .field("id", &self.id)
            .field("spec", &self.spec)
            .field("enabled", &self.enabled)
            .field("payload_bytes", &self.payload.as_ref().map_or(0, |p| p.len()))
            .finish_non_exhaustive()
    }
}

/// The plan's share of its spread: whole seconds in [0, spread), made from its id. The upper half of the hash, since the lower bits of
/// FNV mix less well.
pub(crate) fn spread_offset(id: &PlanId, spread: Duration) -> u32 {
    let seconds = spread.as_secs().saturating_add(u64::from(spread.subsec_nanos() > 0));
    let seconds = u32::try_from(seconds).unwrap_or(u32::MAX).max(1);
    let hash = Fingerprint::EMPTY.and(id.as_str().as_bytes()).bits() >> 64;
    u32::try_from(hash % u128::from(seconds)).unwrap_or(0)
}
