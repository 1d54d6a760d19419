//! An operator's morning: a run now, and the slots of an outage made up, after a look at which those are. Two instances on
//! one store, simulated time, the real engine; the operator is another process.
//!
//! Who may do all this is for the service to decide: it asks for nobody's permission.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use timertask::operate::{Expected, Operator, Standing};
use timertask::{Asked, Backfill, CatchUp, MemLedger, Plan, RequestId, Run, RunKind, RunNow, Schedule, Scheduler};
use timertask_testkit::FakeClock;

const MINUTE: Duration = Duration::from_secs(60);

fn at(time: &str) -> Result<DateTime<Utc>, chrono::ParseError> {
    format!("2026-03-01T{time}:00Z").parse()
}

fn start(clock: &FakeClock, store: &MemLedger, name: &str) -> Result<Scheduler, Box<dyn Error>> {
    let job = |run: &Run| {
        if let Some(asked) = run.asked() {
            println!("         {} run of {}, for {asked}", run.kind(), run.trigger().format("%H:%M"));
        }
        Ok(run.wait(MINUTE)?)
    };
    // `store`, not `ledger`: requests of other processes stand on its notice board.
    let scheduler = Scheduler::builder(job).instance(name).clock(clock.view(name)).store(store.clone()).start()?;
    // It makes nothing up by itself.
    scheduler.reconcile([Plan::new("import", "*/30 * * * *").catch_up(CatchUp::None)])?;
    Ok(scheduler)
}

fn main() -> Result<(), Box<dyn Error>> {
    let clock = FakeClock::new().starting_at(at("01:00")?);
    let store = MemLedger::with_clock(Arc::new(clock.clone()));
    let instance = start(&clock, &store, "web-1")?;
    clock.advance(45 * MINUTE);
    // An outage from 01:45 to 03:45.
    instance.close(Duration::from_secs(1))?;
    clock.advance(120 * MINUTE);
    let instances = [start(&clock, &store, "web-1")?, start(&clock, &store, "web-2")?];
    clock.advance(MINUTE);

    let operator = Operator::of_store(store.clone(), timertask::Namespace::default()).clock(clock.clone());
    let asked = Asked::new("ana", "figures are wanted at once")?;
    // Asked twice, by a nervous finger: one run.
    let now = RunNow::new(asked).id(RequestId::new("ticket-4711")?);
    let first = operator.run_now("import", &now)?;
    let again = operator.run_now("import", &now)?;
    println!("03:46    {}: {}, then {}", first.slot, first.standing, again.standing);
    if first.slot != again.slot || first.standing != Standing::Started {
        return Err("the second call should have met the first one's run".into());
    }
    clock.advance(5 * MINUTE);

    let gap = Backfill::new(at("01:00")?, at("04:00")?, Asked::new("ana", "the outage of this night")?).cap(10);
    let expected = Expected::new(Schedule::parse("*/30 * * * *")?);
    let prospects = operator.dry_run("import", &expected, &gap)?;
    println!("03:51    dry run:");
    prospects.iter().for_each(|prospect| println!("         {prospect}"));
    let wanted = prospects.iter().filter(|prospect| prospect.starts()).count();
    let backfill = operator.backfill("import", &gap)?;
    println!("         backfill {}: {wanted} slots, one after the other", backfill.id);
    clock.advance(15 * MINUTE);

    let records = instances.iter().flat_map(|instance| instance.run_history(None));
    let made_up = records.filter(|record| record.kind == RunKind::Backfill && record.started_at.is_some()).count();
    println!("04:06    {made_up} of them have run");
    if made_up != wanted || backfill.starts != Some(wanted) {
        return Err("the backfill should have done what the dry run said".into());
    }
    for instance in instances {
        instance.close(Duration::from_secs(1))?;
    }
    println!("ok: one run for two calls, and {made_up} slots made up, as the dry run had said");
    Ok(())
}
