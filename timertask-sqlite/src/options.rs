//! How a file is opened: all defaults in one place.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use timertask_core::clock::{Clock, SystemClock};
use timertask_core::seam::StoreError;

use crate::schema::Home;
use crate::store::Sqlite;

/// When a write counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Synchronous {
    /// Once it is on the disk: what was acknowledged survives a power cut. The default.
    #[default]
    Full,
    /// Once the operating system has it: several times as fast where the disk is slow. What was acknowledged survives
    /// the end of the process, but not a power cut: then the last claims are gone without any error, and their slots
    /// may be started again. The ledger says so ([`Durability::Durable`](timertask_core::seam::Durability::Durable)
    /// with `synced: false`).
    Normal,
}

/// How to open a file; made by [`Sqlite::options`].
///
/// ```no_run
/// # use std::time::Duration;
/// # mod timertask { pub use timertask_sqlite as sqlite; }
/// use timertask::sqlite::{Sqlite, Synchronous};
/// let store = Sqlite::options().synchronous(Synchronous::Normal).busy_deadline(Duration::from_secs(5)).open("jobs.db")?;
/// # Ok::<(), timertask_core::seam::StoreError>(())
/// ```
#[derive(Clone)]
#[must_use = "nothing is opened before `open`"]
pub struct Options {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) synchronous: Synchronous,
    pub(crate) patience: Duration,
    pub(crate) network: bool,
    pub(crate) home: Home,
    pub(crate) quick_check: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            synchronous: Synchronous::Full,
            patience: Duration::from_secs(2),
            network: false,
            home: Home::Own,
            quick_check: false,
        }
    }
}

impl Options {
    /// The clock by which leases end; default: the system's. Give the scheduler's, where it has another.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// When a write counts as done; default: once it is on the disk.
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// How long a call waits for the file's write lock before it answers
    /// [`Busy`](timertask_core::seam::StoreErrorKind::Busy), in real time; default: 2 s.
    pub fn busy_deadline(mut self, wait: Duration) -> Self {
        self.patience = wait;
        self
    }

    /// Accepts a network file system (or one served by a program, FUSE). Where its locks don't hold, slots are started
    /// twice and the file is destroyed; only do this if you know that one host alone uses the file.
    pub fn allow_network_file_system(mut self) -> Self {
        self.network = true;
        self
    }

    /// Makes the ledger's tables in an application's database, beside the application's own, so that a job's rows and
    /// its end can commit together ([`Sqlite::end_in`]). All our tables begin with `timertask_`; the file's
    /// `application_id` and `user_version` are left to the application. Without this a file that holds anything else is
    /// refused. Once the tables are there, it opens either way.
    pub fn in_application_file(mut self) -> Self {
        self.home = Home::Application;
        self
    }

    /// Reads the whole file at open and refuses one that is damaged
    /// ([`Corrupt`](timertask_core::seam::StoreErrorKind::Corrupt)). Takes a while for a large one.
    pub fn quick_check(mut self) -> Self {
        self.quick_check = true;
        self
    }

    /// Opens the file at `path`, makes it (mode 0600) where there is none, and brings an older layout forward.
    ///
    /// # Errors
    /// [`StoreError`]; its kind says what to do:
    /// `Unreachable`: the directory does not exist. `Auth`: no right to open it. `ReadOnly`: a file or mount that cannot
    /// be written to. `Full`: no room to make it. `Busy`: another process held it beyond the deadline.
    /// `Misconfigured`: a directory, somebody else's database, a network file system. `Corrupt`: not a database, or a
    /// damaged one. `SchemaTooNew`: written by a newer version of this library.
    ///
    /// # Blocking
    /// Waits for another process's write only where the file is new or of an older layout, up to the busy deadline.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Sqlite, StoreError> {
        Sqlite::open_with(path.as_ref(), self)
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("synchronous", &self.synchronous)
            .field("busy_deadline", &self.patience)
            .field("allow_network_file_system", &self.network)
            .field("in_application_file", &(self.home == Home::Application))
            .field("quick_check", &self.quick_check)
            .finish_non_exhaustive()
    }
}
