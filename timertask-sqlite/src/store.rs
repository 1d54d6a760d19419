//! The handle.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use timertask_core::clock::Clock;
use timertask_core::key::PlanKey;
use timertask_core::seam::{
    Answer, Claim, ClaimRequest, Durability, EndRequest, Ended, Ledger, Outcome, Page, PlanOp, PlanState, Purged,
    Query, Renewal, Retention, StoreError, StoreErrorKind, Term,
};
use timertask_core::time::Timestamp;

use crate::connection::{self, Connected, Origin};
use crate::error::Fault;
use crate::file::{self, Paths};
use crate::options::{Options, Synchronous};
use crate::patience::Deadline;
use crate::tables::Tables;
use crate::writer::{GROUP, Urgency, Writer};
use crate::{decide, query};

/// How many plans are read in one snapshot.
const READ_AT_ONCE: usize = 1024;

/// A ledger, a mutex and a board in one SQLite file, shared by the processes of a host. Clones share its two connections.
///
/// # Blocking
/// A call waits for the file's write lock up to the busy deadline ([`Options::busy_deadline`], 2 s), then for the
/// disk. Renewals and ends go before claims, claims before purges. Calls of several threads are committed together.
///
/// # Errors
/// Every error is a [`StoreError`] with a kind; none ever stands for "another has it". Where
/// [`outcome_unknown`](StoreError::outcome_unknown) is true the write may be in the file; asking again is safe.
#[derive(Clone)]
pub struct Sqlite(Arc<Inner>);

struct Inner {
    origin: Origin,
    clock: Arc<dyn Clock>,
    patience: Duration,
    synchronous: Synchronous,
    reader: std::sync::Mutex<Connected>,
    /// Behind the reader, so that it is closed last: the last connection tidies up.
    writer: Writer,
}

