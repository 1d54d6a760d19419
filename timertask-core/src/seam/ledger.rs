//! The ledger: the durable memory that decides which instance runs a slot.
//!
//! A store implements it by running the pure functions of `rules` inside a transaction of its own;
//! the conformance suite of `timertask-testkit` shows that it did so rightly.

use std::sync::Arc;
use std::time::Duration;

use super::{
    Asked, Cancel, Ending, Generation, NotStarted, Overlap, PlanRow, RangeRow, RunKind, SlotRow, SlotState, StoreError,
};
use crate::key::{Fence, Fingerprint, InstanceId, Namespace, Nonce, PlanId, PlanKey, SlotKey};
use crate::time::{Timestamp, Trigger};

/// An answer with the store's now, so that skew is measured on each call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Answer<T> {
    /// The store's clock while it decided.
    pub now: Timestamp,
    /// What it decided.
    pub value: T,
}

/// What a store's call comes to.
pub type Outcome<T> = Result<Answer<T>, StoreError>;

/// The durable memory of what was started and how it ended.
///
/// A group of requests is answered in its order, in one transaction or several; each request is decided as if it
/// came alone after those before it, and one refusal inside changes nothing for the others. The answer has one
/// value for each request. On an error some of the group may have been carried out
/// ([`StoreError::outcome_unknown`]); asking again is always safe.
///
/// # Blocking
/// Every method may block as long as the store's own time-outs say, and no longer. The engine calls none of them
/// while it holds a lock, and `renew` and `end` while a `claim` may hang in another thread: a store gives them
/// connections of their own, or lets them go first.
pub trait Ledger: Send + Sync {
    /// What the ledger can promise. Asked once at start, and by `health()`.
    ///
    /// # Errors
    /// [`StoreError`] where the store cannot be asked or is not fit for use.
    fn describe(&self) -> Result<Durability, StoreError>;

    /// Opens, closes, accounts, pauses, resumes, cancels, reads: what concerns a plan as a whole.
    ///
    /// # Errors
    /// [`StoreError`] where the store could not decide.
    fn plan(&self, requests: &[(PlanKey, PlanOp)]) -> Outcome<Vec<PlanState>>;

    /// Asks to start slots.
    ///
    /// # Errors
    /// [`StoreError`] where the store could not decide; nothing may be started then.
    fn claim(&self, requests: &[ClaimRequest]) -> Outcome<Vec<Claim>>;

    /// Tells that the runners of these terms live; their lease ends become now + `ttl` where that is later.
    ///
    /// # Errors
    /// [`StoreError`] where the store could not decide.
    fn renew(&self, terms: &[Term], ttl: Duration) -> Outcome<Vec<Renewal>>;

    /// Records how slots ended, were given back, swept or accounted for.
    ///
    /// # Errors
    /// [`StoreError`] where the store could not decide.
    fn end(&self, requests: &[EndRequest]) -> Outcome<Vec<Ended>>;

    /// Reads rows, bounded by the query's limit.
    ///
    /// # Errors
    /// [`StoreError`] where the store could not read.
    fn read(&self, query: &Query) -> Outcome<Page>;

    /// Deletes at most `at_most` old rows of a plan and raises its low water in the same step, never past the cursor
    /// nor a running or open slot.
    ///
    /// # Errors
    /// [`StoreError`] where the store could not decide.
    fn purge(&self, plan: &PlanKey, keep: Retention, at_most: usize) -> Outcome<Purged>;
}

impl<L: Ledger + ?Sized> Ledger for Arc<L> {
    fn describe(&self) -> Result<Durability, StoreError> {
        (**self).describe()
    }
    fn plan(&self, requests: &[(PlanKey, PlanOp)]) -> Outcome<Vec<PlanState>> {
        (**self).plan(requests)
    }
    fn claim(&self, requests: &[ClaimRequest]) -> Outcome<Vec<Claim>> {
        (**self).claim(requests)
    }
    fn renew(&self, terms: &[Term], ttl: Duration) -> Outcome<Vec<Renewal>> {
        (**self).renew(terms, ttl)
    }
    fn end(&self, requests: &[EndRequest]) -> Outcome<Vec<Ended>> {
        (**self).end(requests)
    }
    fn read(&self, query: &Query) -> Outcome<Page> {
        (**self).read(query)
    }
    fn purge(&self, plan: &PlanKey, keep: Retention, at_most: usize) -> Outcome<Purged> {
        (**self).purge(plan, keep, at_most)
    }
}

