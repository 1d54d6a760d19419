//! What a store answers when it could not decide.

use std::error::Error;
use std::fmt;

/// What kind of fault a store met; it decides what the engine does and what a person should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// No connection, no file, no route. Is the store up, and the path or URL right?
    Unreachable,
    /// It did not answer in time. Nothing to do if rare; else look at its load.
    TimedOut,
    /// It is there but occupied: locked, loading, failing over. Tried again by itself.
    Busy,
    /// It refuses writes: a replica, a read-only file or mount.
    ReadOnly,
    /// Disk or memory is full, or too few replicas took part. Make room.
    Full,
    /// It refuses these credentials or rights.
    Auth,
    /// It is not set up as needed: a foreign key or file, an eviction policy, a bad URL.
    Misconfigured,
    /// What it holds cannot be right. Restore a backup, or look at who else writes there.
    Corrupt,
    /// The file under this handle was deleted or replaced. Restart after finding out by whom.
    Replaced,
    /// It was written by a newer version of this library. Update this one first.
    SchemaTooNew,
    /// A fault of the store's code, or an answer that breaks the contract. Please report it.
    Internal,
}

impl StoreErrorKind {
    /// The kind in words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed out",
            Self::Busy => "busy",
            Self::ReadOnly => "read-only",
            Self::Full => "full",
            Self::Auth => "access refused",
            Self::Misconfigured => "misconfigured",
            Self::Corrupt => "corrupt",
            Self::Replaced => "file replaced",
            Self::SchemaTooNew => "schema too new",
            Self::Internal => "internal fault",
        }
    }
}

impl fmt::Display for StoreErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A store could not decide. Never a permission to run, never read as a refusal.
///
/// `Display` is the kind and what was being done; [`Error::source`] holds the cause. Neither holds a password
/// or a payload.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    what: String,
    outcome_unknown: bool,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// A fault of this kind; `what` says what was being done, in a few words, lower case.
    #[must_use]
    pub fn new(kind: StoreErrorKind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into(), outcome_unknown: false, source: None }
    }

    /// The request may have been carried out all the same (a time-out, a cut after sending).
    #[must_use]
    pub fn unknown_outcome(mut self) -> Self {
        self.outcome_unknown = true;
        self
    }

    /// With its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The kind.
    #[must_use]
    pub const fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// What was being done.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    /// Whether the request may have been carried out all the same.
    #[must_use]
    pub const fn outcome_unknown(&self) -> bool {
        self.outcome_unknown
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "store {}: {}", self.kind, self.what)?;
        if self.outcome_unknown { f.write_str(" (it may have been carried out)") } else { Ok(()) }
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|e| e as &(dyn Error + 'static))
    }
}
