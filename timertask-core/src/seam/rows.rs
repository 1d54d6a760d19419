//! What a ledger keeps: plan rows, slot rows and range records. A store may spell them as it likes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::key::{Fence, Fingerprint, IdError, InstanceId, Nonce, SlotKey, check};
use crate::time::{Timestamp, Trigger};

/// A plan under one fingerprint, from the instant at which it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generation {
    /// The fingerprint.
    pub fingerprint: Fingerprint,
    /// Slots at or before it do not belong to this generation.
    pub effective_from: Trigger,
}

/// The row of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanRow {
    /// The current generation.
    pub generation: Generation,
    /// Whether the generation was closed (plan disabled or removed).
    pub closed: bool,
    /// Every slot up to it has a row or lies in a range record.
    pub cursor: Trigger,
    /// At or below it a slot without a row is refused as too old.
    pub low_water: Trigger,
    /// The last fence granted.
    pub fence: Fence,
    /// The latest trigger point that succeeded.
    pub last_success: Option<Trigger>,
    /// Where the cursor stood when the current generation was opened in the place of another: where the window of its
    /// first run begins. `None` for the first generation of a plan.
    pub window_from: Option<Trigger>,
    /// Why nothing of the plan starts for now.
    pub pause: Option<Arc<Pause>>,
}

/// An operator's stop of a plan, or of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Since when, by the store's clock; identifies the pause.
    pub since: Timestamp,
    /// Who paused it.
    pub by: String,
    /// Why.
    pub why: String,
    /// When it ends by itself.
    pub until: Option<Timestamp>,
}

/// In words: `paused by ana since 2026-01-01T00:00:00Z until 2026-01-01T02:00:00Z: the database moves`.
impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "paused by {} since {}", self.by, self.since)?;
        if let Some(until) = self.until {
            write!(f, " until {until}")?;
        }
        write!(f, ": {}", self.why)
    }
}

/// Why a slot came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RunKind {
    /// Its time had come.
    Scheduled,
    /// It was missed, and made up.
    CatchUp,
    /// An operator asked for slots of the past.
    Backfill,
    /// An operator asked for a run now.
    Manual,
}

impl RunKind {
    /// All kinds; a kind's place is its code in stores.
    pub const ALL: [Self; 4] = [Self::Scheduled, Self::CatchUp, Self::Backfill, Self::Manual];

    /// Its name, as stores and tools spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::CatchUp => "catch-up",
            Self::Backfill => "backfill",
            Self::Manual => "manual",
        }
    }
}

/// How a started slot ended. Final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// The job returned `Ok`.
    Succeeded,
    /// The job returned an error, panicked, or ran past its deadline.
    Failed,
    /// The job returned an error after it had been told to stop.
    Cancelled,
    /// Its runner was not heard of any more.
    Orphaned,
}

impl Ending {
    /// All endings; an ending's place is its code in stores.
    pub const ALL: [Self; 4] = [Self::Succeeded, Self::Failed, Self::Cancelled, Self::Orphaned];

    /// Its name, as stores and tools spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Orphaned => "orphaned",
        }
    }
}

/// Why a slot was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NotStarted {
    /// Another slot of the plan was running (`Overlap::Skip`, `Overlap::Allow`).
    Overlap,
    /// A newer slot took its place.
    Superseded,
    /// Its start window closed, and the plan does not catch up.
    TooLate,
    /// More were missed than the plan catches up.
    OverCap,
    /// It was missed longer ago than the plan catches up.
    OutsideWindow,
    /// The plan was edited; it belongs to what was there before.
    Edited,
    /// The plan was disabled or absent at the time.
    Disabled,
    /// The plan was paused, and resumed from then on.
    Paused,
    /// Another instance held the lock (mutex only).
    Yielded,
    /// Given back by a runner that was too late, and not taken up.
    GivenBack,
}

impl NotStarted {
    /// All reasons; a reason's place is its code in stores.
    pub const ALL: [Self; 10] = [
        Self::Overlap,
        Self::Superseded,
        Self::TooLate,
        Self::OverCap,
        Self::OutsideWindow,
        Self::Edited,
        Self::Disabled,
        Self::Paused,
        Self::Yielded,
        Self::GivenBack,
    ];

    /// Its name, as stores and tools spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Overlap => "overlap",
            Self::Superseded => "superseded",
            Self::TooLate => "too-late",
            Self::OverCap => "over-cap",
            Self::OutsideWindow => "outside-window",
            Self::Edited => "edited",
            Self::Disabled => "disabled",
            Self::Paused => "paused",
            Self::Yielded => "yielded",
            Self::GivenBack => "given-back",
        }
    }
}

macro_rules! named {
    ($($name:ident),*) => {$(
        impl $name {
            /// Its code in stores: its place in [`ALL`](Self::ALL).
            #[must_use]
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// The one with this code.
            #[must_use]
            pub fn from_code(code: u8) -> Option<Self> {
                Self::ALL.get(usize::from(code)).copied()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    )*};
}
named!(RunKind, Ending, NotStarted);

/// The state of a slot that has a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlotState {
    /// Started, not ended.
    Running,
    /// Given back before it was entered, or to be run again.
    Open,
    /// Started and ended.
    Ended(Ending),
    /// Not started; only a backfill may still start it, once.
    NotStarted(NotStarted),
}

impl fmt::Display for SlotState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running => f.write_str("running"),
            Self::Open => f.write_str("open"),
            Self::Ended(ending) => ending.fmt(f),
            Self::NotStarted(reason) => write!(f, "not started ({reason})"),
        }
    }
}