/// What a ledger can promise.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// Gone with the process.
    Volatile,
    /// Kept by a server in its memory: it outlives this process, and is gone when the server ends.
    UntilRestart,
    /// Survives the process; on power loss acknowledged writes survive where `synced` is true.
    Durable {
        /// Whether a write is on disk before it is acknowledged.
        synced: bool,
    },
    /// Kept by a primary with replicas; a failover may lose acknowledged writes.
    Replicated {
        /// How many replicas must have a write before it is acknowledged; 0: none.
        acknowledged_by: u32,
    },
}

/// What to do with a plan's row.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanOp {
    /// Read it.
    Read,
    /// Make `fingerprint` the current generation. Where the plan is unknown, closed or under another fingerprint, it
    /// begins at the later of now and the cursor, and what lies between becomes one range record. Where it is
    /// already the current one and not closed, nothing changes.
    Open {
        /// The new fingerprint.
        fingerprint: Fingerprint,
        /// The generation that it replaces, as last read by the asker: where another is current by now, nothing changes
        /// and the answer is [`Applied::Conflict`]. `None`: whatever is current.
        replaces: Option<Generation>,
    },
    /// Close this generation; a later one is left alone.
    Close {
        /// The generation, as last read by the asker.
        generation: Generation,
    },
    /// Move the cursor from `from` to `to`, if it stands at `from` and `to` is not after the store's now.
    Account {
        /// The fingerprint of the asker's plan.
        fingerprint: Fingerprint,
        /// Where the asker saw the cursor.
        from: Trigger,
        /// Where it goes.
        to: Trigger,
        /// How the slots in between are accounted for.
        cover: Cover,
    },
    /// The clock rule: a cursor or effective-from ahead of the store's now by more than `max_skew` is set back to
    /// max(now, low water); range records are cut there, rows stay.
    SetBack {
        /// How far ahead is still taken for skew.
        max_skew: Duration,
    },
    /// Stop starting slots of the plan. A plan that is paused already keeps its pause.
    Pause {
        /// Who.
        by: String,
        /// Why.
        why: String,
        /// When it ends by itself.
        until: Option<Timestamp>,
    },
    /// End the pause that began at `since`, if it is still the current one; with `lapsed_only` only once its own end
    /// has passed by the store's clock.
    Resume {
        /// [`Pause::since`](super::Pause::since) of the pause that the asker saw.
        since: Timestamp,
        /// Whether the asker only carries out the pause's own end.
        lapsed_only: bool,
    },
    /// Mark a running slot to be stopped at its next renewal.
    Cancel {
        /// The slot's trigger point.
        at: Trigger,
        /// The slot's request id.
        request: Option<crate::key::RequestId>,
        /// Who and why.
        cancel: Cancel,
    },
}

/// How slots between two cursors are accounted for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cover {
    /// No slot lies between; the cursor moves over nothing.
    Nothing,
    /// These are all the slots in between, in order: the cursor moves over the leading ones that have a row, and to
    /// `to` only if all have.
    Rows(Vec<Trigger>),
    /// These are all the slots in between: each without a row gets one, as not started for this reason.
    Slots(Vec<Trigger>, NotStarted),
    /// One range record.
    Range {
        /// How many slots the asker sees in it.
        count: Option<u64>,
        /// Why none is started.
        reason: NotStarted,
    },
}

/// A plan's row after a request, and whether the request took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanState {
    /// Whether it took effect.
    pub applied: Applied,
    /// The row as it is now; `None` where the ledger does not know the plan.
    pub row: Option<PlanRow>,
}

/// Whether a request on a plan took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Applied {
    /// It did.
    Done,
    /// It found what it wanted.
    Unchanged,
    /// The row was not as the asker had seen it, or the ledger does not know the plan or slot. Nothing was changed.
    Conflict,
}

