//! A job's rows and the end of its run in one transaction: both are there or neither, also when the process is killed
//! in between. The ledger's tables lie in the application's own database.
//!
//! This program starts itself, and each child kills itself with SIGKILL: once before the commit, once right after it.

use std::error::Error;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use signal_hook::consts::SIGKILL;
use timertask::key::{Namespace, PlanId, PlanKey};
use timertask::seam::{Ending, Ledger, Query, SlotState};
use timertask::sqlite::Sqlite;
use timertask::sqlite::rusqlite::{Connection, TransactionBehavior};
use timertask::time::Trigger;
use timertask::{BoxError, Plan, Run, Scheduler};
use timertask_examples::Scratch;

const BEFORE: &str = "killed-before-the-commit";
const AFTER: &str = "killed-after-the-commit";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, plan @ (BEFORE | AFTER), file] => service(plan, Path::new(file)),
        _ => watch(),
    }
}

fn service(plan: &str, file: &Path) -> Result<(), Box<dyn Error>> {
    let store = Sqlite::options().in_application_file().open(file)?;
    let (ledger, path) = (store.clone(), file.to_owned());
    let scheduler = Scheduler::builder(move |run: &Run| pay(run, &store, &path)).store(ledger).start()?;
    scheduler.reconcile([Plan::new(plan, "@every 1s")])?;
    std::thread::park();
    Ok(())
}

/// The job. It ends its run itself, in the transaction in which it writes its rows.
fn pay(run: &Run, store: &Sqlite, file: &Path) -> Result<(), BoxError> {
    let mut db = Connection::open(file)?;
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction
        .execute("INSERT INTO payment (plan, slot) VALUES (?1, ?2)", (run.plan(), run.slot_key().to_string()))?;
    store.end_in(&transaction, run)?;
    if run.plan() == BEFORE {
        signal_hook::low_level::raise(SIGKILL)?;
    }
    transaction.commit()?;
    // Without `end_in` this is where a payment is made that the ledger knows nothing of.
    signal_hook::low_level::raise(SIGKILL)?;
    Ok(())
}

fn watch() -> Result<(), Box<dyn Error>> {
    let scratch = Scratch::new()?;
    let file = scratch.file("app.db");
    let db = Connection::open(&file)?;
    db.execute("CREATE TABLE payment (plan TEXT NOT NULL, slot TEXT NOT NULL UNIQUE)", [])?;
    let store = Sqlite::options().in_application_file().open(&file)?;

    for (plan, payments, state) in [(BEFORE, 0, SlotState::Running), (AFTER, 1, SlotState::Ended(Ending::Succeeded))] {
        let status = Command::new(std::env::current_exe()?).arg(plan).arg(&file).status()?;
        if status.signal() != Some(SIGKILL) {
            return Err(format!("the child was to be killed; {status}").into());
        }
        let paid: i64 = db.query_row("SELECT count(*) FROM payment WHERE plan = ?1", [plan], |row| row.get(0))?;
        let history = Query::History {
            plan: PlanKey::new(Namespace::default(), PlanId::new(plan)?),
            after: Trigger::from_secs(0),
            upto: Trigger::from_secs(i64::MAX),
            page: None,
            limit: 10,
        };
        let states: Vec<_> = store.read(&history)?.value.slots.into_iter().map(|slot| slot.state).collect();
        println!("{plan}: {paid} payment(s), the ledger says {states:?}");
        if paid != payments || states != [state] {
            return Err(format!("expected {payments} and {state:?}").into());
        }
    }
    println!("ok: rows and end were written together, or not at all");
    Ok(())
}
