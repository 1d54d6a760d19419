//! Budgets: tries, the waits between them, which hold no worker, and what ends them; jobs that do not come back.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::*;
use timertask_core::clock::{Clock, Signal, Until};
use timertask_core::seam::{Cancel, PlanOp};
use timertask_core::{
    Backoff, BoxError, Builder, Ending, Ledger, LocalMutex, Permanent, Plan, RetryBudget, Run, RunOutcome, Scheduler,
    Stop,
};
use timertask_testkit::{Call, FakeClock, Fault, Faulty};

fn budget(attempts: u32, timeout: u64, backoff: u64) -> RetryBudget {
    RetryBudget { attempts, timeout: secs(timeout), backoff: secs(backoff).into(), slack: secs(30) }
}

/// `plan try hh:mm:ss`.
fn note(log: &Log, clock: &impl Clock, run: &Run) {
    log.add(format!("{} {} {}", run.plan(), run.tries(), short(clock.now().trigger())));
}

/// A job that notes each try. Plans whose id begins with `fails` fail but on the try that ends their id; one that begins
/// with `busy` works for as many seconds.
fn job(
    log: &Log,
    clock: &(impl Clock + Clone + 'static),
) -> impl Fn(&Run) -> Result<(), BoxError> + Send + Sync + 'static {
    let (log, clock) = (log.clone(), clock.clone());
    move |run: &Run| {
        note(&log, &clock, run);
        let number = |prefix: &str| run.plan().strip_prefix(prefix).map(|n| n.parse::<u32>().unwrap());
        if let Some(good) = number("fails-")
            && run.tries() != good
        {
            return Err(format!("no {}", run.tries()).into());
        }
        if let Some(busy) = number("busy-") {
            run.wait(secs(busy.into()))?;
        }
        Ok(())
    }
}

type Share = Box<dyn Fn(Builder) -> Builder>;