/// A request to start a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The slot.
    pub key: SlotKey,
    /// The asker's decision; kept for the slot until it is granted or answered as released.
    pub nonce: Nonce,
    /// The fingerprint of the asker's plan.
    pub fingerprint: Fingerprint,
    /// The slot before it in the plan's schedule; `None` for a `run_now`, and where the schedule has none before.
    pub prev: Option<Trigger>,
    /// Why.
    pub kind: RunKind,
    /// Who asked for it and why, where an operator did.
    pub asked: Option<Arc<Asked>>,
    /// How many may run at once.
    pub gate: Gate,
    /// How many starts the slot may have in all: 1, or 1 + max with `OnOrphan::Rerun`.
    pub attempts_allowed: u32,
    /// How long the lease lasts without a renewal.
    pub ttl: Duration,
    /// The asker's label.
    pub instance: InstanceId,
    /// The asker's code version.
    pub version: Option<Arc<str>>,
}

/// How many runs of a plan may go on at once, and whether this request passes a full gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Judged by the plan's policy.
    Policy(Overlap),
    /// Passes (`run_now` with `force`).
    Force,
}

/// The answer to a [`ClaimRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Claim {
    /// Run it.
    Granted(Grant),
    /// Another decision runs it, whatever its lease end says.
    Held,
    /// It was started and has ended so. Never run it.
    Ended(Ending),
    /// Not now, or never.
    Refused(Refusal),
}

/// A permission to run a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The slot's instant: the request's own, but for a repeated `run_now` that of its first acceptance.
    pub at: Trigger,
    /// The fence.
    pub fence: Fence,
    /// Which start of the slot it is, from 1.
    pub attempt: u32,
    /// Until when the lease lasts without a renewal, by the store's clock.
    pub lease_end: Timestamp,
    /// The plan's cursor as it was; before [`ClaimRequest::prev`] it shows a gap.
    pub cursor: Trigger,
    /// The latest trigger point of the plan that succeeded.
    pub last_success: Option<Trigger>,
    /// As [`PlanRow::window_from`].
    pub window_from: Option<Trigger>,
}

/// Why a claim was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// This decision was given back or swept; make a new one if the slot is still wanted.
    Released,
    /// The slot is accounted for as not started, by this claim or earlier.
    NotStarted(NotStarted),
    /// The slot lies in a range record; only a backfill may start it.
    Accounted,
    /// It is at or below low water: too old to know.
    TooOld,
    /// The ledger does not know the plan: open it first.
    Unknown,
    /// The plan, or all, is paused. The slot waits.
    Paused,
    /// The gate is full; nothing was written. The slot waits.
    Full,
}

/// The proof of a grant, for renewals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// The slot.
    pub key: SlotKey,
    /// The decision.
    pub nonce: Nonce,
    /// The fence.
    pub fence: Fence,
}

/// The answer to a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Renewal {
    /// The term goes on; the store believes in it until then.
    Held(Timestamp),
    /// The term goes on, and the run is told to stop.
    Cancel(Timestamp, Arc<Cancel>),
    /// The term is over.
    Lost,
}

/// A request to record how a term ended. Compared on nonce and fence, or on the fence alone where the asker is not the
/// runner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndRequest {
    /// The slot.
    pub key: SlotKey,
    /// The fence of the term.
    pub fence: Fence,
    /// What to record.
    pub op: EndOp,
}

/// What to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndOp {
    /// By the runner: how it ended.
    Settle {
        /// The decision of the term.
        nonce: Nonce,
        /// How.
        ending: Ending,
        /// When the job was entered, by the runner's clock.
        started_at: Timestamp,
        /// When it returned, by the runner's clock.
        ended_at: Timestamp,
        /// How many times the job was tried.
        tries: u32,
        /// What its error said.
        detail: Option<Arc<str>>,
    },
    /// By the runner: it was not entered and will not be. The slot is open again, the start not counted, the nonce
    /// released.
    GiveBack {
        /// The decision of the term.
        nonce: Nonce,
    },
    /// By a sweeper that has looked twice: its lease has lapsed. Takes effect only while the lease end has passed by the
    /// store's clock. Open again where starts are left and no cancel mark is set, else orphaned.
    Expire {
        /// How many starts the slot may have, by the sweeper's plan; 1 where it is not installed.
        attempts_allowed: u32,
    },
    /// By a sweeper: a lease end beyond now + TTL + `max_skew` was written under another clock; cut it to now + TTL.
    CutLease {
        /// How far ahead is still taken for skew.
        max_skew: Duration,
    },
    /// Of an open slot: nobody will take it up. Not started for this reason if it never was, else orphaned.
    Resolve {
        /// Why.
        reason: NotStarted,
    },
}

