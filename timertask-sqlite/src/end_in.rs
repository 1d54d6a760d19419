//! Ending a run inside the job's own transaction.

use std::path::PathBuf;

use rusqlite::{Connection, Transaction, TransactionState};
use timertask_core::Run;
use timertask_core::seam::{EndOp, EndRequest, Ended, Ending, SlotState, StoreError};

use crate::decide;
use crate::error::Fault;
use crate::store::Sqlite;
use crate::tables::Tables;

/// Why a run could not be ended in the job's transaction. Roll it back, and return the error from the job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndInError {
    /// The transaction does not hold the write lock: what it read may be out of date by the time it writes. Begin it with
    /// [`TransactionBehavior::Immediate`](rusqlite::TransactionBehavior::Immediate).
    #[error("the transaction does not hold the file's write lock; begin it with TransactionBehavior::Immediate")]
    NotImmediate,
    /// The transaction's connection is open on a file that does not hold this ledger. Rows and end can only commit
    /// together where they lie in one file.
    #[error("the transaction is on another file than the ledger {}", ledger.display())]
    OtherFile {
        /// The ledger's file.
        ledger: PathBuf,
    },
    /// The run is not the slot's current term any more: a sweep ended its lease, or it is settled already.
    #[error("the run is over: its slot is {}", state.map_or("gone".to_owned(), |s| s.to_string()))]
    Lost {
        /// The slot's state; `None` where it has no row.
        state: Option<SlotState>,
    },
    /// The ledger could not be read or written to in the transaction.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Sqlite {
    /// Ends `run` as succeeded inside the job's own transaction on the ledger's file: the job's rows and the end commit
    /// together, or neither. That is exactly-once for what lies in the file, under a crash at any instant.
    ///
    /// Call it last, commit, and return `Ok`. The scheduler then only reads the end back; where it isn't there (rolled
    /// back, a failed commit) the run has failed. The transaction must be IMMEDIATE and short: while it is open nobody
    /// else claims, renews or ends anything in this file. With a connection whose `synchronous` is lower than FULL a
    /// power cut may undo rows and end together.
    ///
    /// ```no_run
    /// # mod timertask { pub use {timertask_core::*, timertask_sqlite as sqlite}; }
    /// use timertask::sqlite::rusqlite::{Connection, TransactionBehavior};
    /// use timertask::{BoxError, Run, Scheduler, sqlite::Sqlite};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Sqlite::options().in_application_file().open("shop.db")?;
    /// let ledger = store.clone();
    /// let job = move |run: &Run| -> Result<(), BoxError> {
    ///     let mut shop = Connection::open("shop.db")?;
    ///     let transaction = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
    ///     transaction.execute("INSERT INTO invoices SELECT * FROM due_invoices", [])?;
    ///     ledger.end_in(&transaction, run)?;
    ///     Ok(transaction.commit()?)
    /// };
    /// let scheduler = Scheduler::builder(job).store(store).start()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`EndInError`]; the transaction is then as it was, and is to be rolled back.
    ///
    /// # Blocking
    /// Not at all: the transaction holds the write lock already.
    pub fn end_in(&self, transaction: &Transaction<'_>, run: &Run) -> Result<(), EndInError> {
        let op = EndOp::Settle {
            nonce: run.nonce(),
            ending: Ending::Succeeded,
            started_at: run.started_at(),
            ended_at: self.clock().now(),
            tries: run.tries(),
            detail: None,
        };
        self.settle_in(transaction, &EndRequest { key: run.slot_key().clone(), fence: run.fence(), op })?;
        run.mark_ended_elsewhere();
        Ok(())
    }

    fn settle_in(&self, transaction: &Connection, request: &EndRequest) -> Result<(), EndInError> {
        let told = |fault: Fault| {
            EndInError::Store(fault.into_store_error(&format!("end {} in the job's transaction", request.key)))
        };
        let state = transaction.transaction_state(Some("main")).map_err(|e| told(e.into()))?;
        if state != TransactionState::Write {
            return Err(EndInError::NotImmediate);
        }
        if !self.origin().is_that_of(transaction).map_err(told)? {
            return Err(EndInError::OtherFile { ledger: self.path().to_owned() });
        }
        match decide::end(&Tables::new(transaction, self.clock().now()), request).map_err(told)? {
            Ended::Recorded(_) | Ended::AlreadyRecorded => Ok(()),
            Ended::Lost(state) => Err(EndInError::Lost { state }),
        }
    }
}
