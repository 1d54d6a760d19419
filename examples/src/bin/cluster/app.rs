//! The service's own database: a table of plans, which people edit, and the table that its jobs write to. The ledger
//! keeps its tables in the same file.

use std::path::Path;
use std::time::Duration;

use timertask::sqlite::rusqlite::{Connection, OptionalExtension, Row, params};
use timertask::{CatchUp, Overlap, Plan, Run};

use crate::Result;
use crate::score::PlanRow;

/// The service's connection to its database.
pub(crate) struct App(Connection);

/// How a run's insert went.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// The row is there.
    Done,
    /// A run with a higher fence has been here: this one is a zombie, and is refused.
    RefusedByFence,
}

/// A row that a job wrote.
pub(crate) struct WorkRow {
    pub(crate) plan: String,
    pub(crate) at: i64,
    pub(crate) fence: i64,
    pub(crate) instance: String,
}

impl App {
    /// Opens the file.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(Duration::from_secs(10))?;
        Ok(Self(connection))
    }

    /// Makes the application's tables.
    pub(crate) fn create(&self) -> Result<()> {
        self.0.execute_batch(
            "PRAGMA journal_mode = WAL;
             CREATE TABLE plan (
                 id TEXT PRIMARY KEY, spec TEXT NOT NULL, zone TEXT, job TEXT NOT NULL, at_once INTEGER NOT NULL,
                 make_up INTEGER NOT NULL, enabled INTEGER NOT NULL, version INTEGER NOT NULL
             ) STRICT;
             CREATE TABLE work (
                 id INTEGER PRIMARY KEY, plan TEXT NOT NULL, at INTEGER NOT NULL, fence INTEGER NOT NULL,
                 instance TEXT NOT NULL
             ) STRICT;
             CREATE INDEX work_by_plan ON work (plan, fence);",
        )?;
        Ok(())
    }

    /// Adds a plan, or edits it: a new version.
    pub(crate) fn put(&self, plan: &PlanRow) -> Result<()> {
        self.0.execute(
            "INSERT INTO plan (id, spec, zone, job, at_once, make_up, enabled, version)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1, 1)
             ON CONFLICT (id) DO UPDATE SET
                 spec = ?2, zone = ?3, job = ?4, at_once = ?5, make_up = ?6, version = version + 1",
            params![plan.id, plan.spec, plan.zone, plan.job, plan.at_once, plan.make_up],
        )?;
        Ok(())
    }

    /// Disables a plan.
    pub(crate) fn disable(&self, id: &str) -> Result<()> {
        self.0.execute("UPDATE plan SET enabled = 0, version = version + 1 WHERE id = ?1", [id])?;
        Ok(())
    }

    /// All plans, as the scheduler wants them.
    pub(crate) fn plans(&self) -> Result<Vec<Plan>> {
        let plan = |row: &Row<'_>| {
            let mut plan = Plan::new(row.get::<_, String>("id")?, row.get::<_, String>("spec")?)
                .job(row.get::<_, String>("job")?)
                .enabled(row.get("enabled")?)
                .fingerprint(format!("version {}", row.get::<_, i64>("version")?))
                .catch_up(match row.get("make_up")? {
                    1 => CatchUp::Latest,
                    cap => CatchUp::All { cap },
                })
                .start_window(Duration::from_secs(3));
            if let Some(zone) = row.get::<_, Option<String>>("zone")? {
                plan = plan.zone(zone);
            }
            match row.get("at_once")? {
                1 => Ok(plan.overlap(Overlap::Skip)),
                n => Ok(plan.overlap(Overlap::Allow(n))),
            }
        };
        let mut statement = self.0.prepare("SELECT * FROM plan ORDER BY id")?;
        let plans = statement.query_map([], plan)?.collect::<std::result::Result<_, _>>()?;
        Ok(plans)
    }

    /// What a job does here: a row for its run, unless a later run of the plan has been here. The fence is what makes a
    /// process that was frozen, or believes itself alive, harmless.
    pub(crate) fn write(&self, run: &Run) -> Result<Written> {
        let (plan, at) = (run.plan(), run.slot_key().at.as_secs());
        let fence = i64::try_from(run.fence().as_u64())?;
        // Runs of one plan that go on at once are no zombies of each other; there the guard is the slot's own.
        let guard = self
            .0
            .prepare_cached(
                "INSERT INTO work (plan, at, fence, instance) SELECT ?1, ?2, ?3, ?4
                 WHERE NOT EXISTS (SELECT 1 FROM work WHERE plan = ?1 AND fence > ?3
                     AND (at = ?2 OR (SELECT at_once FROM plan WHERE id = ?1) = 1))
                 RETURNING id",
            )?
            .query_row(params![plan, at, fence, run.instance().as_str()], |row| row.get::<_, i64>(0))
            .optional()?;
        Ok(if guard.is_some() { Written::Done } else { Written::RefusedByFence })
    }

    /// All rows that jobs wrote up to a trigger point, by plan and slot.
    pub(crate) fn work(&self, upto: i64) -> Result<Vec<WorkRow>> {
        let row = |row: &Row<'_>| {
            Ok(WorkRow {
                plan: row.get("plan")?,
                at: row.get("at")?,
                fence: row.get("fence")?,
                instance: row.get("instance")?,
            })
        };
        let mut statement = self.0.prepare("SELECT * FROM work WHERE at <= ?1 ORDER BY plan, at, id")?;
        let rows = statement.query_map([upto], row)?.collect::<std::result::Result<_, _>>()?;
        Ok(rows)
    }
}
