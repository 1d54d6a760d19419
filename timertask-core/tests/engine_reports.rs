//! What goes out: records, events, health, statistics; and what never does.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use std::sync::Arc;
use std::time::Duration;
use timertask_core::{
    Asked, BoxError, Event, Jobs, MemLedger, Namespace, Observer, Operator, Plan, PlanId, RequestId, Resume, Run,
    RunKind, RunOutcome, Scheduler, StoreErrorKind,
};
use timertask_testkit::{Call, FakeClock, Fault, Faulty};

#[test]
fn each_record_is_told_once_to_each_listener() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
    let (events, closure) = (Log::default(), Log::default());
    let inner = closure.clone();
    let scheduler = Scheduler::builder(worker(&Log::default(), secs(25)))
        .clock(clock.clone())
        .ledger(faulty.clone())
        .observer(Ear(events.clone()))
        .on_record(move |record| inner.add(told(record)))
        .start()
        .unwrap();
    faulty.on(Call::End).chance(0.5, Fault::LostAnswer);
    scheduler.reconcile([Plan::new("p", "*/10 * * * * *")]).unwrap();
    clock.advance(secs(125));
    let kept = history(&scheduler);
    assert_eq!(closure.lines(), kept);
    let of_observer: Vec<_> = events.lines().into_iter().filter(|l| l.starts_with("p ")).collect();
    assert_eq!(of_observer, kept);
    let mut once = kept.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), kept.len(), "{kept:?}");
    let stats = scheduler.stats();
    assert_eq!(stats.succeeded + stats.not_started, kept.len() as u64);
    let events = events.lines();
    assert!(events.contains(&"started 00:00:10".to_owned()), "{events:?}");
    assert_eq!(events[0], "reconciled 1 installed, 0 replaced, 0 removed, 0 unchanged, 0 failed");
}

/// Panics at each event.
struct Angry;
impl Observer for Angry {
    fn event(&self, event: &Event<'_>) {
        panic!("{event:?}");
    }
}

/// Hears nothing, by the empty default.
struct Deaf;
impl Observer for Deaf {}

#[test]
fn panicking_listeners_change_nothing() {
    let clock = FakeClock::new();
    let log = Log::default();
    let scheduler = Scheduler::builder(recorder(&log))
        .clock(clock.clone())
        .observer(Angry)
        .on_record(|_| panic!("no table"))
        .start()
        .unwrap();
    scheduler.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(185));
    assert_eq!((log.len(), scheduler.stats().succeeded), (3, 3));
    assert!(scheduler.health().threads_panicked.is_empty());
    assert!(scheduler.close(secs(1)).unwrap().is_clean());
    let scheduler = Scheduler::builder(recorder(&log)).clock(clock.clone()).observer(Deaf).start().unwrap();
    scheduler.close_now().unwrap();
}

#[test]
fn the_history_is_bounded_and_can_be_asked_for_one_plan() {
    let clock = FakeClock::new();
    let scheduler = Scheduler::builder(|_: &Run| Ok(())).run_capacity(5).clock(clock.clone()).start().unwrap();
    scheduler.reconcile([Plan::new("p", "* * * * * *"), Plan::new("q", "*/2 * * * * *")]).unwrap();
    clock.advance(secs(20));
    let all = scheduler.run_history(None);
    assert_eq!(all.len(), 5);
    assert!(all.is_sorted_by_key(|r| r.ended_at), "old to new");
    let q = scheduler.run_history(Some(&PlanId::new("q").unwrap()));
    assert!(!q.is_empty() && q.iter().all(|r| r.slot.plan.plan_str() == "q"));
    let scheduler = Scheduler::builder(|_: &Run| Ok(())).run_capacity(0).clock(clock.clone()).start().unwrap();
    scheduler.reconcile([Plan::new("p", "* * * * * *")]).unwrap();
    clock.advance(secs(5));
    assert!(scheduler.run_history(None).is_empty());
    assert_eq!(scheduler.stats().succeeded, 5);
}

#[test]
fn records_of_two_instances_tell_who_ran_and_who_yielded() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let all: Vec<_> = ["east", "west"]
        .into_iter()
        .map(|name| {
            let builder = Scheduler::builder(|_: &Run| Ok(())).instance(name);
            let s = start(builder, &clock.view(name), &ledger);
            s.reconcile([minutely("p")]).unwrap();
            s
        })
        .collect();
    clock.advance(secs(61));
    let records: Vec<_> = all.iter().map(|s| s.run_history(None)[0].clone()).collect();
    let yielded = records.iter().find(|r| r.outcome == RunOutcome::Yielded).unwrap();
    let ran = records.iter().find(|r| r.outcome != RunOutcome::Yielded).unwrap();
    assert_ne!(yielded.instance, ran.instance);
    assert_eq!((yielded.attempt, yielded.started_at, yielded.kind), (0, None, RunKind::Scheduled));
    assert_eq!((ran.attempt, ran.tries, ran.due), (1, 1, micros("00:01:00")));
    assert_eq!(slots(&ledger, "p")[0].instance.as_ref(), Some(&ran.instance));
}

