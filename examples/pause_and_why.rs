//! A night of maintenance: who paused the plans and why, what waits meanwhile, which run stands in the way of what, and
//! afterwards what became of each slot. Two instances, simulated time, the real engine.
//!
//! Who may do all this is for the service to decide: it asks for nobody's permission.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use timertask::operate::{Audit, AuditState, Operator, Reason, Resume};
use timertask::{Asked, MemLedger, NotStarted, Plan, Run, Scheduler};
use timertask_testkit::FakeClock;

const MINUTE: Duration = Duration::from_secs(60);

fn at(time: &str) -> Result<DateTime<Utc>, chrono::ParseError> {
    format!("2026-03-01T{time}:00Z").parse()
}

fn main() -> Result<(), Box<dyn Error>> {
    let clock = FakeClock::new().starting_at(at("01:00")?);
    let ledger = MemLedger::with_clock(Arc::new(clock.clone()));
    // An import takes 40 minutes, unless it is told to stop.
    let job = |run: &Run| Ok(run.wait(40 * MINUTE)?);
    let mut instances = Vec::new();
    for name in ["web-1", "web-2"] {
        let builder = Scheduler::builder(job).instance(name).clock(clock.view(name)).ledger(ledger.clone());
        let scheduler = builder.start()?;
        scheduler.reconcile([Plan::new("import", "*/30 * * * *")])?;
        instances.push(scheduler);
    }
    let service = &instances[0];
    // A page of the back office, or a program of its own: it needs the ledger, and no scheduler.
    let office = Operator::new(ledger, timertask::Namespace::default());

    clock.advance(35 * MINUTE);
    println!("01:35  {}", service.why("import"));
    let Some(Reason::Running(run)) = service.why("import").reasons.first().cloned() else {
        return Err("the import of 01:30 should run".into());
    };

    let ana = Asked::new("ana", "the database moves")?;
    let pause = office.pause("import", &ana, None)?.pause;
    println!("       paused; the run goes on until it is told to stop: {:?}", office.cancel(&run.slot, &ana)?.outcome);
    clock.advance(MINUTE);
    if !matches!(audit(service)?.slots[0].state, AuditState::Ended(_)) {
        return Err("the run should have stopped at its next renewal".into());
    }

    clock.advance(90 * MINUTE);
    println!("03:06  {}", service.why("import"));
    // The pause that was seen is ended, and no other; what fell into it is not made up.
    office.resume("import", &ana, Resume::FromNow, Some(&pause))?;
    clock.advance(30 * MINUTE);
    println!("03:36  {}", service.why("import"));

    let audit = audit(service)?;
    for slot in &audit.slots {
        println!("       {} {}", slot.at, slot.state);
    }
    let paused = AuditState::NotStarted(NotStarted::Paused);
    let waited = audit.slots.iter().filter(|slot| slot.state == paused).count();
    let running = audit.slots.iter().filter(|slot| slot.state == AuditState::Running).count();
    if (waited, running, audit.standing_out().count()) != (3, 1, 0) {
        return Err(format!("{:?} is not what should have become of them", audit.tally()).into());
    }
    println!("ok: {waited} slots fell into the pause and were not made up; the next one runs");
    Ok(())
}

/// What became of the slots of the night.
fn audit(service: &Scheduler) -> Result<Audit, Box<dyn Error>> {
    Ok(service.audit("import", at("01:00")?, at("03:36")?)?)
}
