//! What operators do to plans, and what they are told: on the fake clock, with several instances.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod audit;
mod backfill;
mod board;
mod cancel;
#[path = "../common/mod.rs"]
mod common;
mod pauses;
mod run_now;
mod why;

use common::*;
use timertask_core::key::Namespace;
use timertask_core::{Asked, BoxError, MemLedger, Operator, Plan, Run, Scheduler};
use timertask_testkit::FakeClock;

fn ana() -> Asked {
    Asked::new("ana", "the database moves").unwrap()
}

fn operator(ledger: &MemLedger) -> Operator {
    Operator::new(ledger.clone(), Namespace::default())
}

/// Two instances on one ledger, with these plans.
fn two<J>(clock: &FakeClock, ledger: &MemLedger, job: impl Fn() -> J, plans: &[Plan]) -> [Scheduler; 2]
where
    J: Fn(&Run) -> Result<(), BoxError> + Send + Sync + 'static,
{
    ["a", "b"].map(|name| {
        let scheduler = start(Scheduler::builder(job()).instance(name), &clock.view(name), ledger);
        scheduler.reconcile(plans.to_vec()).unwrap();
        scheduler
    })
}
