//! The process that runs a job is killed, or stands still and comes back: `Record` and `Rerun`, on three instances in
//! simulated time.

use std::error::Error;
use std::time::Duration;

use timertask::seam::{Ending, SlotState};
use timertask::{BoxError, OnOrphan, Plan, Run, RunOutcome, Timestamp};
use timertask_testkit::{Cluster, Left};

const MINUTE: Duration = Duration::from_secs(60);

/// Works for ten minutes; asks before it goes on whether it may.
fn job(run: &Run) -> Result<(), BoxError> {
    run.wait(10 * MINUTE)?;
    run.check()?;
    Ok(())
}

/// Three instances, one of which has just begun to run the slot of one o'clock, and which one.
fn three(on_orphan: OnOrphan) -> (Cluster, usize, Timestamp) {
    let plan = Plan::new("report", "@hourly").on_orphan(on_orphan);
    let mut cluster = Cluster::builder().instances(3).seed(1).plans([plan]).job(job).build();
    cluster.advance(60 * MINUTE);
    let start = cluster.starts()[0].clone();
    (cluster, start.instance, start.slot.at.timestamp())
}

fn main() -> Result<(), Box<dyn Error>> {
    // Killed: within a lease (30 s) and three sweeps (10 s each) the slot is on record as orphaned, and nobody starts it again.
    let (mut cluster, runner, one) = three(OnOrphan::Record);
    cluster.kill(runner);
    cluster.advance(MINUTE);
    cluster.expect_state("report", one.trigger(), SlotState::Ended(Ending::Orphaned));
    cluster.advance(30 * MINUTE);
    cluster.expect_starts("report", 1);
    cluster.check();
    println!("Record: orphaned a minute after the kill, started once");

    // May it run again, another instance does, under a higher fence.
    let (mut cluster, runner, one) = three(OnOrphan::Rerun { max: 1 });
    cluster.kill(runner);
    cluster.advance(30 * MINUTE);
    cluster.expect_state("report", one.trigger(), SlotState::Ended(Ending::Succeeded));
    let starts = cluster.starts();
    assert!(starts.len() == 2 && starts[1].fence > starts[0].fence && starts[1].instance != runner);
    println!(
        "Rerun:  instance {} under fence {}, then {} under {}",
        runner, starts[0].fence, starts[1].instance, starts[1].fence
    );

    // Killed again and again it is started 1 + max times, and then orphaned.
    let (mut cluster, runner, one) = three(OnOrphan::Rerun { max: 1 });
    cluster.kill(runner);
    cluster.advance(2 * MINUTE);
    let second = cluster.starts().last().ok_or("it was started again")?.instance;
    cluster.kill(second);
    cluster.advance(30 * MINUTE);
    cluster.expect_starts("report", 2);
    cluster.expect_state("report", one.trigger(), SlotState::Ended(Ending::Orphaned));
    cluster.check();

    // Frozen, as by a stopped virtual machine, and thawed when another one has long run the slot: the first thing that the
    // job hears is that its lease is lost. Its end is refused, and noted with the instance itself.
    let (mut cluster, zombie, one) = three(OnOrphan::Rerun { max: 1 });
    cluster.freeze(zombie);
    cluster.advance(30 * MINUTE);
    cluster.thaw(zombie);
    cluster.advance(MINUTE);
    cluster.expect_state("report", one.trigger(), SlotState::Ended(Ending::Succeeded));
    let first = &cluster.starts()[0];
    assert!(matches!(&first.left, Some((_, Left::Failed(why))) if why.contains("lease")), "{first}");
    let noted = cluster.scheduler(zombie).run_history(None);
    assert!(noted.iter().any(|record| record.fence == first.fence && record.outcome == RunOutcome::LeaseLost));
    cluster.check();
    println!("zombie: {first}");

    println!("ok: two starts at most, one end, and the dead are told that they are dead");
    Ok(())
}