/// Who asked a run to stop, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cancel {
    /// Who.
    pub by: String,
    /// Why.
    pub why: String,
}

/// Who asked for a run, and why. Kept on the slot's record.
///
/// ```
/// # extern crate timertask_core as timertask;
/// use timertask::seam::Asked;
///
/// let asked = Asked::new("ana", "the import was late")?;
/// assert_eq!((asked.by(), asked.why()), ("ana", "the import was late"));
/// assert_eq!(Asked::new("", "no name").unwrap_err().to_string(), "who asks is empty; allowed are 1 to 255 bytes");
/// # Ok::<(), timertask::key::IdError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Asked {
    by: String,
    why: String,
}

impl Asked {
    /// Checks and takes who asks (a user, a program: 1 to 255 bytes) and why (1 to 1,000 bytes).
    ///
    /// # Errors
    /// [`IdError`] where one of them is empty, too long, or holds a control character.
    pub fn new(by: impl Into<String>, why: impl Into<String>) -> Result<Self, IdError> {
        let (by, why) = (by.into(), why.into());
        check("who asks", &by, 255)?;
        check("the reason", &why, 1000)?;
        Ok(Self { by, why })
    }

    /// Who.
    #[must_use]
    pub fn by(&self) -> &str {
        &self.by
    }

    /// Why.
    #[must_use]
    pub fn why(&self) -> &str {
        &self.why
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.by, self.why)
    }
}

/// The row of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotRow {
    /// The slot.
    pub key: SlotKey,
    /// Its state.
    pub state: SlotState,
    /// Why it came about.
    pub kind: RunKind,
    /// Who asked for it and why, where an operator did; also once it was given back or is run again.
    pub asked: Option<Arc<Asked>>,
    /// Whose decision it runs under.
    pub nonce: Nonce,
    /// Decisions that were given back or swept; at most the last [`SlotRow::RELEASED`].
    pub released: Vec<Nonce>,
    /// The fence of the last grant; [`Fence::NONE`] where there was none.
    pub fence: Fence,
    /// How many times it was started (grants that were not given back); 0 where never.
    pub attempt: u32,
    /// Until when its runner is believed to live. [`Timestamp::EPOCH`] unless running.
    pub lease_end: Timestamp,
    /// What a renewal adds to the store's now.
    pub ttl: Duration,
    /// The mark that tells the runner to stop, at its next renewal.
    pub cancel: Option<Arc<Cancel>>,
    /// The instance of the last grant; `None` where there was none.
    pub instance: Option<InstanceId>,
    /// The code version of that instance.
    pub version: Option<Arc<str>>,
    /// The last grant, by the store's clock.
    pub claimed_at: Option<Timestamp>,
    /// When the job was entered, by the runner's clock.
    pub started_at: Option<Timestamp>,
    /// When it ended or was accounted for: by the runner's clock where it ended by its runner, else by the store's.
    pub ended_at: Option<Timestamp>,
    /// How many times the job was tried within the run (its retries included).
    pub tries: u32,
    /// What the job's error or panic said, cut to [`SlotRow::DETAIL`] bytes.
    pub detail: Option<Arc<str>>,
}

impl SlotRow {
    /// How many released nonces a row remembers.
    pub const RELEASED: usize = 8;
    /// The most bytes of [`detail`](Self::detail).
    pub const DETAIL: usize = 1024;

    /// A row of a slot that was not started, for `reason`, as of `now`.
    #[must_use]
    pub fn not_started(key: SlotKey, kind: RunKind, reason: NotStarted, now: Timestamp) -> Self {
        Self {
            key,
            state: SlotState::NotStarted(reason),
            kind,
            asked: None,
            nonce: Nonce::default(),
            released: Vec::new(),
            fence: Fence::NONE,
            attempt: 0,
            lease_end: Timestamp::EPOCH,
            ttl: Duration::ZERO,
            cancel: None,
            instance: None,
            version: None,
            claimed_at: None,
            started_at: None,
            ended_at: Some(now),
            tries: 0,
            detail: None,
        }
    }
}

/// One record for many slots without a row of their own. A row outranks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRow {
    /// It covers slots from here,
    pub first: Trigger,
    /// to here, both included.
    pub last: Trigger,
    /// How many slots its writer saw in it; `None` where the writer could not know (an edit made elsewhere).
    pub count: Option<u64>,
    /// Why none of them was started.
    pub reason: NotStarted,
    /// When it was written, by the store's clock.
    pub at: Timestamp,
}

/// What happens when a slot falls due while others of its plan run. Judged in the claim, for all instances at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Overlap {
    /// The new slot is not started. The default.
    #[default]
    Skip,
    /// The newest slot waits until the plan is free; older waiting ones are superseded.
    QueueOne,
    /// As `QueueOne`, and the running ones are told to stop.
    CancelPrevious,
    /// Up to this many run at once; what comes beyond is not started. 0 counts as 1.
    Allow(u32),
}