/// The three ways in which instances share, or don't.
fn ways(clock: &FakeClock) -> [(&'static str, Share); 3] {
    let shared = ledger(clock);
    let mutex = LocalMutex::with_clock(Arc::new(clock.clone()));
    [
        ("alone", Box::new(|builder| builder)),
        ("ledger", Box::new(move |builder| builder.ledger(shared.clone()))),
        ("mutex only", Box::new(move |builder| builder.mutex(mutex.clone()))),
    ]
}

#[test]
fn a_run_that_waits_for_another_try_leaves_its_worker_to_other_slots() {
    for way in 0..3 {
        let clock = FakeClock::new();
        let (name, share) = &ways(&clock)[way];
        let log = Log::default();
        let scheduler =
            share(Scheduler::builder(job(&log, &clock)).concurrency(1)).clock(clock.clone()).start().unwrap();
        scheduler
            .reconcile([Plan::new("fails-3", "@hourly").retry(budget(3, 10, 30)), Plan::new("other", "*/10 * * * * *")])
            .unwrap();
        clock.advance(secs(3600 - 5));
        log.take();
        clock.advance(secs(75));
        let wanted = [
            "fails-3 1 01:00:00",
            "other 1 01:00:00",
            "other 1 01:00:10",
            "other 1 01:00:20",
            "fails-3 2 01:00:30",
            "other 1 01:00:30",
            "other 1 01:00:40",
            "other 1 01:00:50",
            "fails-3 3 01:01:00",
            "other 1 01:01:00",
            "other 1 01:01:10",
        ];
        assert_eq!(log.lines(), wanted, "{name}");
        let record = scheduler.run_history(None).into_iter().find(|r| r.slot.plan.plan_str() == "fails-3").unwrap();
        assert_eq!((record.tries, record.outcome), (3, RunOutcome::Ended(Ending::Succeeded)), "{name}");
    }
}

#[test]
fn a_run_that_comes_back_takes_the_next_worker_before_any_new_slot() {
    for way in 0..3 {
        let clock = FakeClock::new();
        let (name, share) = &ways(&clock)[way];
        let log = Log::default();
        let scheduler =
            share(Scheduler::builder(job(&log, &clock)).concurrency(1)).clock(clock.clone()).start().unwrap();
        scheduler
            .reconcile([
                Plan::new("fails-2", "0 1 * * * *").retry(budget(2, 10, 30)),
                Plan::new("busy-40", "10 1 * * * *"),
                Plan::new("late", "20 1 * * * *"),
                Plan::new("later", "40 1 * * * *"),
            ])
            .unwrap();
        clock.advance(secs(180));
        // Its back-off is over at 30, the worker is free at 50.
        let mut wanted = vec![
            "fails-2 1 00:01:00",
            "busy-40 1 00:01:10",
            "fails-2 2 00:01:50",
            "late 1 00:01:50",
            "later 1 00:01:50",
        ];
        if *name == "alone" {
            // What waits in this process's own queue has been claimed ahead, and is entered in its order.
            assert_eq!(log.len(), wanted.len());
            wanted = log.lines().iter().map(|l| wanted[wanted.iter().position(|w| w == l).unwrap()]).collect();
            assert_eq!(wanted[2], "fails-2 2 00:01:50");
        }
        assert_eq!(log.lines(), wanted, "{name}");
    }
}

#[test]
fn an_instance_with_a_run_to_take_up_again_leaves_new_slots_to_others() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let (log, other) = (Log::default(), Log::default());
    let first = start(Scheduler::builder(job(&log, &clock)).concurrency(1), &clock.view("first"), &ledger);
    first
        .reconcile([
            Plan::new("fails-2", "0 1 * * * *").retry(budget(2, 10, 30)),
            Plan::new("busy-40", "10 1 * * * *"),
            Plan::new("c", "35 1 * * * *"),
        ])
        .unwrap();
    clock.advance(secs(1));
    let second = start(Scheduler::builder(job(&other, &clock)).concurrency(1), &clock.view("second"), &ledger);
    second.reconcile([Plan::new("c", "35 1 * * * *")]).unwrap();
    clock.advance(secs(179));
    assert_eq!(log.lines(), ["fails-2 1 00:01:00", "busy-40 1 00:01:10", "fails-2 2 00:01:50"]);
    assert_eq!(other.lines(), ["c 1 00:01:35"], "in time");
}

/// Plans that fail and come back in every way, on few workers: no more runs than workers, nothing queues between claim and
/// entry, and each run comes to an end.
#[test]
fn permits_hold_whatever_fails_and_comes_back() {
    let mut retried = 0;
    for seed in 0..60 {
        let clock = FakeClock::seeded(seed);
        let ledger = ledger(&clock);
        let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
        let workers = 1 + seed as usize % 3;
        let (inside, most, queued) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Log::default());
        let (i, m, q, time) = (Arc::clone(&inside), Arc::clone(&most), queued.clone(), clock.clone());
        let job = move |run: &Run| -> Result<(), BoxError> {
            m.fetch_max(i.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            // A fence is the microsecond of its claim, or later by one for each claim of the plan within it.
            let claimed = i64::try_from(run.fence().as_u64()).unwrap();
            if run.tries() == 1 && claimed < time.now().as_micros() {
                q.add(format!("{} claimed {claimed}, entered {}", run.slot_key(), time.now()));
            }
            let random = time.entropy();
            let waited = run.wait(secs(random % 9));
            i.fetch_sub(1, Ordering::SeqCst);
            waited?;
            if random % 3 == 0 { Ok(()) } else { Err("no".into()) }
        };
        let scheduler =
            Scheduler::builder(job).concurrency(workers).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
        let backoff = Backoff::Exponential { first: secs(1), max: secs(8) };
        let budget = RetryBudget { attempts: 4, timeout: secs(7), backoff, slack: secs(20) };
        let specs = ["*/5 * * * * *", "*/7 * * * * *", "*/10 * * * * *", "* * * * * *", "30 * * * * *"];
        scheduler
            .reconcile(specs.iter().enumerate().map(|(n, spec)| Plan::new(format!("p{n}"), *spec).retry(budget)))
            .unwrap();
        clock.advance(secs(300));
        assert!(queued.is_empty(), "seed {seed}: {:?}", queued.lines());
        assert_eq!(most.load(Ordering::SeqCst), workers, "seed {seed}");
        let stats = scheduler.stats();
        assert!(stats.started > 20, "seed {seed}: {stats:?}");
        retried += stats.failed_tries - stats.failed;
        scheduler.reconcile([]).unwrap();
        clock.advance(secs(120));
        assert_eq!(scheduler.stats().running, 0, "seed {seed}: all have ended");
        assert_eq!((inside.load(Ordering::SeqCst), scheduler.stats().given_back), (0, 0), "seed {seed}");
        assert!(scheduler.close(secs(1)).unwrap().is_clean());
    }
    assert!(retried > 1000, "{retried}");
}

