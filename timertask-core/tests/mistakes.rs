//! What newcomers get wrong, and what they are told.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use timertask_core::{BoxError, IdError, Jobs, MemLedger, Plan, Run, Scheduler, StartError};
use timertask_testkit::FakeClock;

/// The log of this test program; a line begins with the instance's label.
struct Lines(std::sync::Mutex<Vec<String>>);

static LINES: Lines = Lines(std::sync::Mutex::new(Vec::new()));

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        self.0.lock().unwrap().push(format!("{} {}", record.level(), record.args()));
    }
    fn flush(&self) {}
}

/// From here on all is logged.
fn listen() {
    let _ = log::set_logger(&LINES);
    log::set_max_level(log::LevelFilter::Debug);
}

/// What `instance` logged at this level.
fn logged(level: &str, instance: &str) -> Vec<String> {
    let head = format!("{level} {instance}: ");
    LINES.0.lock().unwrap().iter().filter_map(|line| line.strip_prefix(&head)).map(str::to_owned).collect()
}

fn quiet(_: &Run) -> Result<(), BoxError> {
    Ok(())
}

#[test]
fn an_unknown_job_is_told_with_the_names_that_there_are() {
    let said = |jobs: Jobs| {
        let scheduler = Scheduler::builder(jobs).clock(FakeClock::new()).start().unwrap();
        scheduler.reconcile([Plan::new("nightly", "@daily").job("raport")]).unwrap().failed[0].to_string()
    };
    assert_eq!(
        said(Jobs::new().on("report", quiet).on("mail", quiet)),
        "plan \"nightly\": unknown job \"raport\"; there are \"mail\", \"report\""
    );
    assert_eq!(
        said(Jobs::new()),
        "plan \"nightly\": unknown job \"raport\"; there is none yet, add it with `Jobs::on`"
    );
    let many = (0..20).fold(Jobs::new(), |jobs, i| jobs.on(format!("job-{i:02}"), quiet));
    let said = said(many);
    assert!(said.contains("\"job-07\" and 12 more") && !said.contains("job-08"), "{said}");
}

#[test]
fn a_report_with_failures_can_be_had_as_an_error() {
    let scheduler = Scheduler::builder(quiet).clock(FakeClock::new()).start().unwrap();
    let good = scheduler.reconcile([Plan::new("a", "@daily")]).unwrap();
    assert_eq!(good.clone().all_taken().unwrap(), good);

    let bad = scheduler.reconcile([Plan::new("a", "99 * * * *"), Plan::new("b", "@daily").zone("Berlin")]).unwrap();
    let error = bad.all_taken().unwrap_err();
    let told = "plan \"a\": minute (column 1): out of range: found `99`, allowed: 0-59; the version that was installed \
                before goes on\nplan \"b\": unknown zone \"Berlin\"; allowed are IANA names such as \"Europe/Berlin\"";
    assert_eq!(error.to_string(), told);
    assert_eq!(format!("{error:?}"), told, "what `main` prints");
}

#[test]
fn a_row_that_stays_bad_is_warned_of_once() {
    listen();
    let clock = FakeClock::new();
    let scheduler = Scheduler::builder(quiet).instance("rows").clock(clock.clone()).start().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let inner = Arc::clone(&asked);
    let source = move || {
        let spec = if inner.fetch_add(1, Ordering::SeqCst) < 5 { "61 * * * *" } else { "62 * * * *" };
        Ok(vec![Plan::new("good", "@daily"), Plan::new("bad", spec)])
    };
    scheduler.spawn_reconcile(Duration::from_secs(1), source).unwrap();
    clock.advance(Duration::from_secs(9));
    assert_eq!(asked.load(Ordering::SeqCst), 10);

    let warned = logged("WARN", "rows");
    assert_eq!(warned.len(), 2, "once for each mistake: {warned:?}");
    assert!(warned[0].contains("`61`") && warned[1].contains("`62`"), "{warned:?}");
    let told = logged("INFO", "rows").into_iter().filter(|line| line.contains("failed")).count();
    assert_eq!(told, 2, "the report is news as often");
}

#[test]
fn an_interval_of_zero_does_not_spin() {
    let clock = FakeClock::new();
    let scheduler = Scheduler::builder(quiet).clock(clock.clone()).start().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let inner = Arc::clone(&asked);
    scheduler
        .spawn_reconcile(Duration::ZERO, move || {
            inner.fetch_add(1, Ordering::SeqCst);
            Ok(vec![])
        })
        .unwrap();
    clock.advance(Duration::from_secs(10));
    assert_eq!(asked.load(Ordering::SeqCst), 11);
}

#[test]
fn a_scheduler_that_is_dropped_says_so() {
    listen();
    let start = |name: &str| Scheduler::builder(quiet).instance(name).clock(FakeClock::new()).start().unwrap();
    let about = |name: &str| logged("INFO", name).into_iter().filter(|line| line.contains("dropped")).count();
    drop(start("dropped"));
    assert_eq!(about("dropped"), 1);

    let closed = start("closed");
    closed.close(Duration::from_secs(1)).unwrap();
    drop(closed);
    assert_eq!(about("closed"), 0);
}

#[test]
fn an_error_and_its_source_do_not_say_the_same() {
    let error = Scheduler::builder(quiet).namespace("my service").start().unwrap_err();
    assert!(matches!(error, StartError::Id(IdError::Character { .. })), "{error:?}");
    assert!(error.to_string().starts_with("namespace has the character U+0020"), "{error}");
    assert!(std::error::Error::source(&error).is_none());
}

#[test]
fn a_record_reads_as_a_line() {
    let clock = FakeClock::new();
    let ledger = MemLedger::with_clock(Arc::new(clock.clone()));
    let job = |_: &Run| Err("the disk is full".into());
    let scheduler = Scheduler::builder(job).clock(clock.clone()).ledger(ledger).start().unwrap();
    scheduler.reconcile([Plan::new("a", "* * * * *")]).unwrap();
    clock.advance(Duration::from_secs(60));
    let lines: Vec<_> = scheduler.run_history(None).iter().map(ToString::to_string).collect();
    assert_eq!(lines, ["timertask/cron/exec/a/2026-01-01T00:01:00Z: failed: the disk is full"]);
}
