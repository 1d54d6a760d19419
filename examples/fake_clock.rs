//! Unit tests of a service's schedule: two instances of it, simulated time, the real engine. A week takes a second.
//!
//! `cargo test -p timertask-examples --example fake_clock` runs them as tests; as a program this runs them, too.

use std::error::Error;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use timertask::clock::Clock;
use timertask::{MemLedger, Plan, Run, Scheduler};
use timertask_testkit::FakeClock;

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What the service under test sends, by trigger point.
type Sent = Arc<std::sync::Mutex<Vec<DateTime<Utc>>>>;

/// The service under test. In its `main` it is given the system's clock and a store.
fn service(clock: impl Clock + 'static, ledger: &MemLedger, sent: &Sent) -> Result<Scheduler, Box<dyn Error>> {
    let sent = Arc::clone(sent);
    let job = move |run: &Run| {
        sent.lock().unwrap_or_else(PoisonError::into_inner).push(run.trigger());
        Ok(())
    };
    let scheduler = Scheduler::builder(job).clock(clock).ledger(ledger.clone()).start()?;
    scheduler.reconcile([Plan::new("newsletter", "30 2 * * *").zone("Europe/Berlin")])?;
    Ok(scheduler)
}

fn sent(sent: &Sent) -> Vec<String> {
    sent.lock().unwrap_or_else(PoisonError::into_inner).iter().map(DateTime::to_rfc3339).collect()
}

#[cfg_attr(test, test)]
fn each_slot_is_run_by_one_of_two_instances() -> Result<(), Box<dyn Error>> {
    let (clock, out) = (FakeClock::new(), Sent::default());
    let ledger = MemLedger::with_clock(Arc::new(clock.clone()));
    let _a = service(clock.view("a"), &ledger, &out)?;
    let _b = service(clock.view("b"), &ledger, &out)?;
    clock.advance(7 * DAY);
    assert_eq!(sent(&out).len(), 7);
    Ok(())
}

#[cfg_attr(test, test)]
fn a_deploy_at_the_trigger_point_loses_nothing() -> Result<(), Box<dyn Error>> {
    let clock = FakeClock::new().starting_at("2026-01-10T01:29:00Z".parse::<DateTime<Utc>>()?);
    let (out, ledger) = (Sent::default(), MemLedger::with_clock(Arc::new(clock.clone())));
    let old = service(clock.view("old"), &ledger, &out)?;
    clock.advance(MINUTE / 2);
    old.close(MINUTE)?;
    clock.advance(10 * MINUTE);
    assert_eq!(sent(&out), [""; 0], "nobody was there");

    let _new = service(clock.view("new"), &ledger, &out)?;
    clock.advance(MINUTE);
    assert_eq!(sent(&out), ["2026-01-10T01:30:00+00:00"], "made up, once");
    Ok(())
}

#[cfg_attr(test, test)]
fn a_night_without_half_past_two_still_has_its_newsletter() -> Result<(), Box<dyn Error>> {
    // In Berlin clocks go from 2:00 to 3:00 on 29 March 2026, at 1:00 UTC.
    let clock = FakeClock::new().starting_at("2026-03-28T12:00:00Z".parse::<DateTime<Utc>>()?);
    let (out, ledger) = (Sent::default(), MemLedger::with_clock(Arc::new(clock.clone())));
    let _only = service(clock.clone(), &ledger, &out)?;
    clock.advance(2 * DAY);
    assert_eq!(sent(&out), ["2026-03-29T01:00:00+00:00", "2026-03-30T00:30:00+00:00"]);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    each_slot_is_run_by_one_of_two_instances()?;
    a_deploy_at_the_trigger_point_loses_nothing()?;
    a_night_without_half_past_two_still_has_its_newsletter()?;
    println!("ok: nine days went by");
    Ok(())
}
