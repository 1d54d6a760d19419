//! The engine on its real threads: it starts, runs, closes, and leaves no thread behind.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use timertask_core::clock::{Clock, Signal};
use timertask_core::{
    Backoff, BoxError, CatchUp, CloseError, MemLedger, Overlap, Plan, RetryBudget, Run, Scheduler, SystemClock,
};
use timertask_testkit::{FakeClock, Fault, Faulty};

/// More than any machine needs.
const PATIENCE: Duration = Duration::from_secs(30);

/// The names of this process's threads that are the engine's; on Linux only, elsewhere `None`. Linux cuts names to 15 bytes.
fn threads() -> Option<Vec<String>> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    Some(names.map(|n| n.trim().to_owned()).filter(|n| n.starts_with("timertask-")).collect())
}

/// Tests of this file count threads, so they go one after the other.
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn turn() -> std::sync::MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

fn sender() -> (Sender<String>, Receiver<String>) {
    unbounded()
}

#[test]
fn starts_runs_closes_and_leaves_no_thread() {
    let _turn = turn();
    let (tx, rx) = sender();
    let job = move |run: &Run| -> Result<(), BoxError> {
        tx.send(format!("{} {}", run.plan(), std::thread::current().name().unwrap()))?;
        Ok(())
    };
    let scheduler = Scheduler::builder(job).concurrency(3).start().unwrap();
    scheduler.reconcile([Plan::new("a", "* * * * * *"), Plan::new("b", "* * * * * *")]).unwrap();
    let mut seen = BTreeSet::new();
    for _ in 0..4 {
        let line = rx.recv_timeout(PATIENCE).unwrap();
        let (plan, thread) = line.split_once(' ').unwrap();
        assert!(thread.starts_with("timertask-worker-"), "{thread}");
        seen.insert(plan.to_owned());
    }
    assert_eq!(seen.len(), 2);
    if let Some(threads) = threads() {
        assert_eq!(threads.len(), 6, "{threads:?}");
        for name in ["timertask-timer", "timertask-claim", "timertask-scrib", "timertask-worke"] {
            assert!(threads.iter().any(|t| t == name), "{threads:?}");
        }
    }
    assert_eq!(scheduler.health().threads_alive, 6);
    let report = scheduler.close(PATIENCE).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(threads().unwrap_or_default(), Vec::<String>::new());
    assert_eq!(scheduler.stats().started, scheduler.stats().succeeded);
}

/// Runs come back for thousands of tries, and nothing else wakes the workers: a wake-up that is lost would leave one waiting
/// for good.
#[test]
fn runs_that_come_back_always_find_a_worker_that_wakes() {
    let _turn = turn();
    for shared in [false, true] {
        let (tx, rx) = sender();
        let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (i, m) = (Arc::clone(&inside), Arc::clone(&most));
        let job = move |run: &Run| -> Result<(), BoxError> {
            m.fetch_max(i.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::yield_now();
            i.fetch_sub(1, Ordering::SeqCst);
            if run.tries() == 300 { Ok(()) } else { Err("not yet".into()) }
        };
        let builder = Scheduler::builder(job).concurrency(3).on_record(move |record| drop(tx.send(told(record))));
        let builder = if shared { builder.ledger(MemLedger::new()) } else { builder };
        let scheduler = builder.start().unwrap();
        let at = SystemClock.now().trigger().as_secs() + 2;
        let spec = format!("@at {}", timertask_core::Trigger::from_secs(at).to_datetime().to_rfc3339());
        let plans = (0..20_u64).map(|n| {
            let micros = Duration::from_micros;
            let backoff = Backoff::Exponential { first: micros(20 * n), max: micros(100 * n) };
            let budget = RetryBudget { attempts: 300, timeout: PATIENCE, backoff, ..RetryBudget::default() };
            Plan::new(format!("p{n}"), spec.clone()).retry(budget)
        });
        scheduler.reconcile(plans).unwrap().all_taken().unwrap();
        for n in 0..20 {
            let record =
                rx.recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("{n} of 20: {e}; {:?}", scheduler.stats()));
            assert!(record.ends_with("succeeded"), "{record}");
        }
        assert_eq!(scheduler.stats().failed_tries, 20 * 299);
        assert!(most.load(Ordering::SeqCst) <= 3);
        assert!(scheduler.close(PATIENCE).unwrap().is_clean());
    }
}

