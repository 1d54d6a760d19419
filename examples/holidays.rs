//! A calendar: a job of every working day, which leaves out holidays. The list is the service's own; it is asked for days
//! of the plan's zone.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use chrono::{DateTime, NaiveDate, Utc};
use timertask::{Plan, Run, Schedule, ScheduleOptions, Scheduler};
use timertask_testkit::FakeClock;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What the service keeps in a table or a file. It is read before it is asked for, and kept in memory: the engine must not
/// wait for it.
fn holidays() -> Result<BTreeSet<NaiveDate>, chrono::ParseError> {
    ["2026-12-25", "2026-12-26", "2027-01-01"].into_iter().map(str::parse).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let days = holidays()?;
    let is_holiday = move |day: NaiveDate| days.contains(&day);

    // Before anything is installed: when would it run?
    let options = ScheduleOptions::new().calendar("holidays", Arc::new(is_holiday.clone()));
    let schedule: Schedule = options.parse("CRON_TZ=Europe/Berlin 0 9 * * mon-fri")?;
    let from: DateTime<Utc> = "2026-12-23T00:00:00Z".parse()?;
    let preview: Vec<NaiveDate> =
        schedule.upcoming(from).take(6).map(|occurrence| occurrence.local.date_naive()).collect();
    println!("next: {preview:?}");

    // A plan names the calendar that the scheduler knows.
    let ran = Arc::new(std::sync::Mutex::new(Vec::new()));
    let inner = Arc::clone(&ran);
    let job = move |run: &Run| {
        inner.lock().unwrap_or_else(PoisonError::into_inner).push(run.trigger().date_naive());
        Ok(())
    };
    let clock = FakeClock::new().starting_at(from);
    let scheduler = Scheduler::builder(job).clock(clock.clone()).calendar("holidays", is_holiday).start()?;
    let plan = |calendar: &str| Plan::new("greet", "0 9 * * mon-fri").zone("Europe/Berlin").calendar(calendar);
    scheduler.reconcile([plan("holidays")])?.all_taken()?;
    // A name that it doesn't know fails that plan, and no other.
    let report = scheduler.reconcile([plan("holidays"), Plan::new("other", "@daily").calendar("holidayz")])?;
    println!("a name with a typo: {}", report.failed[0]);

    clock.advance(10 * DAY);
    scheduler.reconcile([plan("holidays")])?;
    let ran = ran.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let left_out = |day: &str| day.parse().is_ok_and(|day: NaiveDate| !ran.contains(&day));
    if ran[..] != preview[..ran.len()] || !left_out("2026-12-25") || !left_out("2027-01-01") {
        return Err(format!("it ran on {ran:?}").into());
    }
    println!("ok: {} working days of ten, the holidays left out", ran.len());
    Ok(())
}
