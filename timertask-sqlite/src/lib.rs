//! The ledger, mutex and board of timertask in one SQLite file, shared by the processes of a host.
//!
//! ```no_run
//! # mod timertask { pub use timertask_sqlite as sqlite; }
//! use timertask::sqlite::Sqlite;
//!
//! let store = Sqlite::open("jobs.db")?;
//! # Ok::<(), timertask_core::seam::StoreError>(())
//! ```
//!
//! The file is made where there is none, with its tables, readable by its owner alone. Each process opens it for itself
//! and hands it to its scheduler; clones of the handle are cheap and share it. SQLite itself is built in.
//!
//! # What it promises
//!
//! A claim is on the disk before it is answered ([`Synchronous::Full`], the default), so it survives a kill and a power
//! cut. All processes decide by the same rows, each decision in one transaction that holds the file's write lock: of any
//! number of processes that claim a slot, one gets it.
//!
//! That holds on a **local disk** and for the processes of **one host**. Network file systems are refused where they can
//! be told (on Linux); so is going on with a file that was deleted or replaced, which SQLite by itself does not notice.
//!
//! # Blocking
//!
//! Every call that writes waits for the file's write lock up to the busy deadline (2 s, [`Options::busy_deadline`]), in
//! real time, whatever the clock of the store says. There is no thread behind a handle: the caller that finds nobody
//! writing carries out what waits, its own and others', in one transaction. Renewals and ends go first. Reading waits
//! for nobody's write.
//!
//! # Errors
//!
//! A [`StoreError`](timertask_core::seam::StoreError) says that the store could not decide, never that another has the
//! slot.
//!
//! | kind | where it comes from |
//! |---|---|
//! | `Busy` | the write lock was held beyond the deadline: by a long transaction, perhaps of the application's own |
//! | `ReadOnly` | the file, its directory or its mount cannot be written to |
//! | `Full` | no room on the disk; goes on by itself once there is |
//! | `Unreachable` | the directory is missing, the disk fails |
//! | `Auth` | this user may not open or make the file |
//! | `Misconfigured` | a directory, another program's database, a network file system |
//! | `Corrupt` | not a database, a damaged one, or rows that this library cannot have written |
//! | `Replaced` | the file, its log or its index was deleted or replaced under the handle: find out by whom, restart |
//! | `SchemaTooNew` | a newer version of this library has been here: update this one |
//! | `TimedOut` | the query was interrupted |
//! | `Internal` | a fault of this library, or a process that was forked with the file open |
//!
//! An error at the commit says that the [outcome is unknown](timertask_core::seam::StoreError::outcome_unknown); asking
//! again is safe, and the scheduler does.
//!
//! # With an application's own tables
//!
//! [`Options::in_application_file`] puts the ledger's tables (`timertask_…`) into the application's database, so that a
//! job can end its run in its own transaction ([`Sqlite::end_in`]). Keep the application's own write transactions short:
//! while one is open nobody claims, renews or ends anything. Keep its reading ones short too: the log (`…-wal`) grows as
//! long as one is open.
//!
#![doc = include_str!("../docs/schema.md")]

pub use rusqlite;

mod board;
mod codec;
mod connection;
mod decide;
mod end_in;
mod error;
mod file;
mod mutex;
mod options;
mod patience;
mod query;
mod schema;
mod store;
mod tables;
mod writer;

pub use end_in::EndInError;
pub use options::{Options, Synchronous};
pub use store::Sqlite;
