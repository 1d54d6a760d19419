//! Sets of plans.

use std::sync::Arc;
use std::time::Duration;

use timertask::{Plan, PlanStatus, Scheduler};

/// `n` plans over 1,440 schedules, one for each minute of the day; with a payload of 16 bytes where asked for.
#[must_use]
pub fn spread_over_the_day(n: usize, with_payload: bool) -> Vec<Plan> {
    let specs: Vec<Arc<str>> =
        (0..1_440).map(|minute| format!("{} {} * * *", minute % 60, minute / 60).into()).collect();
    let plan = |i: usize| {
        let plan = Plan::new(format!("plan-{i:07}"), Arc::clone(&specs[i % specs.len()])).job("report");
        if with_payload { plan.payload(format!("{i:016}")) } else { plan }
    };
    (0..n).map(plan).collect()
}

/// `n` plans that fire each second.
#[must_use]
pub fn every_second(n: usize) -> Vec<Plan> {
    let (spec, job): (Arc<str>, Arc<str>) = ("* * * * * *".into(), "tick".into());
    (0..n).map(|i| Plan::new(i.to_string(), Arc::clone(&spec)).job(Arc::clone(&job))).collect()
}

/// Waits until the ledger has opened the plan `last`, which was asked for after all others.
pub fn await_active(scheduler: &Scheduler, last: &str) {
    while scheduler.plan(last).expect("it runs").is_none_or(|plan| plan.status != PlanStatus::Active) {
        std::thread::sleep(Duration::from_millis(2));
    }
}
