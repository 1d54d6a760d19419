use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::{Connection, TransactionBehavior};

use super::*;

fn kind(error: rusqlite::Error) -> StoreErrorKind {
    Fault::from(error).kind()
}

#[test]
fn a_reader_that_turns_writer_is_our_fault() {
    let path = std::env::temp_dir().join(format!("timertask-sqlite-error-{}.db", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let open = || Connection::open(&path).unwrap();
    let other = open();
    other.execute_batch("PRAGMA journal_mode = wal; CREATE TABLE t (x)").unwrap();
    let mut reader = open();
    let transaction = reader.transaction_with_behavior(TransactionBehavior::Deferred).unwrap();
    transaction.query_row("SELECT count(*) FROM t", [], |_| Ok(())).unwrap();
    other.execute_batch("INSERT INTO t VALUES (1)").unwrap();
    let error = transaction.execute("INSERT INTO t VALUES (2)", []).unwrap_err();
    assert_eq!(kind(error), StoreErrorKind::Internal);
    drop(transaction);
    drop((reader, other));
    let _ = std::fs::remove_file(&path);
}

#[test]
fn an_interrupted_query_timed_out() {
    let connection = Connection::open_in_memory().unwrap();
    let stop = connection.get_interrupt_handle();
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";
    let done = AtomicBool::new(false);
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Interrupting counts only while something runs.
            while !done.load(Ordering::Relaxed) {
                stop.interrupt();
                std::thread::yield_now();
            }
        });
        let error = connection.query_row(endless, [], |_| Ok(())).unwrap_err();
        done.store(true, Ordering::Relaxed);
        error
    });
    assert_eq!(kind(error), StoreErrorKind::TimedOut);
}

#[test]
fn faults_of_our_statements_are_ours() {
    let connection = Connection::open_in_memory().unwrap();
    connection
        .execute_batch("CREATE TABLE t (x INTEGER NOT NULL PRIMARY KEY) STRICT; INSERT INTO t VALUES (1)")
        .unwrap();
    for sql in ["INSERT INTO t VALUES (1)", "INSERT INTO t VALUES ('x')", "SELECT * FROM gone", "not sql"] {
        assert_eq!(kind(connection.execute(sql, []).unwrap_err()), StoreErrorKind::Internal, "{sql}");
    }
    let read: rusqlite::Result<String> = connection.query_row("SELECT x FROM t", [], |row| row.get(0));
    assert_eq!(kind(read.unwrap_err()), StoreErrorKind::Corrupt, "a column of the wrong type");
}

/// What cannot be provoked here, by its code.
#[test]
fn codes_that_a_disk_or_a_system_gives() {
    use StoreErrorKind as K;
    for (code, expected) in [
        (ffi::SQLITE_IOERR_FSYNC, K::Unreachable),
        (ffi::SQLITE_IOERR_WRITE, K::Unreachable),
        (ffi::SQLITE_IOERR_SHORT_READ, K::Corrupt),
        (ffi::SQLITE_IOERR_SHMSIZE, K::Full),
        (ffi::SQLITE_NOMEM, K::Full),
        (ffi::SQLITE_PROTOCOL, K::Busy),
        (ffi::SQLITE_BUSY_RECOVERY, K::Busy),
        (ffi::SQLITE_READONLY_DBMOVED, K::Replaced),
        (ffi::SQLITE_READONLY_DIRECTORY, K::ReadOnly),
        (ffi::SQLITE_READONLY_CANTINIT, K::ReadOnly),
        (ffi::SQLITE_CANTOPEN_ISDIR, K::Unreachable),
        (ffi::SQLITE_PERM, K::Auth),
        (ffi::SQLITE_AUTH, K::Auth),
        (ffi::SQLITE_NOLFS, K::Misconfigured),
        (ffi::SQLITE_CORRUPT_INDEX, K::Corrupt),
        (ffi::SQLITE_MISUSE, K::Internal),
    ] {
        assert_eq!(kind(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)), expected, "{code}");
    }
}

#[test]
fn the_text_says_what_and_where_and_keeps_the_cause() {
    let fault = Fault::from(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_BUSY), None)).unknown_outcome();
    let error = fault.clone().into_store_error("claim in /srv/jobs.db");
    assert_eq!(error.to_string(), "store busy: claim in /srv/jobs.db (it may have been carried out)");
    assert!(
        error.source().is_some_and(|cause| cause.to_string().contains("database is locked")),
        "{:?}",
        error.source()
    );
    assert_eq!(fault.into_store_error("x").kind(), StoreErrorKind::Busy);
}