/// The answer to an [`EndRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Ended {
    /// Recorded; this is the slot's state now.
    Recorded(SlotState),
    /// The same had been recorded before.
    AlreadyRecorded,
    /// The term is not the current one, or the lease has not lapsed; this is the slot's state, `None` where it has no
    /// row. Nothing was changed.
    Lost(Option<SlotState>),
}

/// What to read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Query {
    /// For the sweep: open slots, running ones whose lease end has passed, and running ones whose lease end lies beyond
    /// now + TTL + `max_skew`; of all plans of the namespace, in an order of the store's own.
    Lapsed {
        /// The namespace.
        namespace: Namespace,
        /// How far ahead is still taken for skew.
        max_skew: Duration,
        /// Where the page before ended.
        after: Option<PageToken>,
        /// The most rows.
        limit: usize,
    },
    /// The plan's running and open slots, by trigger.
    Unfinished {
        /// The plan.
        plan: PlanKey,
        /// The most rows.
        limit: usize,
    },
    /// The plan's row, and its slots and range records in (`after`, `upto`], by trigger and request, old to new. Range
    /// records that only reach into the interval are shown whole, on the first page; a page's slots are at most
    /// `limit`.
    History {
        /// The plan.
        plan: PlanKey,
        /// Later than this,
        after: Trigger,
        /// up to this.
        upto: Trigger,
        /// Where the page before ended.
        page: Option<PageToken>,
        /// The most slots.
        limit: usize,
    },
    /// The rows of these slots, in this order, those without a row left out.
    Slots(Vec<SlotKey>),
    /// The plans that the ledger knows, by id.
    Plans {
        /// The namespace.
        namespace: Namespace,
        /// Those after this id.
        after: Option<PlanId>,
        /// The most rows.
        limit: usize,
    },
}

/// Where a page ended; made by the store and given back to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageToken(pub String);

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Page {
    /// Plan rows.
    pub plans: Vec<(PlanKey, PlanRow)>,
    /// Slot rows.
    pub slots: Vec<SlotRow>,
    /// Range records.
    pub ranges: Vec<RangeRow>,
    /// Where to go on; `None` at the end.
    pub more: Option<PageToken>,
}

/// What `purge` keeps. A row goes when it is beyond `age` **or** beyond `count`, but the last `keep_last` stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Rows that ended longer ago than this go; `None`: no limit by age.
    pub age: Option<Duration>,
    /// Rows beyond the newest so many go, unless they ended within the last day (a clock that stepped back must not
    /// reopen them); `None`: no limit by count.
    pub count: Option<usize>,
    /// The newest so many always stay.
    pub keep_last: usize,
}

impl Default for Retention {
    /// 30 days or 1,000 records, the last 10 kept in any case.
    fn default() -> Self {
        Self { age: Some(Duration::from_secs(30 * 86_400)), count: Some(1000), keep_last: 10 }
    }
}

/// What a purge did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purged {
    /// How many rows and range records were deleted.
    pub deleted: usize,
    /// The plan's low water now.
    pub low_water: Trigger,
    /// Whether more is to be deleted.
    pub more: bool,
}

/// An answer must have one value for each request; another number is a store that answers nonsense, of which nothing
/// is believed.
pub(crate) fn matched<T>(
    call: &'static str,
    wanted: usize,
    answer: Answer<Vec<T>>,
) -> Result<Answer<Vec<T>>, StoreError> {
    if answer.value.len() == wanted {
        return Ok(answer);
    }
    let what = format!("{call} was asked for {wanted} answers and gave {}", answer.value.len());
    Err(StoreError::new(super::StoreErrorKind::Internal, what).unknown_outcome())
}
