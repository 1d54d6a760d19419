//! An observer that counts, and shows its counters in the text form that Prometheus reads.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, PoisonError, mpsc};
use std::time::Duration;

use timertask::{Event, Jobs, Observer, Plan, Run, Scheduler};

/// Counters by series.
#[derive(Default)]
struct Metrics(std::sync::Mutex<BTreeMap<String, u64>>);

impl Metrics {
    fn count(&self, name: &str, labels: &[(&str, &str)]) {
        let labels: Vec<_> = labels.iter().map(|(label, value)| format!("{label}={value:?}")).collect();
        let series = format!("timertask_{name}_total{{{}}}", labels.join(","));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(series).or_default() += 1;
    }

    /// What a handler of /metrics would answer.
    fn render(&self) -> String {
        let counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counters.iter().map(|(series, count)| format!("{series} {count}\n")).collect()
    }
}

impl Observer for Metrics {
    /// Called on the engine's threads, so it is quick and waits for nothing. Later versions may know more events.
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Started { slot, .. } => self.count("started", &[("plan", slot.plan.plan_str())]),
            Event::Record(record) => {
                let outcome = record.outcome.to_string();
                self.count("runs", &[("plan", record.slot.plan.plan_str()), ("outcome", &outcome)]);
            }
            Event::StoreFault { call, .. } => self.count("store_faults", &[("call", call)]),
            Event::LeaseLost { .. } => self.count("leases_lost", &[]),
            Event::Orphaned { .. } => self.count("orphaned", &[]),
            _ => {}
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // What the panic below would print is of no interest here.
    std::panic::set_hook(Box::new(|_| {}));

    let metrics = Arc::new(Metrics::default());
    let (tell, told) = mpsc::channel();
    // A router: a plan names its job, by default with its own id.
    let jobs = Jobs::new()
        .on("good", |_: &Run| Ok(()))
        .on("bad", |_: &Run| Err("the mail server is down".into()))
        .on("ugly", |_: &Run| std::panic::panic_any("a bug in the job"));
    let scheduler = Scheduler::builder(jobs)
        .concurrency(3)
        .observer(Arc::clone(&metrics))
        // For those who only want the records, say in a table of their own: each once.
        .on_record(move |record| drop(tell.send(record.clone())))
        .start()?;
    scheduler.reconcile(["good", "bad", "ugly"].map(|id| Plan::new(id, "@every 1s")))?;

    for _ in 0..6 {
        let record = told.recv_timeout(Duration::from_secs(10))?;
        println!("{}: {} {}", record.slot, record.outcome, record.detail.as_deref().unwrap_or_default());
    }
    scheduler.close(Duration::from_secs(5))?;

    let page = metrics.render();
    print!("\n{page}\n");
    for (plan, outcome) in [("good", "succeeded"), ("bad", "failed"), ("ugly", "failed")] {
        if !page.contains(&format!("timertask_runs_total{{plan={plan:?},outcome={outcome:?}}}")) {
            return Err(format!("no run of {plan:?} was counted as {outcome}").into());
        }
    }
    println!("ok: good, bad and ugly runs are counted");
    Ok(())
}