impl Sqlite {
    /// Opens the file at `path` with the defaults of [`Options`]: made where there is none (mode 0600), synced at each
    /// commit, 2 s of patience.
    ///
    /// # Errors
    /// As [`Options::open`].
    ///
    /// # Blocking
    /// As [`Options::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::options().open(path)
    }

    /// Options, to open a file otherwise.
    pub fn options() -> Options {
        Options::default()
    }

    /// The file's path, made absolute when it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.origin.path()
    }

    pub(crate) fn open_with(path: &Path, options: Options) -> Result<Self, StoreError> {
        let open = || {
            if path == Path::new(":memory:") || path == Path::new("") {
                let what = "no file is named; a ledger of this process alone is `MemLedger`";
                return Err(Fault::new(StoreErrorKind::Misconfigured, what));
            }
            let path = std::path::absolute(path)?;
            if !options.network {
                file::refuse_network_file_system(&path)?;
            }
            file::create_if_missing(&path)?;
            let paths = Paths::new(path);
            let (writer, reader) = connection::open(&paths, &options)?;
            Ok(Self(Arc::new(Inner {
                origin: writer.origin(),
                clock: Arc::clone(&options.clock),
                patience: options.patience,
                synchronous: options.synchronous,
                reader: std::sync::Mutex::new(reader),
                writer: Writer::new(writer, Arc::clone(&options.clock), options.patience),
            })))
        };
        open().map_err(|fault: Fault| fault.into_store_error(&format!("open {}", path.display())))
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.0.origin
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.0.clock
    }

    /// One write transaction, perhaps shared with other callers.
    pub(crate) fn write<T: Send + 'static>(
        &self,
        doing: &str,
        urgency: Urgency,
        weight: usize,
        work: impl FnMut(&Tables<'_>) -> Result<T, Fault> + Send + 'static,
    ) -> Outcome<T> {
        match self.0.writer.write(urgency, weight, work) {
            Ok((now, value)) => Ok(Answer { now, value }),
            Err(fault) => Err(self.told(doing, fault)),
        }
    }

    /// One read transaction.
    pub(crate) fn snapshot<T>(&self, doing: &str, read: impl FnOnce(&Tables<'_>) -> Result<T, Fault>) -> Outcome<T> {
        let reader = self.0.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let done = reader.begin(Deadline::after(self.0.patience)).and_then(|()| {
            let tables = Tables::new(reader.connection(), self.0.clock.now());
            let done = read(&tables).map(|value| Answer { now: tables.now(), value });
            reader.roll_back();
            done
        });
        drop(reader);
        done.map_err(|fault| self.told(doing, fault))
    }

    fn told(&self, doing: &str, fault: Fault) -> StoreError {
        fault.into_store_error(&format!("{doing} in {}", self.path().display()))
    }

    /// Reads in pieces: a snapshot that is held for long keeps the log from beginning anew.
    fn read_plans(&self, requests: &[(PlanKey, PlanOp)]) -> Outcome<Vec<PlanState>> {
        let mut all = Answer { now: self.0.clock.now(), value: Vec::with_capacity(requests.len()) };
        for piece in requests.chunks(READ_AT_ONCE) {
            let read = |t: &Tables<'_>| piece.iter().map(|(key, op)| decide::plan(t, key, op)).collect();
            let answer = self.snapshot::<Vec<_>>("read plans", read)?;
            all.now = answer.now;
            all.value.extend(answer.value);
        }
        Ok(all)
    }

    /// Carries out a group in pieces, so that a large one neither holds the write lock for long nor keeps renewals
    /// waiting.
    fn pieces<R, T>(
        &self,
        doing: &str,
        urgency: Urgency,
        requests: &[R],
        decide: impl Fn(&Tables<'_>, &R) -> Result<T, Fault> + Clone + Send + 'static,
    ) -> Outcome<Vec<T>>
    where
        R: Clone + Send + 'static,
        T: Send + 'static,
    {
        let mut all = Answer { now: Timestamp::EPOCH, value: Vec::with_capacity(requests.len()) };
        if requests.is_empty() {
            all.now = self.0.clock.now();
        }
        for piece in requests.chunks(GROUP) {
            let (weight, piece, decide) = (piece.len(), piece.to_vec(), decide.clone());
            let work = move |t: &Tables<'_>| piece.iter().map(|request| decide(t, request)).collect();
            match self.write::<Vec<T>>(doing, urgency, weight, work) {
                Ok(answer) => {
                    all.now = answer.now;
                    all.value.extend(answer.value);
                }
                // What came before in the group has been carried out.
                Err(e) if !all.value.is_empty() => return Err(e.unknown_outcome()),
                Err(e) => return Err(e),
            }
        }
        Ok(all)
    }
}

impl Ledger for Sqlite {
    fn describe(&self) -> Result<Durability, StoreError> {
        let Answer { value: (), .. } = self.snapshot("look", |_| Ok(()))?;
        Ok(Durability::Durable { synced: self.0.synchronous == Synchronous::Full })
    }

    fn plan(&self, requests: &[(PlanKey, PlanOp)]) -> Outcome<Vec<PlanState>> {
        if requests.iter().all(|(_, op)| *op == PlanOp::Read) {
            return self.read_plans(requests);
        }
        self.pieces("write plans", Urgency::Normal, requests, |t, (key, op)| decide::plan(t, key, op))
    }

    fn claim(&self, requests: &[ClaimRequest]) -> Outcome<Vec<Claim>> {
        self.pieces("claim", Urgency::Normal, requests, decide::claim)
    }

    fn renew(&self, terms: &[Term], ttl: Duration) -> Outcome<Vec<Renewal>> {
        self.pieces("renew", Urgency::First, terms, move |t, term| decide::renew(t, term, ttl))
    }

    fn end(&self, requests: &[EndRequest]) -> Outcome<Vec<Ended>> {
        self.pieces("record ends", Urgency::First, requests, decide::end)
    }

    fn read(&self, query: &Query) -> Outcome<Page> {
        self.snapshot("read", |t| query::page(t, query))
    }

    fn purge(&self, plan: &PlanKey, keep: Retention, at_most: usize) -> Outcome<Purged> {
        let plan = plan.clone();
        self.write("purge", Urgency::Last, GROUP, move |t| decide::purge(t, &plan, keep, at_most))
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("path", &self.path()).finish_non_exhaustive()
    }
}
