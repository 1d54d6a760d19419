//! A run besides the schedule, asked of an instance.

use std::sync::{Arc, OnceLock};

use timertask_core::operate::{Accepted, Standing};
use timertask_core::seam::{Ending, Overlap, SlotState, StoreErrorKind};
use timertask_core::{
    Clock, Event, LocalMutex, OnOrphan, OperateError, RequestId, RunKind, RunNow, Scheduler, SchedulerError,
};
use timertask_testkit::{Call, Cluster, Fault};

use super::*;

fn id(text: &str) -> RequestId {
    RequestId::new(text).unwrap()
}

fn now(text: &str) -> RunNow {
    RunNow::new(ana()).id(id(text))
}

/// Why an operator was refused.
#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Result<T, SchedulerError>) -> OperateError {
    match answer {
        Err(SchedulerError::Operate(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// One scheduler on a ledger of its own that forgets nothing, half past midnight, with the plan `daily`, due at two.
fn one(job: impl Fn(&Run) -> Result<(), BoxError> + Send + Sync + 'static) -> (FakeClock, MemLedger, Scheduler) {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let s = start(Scheduler::builder(job), &clock, &ledger);
    s.reconcile([Plan::new("daily", "0 2 * * *")]).unwrap();
    clock.advance(secs(1800));
    (clock, ledger, s)
}

#[test]
fn a_run_now_is_a_slot_of_its_own_and_says_who_asked() {
    let seen = Arc::new(OnceLock::new());
    let inner = Arc::clone(&seen);
    let (clock, ledger, s) = one(move |run: &Run| {
        if run.kind() == RunKind::Manual {
            let asked = run.asked().cloned().unwrap();
            let window = run.window();
            inner.set((run.slot_key().to_string(), asked, window, run.due(), run.attempt())).unwrap();
        }
        Ok(())
    });
    let cursor = row(&ledger, "daily").unwrap().cursor;
    let Accepted { slot, standing, .. } = s.run_now("daily", &now("import-7")).unwrap();
    assert_eq!(standing, Standing::Started);
    assert_eq!(slot.to_string(), "timertask/cron/exec/daily/2026-01-01T00:30:00Z/import-7");
    let (key, asked, window, due, attempt) = seen.get().unwrap().clone();
    assert_eq!((key, asked, due, attempt), (slot.to_string(), ana(), t("00:30:00").timestamp(), 1));
    let yesterday = t("02:00:00").to_datetime() - chrono::TimeDelta::days(1);
    assert_eq!((window.from, window.to), (yesterday, t("00:30:00").to_datetime()));

    clock.settle();
    let row_of = slots(&ledger, "daily").pop().unwrap();
    assert_eq!((row_of.key, row_of.kind), (slot, RunKind::Manual));
    assert_eq!((row_of.state, row_of.asked.as_deref()), (SlotState::Ended(Ending::Succeeded), Some(&ana())));
    let record = s.run_history(None).pop().unwrap();
    assert_eq!((record.kind, record.asked.as_deref()), (RunKind::Manual, Some(&ana())));
    assert_eq!(row(&ledger, "daily").unwrap().cursor, cursor, "the schedule is left alone");
    clock.advance(secs(2 * 3600));
    assert_eq!(story(&ledger, "daily"), ["00:30:00 succeeded", "02:00:00 succeeded"]);
}

#[test]
fn a_repeated_id_is_one_run_and_keeps_its_first_instant() {
    let mut cluster = Cluster::builder()
        .instances(2)
        .plans([Plan::new("p", "0 2 * * *")])
        .job(|run: &Run| Ok(run.wait(secs(60))?))
        .build();
    let first = cluster.scheduler(0).run_now("p", &now("x")).unwrap();
    for i in [0, 1, 0] {
        cluster.advance(secs(10));
        let again = cluster.scheduler(i).run_now("p", &now("x")).unwrap();
        assert_eq!((again.slot, again.standing), (first.slot.clone(), Standing::Running));
    }
    cluster.advance(secs(60));
    let again = cluster.scheduler(1).run_now("p", &now("x").force()).unwrap();
    assert_eq!((again.slot, again.standing), (first.slot, Standing::Ended(Ending::Succeeded)));
    cluster.expect_starts("p", 1);
    // Without an id each call is a run of its own.
    let runs = [0, 1].map(|i| cluster.scheduler(i).run_now("p", &RunNow::new(ana()).force()).unwrap());
    assert_ne!(runs[0].slot.request, runs[1].slot.request);
    cluster.advance(secs(100));
    cluster.expect_starts("p", 3);
    cluster.check();
}

#[test]
fn a_run_now_obeys_overlap_unless_forced_and_fills_the_gate() {
    let (clock, ledger, s) = one(|run: &Run| Ok(run.wait(secs(100))?));
    s.run_now("daily", &now("a")).unwrap();
    let error = refused(s.run_now("daily", &now("b")));
    assert!(matches!(&error, OperateError::Full(slot) if slot.request == Some(id("b"))), "{error:?}");
    assert_eq!(slots(&ledger, "daily").len(), 1, "a refusal writes nothing");
    assert_eq!(s.run_now("daily", &now("b").force()).unwrap().standing, Standing::Started);
    clock.advance(secs(101));
    assert_eq!(s.run_now("daily", &now("c")).unwrap().standing, Standing::Started);
    clock.advance(secs(101));
    assert_eq!(story(&ledger, "daily"), ["00:30:00 succeeded", "00:30:00 succeeded", "00:31:41 succeeded"]);
}

#[test]
fn a_run_now_passes_a_pause() {
    let (_, ledger, s) = one(|_: &Run| Ok(()));
    s.pause("daily", &ana(), None).unwrap();
    s.pause_all(&ana(), None).unwrap();
    assert_eq!(s.run_now("daily", &now("a")).unwrap().standing, Standing::Started);
    assert!(row(&ledger, "daily").unwrap().pause.is_some());
}

#[test]
fn what_cannot_run_is_told_why() {
    let (clock, _, s) = one(|_: &Run| Ok(()));
    let error = s.run_now("weekly", &now("a")).unwrap_err();
    assert_eq!(error.to_string(), "no plan \"weekly\" is installed here");
    // A plan that the ledger has not opened yet.
    s.upsert(Plan::new("new", "0 2 * * *")).unwrap();
    assert!(matches!(refused(s.run_now("new", &now("a"))), OperateError::NotReady(plan) if plan.as_str() == "new"));
    clock.settle();
    s.run_now("new", &now("a")).unwrap();
    s.close(secs(1)).unwrap();
    assert!(matches!(s.run_now("new", &now("b")), Err(SchedulerError::Stopped)));
}

#[test]
fn sixty_requests_at_once_are_taken_and_then_one_a_second() {
    let (clock, ledger, s) = one(|_: &Run| Ok(()));
    for n in 0..60 {
        s.run_now("daily", &now(&n.to_string()).force()).unwrap();
    }
    for _ in 0..3 {
        let error = refused(s.run_now("daily", &now("more").force()));
        assert_eq!(error.to_string(), "too many requests of operators; ask again in 1s");
    }
    clock.advance(secs(1));
    s.run_now("daily", &now("more").force()).unwrap();
    assert!(matches!(refused(s.run_now("daily", &now("and more"))), OperateError::TooOften(_)));
    clock.settle();
    assert_eq!(slots(&ledger, "daily").len(), 61);
}

#[test]
fn it_waits_for_a_worker_and_says_when_none_got_free() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let job = |run: &Run| Ok(run.wait(secs(if run.plan() == "long" { 25 } else { 1 }))?);
    let s = start(Scheduler::builder(job).concurrency(1), &clock, &ledger);
    s.reconcile([Plan::new("long", "0 2 * * *"), Plan::new("p", "0 2 * * *")]).unwrap();
    clock.advance(secs(60));
    s.run_now("long", &now("a")).unwrap();
    let error = refused(s.run_now("p", &now("b").within(secs(10))));
    assert_eq!(error.to_string(), "no worker got free within 10s");
    assert_eq!(slots(&ledger, "p"), [], "it was not claimed");
    assert_eq!(clock.now(), micros("00:01:10"));
    // Now one gets free in time.
    let accepted = s.run_now("p", &now("b").within(secs(60))).unwrap();
    assert_eq!((accepted.standing, accepted.slot.at), (Standing::Started, t("00:01:10")));
    assert_eq!(clock.now(), micros("00:01:25"));
    clock.advance(secs(5));
    assert_eq!(tally(&ledger, "p")["succeeded"], 1);
}

#[test]
fn orders_go_before_what_is_due() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let log = Log::default();
    let s = start(Scheduler::builder(worker(&log, secs(2))).concurrency(1), &clock, &ledger);
    s.reconcile((0..9).map(|n| minutely(&n.to_string())).chain([Plan::new("p", "0 2 * * *")])).unwrap();
    clock.advance(secs(61));
    s.run_now("p", &now("a")).unwrap();
    assert_eq!(log.lines(), ["0 00:01:00", "p 00:01:01"]);
}

/// What a scheduler's own job sees when it asks.
fn from_inside(workers: usize) -> (Log, FakeClock) {
    let clock = FakeClock::new();
    let (log, scheduler) = (Log::default(), Arc::new(OnceLock::<Scheduler>::new()));
    let (inner, handle) = (log.clone(), Arc::clone(&scheduler));
    let job = move |run: &Run| {
        if run.plan() == "asks" {
            let answer = handle.get().unwrap().run_now("p", &now("a"));
            inner.add(answer.map_or_else(|error| error.to_string(), |accepted| accepted.standing.to_string()));
        }
        Ok(())
    };
    let s = start(Scheduler::builder(job).concurrency(workers), &clock, &ledger(&clock));
    s.reconcile([Plan::new("asks", "30 0 1 1 *"), Plan::new("p", "0 2 * * *")]).unwrap();
    assert!(scheduler.set(s).is_ok());
    clock.advance(secs(2000));
    drop(scheduler);
    (log, clock)
}

#[test]
fn from_inside_a_job_it_runs_where_a_worker_is_free_and_else_is_refused_at_once() {
    assert_eq!(from_inside(2).0.lines(), ["started"]);
    assert_eq!(from_inside(1).0.lines(), ["no worker got free within 0ns"]);
}

#[test]
fn from_inside_a_job_it_does_not_queue_behind_others() {
    let clock = FakeClock::new();
    let (log, scheduler) = (Log::default(), Arc::new(OnceLock::<Scheduler>::new()));
    let (inner, handle) = (log.clone(), Arc::clone(&scheduler));
    let job = move |run: &Run| {
        if run.plan() == "0" {
            let answer = handle.get().unwrap().run_now("p", &now("a"));
            inner.add(answer.map_or_else(|error| error.to_string(), |accepted| accepted.standing.to_string()));
        } else {
            inner.add(run.plan());
        }
        Ok(())
    };
    // With a ledger of its own the scheduler claims ahead: the others are queued already.
    let s = Scheduler::builder(job).concurrency(1).clock(clock.clone()).start().unwrap();
    s.reconcile((0..3).map(|n| minutely(&n.to_string())).chain([Plan::new("p", "0 2 * * *")])).unwrap();
    assert!(scheduler.set(s).is_ok());
    clock.advance(secs(61));
    assert_eq!(log.lines(), ["no worker got free within 0ns", "1", "2"]);
}

#[test]
fn a_callback_of_the_engine_is_refused_and_does_not_wait_for_itself() {
    struct Asks(Log, OnceLock<Scheduler>);
    impl timertask_core::Observer for Asks {
        fn event(&self, event: &Event<'_>) {
            if let (Event::Record(_), Some(s)) = (event, self.1.get()) {
                self.0.add(s.run_now("p", &now("a")).unwrap_err().to_string());
            }
        }
    }
    let clock = FakeClock::new();
    let asks = Arc::new(Asks(Log::default(), OnceLock::new()));
    let s = start(Scheduler::builder(|_: &Run| Ok(())).observer(Arc::clone(&asks)), &clock, &ledger(&clock));
    s.reconcile([minutely("p")]).unwrap();
    asks.1.set(s.clone()).unwrap();
    clock.advance(secs(61));
    assert_eq!(asks.0.lines(), ["called from inside a callback of the engine, which would wait for itself"]);
    let _ = s.close(secs(1));
}

#[test]
fn a_store_fault_runs_nothing_and_the_id_may_be_asked_again() {
    let faults = [
        Fault::Error(StoreErrorKind::Unreachable),
        Fault::LostRequest,
        Fault::LostAnswer,
        Fault::Slow(secs(20)),
        Fault::SlowAnswer(secs(20)),
        Fault::Straggler(secs(30)),
    ];
    for fault in faults {
        let mut cluster = Cluster::builder().instances(2).plans([Plan::new("p", "0 2 * * *")]).build();
        cluster.store_of(0).on(Call::Claim).next(1, fault.clone());
        let error = refused(cluster.scheduler(0).run_now("p", &now("x").within(secs(10))));
        assert!(matches!(error, OperateError::Store(_) | OperateError::Unanswered(_)), "{fault:?}: {error:?}");
        cluster.expect_starts("p", 0);
        // It is given back where it was granted all the same.
        cluster.advance(secs(15));
        cluster.expect_starts("p", 0);
        let accepted = cluster.scheduler(1).run_now("p", &now("x")).unwrap();
        if !matches!(fault, Fault::Straggler(_)) {
            assert_eq!(accepted.standing, Standing::Started, "{fault:?}");
        }
        cluster.advance(secs(200));
        cluster.expect_starts("p", 1);
        cluster.check();
    }
}

#[test]
fn one_that_nobody_asks_for_again_is_put_on_record_as_not_started() {
    let mut cluster = Cluster::builder().instances(2).plans([Plan::new("p", "0 2 * * *")]).build();
    cluster.store_of(0).on(Call::Claim).next(1, Fault::LostAnswer);
    let _ = refused(cluster.scheduler(0).run_now("p", &now("x")));
    cluster.advance(secs(120));
    let error = refused(cluster.scheduler(1).run_now("p", &now("x")));
    assert!(error.to_string().ends_with("was accepted before and not started (given-back); ask under another id"));
    cluster.expect_starts("p", 0);
    cluster.check();
}

#[test]
fn a_run_now_whose_runner_died_is_orphaned_or_run_again_as_its_plan_says() {
    for (on_orphan, starts, ending) in
        [(OnOrphan::Record, 1, Ending::Orphaned), (OnOrphan::Rerun { max: 1 }, 2, Ending::Succeeded)]
    {
        let plan = Plan::new("p", "0 2 * * *").on_orphan(on_orphan);
        let mut cluster =
            Cluster::builder().instances(2).plans([plan]).job(|run: &Run| Ok(run.wait(secs(30))?)).build();
        let slot = cluster.scheduler(0).run_now("p", &now("x")).unwrap().slot;
        cluster.advance(secs(5));
        cluster.kill(0);
        cluster.advance(secs(150));
        cluster.expect_starts("p", starts);
        let rows = cluster.rows("p");
        assert_eq!((rows.len(), &rows[0].key, rows[0].state), (1, &slot, SlotState::Ended(ending)));
        assert_eq!((rows[0].kind, rows[0].asked.as_deref()), (RunKind::Manual, Some(&ana())));
        cluster.check();
    }
}

#[test]
fn closing_refuses_what_waits() {
    let clock = FakeClock::new();
    let scheduler = Arc::new(OnceLock::<Scheduler>::new());
    let handle = Arc::clone(&scheduler);
    let job = move |run: &Run| {
        run.wait(secs(10))?;
        // It signals, and does not wait.
        handle.get().unwrap().close(secs(5)).unwrap_err();
        Ok(())
    };
    let ledger = ledger(&clock);
    let s = start(Scheduler::builder(job).concurrency(1), &clock, &ledger);
    s.reconcile([Plan::new("p", "0 2 * * *").overlap(Overlap::Allow(2))]).unwrap();
    scheduler.set(s.clone()).unwrap();
    clock.advance(secs(60));
    s.run_now("p", &now("a")).unwrap();
    assert!(matches!(s.run_now("p", &now("b").within(secs(1000))), Err(SchedulerError::Stopped)));
    assert_eq!(clock.now(), micros("00:01:10"));
    clock.advance(secs(10));
    assert_eq!(story(&ledger, "p"), ["00:01:00 succeeded"]);
}

#[test]
fn a_scheduler_by_itself_runs_now_too_also_past_a_queue() {
    let clock = FakeClock::new();
    let log = Log::default();
    let s = Scheduler::builder(worker(&log, secs(3))).clock(clock.clone()).concurrency(1).start().unwrap();
    s.reconcile((0..9).map(|n| minutely(&n.to_string())).chain([Plan::new("p", "0 2 * * *")])).unwrap();
    clock.advance(secs(61));
    assert_eq!(s.run_now("p", &now("a")).unwrap().standing, Standing::Started);
    assert_eq!(log.lines(), ["0 00:01:00", "p 00:01:01"], "before the eight that were queued");
    assert_eq!(s.run_now("p", &now("a")).unwrap().standing, Standing::Running);
    // One that gets no worker is given back.
    let error = refused(s.run_now("p", &now("b").force().within(secs(1))));
    assert!(matches!(error, OperateError::NoWorker(_)), "{error:?}");
    clock.advance(secs(120));
    assert_eq!(log.lines().iter().filter(|line| line.starts_with('p')).count(), 1);
}

#[test]
fn with_a_mutex_alone_it_takes_the_lock_of_its_slot() {
    let clock = FakeClock::new();
    let mutex = LocalMutex::with_clock(Arc::new(clock.clone()));
    let log = Log::default();
    let [a, b] = ["a", "b"].map(|name| {
        let s = Scheduler::builder(recorder(&log)).instance(name).clock(clock.clone()).mutex(mutex.clone());
        let s = s.start().unwrap();
        s.reconcile([Plan::new("p", "0 2 * * *")]).unwrap();
        s
    });
    clock.advance(secs(60));
    assert_eq!(a.run_now("p", &now("x")).unwrap().standing, Standing::Started);
    clock.settle();
    assert_eq!(a.run_now("p", &now("x")).unwrap().standing, Standing::Ended(Ending::Succeeded));
    // The same slot elsewhere: its lock is taken.
    assert_eq!(b.run_now("p", &now("x")).unwrap().standing, Standing::Running);
    assert_eq!(log.lines(), ["p 00:01:00"]);
}

#[test]
fn an_instance_whose_clock_is_off_refuses() {
    let mut cluster = Cluster::builder().instances(2).plans([Plan::new("p", "0 2 * * *")]).build();
    cluster.skew(0, chrono::TimeDelta::seconds(30));
    cluster.advance(secs(20));
    assert!(matches!(refused(cluster.scheduler(0).run_now("p", &now("x"))), OperateError::Skewed));
    assert_eq!(cluster.scheduler(1).run_now("p", &now("x")).unwrap().standing, Standing::Started);
    cluster.check();
}
