//! A job's rows and the end of its run commit together, or neither: also where the process is killed between the two.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use timertask_core::clock::{Clock, SystemClock};
use timertask_core::seam::{Ended, Ending, Ledger, PageToken, Query, SlotState};
use timertask_core::{BoxError, Plan, Run, RunOutcome, Scheduler};
use timertask_sqlite::{EndInError, Sqlite, rusqlite};
use timertask_testkit::FakeClock;

/// An application's database with the ledger in it.
fn shop(path: &Path) -> Connection {
    let shop = Connection::open(path).unwrap();
    shop.busy_timeout(Duration::from_secs(60)).unwrap();
    shop.execute_batch("CREATE TABLE IF NOT EXISTS invoices (slot TEXT NOT NULL)").unwrap();
    shop
}

fn store(path: &Path, clock: impl Clock + 'static) -> Sqlite {
    Sqlite::options().clock(clock).in_application_file().open(path).unwrap()
}

fn begin(shop: &mut Connection) -> Transaction<'_> {
    shop.transaction_with_behavior(TransactionBehavior::Immediate).unwrap()
}

fn work(shop: &Connection, run: &Run) {
    shop.execute("INSERT INTO invoices VALUES (?1)", [run.slot_key().to_string()]).unwrap();
}

fn invoices(path: &Path) -> i64 {
    shop(path).query_row("SELECT count(*) FROM invoices", [], |row| row.get(0)).unwrap()
}

/// The states of the plan's slots, old to new.
fn states(store: &Sqlite, id: &str) -> Vec<SlotState> {
    let (after, upto) = (timertask_core::Trigger::from_secs(0), timertask_core::Trigger::from_secs(i64::MAX));
    let query = Query::History { plan: plan(id), after, upto, page: None::<PageToken>, limit: 1_000 };
    store.read(&query).unwrap().value.slots.into_iter().map(|row| row.state).collect()
}

#[test]
#[ignore = "played by the tests of this file in a process of its own"]
fn child() {
    let Some((role, args)) = role() else { return };
    let path = args[0].clone();
    let store = store(Path::new(&path), SystemClock);
    let ledger = store.clone();
    let job = move |run: &Run| -> Result<(), BoxError> {
        let mut shop = shop(Path::new(&path));
        let transaction = begin(&mut shop);
        work(&transaction, run);
        ledger.end_in(&transaction, run)?;
        if role == "stop before the commit" {
            say("stopped");
            await_word();
        }
        transaction.commit()?;
        say("stopped");
        await_word();
        Ok(())
    };
    let scheduler = Scheduler::builder(job).concurrency(1).store(store).start().unwrap();
    scheduler.reconcile([Plan::new("bill", "@every 1s")]).unwrap();
    // The only worker hangs in the job; the parent kills this process.
    loop {
        std::thread::park();
    }
}

fn kill_where_it_stops(role: &str) -> (i64, Vec<SlotState>) {
    let dir = TempDir::new();
    let path = dir.path("shop.db");
    let mut other = Other::start(role, &[text(&path)]);
    other.expect_line("stopped");
    other.kill();
    let store = store(&path, SystemClock);
    (invoices(&path), states(&store, "bill"))
}

#[test]
fn killed_before_the_commit_neither_is_there() {
    let (invoices, states) = kill_where_it_stops("stop before the commit");
    assert_eq!(invoices, 0);
    assert_eq!(states, [SlotState::Running]);
}

#[test]
fn killed_after_the_commit_both_are_there() {
    let (invoices, states) = kill_where_it_stops("stop after the commit");
    assert_eq!(invoices, 1);
    assert_eq!(states[0], SlotState::Ended(Ending::Succeeded));
    // What came while the job hung was not started, or not accounted for yet.
    assert!(states[1..].iter().all(|state| matches!(state, SlotState::NotStarted(_))), "{states:?}");
}

/// Runs one slot of a plan with `job` under simulated time; the record's outcome and the ledger's state.
fn one_run(
    path: &Path,
    job: impl Fn(&Sqlite, &mut Connection, &Run) -> Result<(), BoxError> + Send + Sync + 'static,
) -> (RunOutcome, Vec<SlotState>) {
    let clock = FakeClock::new();
    let store = store(path, clock.clone());
    let (ledger, at) = (store.clone(), path.to_owned());
    let job = move |run: &Run| job(&ledger, &mut shop(&at), run);
    let scheduler = Scheduler::builder(job).clock(clock.clone()).store(store.clone()).start().unwrap();
    scheduler.reconcile([Plan::new("bill", "@every 1m")]).unwrap();
    clock.advance(Duration::from_secs(61));
    let records = scheduler.run_history(None);
    let [record] = &records[..] else { panic!("{records:?}") };
    (record.outcome, states(&store, "bill"))
}

