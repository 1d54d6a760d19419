//! What SQLite and the file system answer, as [`StoreError`]s. Refused is a value, broken is an error: nothing in here
//! is ever read as "somebody else has it".

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use rusqlite::{ErrorCode, ffi};
use timertask_core::seam::{StoreError, StoreErrorKind};

/// A fault inside the store, before it is told to the caller together with what was being done.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    kind: StoreErrorKind,
    what: Option<String>,
    unknown: bool,
    cause: Option<Cause>,
}

impl Fault {
    /// A fault that no other error caused.
    pub(crate) fn new(kind: StoreErrorKind, what: impl Into<String>) -> Self {
        Self { kind, what: Some(what.into()), unknown: false, cause: None }
    }

    /// A row that this library cannot have written.
    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Corrupt, what)
    }

    pub(crate) fn with_cause(mut self, cause: impl Error + Send + Sync + 'static) -> Self {
        self.cause = Some(Cause(Arc::new(cause)));
        self
    }

    /// The transaction may be found in the file all the same.
    pub(crate) fn unknown_outcome(mut self) -> Self {
        self.unknown = true;
        self
    }

    pub(crate) fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// For the caller; `doing` says what was being done, and where.
    pub(crate) fn into_store_error(self, doing: &str) -> StoreError {
        let what = match self.what {
            Some(what) => format!("{doing}: {what}"),
            None => doing.to_owned(),
        };
        let mut error = StoreError::new(self.kind, what);
        if self.unknown {
            error = error.unknown_outcome();
        }
        match self.cause {
            Some(cause) => error.with_source(cause),
            None => error,
        }
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self { kind: kind_of(&error), what: None, unknown: false, cause: Some(Cause(Arc::new(error))) }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => StoreErrorKind::Unreachable,
            io::ErrorKind::PermissionDenied => StoreErrorKind::Auth,
            io::ErrorKind::ReadOnlyFilesystem => StoreErrorKind::ReadOnly,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreErrorKind::Full,
            io::ErrorKind::IsADirectory | io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename => {
                StoreErrorKind::Misconfigured
            }
            _ => StoreErrorKind::Unreachable,
        };
        Self { kind, what: None, unknown: false, cause: Some(Cause(Arc::new(error))) }
    }
}

/// The cause of a fault; shared where one failed commit answers several callers.
#[derive(Clone, Debug)]
struct Cause(Arc<dyn Error + Send + Sync>);

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// The kind of a failure of SQLite or of rusqlite's conversions.
fn kind_of(error: &rusqlite::Error) -> StoreErrorKind {
    use rusqlite::Error as E;
    match error {
        E::SqliteFailure(failure, _) => kind_of_code(*failure),
        E::SqlInputError { error, .. } => kind_of_code(*error),
        E::FromSqlConversionFailure(..)
        | E::IntegralValueOutOfRange(..)
        | E::Utf8Error(..)
        | E::InvalidColumnType(..)
        | E::QueryReturnedNoRows => StoreErrorKind::Corrupt,
        E::InvalidPath(_) | E::NulError(_) => StoreErrorKind::Misconfigured,
        _ => StoreErrorKind::Internal,
    }
}

fn kind_of_code(failure: ffi::Error) -> StoreErrorKind {
    match failure.extended_code {
        // A read transaction that turned into a write: all of ours begin IMMEDIATE.
        ffi::SQLITE_BUSY_SNAPSHOT => return StoreErrorKind::Internal,
        ffi::SQLITE_READONLY_DBMOVED => return StoreErrorKind::Replaced,
        // The file is shorter than its own index says: a log that was deleted, a file that was cut.
        ffi::SQLITE_IOERR_SHORT_READ | ffi::SQLITE_IOERR_CORRUPTFS | ffi::SQLITE_IOERR_DATA => {
            return StoreErrorKind::Corrupt;
        }
        // The index of the log could not be made larger.
        ffi::SQLITE_IOERR_SHMSIZE | ffi::SQLITE_IOERR_NOMEM => return StoreErrorKind::Full,
        _ => {}
    }
    match failure.code {
        ErrorCode::DatabaseBusy | ErrorCode::FileLockingProtocolFailed => StoreErrorKind::Busy,
        ErrorCode::ReadOnly => StoreErrorKind::ReadOnly,
        ErrorCode::DiskFull | ErrorCode::OutOfMemory => StoreErrorKind::Full,
        ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied => StoreErrorKind::Auth,
        ErrorCode::CannotOpen | ErrorCode::SystemIoFailure => StoreErrorKind::Unreachable,
        ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt => StoreErrorKind::Corrupt,
        ErrorCode::OperationInterrupted => StoreErrorKind::TimedOut,
        ErrorCode::NoLargeFileSupport => StoreErrorKind::Misconfigured,
        _ => StoreErrorKind::Internal,
    }
}

#[cfg(test)]
#[path = "error_tests.rs"]
mod tests;
