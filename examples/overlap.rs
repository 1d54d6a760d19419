//! A slot falls due while one of its plan runs, on whichever instance: the four policies, on two instances in simulated
//! time. The plan fires each minute, and its runs take two and a half.

use std::error::Error;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use timertask::clock::Clock;
use timertask::{BoxError, MemLedger, Overlap, Plan, Run, Scheduler};
use timertask_testkit::FakeClock;

const MINUTE: Duration = Duration::from_secs(60);

/// What was started, and when: `hh:mm at hh:mm:ss`.
type Started = Arc<std::sync::Mutex<Vec<String>>>;

/// Works for two and a half minutes, and stops when it is told to.
fn job(clock: &FakeClock, started: &Started) -> impl Fn(&Run) -> Result<(), BoxError> + Send + Sync + 'static {
    let (clock, started) = (clock.clone(), Arc::clone(started));
    move |run| {
        let now = clock.now().to_datetime();
        let line = format!("{} at {}", run.trigger().format("%H:%M"), now.format("%T"));
        started.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        run.wait(2 * MINUTE + MINUTE / 2)?;
        Ok(())
    }
}

/// Six and a half minutes of two instances under this policy: what started, and how many ended in which way.
fn under(overlap: Overlap) -> Result<(Vec<String>, String), Box<dyn Error>> {
    let (clock, started) = (FakeClock::new(), Started::default());
    let ledger = MemLedger::with_clock(Arc::new(clock.clone()));
    let instance = |name: &str| -> Result<Scheduler, Box<dyn Error>> {
        let builder = Scheduler::builder(job(&clock, &started)).instance(name).clock(clock.view(name));
        let scheduler = builder.ledger(ledger.clone()).start()?;
        scheduler.reconcile([Plan::new("report", "* * * * *").overlap(overlap)])?.all_taken()?;
        Ok(scheduler)
    };
    let both = [instance("a")?, instance("b")?];
    clock.advance(6 * MINUTE + MINUTE / 2);
    let sum = |count: fn(&Scheduler) -> u64| both.iter().map(count).sum::<u64>();
    let told = format!("{} succeeded, {} cancelled", sum(|s| s.stats().succeeded), sum(|s| s.stats().cancelled));
    let lines = started.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok((lines, told))
}

fn main() -> Result<(), Box<dyn Error>> {
    // What falls due during a run is passed over, and is on record so.
    let (skip, told) = under(Overlap::Skip)?;
    println!("Skip           {skip:?}: {told}");
    assert_eq!(skip, ["00:01 at 00:01:00", "00:04 at 00:04:00"]);

    // Two at a time over both instances; the third is passed over.
    let (allow, told) = under(Overlap::Allow(2))?;
    println!("Allow(2)       {allow:?}: {told}");
    assert_eq!(allow.len(), 4);

    // The newest waits for the end of the run; older ones that waited are superseded.
    let (queue, told) = under(Overlap::QueueOne)?;
    println!("QueueOne       {queue:?}: {told}");
    assert_eq!(queue[..2], ["00:01 at 00:01:00", "00:03 at 00:03:30"]);

    // The run is told to stop with its next renewal, within ten seconds; the newer one starts when it has.
    let (cancel, told) = under(Overlap::CancelPrevious)?;
    println!("CancelPrevious {cancel:?}: {told}");
    assert_eq!((cancel.len(), told.as_str()), (6, "0 succeeded, 5 cancelled"));

    println!("ok: four policies, and no plan ran more often at once than it may");
    Ok(())
}
