//! One process of the service: what a user would write, and all that is needed for its part.

use std::path::Path;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use timertask::{BoxError, Jobs, Run, Scheduler};

use crate::Result;
use crate::app::{App, Written};
use crate::args::Args;
use crate::store::Store;

/// What the job that fails at times says,
pub(crate) const FLAKY: &str = "the mail server said no";
/// and the one that panics at times.
pub(crate) const PANICKY: &str = "index out of bounds, as it were";

/// Runs until it is told to stop.
pub(crate) fn run(args: &Args, number: usize) -> Result<()> {
    // The panics here are part of the show, and recorded; they need no trace on the screen.
    std::panic::set_hook(Box::new(|_| {}));
    let mut signals = Signals::new([SIGINT, SIGTERM])?;

    let path = &args.path;
    let scheduler = Store::open(args)?
        .share(Scheduler::builder(jobs(path)))
        .instance(format!("node-{number}"))
        .concurrency(6)
        .start()?;
    let source = path.clone();
    scheduler.spawn_reconcile(Duration::from_secs(1), move || App::open(&source)?.plans())?;

    signals.forever().next();
    let left = scheduler.close(Duration::from_secs(10))?;
    if left.is_clean() { Ok(()) } else { Err(format!("left behind: {left:?}").into()) }
}

/// The jobs, by the names that the table of plans uses.
fn jobs(path: &Path) -> Jobs {
    let write = {
        let path = path.to_owned();
        move |run: &Run| -> std::result::Result<(), BoxError> {
            match App::open(&path)?.write(run)? {
                Written::Done => Ok(()),
                Written::RefusedByFence => Err("a later run has been here".into()),
            }
        }
    };
    let (flaky, panicky, slow) = (write.clone(), write.clone(), write.clone());
    Jobs::new()
        .on("insert", write)
        .on("flaky", move |run: &Run| {
            flaky(run)?;
            if run.slot_key().at.as_secs() % 3 == 0 { Err(FLAKY.into()) } else { Ok(()) }
        })
        .on("panicky", move |run: &Run| {
            panicky(run)?;
            assert!(run.slot_key().at.as_secs() % 5 != 0, "{PANICKY}");
            Ok(())
        })
        .on("slow", move |run: &Run| {
            slow(run)?;
            run.wait(Duration::from_millis(2_500))?;
            Ok(())
        })
}