#[test]
fn each_try_that_fails_is_told_counted_and_recorded() {
    let clock = FakeClock::new();
    let (log, events) = (Log::default(), Log::default());
    let (inner, time) = (log.clone(), clock.clone());
    let job = move |run: &Run| -> Result<(), BoxError> {
        note(&inner, &time, run);
        run.wait(secs(2))?;
        match (run.plan(), run.tries()) {
            ("permanent", 2) => Err(Permanent::new("closed").into()),
            ("panics", 1) => panic!("a bug"),
            ("panics", _) => Ok(()),
            (_, n) => Err(format!("no {n}").into()),
        }
    };
    let scheduler = Scheduler::builder(job).clock(clock.clone()).observer(Ear(events.clone())).start().unwrap();
    let plan = |id: &str| Plan::new(id, "@hourly").retry(budget(20, 10, 3));
    scheduler.reconcile([plan("permanent"), plan("panics"), plan("fails")]).unwrap();
    clock.advance(secs(3600 + 300));
    let of = |plan: &str| scheduler.run_history(None).into_iter().find(|r| r.slot.plan.plan_str() == plan).unwrap();
    let permanent = of("permanent");
    assert_eq!((permanent.tries, permanent.outcome), (2, RunOutcome::Ended(Ending::Failed)));
    let tries: Vec<_> = permanent
        .failed_tries
        .iter()
        .map(|t| (t.number, short(t.started_at.trigger()), short(t.ended_at.trigger()), t.error.as_deref().unwrap()))
        .collect();
    let at = str::to_owned;
    assert_eq!(tries, [(1, at("01:00:00"), at("01:00:02"), "no 1"), (2, at("01:00:05"), at("01:00:07"), "closed")]);
    let panics = of("panics");
    assert_eq!((panics.tries, panics.outcome, panics.failed_tries.len()), (2, RunOutcome::Ended(Ending::Succeeded), 1));
    assert_eq!(panics.failed_tries[0].error.as_deref(), Some("panicked: a bug"));
    // The list is bounded; events and counters are not.
    let fails = of("fails");
    assert_eq!((fails.tries, fails.detail.as_deref()), (20, Some("no 20")));
    assert_eq!(fails.failed_tries.iter().map(|t| t.number).collect::<Vec<_>>(), (5..=20).collect::<Vec<_>>());
    let told = events.lines().into_iter().filter(|l| l.starts_with("try ")).collect::<Vec<_>>();
    assert_eq!(told.len(), 2 + 1 + 20);
    assert!(told.contains(&"try 1 of 01:00:00 failed: no 1, next in Some(3s)".to_owned()), "{told:?}");
    assert!(told.contains(&"try 2 of 01:00:00 failed: closed, next in None".to_owned()), "{told:?}");
    let stats = scheduler.stats();
    assert_eq!((stats.failed_tries, stats.failed, stats.succeeded, stats.started), (23, 2, 1, 3));
}

