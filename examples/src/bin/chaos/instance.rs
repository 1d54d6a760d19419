//! One process: a service whose jobs write down what they do, on a clock that can be set wrong.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGTERM, SIGXFSZ};
use timertask::clock::{Clock, Signal, SystemClock, Until};
use timertask::seam::Ending;
use timertask::{BoxError, Event, Job, Observer, PlanStatus, Run, RunOutcome, RunRecord, Scheduler};

use crate::Result;
use crate::args::Instance;
use crate::careless::Careless;
use crate::clock::OffsetClock;
use crate::journal::{Left, Pen, Start, What};
use crate::plans::{Table, builder};
use crate::store;

/// Runs until it is told to stop.
pub(crate) fn run(args: &Instance) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGTERM, Arc::clone(&stop))?;
    // A file that may not grow is an error of the write, and not the end of the process.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    std::thread::Builder::new().name("parent".to_owned()).spawn(end_with_parent)?;

    let pen = Pen { node: args.node, life: args.life };
    let scheduler = loop {
        match start(args, pen) {
            Ok(scheduler) => break scheduler,
            Err(error) => note(format_args!("cannot start: {error}")),
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        nap();
    };
    let table = args.folder.join("plans");
    scheduler.spawn_reconcile(Duration::from_secs(1), move || Ok(Table::read(&table)?.plans()))?;
    let mut up = false;
    while !stop.load(Ordering::Relaxed) {
        nap();
        let plans = scheduler.plans()?;
        if !up && !plans.is_empty() && plans.iter().all(|plan| plan.status == PlanStatus::Active) {
            up = true;
            pen.write(What::Up);
        }
    }
    // Not long enough for the longest job: it is told to stop then.
    let left = scheduler.close(Duration::from_secs(2))?;
    if left.is_clean() { Ok(()) } else { Err(format!("left behind: {left:?}").into()) }
}

fn start(args: &Instance, pen: Pen) -> Result<Scheduler> {
    let clock = Arc::new(OffsetClock::open(&args.folder.join("clocks"), args.node)?);
    let mut ledger = store::open(args.redis.as_deref(), &args.folder, clock.clone())?;
    if args.careless {
        ledger = Arc::new(Careless(ledger));
    }
    let scheduler = builder(Work(pen))
        .clock(clock)
        .ledger(ledger)
        .namespace(store::NAMESPACE)
        .instance(format!("node-{}", pen.node))
        .observer(Notes)
        .on_record(move |record| recorded(pen, record))
        .start()?;
    Ok(scheduler)
}

/// The jobs.
struct Work(Pen);

impl Job for Work {
    fn run(&self, run: &Run) -> std::result::Result<(), BoxError> {
        let start = Start::of(run);
        self.0.write(What::Entered(start.clone()));
        let done = work(run);
        let left = match &done {
            Ok(()) => Left::Succeeded,
            Err(_) if run.check().is_err() => Left::Cancelled,
            Err(_) => Left::Failed,
        };
        self.0.write(What::Left(start, left));
        done
    }
}

fn work(run: &Run) -> std::result::Result<(), BoxError> {
    match run.job() {
        "quick" => {}
        "work" => run.wait(Duration::from_millis(3_000))?,
        "long" => run.wait(Duration::from_secs(12))?,
        "flaky" if run.tries() == 1 => return Err("the first try fails".into()),
        "flaky" => {}
        other => return Err(format!("no job {other:?}").into()),
    }
    Ok(())
}

/// An end that the ledger has taken, as this instance was told.
fn recorded(pen: Pen, record: &RunRecord) {
    let left = match record.outcome {
        RunOutcome::Ended(Ending::Succeeded) => Left::Succeeded,
        RunOutcome::Ended(Ending::Failed) => Left::Failed,
        RunOutcome::Ended(Ending::Cancelled) => Left::Cancelled,
        _ => return,
    };
    let start = Start {
        plan: record.slot.plan.plan_str().to_owned(),
        at: record.slot.at.as_secs(),
        fence: record.fence.as_u64(),
        attempt: record.attempt,
        tries: record.tries,
    };
    pen.write(What::Recorded(start, left));
}

/// What somebody who reads the log of a failed run wants to know.
struct Notes;

impl Observer for Notes {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Record(RunRecord { outcome: RunOutcome::Yielded | RunOutcome::Ended(_), .. })
            | Event::Started { .. }
            | Event::Reconciled(_) => {}
            other => note(format_args!("{other:?}")),
        }
    }
}

/// A line for the process's log. On a full disk it is lost, which is no reason to panic.
fn note(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{} {text}", SystemClock.now());
}

fn nap() {
    let until = SystemClock.monotonic().saturating_add(Duration::from_millis(200));
    let _ = SystemClock.wait(&Signal::new(), Some(Until::Monotonic(until)));
}

/// The parent holds the other end of standard input, and never writes: when that ends, the parent has ended.
fn end_with_parent() {
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(3);
}
