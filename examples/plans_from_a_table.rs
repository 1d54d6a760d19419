//! Plans from a table of your own: the scheduler reads it every second, and who changes what runs when edits rows.

use std::error::Error;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use timertask::sqlite::rusqlite::{self, Connection, Row};
use timertask::{BoxError, Plan, PlanSource, Run, Scheduler};
use timertask_examples::Scratch;

/// An ordinary table of the application. What a `Plan` is made of is up to you.
const TABLE: &str = "CREATE TABLE task (
    name      TEXT PRIMARY KEY,
    spec      TEXT NOT NULL,
    zone      TEXT NOT NULL DEFAULT 'UTC',
    enabled   INTEGER NOT NULL DEFAULT 1,
    greeting  TEXT NOT NULL,
    version   INTEGER NOT NULL DEFAULT 1)";

/// The table as a source. An error leaves all plans as they are, and the table is read again a second later.
struct Table(PathBuf);

impl PlanSource for Table {
    fn plans(&self) -> Result<Vec<Plan>, BoxError> {
        let db = Connection::open(&self.0)?;
        let mut rows = db.prepare("SELECT name, spec, zone, enabled, greeting, version FROM task")?;
        let plans = rows.query_map([], to_plan)?.collect::<Result<_, _>>()?;
        Ok(plans)
    }
}

fn to_plan(row: &Row<'_>) -> rusqlite::Result<Plan> {
    Ok(Plan::new(row.get::<_, String>(0)?, row.get::<_, String>(1)?)
        .zone(row.get::<_, String>(2)?)
        .enabled(row.get(3)?)
        .payload(row.get::<_, String>(4)?)
        // While this is the same, the plan counts as unchanged.
        .fingerprint(row.get::<_, i64>(5)?.to_string()))
}

fn main() -> Result<(), Box<dyn Error>> {
    let scratch = Scratch::new()?;
    let file = scratch.file("app.db");
    let db = Connection::open(&file)?;
    let edit = |statement: &str| {
        println!("> {statement}");
        db.execute(statement, [])
    };
    db.execute(TABLE, [])?;
    edit("INSERT INTO task (name, spec, greeting) VALUES ('hello', '@every 1s', 'hello')")?;

    let (say, heard) = mpsc::channel();
    let scheduler = Scheduler::builder(move |run: &Run| {
        say.send(String::from_utf8(run.payload().to_vec())?)?;
        Ok(())
    })
    .start()?;
    scheduler.spawn_reconcile(Duration::from_secs(1), Table(file))?;

    let wait_for = |word: &str| -> Result<(), Box<dyn Error>> {
        while heard.recv_timeout(Duration::from_secs(10))? != word {}
        println!("heard '{word}'");
        Ok(())
    };
    wait_for("hello")?;

    edit("UPDATE task SET greeting = 'good morning', version = 2 WHERE name = 'hello'")?;
    wait_for("good morning")?;

    // A row that makes no sense fails alone, and is reported; the others go on.
    edit("INSERT INTO task (name, spec, greeting) VALUES ('odd', 'every monday', '')")?;
    edit("INSERT INTO task (name, spec, greeting) VALUES ('bye', '* * * * * *', 'goodbye')")?;
    edit("UPDATE task SET enabled = 0 WHERE name = 'hello'")?;
    wait_for("goodbye")?;

    let installed: Vec<_> = scheduler.plans()?.into_iter().map(|plan| plan.id.to_string()).collect();
    scheduler.close(Duration::from_secs(5))?;
    if installed != ["bye"] {
        return Err(format!("expected 'bye' alone to be installed, found {installed:?}").into());
    }
    println!("ok: a row was added, edited, disabled, and the scheduler followed");
    Ok(())
}
