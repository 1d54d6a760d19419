//! The layout of the file: whose it is, which version it has, and how it is brought to ours.

use rusqlite::{Connection, OptionalExtension, params};
use timertask_core::seam::StoreErrorKind;

use crate::error::Fault;
use crate::patience::random_bits;

/// `application_id` of a file that is a ledger and nothing else: "tmtk".
const APPLICATION_ID: i64 = 0x746d_746b;

/// The layout that this version of the library reads and writes; also the file's `user_version`.
pub(crate) const LAYOUT: i64 = 1;

/// What brings a file from layout `n` to `n + 1`; there are as many as there are layouts.
type Steps<'s> = &'s [&'s str];

const STEPS: [&str; LAYOUT as usize] = [include_str!("schema.sql")];

/// The id of the store in a file: random, made with it.
pub(crate) type StoreId = [u8; 16];

/// Whose file it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// A file of the ledger's own: `application_id` and `user_version` are ours.
    Own,
    /// An application's database: its `application_id` and `user_version` are left alone.
    Application,
}

/// Looks at the file and, only where it must, creates the tables or brings them forward. An up-to-date file is not
/// written to, so that opening never waits for another process's write.
pub(crate) fn prepare(connection: &Connection, home: Home) -> Result<StoreId, Fault> {
    prepare_by(connection, home, &STEPS)
}

fn prepare_by(connection: &Connection, home: Home, steps: Steps<'_>) -> Result<StoreId, Fault> {
    let layout = i64::try_from(steps.len()).unwrap_or(i64::MAX);
    if let Some(id) = at_one_moment(connection, || up_to_date(connection, home, layout))? {
        return wal(connection).map(|()| id);
    }
    wal(connection)?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    // Another process may have been first.
    let done = match up_to_date(connection, home, layout) {
        Ok(Some(id)) => Ok(id),
        Ok(None) => migrate(connection, home, steps, layout),
        Err(fault) => Err(fault),
    };
    match done {
        Ok(id) => connection.execute_batch("COMMIT").map(|()| id).map_err(|e| {
            roll_back(connection);
            Fault::from(e)
        }),
        Err(fault) => {
            roll_back(connection);
            Err(fault)
        }
    }
}

/// Reads in one transaction: another process may be making the tables right now, and half of what it did is no state to
/// judge by.
fn at_one_moment<T>(connection: &Connection, read: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    connection.execute_batch("BEGIN DEFERRED")?;
    let found = read();
    roll_back(connection);
    found
}

/// Ends a transaction that went wrong. SQLite may have ended it already; what is left over is told by the next call.
pub(crate) fn roll_back(connection: &Connection) {
    if !connection.is_autocommit()
        && let Err(e) = connection.execute_batch("ROLLBACK")
    {
        log::warn!(target: "timertask::store", "roll back: {e}");
    }
}

/// What the file says about itself.
struct Marks {
    application: i64,
    version: i64,
    tables: i64,
    store: Option<(Vec<u8>, i64)>,
}

impl Marks {
    fn read(connection: &Connection) -> Result<Self, Fault> {
        let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let count = |sql| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
        let store = if has_store(connection)? {
            let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
            connection.query_row("SELECT id, layout FROM timertask_store", [], row).optional()?
        } else {
            None
        };
        Ok(Self {
            application: pragma("application_id")?,
            version: pragma("user_version")?,
            tables: count("SELECT count(*) FROM sqlite_schema")?,
            store,
        })
    }
}

/// The store's id where the file has this layout; `None` where it has to be made or brought forward.
fn up_to_date(connection: &Connection, home: Home, ours: i64) -> Result<Option<StoreId>, Fault> {
    let marks = Marks::read(connection)?;
    let own = marks.application == APPLICATION_ID;
    let version = if own { marks.version } else { 0 };
    let version = marks.store.as_ref().map_or(version, |(_, layout)| version.max(*layout));
    if version > ours {
        return Err(Fault::new(
            StoreErrorKind::SchemaTooNew,
            format!("the file has layout {version}, this version of timertask-sqlite knows up to {ours}; update it"),
        ));
    }
    match marks.store {
        Some((id, _)) => {
            let bytes = id.len();
            let id = StoreId::try_from(id)
                .map_err(|_| Fault::corrupt(format!("the store's id has {bytes} bytes instead of 16")))?;
            Ok((version == ours).then_some(id))
        }
        None if own && version > 0 => Err(Fault::corrupt("the file is marked as a ledger, but its tables are missing")),
        None if own || home == Home::Application => Ok(None),
        None if marks.application != 0 => Err(Fault::new(
            StoreErrorKind::Misconfigured,
            format!(
                "the file belongs to another program (application_id {:#010x}); give a file of its own, or allow it \
                 with `in_application_file`",
                marks.application
            ),
        )),
        None if marks.tables > 0 || marks.version != 0 => Err(Fault::new(
            StoreErrorKind::Misconfigured,
            "the file is a database of something else; give a file of its own, or allow it with `in_application_file`",
        )),
        None => Ok(None),
    }
}