const SUCCEEDED: SlotState = SlotState::Ended(Ending::Succeeded);
const FAILED: SlotState = SlotState::Ended(Ending::Failed);

#[test]
fn what_was_committed_has_succeeded() {
    let dir = TempDir::new();
    let path = dir.path("shop.db");
    let (outcome, states) = one_run(&path, |ledger, shop, run| {
        let transaction = begin(shop);
        work(&transaction, run);
        ledger.end_in(&transaction, run)?;
        Ok(transaction.commit()?)
    });
    assert_eq!((outcome, &states[..]), (RunOutcome::Ended(Ending::Succeeded), &[SUCCEEDED][..]));
    assert_eq!(invoices(&path), 1);
}

#[test]
fn what_was_rolled_back_has_failed_whatever_the_job_says() {
    let dir = TempDir::new();
    let path = dir.path("shop.db");
    let (outcome, states) = one_run(&path, |ledger, shop, run| {
        let transaction = begin(shop);
        work(&transaction, run);
        ledger.end_in(&transaction, run)?;
        transaction.rollback()?;
        Ok(())
    });
    assert_eq!((outcome, &states[..]), (RunOutcome::Ended(Ending::Failed), &[FAILED][..]));
    assert_eq!(invoices(&path), 0);
}

#[test]
fn what_was_committed_stays_whatever_the_job_says() {
    let dir = TempDir::new();
    let path = dir.path("shop.db");
    let (outcome, states) = one_run(&path, |ledger, shop, run| {
        let transaction = begin(shop);
        work(&transaction, run);
        ledger.end_in(&transaction, run)?;
        transaction.commit()?;
        Err("too late".into())
    });
    assert_eq!((outcome, &states[..]), (RunOutcome::Ended(Ending::Succeeded), &[SUCCEEDED][..]));
    assert_eq!(invoices(&path), 1);
}

#[test]
fn a_transaction_without_the_write_lock_is_refused() {
    let dir = TempDir::new();
    let (outcome, states) = one_run(&dir.path("shop.db"), |ledger, shop, run| {
        let transaction = shop.transaction_with_behavior(TransactionBehavior::Deferred)?;
        // Reading makes it a reader, which is not enough either.
        transaction.query_row("SELECT count(*) FROM invoices", [], |_| Ok(()))?;
        assert!(matches!(ledger.end_in(&transaction, run), Err(EndInError::NotImmediate)));
        Err("refused".into())
    });
    assert_eq!((outcome, &states[..]), (RunOutcome::Ended(Ending::Failed), &[FAILED][..]));
}

#[test]
fn a_transaction_on_another_file_is_refused() {
    let dir = TempDir::new();
    let path = dir.path("shop.db");
    let other = dir.path("copy.db");
    let (outcome, _) = one_run(&path.clone(), move |ledger, _, run| {
        // Even where it holds the same rows.
        std::process::Command::new("cp").args([&path, &other]).status()?;
        let mut elsewhere = Connection::open(&other)?;
        let transaction = begin(&mut elsewhere);
        let error = ledger.end_in(&transaction, run).unwrap_err();
        assert!(matches!(&error, EndInError::OtherFile { ledger } if *ledger == path), "{error}");
        Err("refused".into())
    });
    assert_eq!(outcome, RunOutcome::Ended(Ending::Failed));
}

#[test]
fn a_run_that_is_over_is_refused_and_its_rows_can_be_rolled_back() {
    let dir = TempDir::new();
    let path = dir.path("shop.db");
    let (outcome, states) = one_run(&path, |ledger, shop, run| {
        // Somebody took it for dead and settled it.
        let settled = ledger.end(&[timertask_core::seam::EndRequest {
            key: run.slot_key().clone(),
            fence: run.fence(),
            op: timertask_core::seam::EndOp::Settle {
                nonce: run.nonce(),
                ending: Ending::Cancelled,
                started_at: run.started_at(),
                ended_at: run.started_at(),
                tries: 1,
                detail: None,
            },
        }])?;
        assert!(matches!(settled.value[..], [Ended::Recorded(_)]));
        let transaction = begin(shop);
        work(&transaction, run);
        let error = ledger.end_in(&transaction, run).unwrap_err();
        assert_eq!(error.to_string(), "the run is over: its slot is cancelled");
        Err(error.into())
    });
    assert_eq!(states, [SlotState::Ended(Ending::Cancelled)]);
    assert_eq!(outcome, RunOutcome::LeaseLost);
    assert_eq!(invoices(&path), 0);
}

#[test]
fn errors_can_leave_a_thread() {
    fn assert<T: Send + Sync + 'static>() {}
    assert::<EndInError>();
    assert::<Arc<Sqlite>>();
}