#[test]
fn health_tells_of_the_tick_the_store_and_the_clock() {
    let clock = FakeClock::new();
    let faulty = Faulty::new(ledger(&clock), Arc::new(clock.clone()));
    let scheduler = Scheduler::builder(|_: &Run| Ok(())).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
    assert_eq!((scheduler.health().last_tick_age, scheduler.health().store_answer_age), (None, None));
    scheduler.reconcile([Plan::new("p", "*/30 * * * * *")]).unwrap();
    clock.advance(secs(70));
    let health = scheduler.health();
    assert_eq!(health.last_tick_age, Some(secs(10)));
    assert!(
        health.store_reachable && health.store_answer_age.unwrap() <= secs(10) && !health.skewed && !health.closing
    );
    assert_eq!((health.skew_micros, health.threads_alive), (0, 7));
    faulty.on_any().always(Fault::Error(StoreErrorKind::ReadOnly));
    clock.advance(secs(60));
    let health = scheduler.health();
    assert!(!health.store_reachable && health.store_fault.is_some(), "{health:?}");
    assert!(health.store_answer_age.unwrap() >= secs(50));
}

#[test]
fn health_tells_of_a_timer_that_is_late_and_of_no_other() {
    let clock = FakeClock::new();
    let scheduler = Scheduler::builder(|_: &Run| Ok(())).clock(clock.clone()).start().unwrap();
    assert_eq!(scheduler.health().timer_late, secs(0), "no plan at all");
    scheduler.reconcile([Plan::new("rare", "@daily")]).unwrap();
    clock.advance(secs(86_000));
    let health = scheduler.health();
    assert_eq!((health.timer_late, health.last_tick_age), (secs(0), Some(secs(86_000))));
    // The host was suspended, and the timer has not had its turn yet.
    clock.step_wall(chrono::TimeDelta::seconds(1_000));
    assert_eq!(scheduler.health().timer_late, secs(600));
    clock.advance(secs(1));
    assert_eq!(scheduler.health().timer_late, secs(0));
    scheduler.close(secs(1)).unwrap();
    clock.advance(secs(100_000));
    assert_eq!(scheduler.health().timer_late, secs(0), "nothing is due to a closed one");
}

#[test]
fn lateness_is_counted() {
    let clock = FakeClock::new();
    let faulty = Faulty::new(ledger(&clock), Arc::new(clock.clone()));
    let scheduler = Scheduler::builder(|_: &Run| Ok(())).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
    scheduler.reconcile([minutely("p")]).unwrap();
    faulty.on(Call::Claim).nth(3, Fault::Slow(secs(2)));
    clock.advance(secs(605));
    let lateness = scheduler.stats().lateness;
    assert_eq!(lateness.buckets().map(|(_, n)| n).sum::<u64>(), 10);
    assert_eq!(lateness.percentile(90), Some(Duration::from_micros(64)));
    assert!(lateness.percentile(100).unwrap() >= secs(2) && lateness.percentile(100).unwrap() < secs(5));
}

/// What all loggers of this process heard.
static HEARD: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

struct Logger;
impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        HEARD.lock().unwrap_or_else(|e| e.into_inner()).push(format!("{} {}", record.target(), record.args()));
    }
    fn flush(&self) {}
}

/// Begins to listen to the log, if nobody does yet.
fn listen() {
    static LOGGER: Logger = Logger;
    // The other test may have been first.
    let _ = log::set_logger(&LOGGER);
    log::set_max_level(log::LevelFilter::Trace);
}