#[test]
fn no_try_begins_at_or_after_the_end_of_the_budget() {
    // The job does not listen: it is over its time-out of 10 s when it comes back.
    for (works, wanted) in [(35, vec!["p 1 01:00:00", "p 2 01:00:55"]), (60, vec!["p 1 01:00:00"])] {
        let clock = FakeClock::new();
        let log = Log::default();
        let (inner, time) = (log.clone(), clock.clone());
        let job = move |run: &Run| -> Result<(), BoxError> {
            note(&inner, &time, run);
            let _ = time.wait(&Signal::new(), Some(Until::Monotonic(time.monotonic() + secs(works))));
            Err(format!("no {}", run.tries()).into())
        };
        let scheduler = Scheduler::builder(job).clock(clock.clone()).start().unwrap();
        // Three tries of 10 s, two waits of 20 s, 1 s: over at 01:01:11.
        let budget = RetryBudget { slack: secs(1), ..budget(3, 10, 20) };
        assert_eq!(budget.lock_ttl(), secs(71));
        scheduler.reconcile([Plan::new("p", "@hourly").retry(budget)]).unwrap();
        clock.advance(secs(3600 + 300));
        assert_eq!(log.lines(), wanted);
        let record = &scheduler.run_history(None)[0];
        assert_eq!(record.outcome, RunOutcome::Ended(Ending::Failed));
        assert_eq!(record.ended_at.since(record.started_at.unwrap()), secs(if works == 35 { 90 } else { 60 }));
    }
}

#[test]
fn a_run_that_no_worker_takes_up_again_ends_as_failed_at_the_end_of_its_budget() {
    for way in 0..3 {
        let clock = FakeClock::new();
        let (name, share) = &ways(&clock)[way];
        let log = Log::default();
        let scheduler =
            share(Scheduler::builder(job(&log, &clock)).concurrency(1)).clock(clock.clone()).start().unwrap();
        scheduler
            .reconcile([
                Plan::new("fails-2", "0 1 * * * *")
                    .start_window(secs(10))
                    .retry(RetryBudget { slack: secs(15), ..budget(2, 10, 5) }),
                Plan::new("busy-600", "2 1 * * * *"),
            ])
            .unwrap();
        clock.advance(secs(99));
        assert!(scheduler.run_history(None).is_empty(), "{name}");
        clock.advance(secs(2));
        let record = scheduler.run_history(None).pop().unwrap();
        assert_eq!((record.tries, record.outcome), (1, RunOutcome::Ended(Ending::Failed)), "{name}");
        assert_eq!(record.detail.as_deref(), Some("no 1"));
        assert_eq!(record.ended_at.since(record.started_at.unwrap()), secs(40), "2 × 10 + 5 + 15 s");
        assert_eq!(log.len(), 2);
    }
}

#[test]
fn a_cancel_ends_a_waiting_run_at_the_next_renewal_with_all_workers_busy() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let (log, events) = (Log::default(), Log::default());
    let scheduler =
        start(Scheduler::builder(job(&log, &clock)).concurrency(1).observer(Ear(events.clone())), &clock, &ledger);
    scheduler
        .reconcile([
            Plan::new("fails-2", "0 1 * * * *").retry(budget(2, 10, 100)),
            Plan::new("busy-600", "1 1 * * * *"),
        ])
        .unwrap();
    clock.advance(secs(70));
    let cancel = Cancel { by: "ann".to_owned(), why: "no use".to_owned() };
    let op = PlanOp::Cancel { at: t("00:01:00"), request: None, cancel };
    let _ = ledger.plan(&[(key("fails-2"), op)]).unwrap();
    clock.advance(secs(11));
    let record = scheduler.run_history(None).pop().unwrap();
    assert_eq!((record.tries, record.outcome), (1, RunOutcome::Ended(Ending::Cancelled)));
    assert_eq!(record.detail.as_deref(), Some("no 1"));
    assert_eq!(tally(&ledger, "fails-2"), [("cancelled".to_owned(), 1)].into());
    assert!(events.lines().contains(&"cancel asked 00:01:00".to_owned()));
    clock.advance(secs(200));
    assert_eq!(log.len(), 2, "no further try");
}