fn migrate(connection: &Connection, home: Home, steps: Steps<'_>, to: i64) -> Result<StoreId, Fault> {
    let marks = Marks::read(connection)?;
    let own = marks.application == APPLICATION_ID || home == Home::Own;
    let from = marks.store.as_ref().map_or(0, |(_, layout)| *layout);
    let new = marks.store.is_none();
    let id = match marks.store {
        Some((id, _)) => StoreId::try_from(id).map_err(|_| Fault::corrupt("the store's id does not have 16 bytes"))?,
        None => random_bits().to_be_bytes(),
    };
    for (step, sql) in steps.iter().enumerate() {
        if i64::try_from(step).is_ok_and(|step| step >= from) {
            connection.execute_batch(sql)?;
        }
    }
    connection.execute(
        "INSERT INTO timertask_store (one, id, layout) VALUES (1, ?1, ?2) \
         ON CONFLICT (one) DO UPDATE SET layout = excluded.layout",
        params![id, to],
    )?;
    // A ledger that was made in an application's file stays a guest there, also for a handle that did not say so.
    if own && (from == 0 || marks.application == APPLICATION_ID) {
        connection.pragma_update(None, "application_id", APPLICATION_ID)?;
        connection.pragma_update(None, "user_version", to)?;
    }
    let path = connection.path().unwrap_or_default();
    if new {
        log::info!(target: "timertask::store", "{path}: the ledger's tables were made, layout {to}");
    } else {
        log::info!(target: "timertask::store", "{path}: the ledger's tables were brought from layout {from} to {to}");
    }
    Ok(id)
}

/// Write-ahead logging, asked for where it is not there yet, and verified: some file systems refuse it silently.
fn wal(connection: &Connection) -> Result<(), Fault> {
    let mode = |row: &rusqlite::Row<'_>| row.get::<_, String>(0);
    if connection.pragma_query_value(None, "journal_mode", mode)? == "wal" {
        return Ok(());
    }
    let got = connection.pragma_update_and_check(None, "journal_mode", "wal", mode)?;
    if got == "wal" {
        return Ok(());
    }
    Err(Fault::new(
        StoreErrorKind::Misconfigured,
        format!("the file's journal mode is {got} and cannot be made wal; is it on a local disk?"),
    ))
}

/// That the connection still sees the store that was opened, inside a transaction: a file into which another was
/// restored, or that was brought forward, keeps its inode.
pub(crate) fn verify(connection: &Connection, opened: &StoreId) -> Result<(), Fault> {
    match find(connection)? {
        Some((id, layout)) if id == *opened && layout <= LAYOUT => Ok(()),
        Some((id, layout)) if id == *opened => Err(Fault::new(
            StoreErrorKind::SchemaTooNew,
            format!("the file was brought to layout {layout} meanwhile, this version knows up to {LAYOUT}; update it"),
        )),
        Some(_) => Err(Fault::new(StoreErrorKind::Replaced, "the file holds another store than when it was opened")),
        None => Err(Fault::new(StoreErrorKind::Replaced, "the file holds no store any more")),
    }
}

/// The id and layout of the store that the connection sees; `None` where it sees none.
pub(crate) fn find(connection: &Connection) -> Result<Option<(StoreId, i64)>, Fault> {
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let found = connection
        .prepare_cached("SELECT id, layout FROM timertask_store")
        .and_then(|mut statement| statement.query_row([], row).optional());
    match found {
        Ok(found) => Ok(found),
        // SQLite has one code for all that is wrong with a statement.
        Err(e) if e.sqlite_error_code() == Some(rusqlite::ErrorCode::Unknown) && !has_store(connection)? => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn has_store(connection: &Connection) -> Result<bool, Fault> {
    let sql = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'timertask_store'";
    Ok(connection.query_row(sql, [], |row| row.get::<_, i64>(0))? > 0)
}

#[cfg(test)]
#[path = "schema_tests.rs"]
mod tests;