#[test]
fn fault_59_a_hung_job_does_not_hold_close_up_and_ends_its_thread_later() {
    let _turn = turn();
    let (tx, rx) = sender();
    let hold = Signal::new();
    let inner = hold.clone();
    let job = move |run: &Run| -> Result<(), BoxError> {
        let token = run.cancelled();
        tx.send("entered".to_owned())?;
        // It goes by no clock of ours, as a job that hangs in a driver does.
        let _ = SystemClock.wait(&inner, None);
        tx.send(format!("{:?} fired {}", run.check(), token.recv().is_err()))?;
        Ok(())
    };
    let scheduler = Scheduler::builder(job).concurrency(1).start().unwrap();
    scheduler.reconcile([Plan::new("a", "* * * * * *")]).unwrap();
    assert_eq!(rx.recv_timeout(PATIENCE).unwrap(), "entered");
    let report = scheduler.close(Duration::from_millis(50)).unwrap();
    assert_eq!(report.still_running.len(), 1, "{report:?}");
    assert_eq!(scheduler.health().threads_alive, 1);
    hold.notify();
    assert_eq!(rx.recv_timeout(PATIENCE).unwrap(), "Err(Cancelled) fired true");
    // Its thread ends by itself; a further close joins it.
    scheduler.close(PATIENCE).unwrap();
    assert_eq!(threads().unwrap_or_default(), Vec::<String>::new());
}

#[test]
fn a_hung_store_does_not_hold_close_up() {
    let _turn = turn();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let (tx, rx) = sender();
    let faulty = Faulty::new(MemLedger::new(), clock);
    let job = move |_: &Run| -> Result<(), BoxError> {
        tx.send("ran".to_owned())?;
        Ok(())
    };
    let scheduler = Scheduler::builder(job).ledger(faulty.clone()).start().unwrap();
    scheduler.reconcile([Plan::new("a", "* * * * * *")]).unwrap();
    rx.recv_timeout(PATIENCE).unwrap();
    faulty.on_any().always(Fault::Stall);
    while faulty.stalled() == 0 {
        std::thread::yield_now();
    }
    let report = scheduler.close(Duration::from_millis(50)).unwrap();
    assert!(scheduler.health().threads_alive >= 1, "{report:?}");
    faulty.heal();
    scheduler.close(PATIENCE).unwrap();
    assert_eq!(threads().unwrap_or_default(), Vec::<String>::new());
}

#[test]
fn close_from_a_job_from_many_threads_and_by_drop() {
    let _turn = turn();
    let (tx, rx) = sender();
    let handle: Arc<std::sync::OnceLock<Scheduler>> = Arc::default();
    let inner = Arc::clone(&handle);
    let job = move |_: &Run| -> Result<(), BoxError> {
        let answer = inner.get().ok_or("not yet")?.close(PATIENCE);
        tx.send(format!("{answer:?}"))?;
        Ok(())
    };
    let scheduler = Scheduler::builder(job).start().unwrap();
    assert!(handle.set(scheduler.clone()).is_ok());
    scheduler.reconcile([Plan::new("a", "* * * * * *")]).unwrap();
    assert_eq!(rx.recv_timeout(PATIENCE).unwrap(), format!("{:?}", Err::<(), _>(CloseError::FromInside)));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!(scheduler.close(PATIENCE).unwrap().is_clean()));
        }
    });
    assert_eq!(threads().unwrap_or_default(), Vec::<String>::new());

    // Dropped, it ends by itself, the loop on a thread of its own included.
    let (tx, rx) = sender();
    let job = move |_: &Run| -> Result<(), BoxError> {
        tx.send("ran".to_owned())?;
        Ok(())
    };
    let scheduler = Scheduler::builder(job).start().unwrap();
    scheduler.spawn_reconcile(Duration::from_secs(3600), || Ok(vec![Plan::new("a", "* * * * * *")])).unwrap();
    rx.recv_timeout(PATIENCE).unwrap();
    drop(scheduler);
    // The job, and with it the sender, goes with the last room.
    while rx.recv_timeout(PATIENCE).is_ok() {}
    assert_eq!(rx.recv_timeout(PATIENCE), Err(crossbeam_channel::RecvTimeoutError::Disconnected));
}