#[test]
fn closing_ends_waiting_runs_at_once_and_begins_no_further_try() {
    for now in [false, true] {
        for busy in [false, true] {
            let clock = FakeClock::new();
            let ledger = ledger(&clock);
            let log = Log::default();
            let scheduler = start(Scheduler::builder(job(&log, &clock)).concurrency(1), &clock, &ledger);
            let mut plans = vec![Plan::new("fails-2", "0 1 * * * *").retry(budget(2, 10, 600))];
            plans.extend(busy.then(|| Plan::new("busy-30", "5 1 * * * *")));
            scheduler.reconcile(plans).unwrap();
            clock.advance(secs(70));
            let begin = clock.monotonic();
            let report = if now { scheduler.close_now() } else { scheduler.close(secs(300)) };
            assert!(report.unwrap().is_clean());
            let took = if busy && !now { secs(25) } else { secs(0) };
            assert_eq!(clock.monotonic() - begin, took, "now {now}, busy {busy}");
            let record = scheduler.run_history(None).into_iter().find(|r| r.slot.plan.plan_str() == "fails-2").unwrap();
            let ending = if now { Ending::Cancelled } else { Ending::Failed };
            assert_eq!((record.outcome, record.detail.as_deref()), (RunOutcome::Ended(ending), Some("no 1")));
            assert_eq!(record.ended_at, micros("00:01:10"), "also while the workers are at work");
            assert_eq!(slots(&ledger, "fails-2").len(), 1);
        }
    }
}

#[test]
fn a_try_that_fails_while_the_scheduler_closes_is_the_last_one() {
    let clock = FakeClock::new();
    let log = Log::default();
    let (inner, time) = (log.clone(), clock.clone());
    let job = move |run: &Run| -> Result<(), BoxError> {
        note(&inner, &time, run);
        run.wait(secs(5))?;
        Err("no".into())
    };
    let scheduler = Scheduler::builder(job).clock(clock.clone()).start().unwrap();
    scheduler.reconcile([minutely("p").retry(budget(3, 10, 1))]).unwrap();
    clock.advance(secs(62));
    assert!(scheduler.close(secs(60)).unwrap().is_clean());
    assert_eq!(
        (log.lines(), history(&scheduler)),
        (vec!["p 1 00:01:00".to_owned()], vec!["p 00:01:00 failed".to_owned()])
    );
}

#[test]
fn renewals_go_on_while_a_run_waits_and_nobody_else_starts_it() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let (log, other) = (Log::default(), Log::default());
    let plan = || Plan::new("fails-2", "@hourly").retry(budget(2, 10, 240));
    let first = start(Scheduler::builder(job(&log, &clock)), &clock.view("first"), &ledger);
    first.reconcile([plan()]).unwrap();
    clock.advance(secs(3601));
    let second = start(Scheduler::builder(job(&other, &clock)), &clock.view("second"), &ledger);
    second.reconcile([plan()]).unwrap();
    clock.advance(secs(230));
    assert_eq!(tally(&ledger, "fails-2"), [("running".to_owned(), 1)].into());
    clock.advance(secs(60));
    assert_eq!(log.lines(), ["fails-2 1 01:00:00", "fails-2 2 01:04:00"]);
    assert_eq!(tally(&ledger, "fails-2"), [("succeeded".to_owned(), 1)].into());
    let slot = &slots(&ledger, "fails-2")[0];
    assert_eq!((slot.attempt, other.len()), (1, 0), "one start");
}

