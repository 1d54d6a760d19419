//! What the processes share, and what can befall it: a SQLite file, or a Redis server of our own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use timertask::Ledger;
use timertask::clock::{self, Clock, SystemClock, Until};
use timertask::redis::{Redis, redis};
use timertask::sqlite::{Sqlite, rusqlite};
use timertask_examples::RedisServer;
use timertask_examples::process::{Signal, limit_files, signal};

use crate::Result;

/// The part of the ledger that is ours.
pub(crate) const NAMESPACE: &str = "chaos";
/// The name of the file that processes share.
const FILE: &str = "ledger.db";

/// Opens the ledger: on the server of this address, or in the file of the folder.
pub(crate) fn open(redis: Option<&str>, folder: &Path, clock: Arc<dyn Clock>) -> Result<Arc<dyn Ledger>> {
    Ok(match redis {
        Some(url) => Arc::new(Redis::connect(url)?),
        None => Arc::new(Sqlite::options().clock(clock).open(folder.join(FILE))?),
    })
}

/// How a store goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outage {
    /// Redis: the server is killed. SQLite: another process holds the write lock.
    Hard,
    /// Redis: the server is asked to shut down. SQLite: as above.
    Soft,
    /// Redis: the server stands still (SIGSTOP). SQLite: as above.
    Hang,
    /// Redis: it may use no more memory. SQLite: as above.
    Memory,
}

impl Outage {
    pub(crate) const ALL: [Self; 4] = [Self::Hard, Self::Soft, Self::Hang, Self::Memory];
}

/// The store.
pub(crate) enum Store {
    Sqlite {
        file: PathBuf,
        /// Holds the write lock during an outage.
        lock: Option<rusqlite::Connection>,
    },
    Redis(RedisServer),
}

impl Store {
    pub(crate) fn start(on_redis: bool, folder: &Path) -> Result<Self> {
        Ok(if on_redis {
            Self::Redis(RedisServer::start()?)
        } else {
            Self::Sqlite { file: folder.join(FILE), lock: None }
        })
    }

    /// The address, where it is a server.
    pub(crate) fn url(&self) -> Option<String> {
        match self {
            Self::Sqlite { .. } => None,
            Self::Redis(server) => Some(server.url()),
        }
    }

    /// The server's process, where there is one and it is not down.
    pub(crate) fn process(&self) -> Option<u32> {
        match self {
            Self::Sqlite { .. } => None,
            Self::Redis(server) => server.process(),
        }
    }

    /// Whether a process that stands still holds all others up: on SQLite, if it was about to write.
    pub(crate) fn is_held(&self) -> Result<bool> {
        match self {
            Self::Sqlite { file, .. } => Ok(lock(file)?.is_none()),
            Self::Redis(_) => Ok(false),
        }
    }

    /// From its return until [`restore`](Self::restore) is called, nobody gets an answer that changes anything.
    pub(crate) fn fail(&mut self, how: Outage) -> Result<()> {
        match self {
            Self::Sqlite { file, lock: held } => {
                *held = Some(lock(file)?.ok_or("another process has held the write lock for five seconds")?);
                Ok(())
            }
            Self::Redis(server) => fail(server, how),
        }
    }

    /// Ends the outage; the store answers again when this returns.
    pub(crate) fn restore(&mut self, how: Outage) -> Result<()> {
        match self {
            Self::Sqlite { lock, .. } => {
                if let Some(lock) = lock.take() {
                    lock.execute_batch("ROLLBACK")?;
                }
                Ok(())
            }
            Self::Redis(server) => restore(server, how),
        }
    }

    /// How large the file is that grows with each write.
    pub(crate) fn size(&self) -> u64 {
        let file = match self {
            Self::Sqlite { file, .. } => file.with_extension("db-wal"),
            Self::Redis(server) => server.folder().join("appendonlydir/appendonly.aof.1.incr.aof"),
        };
        file.metadata().map_or(0, |metadata| metadata.len())
    }

    /// The server's file may have so many bytes; on SQLite it is the processes that write.
    pub(crate) fn limit(&self, bytes: u64) -> Result<()> {
        match self {
            Self::Sqlite { .. } => Ok(()),
            Self::Redis(server) => Ok(limit_files(process(server)?, Some(bytes))?),
        }
    }

    /// There is room again. A server that could not write has ended, and is started again; whether that was so.
    pub(crate) fn make_room(&mut self) -> Result<bool> {
        let Self::Redis(server) = self else { return Ok(false) };
        let ended = server.has_ended()?;
        if ended {
            server.start_again()?;
        } else {
            limit_files(process(server)?, None)?;
        }
        Ok(ended)
    }

    /// Leaves what there is for somebody who wants to look; where the server's part of it is.
    pub(crate) fn keep(self) -> Option<PathBuf> {
        match self {
            Self::Sqlite { .. } => None,
            Self::Redis(server) => Some(server.keep()),
        }
    }
}

/// Takes the file's write lock; `None` where somebody holds it for long.
fn lock(file: &Path) -> Result<Option<rusqlite::Connection>> {
    let connection = rusqlite::Connection::open(file)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    match connection.execute_batch("BEGIN IMMEDIATE") {
        Ok(()) => Ok(Some(connection)),
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn process(server: &RedisServer) -> Result<u32> {
    server.process().ok_or_else(|| "the server is down".into())
}

fn fail(server: &mut RedisServer, how: Outage) -> Result<()> {
    match how {
        Outage::Hard => server.kill()?,
        Outage::Soft => server.stop()?,
        Outage::Hang => signal(process(server)?, Signal::STOP)?,
        Outage::Memory => configure(server, "maxmemory", "1")?,
    }
    Ok(())
}

fn restore(server: &mut RedisServer, how: Outage) -> Result<()> {
    match how {
        Outage::Hard | Outage::Soft => server.start_again()?,
        Outage::Hang => signal(process(server)?, Signal::CONT)?,
        Outage::Memory => configure(server, "maxmemory", "0")?,
    }
    Ok(())
}

fn configure(server: &RedisServer, name: &str, value: &str) -> Result<()> {
    let mut connection = redis::Client::open(server.url())?.get_connection_with_timeout(Duration::from_secs(5))?;
    connection.set_read_timeout(Some(Duration::from_secs(5)))?;
    redis::cmd("CONFIG").arg("SET").arg(name).arg(value).exec(&mut connection)?;
    Ok(())
}

/// Lets real time pass.
pub(crate) fn nap(d: Duration) {
    let until = SystemClock.monotonic().saturating_add(d);
    let _ = SystemClock.wait(&clock::Signal::new(), Some(Until::Monotonic(until)));
}