#[test]
fn start_reconcile_blocks_until_close() {
    let _turn = turn();
    let (tx, rx) = sender();
    let job = move |_: &Run| -> Result<(), BoxError> {
        tx.send("ran".to_owned())?;
        Ok(())
    };
    let scheduler = Scheduler::builder(job).start().unwrap();
    std::thread::scope(|scope| {
        let looping = scope
            .spawn(|| scheduler.start_reconcile(Duration::from_millis(20), || Ok(vec![Plan::new("a", "* * * * * *")])));
        rx.recv_timeout(PATIENCE).unwrap();
        scheduler.close(PATIENCE).unwrap();
        assert!(looping.join().unwrap().is_ok());
    });
}

#[test]
fn three_instances_on_one_ledger_start_each_slot_once() {
    let _turn = turn();
    let ledger = MemLedger::new().keeping(usize::MAX);
    let (tx, rx) = sender();
    let all: Vec<_> = (0..3)
        .map(|n| {
            let tx = tx.clone();
            let job = move |run: &Run| -> Result<(), BoxError> {
                tx.send(run.slot_key().to_string())?;
                Ok(())
            };
            let scheduler = Scheduler::builder(job).instance(format!("i{n}")).ledger(ledger.clone()).start().unwrap();
            scheduler.reconcile((0..30).map(|n| Plan::new(format!("p{n}"), "* * * * * *"))).unwrap();
            scheduler
        })
        .collect();
    drop(tx);
    let mut ran: Vec<_> = (0..120).map(|_| rx.recv_timeout(PATIENCE).unwrap()).collect();
    for scheduler in all {
        let report = scheduler.close(PATIENCE).unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert!(scheduler.health().threads_panicked.is_empty());
    }
    ran.extend(rx.try_iter());
    let all = ran.len();
    ran.sort();
    ran.dedup();
    assert_eq!(ran.len(), all);
    assert_eq!(threads().unwrap_or_default(), Vec::<String>::new());
}

/// Threads of which any may be late: a lost wake-up would show as a slot that waits for the next second or for ever.
#[test]
fn no_wake_up_is_lost_between_the_rooms() {
    let _turn = turn();
    let clock = FakeClock::threaded();
    let ledger = MemLedger::with_clock(Arc::new(clock.clone()));
    let ran = Arc::new(AtomicUsize::new(0));
    let inner = Arc::clone(&ran);
    let job = move |_: &Run| -> Result<(), BoxError> {
        inner.fetch_add(1, Ordering::SeqCst);
        Ok(())
    };
    let scheduler = Scheduler::builder(job).concurrency(4).clock(clock.clone()).ledger(ledger).start().unwrap();
    clock.await_threads(7);
    let plan = |n| Plan::new(format!("p{n}"), "* * * * * *").catch_up(CatchUp::None).overlap(Overlap::Skip);
    scheduler.reconcile((0..40).map(plan)).unwrap();
    clock.settle();
    for second in 1..=50 {
        clock.advance(secs(1));
        assert_eq!(ran.load(Ordering::SeqCst), 40 * second, "second {second}");
    }
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| scheduler.close(secs(5)));
        while !closing.is_finished() {
            clock.settle();
            std::thread::yield_now();
        }
        assert!(closing.join().unwrap().unwrap().is_clean());
    });
}