#[test]
fn the_log_tells_who_resumed_what_and_why() {
    listen();
    let clock = FakeClock::new();
    let ledger: MemLedger = ledger(&clock);
    let scheduler = Scheduler::builder(|_: &Run| Ok(())).clock(clock.clone()).ledger(ledger.clone()).start().unwrap();
    scheduler.reconcile([minutely("moved")]).unwrap();
    let (ana, bo) = (Asked::new("ana", "it moves").unwrap(), Asked::new("bo", "it has moved").unwrap());
    scheduler.pause("moved", &ana, None).unwrap();
    scheduler.resume("moved", &bo, Resume::FromNow, None).unwrap();
    let operator = Operator::new(ledger, Namespace::default()).clock(clock);
    operator.pause_all(&ana, None).unwrap();
    operator.resume_all(&bo, Resume::CatchUp, None).unwrap();
    operator.resume_all(&Asked::new("eve", "it was over").unwrap(), Resume::CatchUp, None).unwrap();
    let heard = HEARD.lock().unwrap_or_else(|e| e.into_inner()).clone();
    for what in ["plan \"moved\"", "all plans"] {
        let begin = format!("timertask::engine {what} resumed by bo: it has moved; was paused by ana since 20");
        assert_eq!(heard.iter().filter(|line| line.starts_with(&begin)).count(), 1, "{what}: {heard:#?}");
    }
    assert!(!heard.iter().any(|line| line.contains("resumed by eve")), "there was nothing left to resume");
}

#[test]
fn the_log_tells_who_withdrew_a_backfill_and_why() {
    listen();
    let clock = FakeClock::new();
    let scheduler = Scheduler::builder(|_: &Run| Ok(())).clock(clock.clone()).instance("one").start().unwrap();
    let id = RequestId::new("last-week").unwrap();
    scheduler.withdraw("sums", &id, &Asked::new("bo", "the wrong week").unwrap()).unwrap();
    let heard = HEARD.lock().unwrap_or_else(|e| e.into_inner()).clone();
    let told = "one: backfill last-week of plan \"sums\" withdrawn by bo: the wrong week";
    assert_eq!(heard.iter().filter(|line| line.ends_with(told)).count(), 1, "{heard:#?}");
}

#[test]
fn no_payload_shows_in_logs_or_in_debug() {
    listen();
    const SECRET: &str = "hunter2-s3cr3t";
    let clock = FakeClock::new();
    let ledger: MemLedger = ledger(&clock);
    let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
    let seen = Log::default();
    let (inner, events) = (seen.clone(), seen.clone());
    let jobs = Jobs::new().on("job", move |run: &Run| -> Result<(), BoxError> {
        assert_eq!(run.payload(), SECRET.as_bytes());
        inner.add(format!("{run:?} {:?} {:?}", run.slot_key(), run.window()));
        if run.trigger().timestamp() % 120 == 0 { Err("failed".into()) } else { panic!("panicked") }
    });
    struct Shown(Log);
    impl Observer for Shown {
        fn event(&self, event: &Event<'_>) {
            self.0.add(format!("{event:?}"));
        }
    }
    let builder = Scheduler::builder(jobs).clock(clock.clone()).ledger(faulty.clone()).observer(Shown(events));
    seen.add(format!("{builder:?}"));
    let scheduler = builder.start().unwrap();
    let plan = || minutely("p").job("job").payload(SECRET).fingerprint("1");
    seen.add(format!("{:?}", plan()));
    seen.add(format!("{:?}", scheduler.reconcile([plan(), minutely("bad").payload(SECRET)]).unwrap()));
    seen.add(format!("{:?}", scheduler.upsert(Plan::new("bad", "x").payload(SECRET)).unwrap_err()));
    clock.advance(secs(125));
    faulty.on_any().next(20, Fault::Error(StoreErrorKind::Busy));
    clock.advance(secs(120));
    seen.add(format!("{:?} {:?} {:?}", scheduler, scheduler.plans().unwrap(), scheduler.run_history(None)));
    seen.add(format!("{:?} {:?} {:?} {:?}", scheduler.stats(), scheduler.health(), ledger, faulty));
    seen.add(format!("{:?} {:?}", slots(&ledger, "p"), row(&ledger, "p")));
    scheduler.close(secs(1)).unwrap();
    let heard = HEARD.lock().unwrap_or_else(|e| e.into_inner()).clone();
    assert!(heard.iter().any(|l| l.contains("panicked")), "the log was listened to");
    let failed =
        |line: &&String| line.starts_with("timertask::run ") && line.ends_with("/p/2026-01-01T00:02:00Z: failed");
    assert_eq!(heard.iter().filter(failed).count(), 1, "{heard:#?}");
    for line in seen.lines().iter().chain(&heard) {
        assert!(!line.contains(SECRET), "{line}");
        // Nor as the bytes that a derived Debug would show.
        assert!(!line.contains("104, 117, 110, 116"), "{line}");
    }
    for target in heard.iter().filter(|l| l.starts_with("timertask")) {
        let known = ["timertask::engine ", "timertask::run ", "timertask::store ", "timertask::reconcile "];
        assert!(known.iter().any(|k| target.starts_with(k)), "{target}");
    }
}
