//! An observer that counts with the crate `metrics`, for whichever exporter the service has installed; gauges from `stats()`.

use std::error::Error;
use std::sync::mpsc;
use std::time::Duration;

use metrics::{counter, gauge, histogram};
use metrics_util::MetricKind;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use timertask::{Backoff, Event, Jobs, Observer, Plan, RetryBudget, Run, RunRecord, Scheduler};

/// Labels are plan ids, outcomes and names of calls: a few for each plan. Never slots or runs, of which there is no end.
struct ToMetrics;

impl Observer for ToMetrics {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Due { slot } => counter!("timertask_due", "plan" => plan(slot)).increment(1),
            Event::Started { slot, lateness } => {
                counter!("timertask_started", "plan" => plan(slot)).increment(1);
                histogram!("timertask_lateness_seconds").record(lateness.as_secs_f64());
            }
            Event::TryFailed { slot, .. } => counter!("timertask_failed_tries", "plan" => plan(slot)).increment(1),
            // Succeeded, failed, orphaned, yielded, not started and why, … : the outcome is a label.
            Event::Record(record) => {
                counter!("timertask_runs", "plan" => plan(&record.slot), "outcome" => record.outcome.to_string())
                    .increment(1);
                if let Some(started_at) = record.started_at {
                    let took = record.ended_at.since(started_at).as_secs_f64();
                    histogram!("timertask_duration_seconds", "plan" => plan(&record.slot)).record(took);
                }
            }
            Event::Missed { plan, count, reason } => {
                let reason = reason.map_or_else(|| "made up".to_owned(), |reason| reason.to_string());
                counter!("timertask_missed", "plan" => plan.to_string(), "reason" => reason).increment(*count);
            }
            Event::Orphaned { slot, .. } => counter!("timertask_orphaned", "plan" => plan(slot)).increment(1),
            Event::Stuck(run) => counter!("timertask_stuck", "plan" => plan(&run.slot)).increment(1),
            Event::StoreFault { call, .. } => counter!("timertask_store_faults", "call" => *call).increment(1),
            _ => {}
        }
    }
}

fn plan(slot: &timertask::SlotKey) -> String {
    slot.plan.plan_str().to_owned()
}

/// What has a value at any time; a service calls this before each scrape.
fn gauges(scheduler: &Scheduler) {
    let stats = scheduler.stats();
    gauge!("timertask_stuck_workers").set(stats.stuck as f64);
    let waiting = [
        ("worker", stats.due_waiting + stats.queued),
        ("retry", stats.retries_waiting),
        ("plan", stats.gate_waiting),
        ("catch-up", stats.catch_up_waiting),
    ];
    waiting.iter().for_each(|(what, n)| gauge!("timertask_waiting", "for" => *what).set(*n as f64));
    gauge!("timertask_skew_seconds").set(stats.skew_micros as f64 / 1e6);
    for plan in scheduler.stats_by_plan() {
        let at = plan.last_success.map_or(0.0, |at| at.timestamp() as f64);
        gauge!("timertask_last_success_seconds", "plan" => plan.id.to_string()).set(at);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // Stands for an exporter.
    let recorder = DebuggingRecorder::new();
    let recorded = recorder.snapshotter();
    recorder.install()?;

    let (tell, told) = mpsc::channel();
    let jobs = Jobs::new()
        .on("good", |_: &Run| Ok(()))
        .on("shaky", |run: &Run| if run.tries() < 2 { Err("not yet".into()) } else { Ok(()) });
    let record = move |record: &RunRecord| drop(tell.send(record.slot.plan.plan_str().to_owned()));
    let scheduler = Scheduler::builder(jobs).observer(ToMetrics).on_record(record).start()?;
    let backoff = Backoff::Fixed(Duration::from_millis(20));
    let shaky = Plan::new("shaky", "@every 1s").retry(RetryBudget { backoff, ..RetryBudget::default() });
    scheduler.reconcile([Plan::new("good", "@every 1s"), shaky])?.all_taken()?;
    while told.recv_timeout(Duration::from_secs(10))? != "shaky" {}
    scheduler.close(Duration::from_secs(5))?;
    gauges(&scheduler);

    let mut seen = Vec::new();
    for (key, _, _, value) in recorded.snapshot().into_vec() {
        if let (MetricKind::Counter, DebugValue::Counter(n)) = (key.kind(), &value) {
            seen.push(format!("{} {n}", key.key()));
        }
        println!("{:?} {} {value:?}", key.kind(), key.key());
    }
    for series in ["timertask_runs", "timertask_failed_tries", "timertask_due"] {
        if !seen.iter().any(|line| line.contains(series) && line.contains("shaky")) {
            return Err(format!("{series} of the plan \"shaky\" was not counted: {seen:#?}").into());
        }
    }
    println!("ok: runs and tries are counted by plan and outcome");
    Ok(())
}