#[test]
fn a_run_out_of_trust_is_tried_again_only_once_the_store_vouches_for_it() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
    let log = Log::default();
    let scheduler = Scheduler::builder(job(&log, &clock)).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
    scheduler.reconcile([Plan::new("fails-2", "@hourly").retry(budget(2, 60, 40))]).unwrap();
    clock.advance(secs(3601));
    faulty.on(Call::Renew).always(Fault::Error(timertask_core::StoreErrorKind::Unreachable));
    // The trust of its claim is over at 01:00:28, the back-off at 01:00:40.
    clock.advance(secs(44));
    assert_eq!(log.lines(), ["fails-2 1 01:00:00"]);
    faulty.heal();
    clock.advance(secs(3));
    assert_eq!(log.len(), 2, "{:?}", log.lines());
    assert_eq!(tally(&ledger, "fails-2"), [("succeeded".to_owned(), 1)].into());
}

#[test]
fn a_waiting_run_whose_slot_was_taken_from_it_ends_as_lost() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let (log, events) = (Log::default(), Log::default());
    let view = clock.view("frozen");
    let plan = || Plan::new("fails-9", "@hourly").retry(budget(3, 60, 100));
    let first = start(Scheduler::builder(job(&log, &view)).observer(Ear(events.clone())), &view, &ledger);
    first.reconcile([plan()]).unwrap();
    clock.advance(secs(3601));
    let second = start(Scheduler::builder(job(&log, &clock)), &clock.view("second"), &ledger);
    second.reconcile([plan()]).unwrap();
    view.freeze();
    clock.advance(secs(99));
    assert_eq!(tally(&ledger, "fails-9"), [("orphaned".to_owned(), 1)].into());
    view.thaw();
    clock.advance(secs(60));
    assert_eq!(log.len(), 1, "no further try: {:?}", log.lines());
    assert_eq!(history(&first), ["fails-9 01:00:00 lease lost"]);
    assert_eq!(
        (first.stats().lease_lost, events.lines().iter().filter(|l| l.starts_with("lease lost")).count()),
        (1, 1)
    );
}

#[test]
fn drawn_waits_differ_from_run_to_run_and_are_the_same_for_the_same_seed() {
    let waits = |seed: u64| {
        let clock = FakeClock::seeded(seed);
        let log = Log::default();
        let scheduler = Scheduler::builder(job(&log, &clock)).concurrency(8).clock(clock.clone()).start().unwrap();
        let backoff = Backoff::Exponential { first: secs(8), max: secs(20) };
        let budget = RetryBudget { attempts: 4, backoff, ..budget(4, 10, 0) };
        scheduler.reconcile((0..8).map(|n| Plan::new(format!("fails-{}", 90 + n), "@hourly").retry(budget))).unwrap();
        clock.advance(secs(3700));
        let records = scheduler.run_history(None);
        assert_eq!(records.len(), 8);
        let waits = |r: &timertask_core::RunRecord| -> Vec<Duration> {
            r.failed_tries.windows(2).map(|pair| pair[1].started_at.since(pair[0].ended_at)).collect()
        };
        records.iter().map(|r| waits(r)).collect::<Vec<_>>()
    };
    let first = waits(1);
    for run in &first {
        for (wait, most) in run.iter().zip([8, 16, 20]) {
            assert!((secs(most) / 2..=secs(most)).contains(wait), "{wait:?} of {most}");
        }
    }
    let distinct: std::collections::HashSet<_> = first.iter().map(|run| run[0]).collect();
    assert_eq!(distinct.len(), 8, "those that failed together come back apart");
    assert_eq!((waits(1) == first, waits(2) == first), (true, false));
}

