//! Several processes on one file, as users have them: real ones, one of them killed.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use common::*;
use rusqlite::{Connection, params};
use timertask_core::clock::{Clock, SystemClock};
use timertask_core::key::InstanceId;
use timertask_core::seam::{Claim, ClaimRequest, Ended, Ending, Ledger, PageToken, Query, SlotRow, SlotState};
use timertask_core::time::Trigger;
use timertask_sqlite::{Sqlite, rusqlite};

/// How many processes work on the file.
const PROCESSES: usize = 8;
/// How many plans and slots a round has; each process claims each slot.
const PLANS: usize = 3;
const SLOTS: i64 = 48;
/// How many slots a call claims.
const BATCH: usize = 6;

#[test]
#[ignore = "played by the tests of this file in a process of its own"]
fn child() {
    let Some((role, args)) = role() else { return };
    assert_eq!(role, "claim everything");
    claim_everything(Path::new(&args[0]), &args[1], args[2].parse().unwrap(), args[3].parse().unwrap());
}

/// Opens the file, then round by round, at the parent's word, claims every slot, does the work of those it gets, and
/// ends them.
fn claim_everything(path: &Path, name: &str, base: i64, first_round: usize) {
    let store = Sqlite::open(path).unwrap();
    let application = Connection::open(path).unwrap();
    application.busy_timeout(Duration::from_secs(60)).unwrap();
    say("open");
    for round in first_round.. {
        if !await_word() {
            return;
        }
        let plans: Vec<_> = (0..PLANS).map(|n| format!("round {round} plan {n}")).collect();
        plans.iter().for_each(|plan| open_plan(&store, plan));
        let mut requests = Vec::new();
        for at in base..base + SLOTS {
            for plan in &plans {
                let request = ClaimRequest {
                    prev: Some(Trigger::from_secs(at - 1)),
                    instance: InstanceId::new(name).unwrap(),
                    ..request(slot(plan, at), nonce())
                };
                requests.push(request);
            }
        }
        let mut won = 0;
        for (n, group) in requests.chunks(BATCH).enumerate() {
            if n * BATCH == requests.len() / 3 / BATCH * BATCH {
                say("in the middle");
            }
            won += claim_group(&store, &application, name, group);
        }
        say(&format!("won {won}"));
    }
}

fn claim_group(store: &Sqlite, application: &Connection, name: &str, group: &[ClaimRequest]) -> usize {
    let answers = store.claim(group).unwrap().value;
    let mut ends = Vec::new();
    for (request, answer) in group.iter().zip(answers) {
        match answer {
            Claim::Granted(grant) => {
                let work = "INSERT INTO work (plan, at, fence, process) VALUES (?1, ?2, ?3, ?4)";
                let key = &request.key;
                let row = params![key.plan.plan_str(), key.at.as_secs(), grant.fence.as_u64() as i64, name];
                application.execute(work, row).unwrap();
                ends.push(settle(request, &grant, SystemClock.now()));
            }
            Claim::Held | Claim::Ended(Ending::Succeeded) => {}
            other => panic!("{}: {other:?}", request.key),
        }
    }
    let answers = store.end(&ends).unwrap().value;
    assert!(answers.iter().all(|answer| matches!(answer, Ended::Recorded(_))), "{answers:?}");
    answers.len()
}

/// Row 52: busy and deadlocked transactions lost ticks, or left half a change. Each round eight processes claim the same
/// slots; one of them is killed in the middle.
#[test]
fn fault_52_soak_eight_processes_on_one_file() {
    let seconds = std::env::var("TIMERTASK_SOAK_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let end = SystemClock.monotonic() + Duration::from_secs(seconds);
    let dir = TempDir::new();
    // The application's table and the ledger's share the file. Nobody has opened it yet: all of them do at once.
    let path = dir.path("a.db");
    let base = (SystemClock.now().trigger().as_secs() + 3_600).to_string();
    let start = |n: usize, round: usize| {
        Other::start("claim everything", &[text(&path), &format!("process {n}"), &base, &round.to_string()])
    };
    let mut others: BTreeMap<usize, Other> = (0..PROCESSES).map(|n| (n, start(n, 0))).collect();
    others.values_mut().for_each(|other| other.expect_line("open"));
    let application = Connection::open(&path).unwrap();
    application.busy_timeout(Duration::from_secs(60)).unwrap();
    let sql = "CREATE TABLE work (plan TEXT, at INTEGER, fence INTEGER, process TEXT) STRICT";
    application.execute_batch(sql).unwrap();
    let store = Sqlite::open(&path).unwrap();

    let mut won = BTreeMap::<usize, usize>::new();
    for round in 0.. {
        others.values_mut().for_each(Other::go_on);
        let (victim, mut killed) = others.pop_first().unwrap();
        killed.expect_line("in the middle");
        killed.kill();
        for (n, other) in &mut others {
            other.expect_line("in the middle");
            let line = other.line().unwrap();
            *won.entry(*n).or_default() += line.strip_prefix("won ").unwrap().parse::<usize>().unwrap();
        }
        check_round(&store, &application, round, &format!("process {victim}"));
        if SystemClock.monotonic() >= end {
            break;
        }
        let mut next = start(PROCESSES + round, round + 1);
        next.expect_line("open");
        others.insert(PROCESSES + round, next);
    }
    for (n, other) in others {
        let (lines, status) = other.finish();
        assert!(lines.is_empty() && status.success(), "{lines:?}, {status}");
        let sql = "SELECT count(*) FROM work WHERE process = ?1";
        let count: i64 = application.query_row(sql, [format!("process {n}")], |row| row.get(0)).unwrap();
        assert_eq!(won[&n], usize::try_from(count).unwrap());
    }
    let check: String = application.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
}

/// Each slot has one row, and was worked on once; what is running was the victim's.
fn check_round(store: &Sqlite, application: &Connection, round: usize, victim: &str) {
    let mut unfinished = 0;
    for n in 0..PLANS {
        let id = format!("round {round} plan {n}");
        let rows = history(store, &id);
        assert_eq!(rows.len(), usize::try_from(SLOTS).unwrap(), "{id}");
        assert!(rows.windows(2).all(|pair| pair[0].fence != pair[1].fence), "fences are granted once");
        for row in rows {
            let sql = "SELECT count(*), max(fence) FROM work WHERE plan = ?1 AND at = ?2";
            let found = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?));
            let (times, fence) = application.query_row(sql, params![id, row.key.at.as_secs()], found).unwrap();
            match row.state {
                SlotState::Ended(Ending::Succeeded) => assert_eq!(times, 1, "{}", row.key),
                SlotState::Running => {
                    assert_eq!(row.instance.as_ref().map(InstanceId::as_str), Some(victim), "{}", row.key);
                    assert!(times <= 1, "{}", row.key);
                    unfinished += 1;
                }
                other => panic!("{}: {other}", row.key),
            }
            assert!(fence.is_none_or(|fence| fence == row.fence.as_u64() as i64), "{}", row.key);
        }
    }
    assert!(unfinished <= BATCH, "one call's slots at most, not {unfinished}");
}

fn history(store: &Sqlite, id: &str) -> Vec<SlotRow> {
    let mut rows = Vec::new();
    let mut page: Option<PageToken> = None;
    loop {
        let query = Query::History {
            plan: plan(id),
            after: Trigger::from_secs(0),
            upto: Trigger::from_secs(i64::MAX),
            page: page.take(),
            limit: 7,
        };
        let answer = store.read(&query).unwrap().value;
        rows.extend(answer.slots);
        page = answer.more;
        if page.is_none() {
            return rows;
        }
    }
}
