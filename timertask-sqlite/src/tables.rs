//! The rows inside one transaction: read by key, written as the rules say. No decision is made here.

use std::cell::RefCell;

use rusqlite::{CachedStatement, Connection, OptionalExtension, Params, Row, params};
use timertask_core::key::{Namespace, PlanKey, SlotKey};
use timertask_core::rules::{self, Change};
use timertask_core::seam::{PlanRow, RangeRow, SlotRow};
use timertask_core::time::{Timestamp, Trigger};

use crate::codec::{
    fence, micros, nonces_bytes, plan_columns, plan_row, range_row, request_str, slot_columns, slot_row, state_codes,
};
use crate::error::Fault;

/// The rows that a decision was made by, and that it may now replace.
#[derive(Clone, Copy, Default)]
pub(crate) struct Read<'r> {
    pub(crate) plan: Option<&'r PlanRow>,
    pub(crate) slot: Option<&'r SlotRow>,
}

/// A transaction on the file, and the store's now in it.
pub(crate) struct Tables<'c> {
    connection: &'c Connection,
    now: Timestamp,
    /// What was last found out about a pause of all: a group of claims asks for it each time.
    paused: RefCell<Option<(Namespace, bool)>>,
}

impl<'c> Tables<'c> {
    pub(crate) fn new(connection: &'c Connection, now: Timestamp) -> Self {
        Self { connection, now, paused: RefCell::new(None) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    /// The statement, prepared once per connection.
    pub(crate) fn sql(&self, sql: &str) -> Result<CachedStatement<'c>, Fault> {
        #[cfg(test)]
        tests::assert_by_key(self.connection, sql);
        Ok(self.connection.prepare_cached(sql)?)
    }

    pub(crate) fn run(&self, sql: &str, params: impl Params) -> Result<usize, Fault> {
        Ok(self.sql(sql)?.execute(params)?)
    }

    /// The rows of a query, each read by `read`.
    pub(crate) fn all<T>(
        &self,
        sql: &str,
        params: impl Params,
        mut read: impl FnMut(&Row<'_>) -> Result<T, Fault>,
    ) -> Result<Vec<T>, Fault> {
        let mut statement = self.sql(sql)?;
        let mut rows = statement.query(params)?;
        let mut all = Vec::new();
        while let Some(row) = rows.next()? {
            all.push(read(row)?);
        }
        Ok(all)
    }

    /// The first row of a query.
    pub(crate) fn first<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> Result<T, Fault>,
    ) -> Result<Option<T>, Fault> {
        let mut statement = self.sql(sql)?;
        let mut rows = statement.query(params)?;
        match rows.next()? {
            Some(row) => read(row).map(Some),
            None => Ok(None),
        }
    }

    /// The row of a plan, or of a namespace.
    pub(crate) fn plan(&self, key: &PlanKey) -> Result<Option<PlanRow>, Fault> {
        self.first(
            concat!("SELECT ", plan_columns!(), " FROM timertask_plan WHERE namespace = ?1 AND plan = ?2"),
            params![key.namespace.as_str(), key.plan_str()],
            |row| plan_row(row, 0),
        )
    }

    /// Whether a pause of all stands in the namespace.
    pub(crate) fn all_paused(&self, namespace: &Namespace) -> Result<bool, Fault> {
        if let Some((known, paused)) = &*self.paused.borrow()
            && known == namespace
        {
            return Ok(*paused);
        }
        let sql = "SELECT pause_since IS NOT NULL FROM timertask_plan WHERE namespace = ?1 AND plan = ''";
        let paused = self.sql(sql)?.query_row([namespace.as_str()], |row| row.get(0)).optional()?.unwrap_or(false);
        *self.paused.borrow_mut() = Some((namespace.clone(), paused));
        Ok(paused)
    }

    /// The row of a slot; that of a `run_now` is found by its request, whatever its instant.
    pub(crate) fn slot(&self, key: &SlotKey) -> Result<Option<SlotRow>, Fault> {
        let (namespace, plan) = (key.plan.namespace.as_str(), key.plan.plan_str());
        match &key.request {
            None => self.first(
                concat!(
                    "SELECT ",
                    slot_columns!(),
                    " FROM timertask_slot WHERE namespace = ?1 AND plan = ?2 AND at = ?3 AND request = ''"
                ),
                params![namespace, plan, key.at.as_secs()],
                |row| slot_row(row, 0, &key.plan),
            ),
            Some(request) => self.first(
                concat!(
                    "SELECT ",
                    slot_columns!(),
                    " FROM timertask_slot INDEXED BY timertask_slot_request \
                     WHERE namespace = ?1 AND plan = ?2 AND request = ?3 AND request <> '' ORDER BY at LIMIT 1"
                ),
                params![namespace, plan, request.as_str()],
                |row| slot_row(row, 0, &key.plan),
            ),
        }
    }

    /// How many rows of the slot's plan are running, its own left out.
    ///
    /// The index is named, here and wherever `state < 2` stands: by itself SQLite takes the primary key and looks at all
    /// that the plan ever ran.
    pub(crate) fn running(&self, key: &SlotKey) -> Result<usize, Fault> {
        let sql = "SELECT count(*) FROM timertask_slot INDEXED BY timertask_slot_unfinished WHERE namespace = ?1 \
                   AND plan = ?2 AND state < 2 AND state = 0 AND NOT (at = ?3 AND request = ?4)";
        let key = params![key.plan.namespace.as_str(), key.plan.plan_str(), key.at.as_secs(), request_str(key)];
        let n: i64 = self.sql(sql)?.query_row(key, |row| row.get(0))?;
        Ok(usize::try_from(n).unwrap_or(0))
    }

    /// The running rows of the slot's plan that are older than the slot.
    pub(crate) fn older(&self, key: &SlotKey) -> Result<Vec<SlotRow>, Fault> {
        self.all(
            concat!(
                "SELECT ",
                slot_columns!(),
                " FROM timertask_slot INDEXED BY timertask_slot_unfinished \
                 WHERE namespace = ?1 AND plan = ?2 AND state < 2 AND state = 0 AND at < ?3 ORDER BY at, request"
            ),
            params![key.plan.namespace.as_str(), key.plan.plan_str(), key.at.as_secs()],
            |row| slot_row(row, 0, &key.plan),
        )
    }

    /// The latest trigger point after the slot's among its plan's rows that were started and are not ahead of now.
    /// Those before the slot say nothing about it, and there may be many.
    pub(crate) fn newest_started(&self, key: &SlotKey) -> Result<Option<Trigger>, Fault> {
        let mut statement = self.sql(concat!(
            "SELECT ",
            slot_columns!(),
            " FROM timertask_slot WHERE namespace = ?1 AND plan = ?2 AND at > ?3 AND at <= ?4 AND request = '' \
             ORDER BY at DESC"
        ))?;
        let mut rows = statement.query(params![
            key.plan.namespace.as_str(),
            key.plan.plan_str(),
            key.at.as_secs(),
            self.now.trigger().as_secs()
        ])?;
        while let Some(row) = rows.next()? {
            let row = slot_row(row, 0, &key.plan)?;
            if rules::started(self.now, &row) {
                return Ok(Some(row.key.at));
            }
        }
        Ok(None)
    }

    /// Writes what a rule decided for `key`, whose plan and slot it had read.
    pub(crate) fn apply(&self, key: &PlanKey, read: Read<'_>, change: &Change) -> Result<(), Fault> {
        if let Some(row) = &change.plan {
            self.put_plan(key, read.plan, row)?;
        }
        if let Some(row) = &change.slot {
            self.put_slot(read.slot, row)?;
        }
        for row in &change.more_slots {
            // Of these the rule knows whether they are new, its caller does not.
            if self.update_slot(row)? == 0 {
                self.insert_slot(row)?;
            }
        }
        if let Some(at) = change.cut_ranges {
            self.cut_ranges(key, at)?;
        }
        if let Some(range) = &change.range {
            self.put_range(key, range)?;
        }
        Ok(())
    }

    /// Writes a plan's row, `before` being the one that stands.
    pub(crate) fn put_plan(&self, key: &PlanKey, before: Option<&PlanRow>, row: &PlanRow) -> Result<(), Fault> {
        if key.plan.is_none() {
            *self.paused.borrow_mut() = None;
        }
        let pause = row.pause.as_deref();
        let sql = match before {
            None => concat!(
                "INSERT INTO timertask_plan (namespace, plan, ",
                plan_columns!(),
                ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)"
            ),
            Some(_) => {
                "UPDATE timertask_plan SET fingerprint = ?3, effective_from = ?4, closed = ?5, cursor = ?6, \
                 low_water = ?7, fence = ?8, last_success = ?9, window_from = ?10, pause_since = ?11, pause_by = ?12, \
                 pause_why = ?13, pause_until = ?14 WHERE namespace = ?1 AND plan = ?2"
            }
        };
        self.run(
            sql,
            params![
                key.namespace.as_str(),
                key.plan_str(),
                row.generation.fingerprint.bits().to_be_bytes(),
                row.generation.effective_from.as_secs(),
                row.closed,
                row.cursor.as_secs(),
                row.low_water.as_secs(),
                fence(row.fence)?,
                row.last_success.map(Trigger::as_secs),
                row.window_from.map(Trigger::as_secs),
                pause.map(|p| p.since.as_micros()),
                pause.map(|p| p.by.as_str()),
                pause.map(|p| p.why.as_str()),
                pause.and_then(|p| p.until).map(Timestamp::as_micros),
            ],
        )
        .map(drop)
    }