#[test]
fn fault_59_a_job_that_does_not_stop_is_named_with_its_thread_until_it_comes_back_and_its_worker_is_not_counted_on() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let (log, other, events) = (Log::default(), Log::default(), Log::default());
    let (inner, time) = (log.clone(), clock.clone());
    let deaf = move |run: &Run| -> Result<(), BoxError> {
        note(&inner, &time, run);
        if run.plan() == "deaf" {
            let stopped = run.cancelled();
            let _ = time.wait(&Signal::new(), Some(Until::Monotonic(time.monotonic() + secs(100))));
            inner.add(format!("{:?} {:?}", stopped.try_recv(), run.check()));
        }
        Ok(())
    };
    let first = start(
        Scheduler::builder(deaf).concurrency(1).instance("first").observer(Ear(events.clone())),
        &clock.view("a"),
        &ledger,
    );
    first
        .reconcile([Plan::new("deaf", "0 1 * * * *").retry(budget(1, 10, 0)), Plan::new("b", "30 1 * * * *")])
        .unwrap();
    clock.advance(secs(1));
    let second = start(Scheduler::builder(job(&other, &clock)), &clock.view("b"), &ledger);
    second.reconcile([Plan::new("b", "30 1 * * * *")]).unwrap();
    clock.advance(secs(59 + 15));
    assert!(first.health().stuck_runs.is_empty(), "told to stop five seconds ago");
    clock.advance(secs(15));
    let health = first.health();
    let stuck = &health.stuck_runs[0];
    assert_eq!((health.stuck_runs.len(), stuck.slot.plan.plan_str(), stuck.since), (1, "deaf", micros("00:01:00")));
    assert_eq!((stuck.instance.as_str(), stuck.worker.as_str()), ("first", "timertask-worker-0"));
    assert_eq!((stuck.stop, stuck.told_ago, stuck.tries), (Some(Stop::Deadline), Some(secs(20)), 1));
    assert!(health.long_runs.is_empty());
    let told = events.lines().into_iter().filter(|l| l.starts_with("stuck")).collect::<Vec<_>>();
    assert_eq!(told, ["stuck 00:01:00 on first timertask-worker-0"], "once");
    // Its only worker is taken: another instance has the slot, in time.
    clock.advance(secs(30));
    assert_eq!(other.lines(), ["b 1 00:01:30"]);
    let stats = first.stats();
    assert_eq!((stats.workers, stats.in_jobs, stats.stuck), (1, 1, 1));
    let health = first.health();
    assert_eq!((health.long_runs.len(), health.stuck_runs.len()), (1, 1), "its budget of 40 s is over");
    let report = first.close(secs(2)).unwrap();
    let still = report.still_running[0].to_string();
    assert!(still.contains("deaf/2026-01-01T00:01:00Z runs since 2026-01-01T00:01:00"), "{still}");
    assert!(still.contains("on first, thread timertask-worker-0, told to stop"), "{still}");
    clock.advance(secs(100));
    assert_eq!(log.lines(), ["deaf 1 00:01:00", "Err(Disconnected) Err(Cancelled)"]);
    assert!(first.health().stuck_runs.is_empty() && first.health().long_runs.is_empty());
}

#[test]
fn a_time_out_fires_the_token_of_each_try_anew() {
    let clock = FakeClock::new();
    let log = Log::default();
    let (inner, time) = (log.clone(), clock.clone());
    let job = move |run: &Run| -> Result<(), BoxError> {
        let stopped = run.cancelled();
        inner.add(format!("{:?} {:?}", stopped.try_recv(), run.check()));
        let end = time.monotonic() + secs(12);
        let _ = time.wait(&Signal::new(), Some(Until::Monotonic(end)));
        inner.add(format!("{:?} {:?}", stopped.try_recv(), run.check()));
        Err("late".into())
    };
    let scheduler = Scheduler::builder(job).clock(clock.clone()).start().unwrap();
    scheduler.reconcile([Plan::new("p", "@hourly").retry(budget(2, 10, 5))]).unwrap();
    clock.advance(secs(3700));
    let (fresh, fired) = ("Err(Empty) Ok(())", "Err(Disconnected) Err(Deadline)");
    assert_eq!(log.lines(), [fresh, fired, fresh, fired]);
}
