//! The seams: what the engine asks of a store, a job, a source of plans and an observer.
//!
//! All are `Send + Sync`, work by `&self` and as `dyn`, and are forwarded by `Arc<T>`. **Refused is a value, broken
//! is an error**: an answer says what the store decided, a [`StoreError`] that it could not decide.

mod board;
mod ledger;
mod mutex;
mod rows;
mod store_error;

pub use board::{Board, Posting, PostingKind, Store};
pub(crate) use ledger::matched;
pub use ledger::{
    Answer, Applied, Claim, ClaimRequest, Cover, Durability, EndOp, EndRequest, Ended, Gate, Grant, Ledger, Outcome,
    Page, PageToken, PlanOp, PlanState, Purged, Query, Refusal, Renewal, Retention, Term,
};
pub use mutex::{Held, Lease, Mutex};
pub use rows::{
    Asked, Cancel, Ending, Generation, NotStarted, Overlap, Pause, PlanRow, RangeRow, RunKind, SlotRow, SlotState,
};
pub use store_error::{StoreError, StoreErrorKind};
