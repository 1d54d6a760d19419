//! One connection: opened without surprises, and each transaction begun only after a look at what lies under it.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use timertask_core::seam::StoreErrorKind;

use crate::error::Fault;
use crate::file::{Identity, Paths};
use crate::options::{Options, Synchronous};
use crate::patience::{Deadline, Patience, nap};
use crate::schema::{self, StoreId};

/// More than all statements of this crate, so that each is prepared once per connection.
const STATEMENTS: usize = 64;

/// The log is cut to this size when it begins anew after a checkpoint.
const LOG_LIMIT: i64 = 64 << 20;

/// Pages in the log (of 4 KiB) from which on a commit moves them into the database. It does so without waiting for
/// readers (a PASSIVE checkpoint).
const CHECKPOINT_PAGES: i64 = 1000;

/// How long to wait before opening is tried again where SQLite gave up without asking the busy handler.
const AGAIN: Duration = Duration::from_millis(1);

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Writer,
    Reader,
}

/// An open connection, with all that shows whether it still works on what was opened.
pub(crate) struct Connected {
    /// `None` only while it is dropped.
    connection: Option<Connection>,
    role: Role,
    patience: Patience,
    paths: Paths,
    opened: Identity,
    store: StoreId,
    /// The process that opened it.
    process: u32,
}

/// Opens the writing and the reading connection of a handle; makes or brings forward the tables where needed.
pub(crate) fn open(paths: &Paths, options: &Options) -> Result<(Connected, Connected), Fault> {
    let deadline = Deadline::after(options.patience);
    let (writer, patience) = connect(paths.database(), Role::Writer, deadline)?;
    if writer.is_readonly("main")? {
        return Err(Fault::new(StoreErrorKind::ReadOnly, "the file cannot be written to by this user"));
    }
    // Turning a new file to write-ahead logging can meet another opener in a way that SQLite does not wait for.
    let store = loop {
        match schema::prepare(&writer, options.home) {
            Err(fault) if fault.kind() == StoreErrorKind::Busy && !deadline.has_passed() => nap(AGAIN),
            done => break done?,
        }
    };
    configure(&writer, options)?;
    let (reader, reader_patience) = connect(paths.database(), Role::Reader, deadline)?;
    // Log and index exist from the first read on, until the last connection of all processes is closed.
    schema::verify(&writer, &store)?;
    schema::verify(&reader, &store)?;
    let opened = paths.identity();
    let connected = |connection, role, patience| Connected {
        connection: Some(connection),
        role,
        patience,
        paths: paths.clone(),
        opened: opened.clone(),
        store,
        process: std::process::id(),
    };
    Ok((connected(writer, Role::Writer, patience), connected(reader, Role::Reader, reader_patience)))
}

