//! Ending a run inside the job's own transaction.

use rusqlite::{Connection, Transaction, TransactionState};
use timertask_core::key::{Fence, Nonce, SlotKey};
use timertask_core::seam::{EndOp, EndRequest, Ended, Ending, SlotState, StoreError};
use timertask_core::time::Timestamp;

use crate::decide;
use crate::error::Fault;
use crate::store::Sqlite;
use crate::tables::Tables;

/// Why a run could not be ended in the job's transaction. Roll it back and return an error from the job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndInError {
    /// The transaction does not hold the write lock; what it read may be out of date by the time it writes. Begin it
    /// with [`TransactionBehavior::Immediate`](rusqlite::TransactionBehavior::Immediate).
    #[error("the transaction does not hold the file's write lock; begin it with TransactionBehavior::Immediate")]
    NotImmediate,
    /// The transaction's connection is open on a file that does not hold this ledger. Rows and end can only commit
    /// together where they lie in one file.
    #[error("the transaction is on another file than the ledger {}", ledger.display())]
    OtherFile {
        /// The ledger's file.
        ledger: std::path::PathBuf,
    },
    /// The run is not the slot's current term any more: its lease was ended by a sweep, or it is settled already.
    #[error("the run is over: its slot is {}", state.map_or("gone".to_owned(), |s| s.to_string()))]
    Lost {
        /// The slot's state; `None` where it has no row.
        state: Option<SlotState>,
    },
    /// The ledger could not be read or written to in the transaction.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What names a run's term and tells how it went.
pub(crate) struct Term<'r> {
    pub(crate) slot: &'r SlotKey,
    pub(crate) nonce: Nonce,
    pub(crate) fence: Fence,
    pub(crate) started_at: Timestamp,
    pub(crate) tries: u32,
}

/// Ends `term` as succeeded in the job's transaction.
pub(crate) fn end_in(store: &Sqlite, transaction: &Transaction<'_>, term: &Term<'_>) -> Result<(), EndInError> {
    let connection: &Connection = transaction;
    let failed = |fault: Fault| {
        EndInError::Store(fault.into_store_error(&format!("end {} in the job's transaction", term.slot)))
    };
    match connection.transaction_state(Some("main")).map_err(|e| failed(e.into()))? {
        TransactionState::Write => {}
        _ => return Err(EndInError::NotImmediate),
    }
    if !store.origin().is_that_of(connection).map_err(failed)? {
        return Err(EndInError::OtherFile { ledger: store.path().to_owned() });
    }
    let now = store.clock().now();
    let request = EndRequest {
        key: term.slot.clone(),
        fence: term.fence,
        op: EndOp::Settle {
            nonce: term.nonce,
            ending: Ending::Succeeded,
            started_at: term.started_at,
            ended_at: now,
            tries: term.tries,
            detail: None,
        },
    };
    match decide::end(&Tables::new(connection, now), &request).map_err(failed)? {
        Ended::Recorded(_) | Ended::AlreadyRecorded => Ok(()),
        Ended::Lost(state) => Err(EndInError::Lost { state }),
    }
}