    /// Writes a slot's row, `before` being the one that stands.
    pub(crate) fn put_slot(&self, before: Option<&SlotRow>, row: &SlotRow) -> Result<(), Fault> {
        let Some(before) = before else { return self.insert_slot(row).map(drop) };
        // A renewal; the indexes have nothing to do with it then.
        if *row == (SlotRow { lease_end: row.lease_end, ttl: row.ttl, ..before.clone() }) {
            let key = &row.key;
            return self
                .run(
                    "UPDATE timertask_slot SET lease_end = ?5, ttl = ?6 \
                     WHERE namespace = ?1 AND plan = ?2 AND at = ?3 AND request = ?4",
                    params![
                        key.plan.namespace.as_str(),
                        key.plan.plan_str(),
                        key.at.as_secs(),
                        request_str(key),
                        row.lease_end.as_micros(),
                        micros(row.ttl)
                    ],
                )
                .map(drop);
        }
        self.update_slot(row).map(drop)
    }

    fn insert_slot(&self, row: &SlotRow) -> Result<usize, Fault> {
        self.write_slot(
            concat!(
                "INSERT INTO timertask_slot (namespace, plan, ",
                slot_columns!(),
                ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, \
                 ?21, ?22, ?23, ?24)"
            ),
            row,
        )
    }

    fn update_slot(&self, row: &SlotRow) -> Result<usize, Fault> {
        self.write_slot(
            "UPDATE timertask_slot SET state = ?5, how = ?6, kind = ?7, nonce = ?8, released = ?9, fence = ?10, \
             attempt = ?11, lease_end = ?12, ttl = ?13, cancel_by = ?14, cancel_why = ?15, instance = ?16, \
             version = ?17, claimed_at = ?18, started_at = ?19, ended_at = ?20, tries = ?21, detail = ?22, \
             asked_by = ?23, asked_why = ?24 \
             WHERE namespace = ?1 AND plan = ?2 AND at = ?3 AND request = ?4",
            row,
        )
    }

    fn write_slot(&self, sql: &str, row: &SlotRow) -> Result<usize, Fault> {
        let (state, how) = state_codes(row.state);
        let cancel = row.cancel.as_deref();
        self.run(
            sql,
            params![
                row.key.plan.namespace.as_str(),
                row.key.plan.plan_str(),
                row.key.at.as_secs(),
                request_str(&row.key),
                state,
                how,
                row.kind.code(),
                row.nonce.bits().to_be_bytes(),
                nonces_bytes(&row.released),
                fence(row.fence)?,
                row.attempt,
                row.lease_end.as_micros(),
                micros(row.ttl),
                cancel.map(|c| c.by.as_str()),
                cancel.map(|c| c.why.as_str()),
                row.instance.as_ref().map(|i| i.as_str()),
                row.version.as_deref(),
                row.claimed_at.map(Timestamp::as_micros),
                row.started_at.map(Timestamp::as_micros),
                row.ended_at.map(Timestamp::as_micros),
                row.tries,
                row.detail.as_deref(),
                row.asked.as_ref().map(|a| a.by()),
                row.asked.as_ref().map(|a| a.why()),
            ],
        )
    }

    fn put_range(&self, key: &PlanKey, range: &RangeRow) -> Result<(), Fault> {
        self.run(
            "INSERT OR REPLACE INTO timertask_range (namespace, plan, first, last, count, reason, at) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            params![
                key.namespace.as_str(),
                key.plan_str(),
                range.first.as_secs(),
                range.last.as_secs(),
                range.count.map(|n| i64::try_from(n).unwrap_or(i64::MAX)),
                range.reason.code(),
                range.at.as_micros(),
            ],
        )
        .map(drop)
    }

    fn cut_ranges(&self, key: &PlanKey, at: Trigger) -> Result<(), Fault> {
        let beyond = params![key.namespace.as_str(), key.plan_str(), at.as_secs()];
        let ranges = self.all(
            "SELECT first, last, count, reason, at FROM timertask_range \
             WHERE namespace = ?1 AND plan = ?2 AND last > ?3 ORDER BY last, first",
            beyond,
            range_row,
        )?;
        self.run("DELETE FROM timertask_range WHERE namespace = ?1 AND plan = ?2 AND last > ?3", beyond)?;
        ranges.iter().filter_map(|range| rules::cut(range, at)).try_for_each(|range| self.put_range(key, &range))
    }
}

#[cfg(test)]
#[path = "tables_tests.rs"]
mod tests;