fn connect(path: &Path, role: Role, deadline: Deadline) -> Result<(Connection, Patience), Fault> {
    // Not SQLITE_OPEN_URI, which would read a path that begins with `file:` as something else; and never CREATE: the
    // file is there, with the right mode.
    let mode = match role {
        Role::Writer => OpenFlags::SQLITE_OPEN_READ_WRITE,
        Role::Reader => OpenFlags::SQLITE_OPEN_READ_ONLY,
    };
    let mut connection = Connection::open_with_flags(path, mode | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    let patience = Patience::new(deadline);
    connection.busy_handler(Some(patience.busy_handler()))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok((connection, patience))
}

fn configure(writer: &Connection, options: &Options) -> Result<(), Fault> {
    let level = match options.synchronous {
        Synchronous::Full => 2,
        Synchronous::Normal => 1,
    };
    writer.pragma_update(None, "synchronous", level)?;
    let got: i64 = writer.pragma_query_value(None, "synchronous", |row| row.get(0))?;
    if got != level {
        return Err(Fault::new(StoreErrorKind::Misconfigured, format!("synchronous is {got} instead of {level}")));
    }
    // On macOS only these reach the disk; elsewhere they do nothing.
    writer.pragma_update(None, "fullfsync", options.synchronous == Synchronous::Full)?;
    writer.pragma_update(None, "checkpoint_fullfsync", true)?;
    writer.pragma_update(None, "journal_size_limit", LOG_LIMIT)?;
    writer.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    if options.quick_check {
        let found: String = writer.pragma_query_value(None, "quick_check", |row| row.get(0))?;
        if found != "ok" {
            return Err(Fault::corrupt(format!("the check of the file found: {found}")));
        }
    }
    Ok(())
}

/// What a handle was opened on.
pub(crate) struct Origin {
    paths: Paths,
    opened: Identity,
    store: StoreId,
}

impl Origin {
    /// Whether a connection that is not ours works on the same file, by what stands at its path and what it reads.
    pub(crate) fn is_that_of(&self, other: &Connection) -> Result<bool, Fault> {
        let same_file = other.path().is_some_and(|path| self.opened.is_database(Path::new(path)));
        Ok(same_file && schema::find(other)?.is_some_and(|(id, _)| id == self.store))
    }

    pub(crate) fn path(&self) -> &Path {
        self.paths.database()
    }
}

impl Connected {
    /// The connection. Only inside a transaction that [`begin`](Self::begin) began.
    pub(crate) fn connection(&self) -> &Connection {
        #[expect(clippy::expect_used, reason = "taken in `drop` only")]
        self.connection.as_ref().expect("a connection that is open")
    }

    /// Begins a transaction: of a writer with the write lock, of a reader on a snapshot.
    pub(crate) fn begin(&self, deadline: Deadline) -> Result<(), Fault> {
        if std::process::id() != self.process {
            return Err(Fault::new(
                StoreErrorKind::Internal,
                "the process was forked after the file was opened; open it again in the child",
            ));
        }
        self.patience.set(deadline);
        let begun = self.execute(match self.role {
            // Always: a transaction that turns into a writing one is refused at once where another wrote meanwhile.
            Role::Writer => "BEGIN IMMEDIATE",
            Role::Reader => "BEGIN",
        });
        let verified = begun.and_then(|()| schema::verify(self.connection(), &self.store));
        // What the files look like explains an error better than the error itself.
        let same = self.paths.verify(&self.opened);
        same.and(verified).inspect_err(|_| self.roll_back())
    }

    /// Commits. After an error it may be in the file or not.
    pub(crate) fn commit(&self) -> Result<(), Fault> {
        self.execute("COMMIT").map_err(|fault| {
            self.roll_back();
            fault.unknown_outcome()
        })
    }

    /// As it is in a child that was forked after the file was opened.
    #[cfg(test)]
    pub(crate) fn pretend_to_be_a_child(&mut self) {
        self.process = 0;
    }

    pub(crate) fn roll_back(&self) {
        schema::roll_back(self.connection());
    }

    /// The store's id and files, as they were opened.
    pub(crate) fn origin(&self) -> Origin {
        Origin { paths: self.paths.clone(), opened: self.opened.clone(), store: self.store }
    }

    fn execute(&self, sql: &str) -> Result<(), Fault> {
        self.connection().prepare_cached(sql)?.execute([])?;
        Ok(())
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        if std::process::id() != self.process {
            // A child that closed what it inherited would drop its parent's locks.
            std::mem::forget(connection);
            return;
        }
        if self.role == Role::Writer && self.paths.verify(&self.opened).is_ok() {
            // Leaves a small log behind where other processes go on; the last one to close deletes it.
            self.patience.set(Deadline::after(Duration::ZERO));
            let done = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
            if let Err(e) = done {
                log::debug!(target: "timertask::store", "checkpoint at close: {e}");
            }
        }
        if let Err((_, e)) = connection.close() {
            log::debug!(target: "timertask::store", "close: {e}");
        }
    }
}
