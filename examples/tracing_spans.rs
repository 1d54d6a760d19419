//! Each try of a run in a span of the crate `tracing`, so that what a job says carries plan, slot and fence; events beside it.

use std::error::Error;
use std::io::{self, Write};
use std::sync::{Arc, PoisonError, mpsc};
use std::time::Duration;

use timertask::{Backoff, BoxError, Event, Job, Observer, Plan, RetryBudget, Run, RunRecord, Scheduler};
use tracing::{error, info, info_span, warn};
use tracing_subscriber::fmt::format::FmtSpan;

/// A job around a job. The span is entered on the worker's thread, where the job's own events are made.
struct Traced<J>(J);

impl<J: Job> Job for Traced<J> {
    fn run(&self, run: &Run) -> Result<(), BoxError> {
        let (plan, slot, fence) = (run.plan(), run.slot_key(), run.fence());
        let span = info_span!("run", plan, %slot, %fence, attempt = run.attempt(), tries = run.tries());
        let _entered = span.enter();
        self.0.run(run)
    }
}

/// What happens around the jobs, on other threads.
struct ToTracing;

impl Observer for ToTracing {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::TryFailed { slot, failed, next_in } => {
                let error = failed.error.as_deref().unwrap_or_default();
                warn!(%slot, tries = failed.number, error, ?next_in, "try failed");
            }
            Event::Record(record) => info!(slot = %record.slot, outcome = %record.outcome, "recorded"),
            Event::LeaseLost { slot } => error!(%slot, "lease lost"),
            Event::Stuck(run) => error!(slot = %run.slot, worker = run.worker, "stuck"),
            Event::StoreFault { call, error } => error!(call, %error, "store fault"),
            Event::Skew { micros, beyond } => warn!(micros, beyond, "skew"),
            _ => {}
        }
    }
}

fn report(run: &Run) -> Result<(), BoxError> {
    if run.tries() < 2 {
        return Err("no mail server".into());
    }
    info!("sent");
    Ok(())
}

/// Takes what is written, for the check below.
#[derive(Clone, Default)]
struct Page(Arc<std::sync::Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let page = Page::default();
    let writer = page.clone();
    // A service would export its spans; here they are written down when they close, with the time they took.
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_span_events(FmtSpan::CLOSE)
        .with_writer(move || writer.clone())
        .init();

    let (tell, told) = mpsc::channel();
    let record = move |record: &RunRecord| drop(tell.send(record.clone()));
    let scheduler = Scheduler::builder(Traced(report)).observer(ToTracing).on_record(record).start()?;
    let backoff = Backoff::Fixed(Duration::from_millis(20));
    let plan = Plan::new("report", "@every 1s").retry(RetryBudget { backoff, ..RetryBudget::default() });
    scheduler.reconcile([plan])?.all_taken()?;
    let slot = told.recv_timeout(Duration::from_secs(10))?.slot.to_string();
    scheduler.close(Duration::from_secs(5))?;

    let page = String::from_utf8(page.0.lock().unwrap_or_else(PoisonError::into_inner).clone())?;
    print!("{page}");
    let line = |words: &[&str]| page.lines().any(|line| line.contains(&slot) && words.iter().all(|w| line.contains(w)));
    let wanted: [&[&str]; 4] = [
        &["run{plan=\"report\"", "tries=1", "close"],
        &["try failed", "no mail server"],
        &["run{plan=\"report\"", "tries=2", "sent"],
        &["recorded", "succeeded"],
    ];
    if let Some(words) = wanted.iter().find(|words| !line(words)) {
        return Err(format!("no line of slot {slot} says {words:?}").into());
    }
    println!("ok: what a job says stands in the span of its try");
    Ok(())
}
