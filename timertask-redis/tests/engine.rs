//! The engine on a server that fails: nothing is entered while it does, and all goes on once it is back.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::proxy::{Answers, Proxy};
use common::*;
use timertask_core::key::Namespace;
use timertask_core::seam::{Ledger, Query};
use timertask_core::time::Trigger;
use timertask_core::{Plan, Run, Scheduler};
use timertask_redis::Redis;

/// A scheduler with one plan, due each second, and how many runs it has entered.
fn every_second(store: Redis) -> (Scheduler, Arc<AtomicU64>) {
    let entered = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&entered);
    let job = move |_: &Run| {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(())
    };
    let scheduler = Scheduler::builder(job).store(store).start().unwrap();
    scheduler.reconcile([Plan::new("p", "@every 1s")]).unwrap();
    (scheduler, entered)
}

fn until_more_than(entered: &AtomicU64, n: u64) {
    until(|| (entered.load(Ordering::SeqCst) > n).then_some(()));
}

fn until_faults(scheduler: &Scheduler, n: u64) {
    until(|| (scheduler.stats().store_faults >= n).then_some(()));
}

/// No slot of the plan was started twice: as many runs as rows that say so.
fn entered_is_recorded(scheduler: &Scheduler, store: &Redis, entered: &AtomicU64) {
    assert!(scheduler.close(Duration::from_secs(30)).unwrap().is_clean());
    let query = Query::History {
        plan: plan_key("p"),
        after: Trigger::default(),
        upto: Trigger::from_secs(i64::MAX),
        page: None,
        limit: 4_000,
    };
    let rows = store.read(&query).unwrap().value.slots;
    assert_eq!(rows.iter().filter(|row| row.attempt > 0).count() as u64, entered.load(Ordering::SeqCst));
    assert!(rows.iter().all(|row| row.attempt <= 1));
}

/// Calls that fail, each in its way: no job is entered on the strength of one.
#[test]
fn fault_10_a_fault_never_enters_a_job() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.port());
    let store = Redis::options().connect_timeout(SHORT).response_timeout(SHORT).connect(&proxy.url()).unwrap();
    let (scheduler, entered) = every_second(store);
    until_more_than(&entered, 0);
    for answers in [Answers::Swallow, Answers::Cut(0), Answers::Cut(9), Answers::Pass] {
        if answers == Answers::Pass {
            let () = server.tell(&["CONFIG", "SET", "maxmemory", "1"]);
        }
        proxy.set(answers);
        // What was granted before may still be entered; the first faults come after it.
        until_faults(&scheduler, scheduler.stats().store_faults + 2);
        let before = entered.load(Ordering::SeqCst);
        until_faults(&scheduler, scheduler.stats().store_faults + 3);
        assert_eq!(entered.load(Ordering::SeqCst), before, "{answers:?}");
        proxy.set(Answers::Pass);
        let () = server.tell(&["CONFIG", "SET", "maxmemory", "0"]);
        until_more_than(&entered, before);
    }
    entered_is_recorded(&scheduler, &server.connect(), &entered);
}

#[test]
fn fault_49_an_outage_ends_nothing_and_all_goes_on_after_it() {
    let mut server = Server::start(APPENDS);
    let (scheduler, entered) = every_second(server.connect_impatiently());
    until_more_than(&entered, 0);
    server.kill();
    until_faults(&scheduler, scheduler.stats().store_faults + 2);
    let before = entered.load(Ordering::SeqCst);
    until_faults(&scheduler, scheduler.stats().store_faults + 5);
    assert_eq!(entered.load(Ordering::SeqCst), before, "nothing starts meanwhile");
    server.start_again();
    until_more_than(&entered, before + 1);
    let known = server.connect().read(&Query::Plans { namespace: Namespace::default(), after: None, limit: 9 });
    assert_eq!(known.unwrap().value.plans.len(), 1);
    entered_is_recorded(&scheduler, &server.connect(), &entered);
}
