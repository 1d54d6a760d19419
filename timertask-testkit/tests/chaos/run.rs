//! One random run of a cluster, from a seed. Several test programs take it in.
#![allow(dead_code, reason = "each of them uses a part of it")]

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use timertask_core::clock::Clock;
use timertask_core::operate::Standing;
use timertask_core::seam::{Overlap, Retention, Store, StoreErrorKind};
use timertask_core::{
    Asked, Backfill, BoxError, CatchUp, MemLedger, OnOrphan, Plan, RequestId, RetryBudget, Run, RunNow,
};
use timertask_testkit::{Call, Cluster, FakeClock, Fault, Summary, Trace};

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Numbers for what happens when, apart from those of the cluster itself.
struct Dice(FakeClock);

impl Dice {
    fn below(&self, n: u64) -> u64 {
        self.0.entropy() % n
    }

    fn instance(&self, cluster: &Cluster) -> usize {
        usize::try_from(self.below(cluster.instances() as u64)).unwrap_or(0)
    }
}

/// The plans, some of them in one of two versions.
fn plans(version: u64) -> Vec<Plan> {
    let budget = RetryBudget { attempts: 2, timeout: secs(20), backoff: secs(3).into(), slack: secs(10) };
    let edited = if version & 1 == 0 { "*/2 * * * *" } else { "*/3 * * * *" };
    let mut plans = vec![
        Plan::new("minutely", "* * * * *"),
        Plan::new("both", "* * * * *").overlap(Overlap::Allow(2)),
        Plan::new("often", "@every 20s").start_window(secs(10)),
        Plan::new("all", "*/2 * * * *").catch_up(CatchUp::All { cap: 5 }),
        Plan::new("none", "*/2 * * * *").catch_up(CatchUp::None),
        Plan::new("again", "*/2 * * * *").on_orphan(OnOrphan::Rerun { max: 2 }),
        Plan::new("budget", "*/3 * * * *").retry(budget),
        Plan::new("spread", "*/5 * * * *").spread(secs(30)),
        Plan::new("queued", "* * * * *").overlap(Overlap::QueueOne),
        Plan::new("cancels", "* * * * *").overlap(Overlap::CancelPrevious).catch_up(CatchUp::All { cap: 3 }),
        Plan::new("queued, once", "*/2 * * * *").overlap(Overlap::QueueOne).catch_up(CatchUp::None),
        Plan::new("edited", edited),
    ];
    if version & 2 == 0 {
        plans.push(Plan::new("at times", "* * * * *"));
    }
    plans
}

/// Does what the slot's own number says: returns at once, takes a while, fails, panics, or does not listen.
fn job(clock: FakeClock) -> impl Fn(&Run) -> Result<(), BoxError> + Send + Sync + 'static {
    move |run| match clock.entropy() % 16 {
        0..=7 => Ok(()),
        8..=10 => Ok(run.wait(secs(clock.entropy() % 20))?),
        11 => Ok(run.wait(secs(60 + clock.entropy() % 60))?),
        12 | 13 => Err("failed".into()),
        // Not `panic!`: nobody wants to read it.
        14 => resume_unwind(Box::new("panicked")),
        _ => {
            let _ = run.wait(secs(clock.entropy() % 90));
            Ok(())
        }
    }
}

/// A fault for the next few calls.
fn fault(dice: &Dice) -> Fault {
    match dice.below(8) {
        0 => Fault::Error(StoreErrorKind::Busy),
        1 => Fault::LostAnswer,
        2 => Fault::LostRequest,
        3 => Fault::Straggler(secs(dice.below(100))),
        4 => Fault::Slow(secs(dice.below(40))),
        5 => Fault::SlowAnswer(secs(dice.below(40))),
        6 => Fault::Duplicate,
        _ => Fault::DuplicateLater(secs(dice.below(200))),
    }
}

fn befall(cluster: &mut Cluster, dice: &Dice, version: &mut u64) {
    let index = dice.instance(cluster);
    if !cluster.lives(index) {
        return if dice.below(2) == 0 {
            cluster.restart(index)
        };
    }
    match dice.below(23) {
        20 | 21 => run_now(cluster, index, dice),
        22 => backfill(cluster, index, dice),
        0 => cluster.kill(index),
        1 => cluster.restart(index),
        2 if !cluster.view(index).is_frozen() => cluster.stop(index, secs(dice.below(30))),
        3 => cluster.freeze(index),
        4 => cluster.suspend(index),
        5 | 6 => cluster.thaw(index),
        7 => cluster.cut_off(index),
        8 => cluster.reconnect(index),
        9 => cluster.skew(index, TimeDelta::milliseconds(4000 - i64::try_from(dice.below(8000)).unwrap_or(0))),
        10 => {
            *version = dice.below(4);
            cluster.reconcile(plans(*version));
        }
        // In the midst of a rolling deploy.
        16 | 17 => cluster.reconcile_on(index, plans(dice.below(4))),
        11 => {
            // A crash or a stop in the midst of a write.
            let view = cluster.view(index).clone();
            let call = Call::WRITES[usize::try_from(dice.below(4)).unwrap_or(0)];
            let blow = dice.below(2);
            let hit = move || if blow == 0 { view.kill() } else { view.freeze() };
            let hit = if dice.below(2) == 0 { Fault::before(hit) } else { Fault::after(hit) };
            cluster.store_of(index).on(call).nth(1 + dice.below(3), hit);
        }
        12 => cluster.store_of(index).on_any().chance(0.2, fault(dice)),
        13 => cluster.store_of(index).heal(),
        14 => cluster.step_wall(TimeDelta::seconds(1800 - i64::try_from(dice.below(3600)).unwrap_or(0))),
        15 => cluster.suspend_all(secs(dice.below(600))),
        _ => {
            let call = Call::ALL[usize::try_from(dice.below(6)).unwrap_or(0)];
            cluster.store_of(index).on(call).next(1 + dice.below(4), fault(dice));
        }
    }
}

/// An operator asks an instance for a run, under an id that may have been used before, and may be refused.
fn run_now(cluster: &mut Cluster, index: usize, dice: &Dice) {
    let view = cluster.view(index);
    if !view.is_alive() || view.is_frozen() {
        return;
    }
    let id = RequestId::new(format!("request {}", dice.below(6)));
    let how = RunNow::new(operator()).within(secs(dice.below(30)));
    let how = if let Ok(id) = id { how.id(id) } else { how };
    let how = if dice.below(2) == 0 { how.force() } else { how };
    let plan = ["minutely", "again", "budget", "spread"][usize::try_from(dice.below(4)).unwrap_or(0)];
    let before = cluster.starts().len();
    match cluster.scheduler(index).clone().run_now(plan, &how) {
        Ok(accepted) if accepted.standing == Standing::Started => {
            assert!(cluster.starts().len() > before, "{} was told to be started, and was not", accepted.slot);
        }
        Ok(_) | Err(_) => {}
    }
}

/// An operator asks an instance for slots of the last minutes.
fn backfill(cluster: &mut Cluster, index: usize, dice: &Dice) {
    let view = cluster.view(index);
    if !view.is_alive() || view.is_frozen() {
        return;
    }
    let to = cluster.now().to_datetime();
    let from = to - TimeDelta::seconds(i64::try_from(dice.below(1800)).unwrap_or(0));
    let plan = ["minutely", "both", "none", "again", "spread"][usize::try_from(dice.below(5)).unwrap_or(0)];
    let what = Backfill::new(from, to, operator()).cap(Backfill::MAX);
    let _ = cluster.scheduler(index).clone().backfill(plan, &what);
}

fn operator() -> Asked {
    match Asked::new("chaos", "a trace") {
        Ok(asked) => asked,
        Err(error) => panic!("{error}"),
    }
}

/// Everybody is well again, with the same plans, for long enough.
fn recover(cluster: &mut Cluster, version: u64) {
    for index in 0..cluster.instances() {
        if cluster.lives(index) && cluster.view(index).is_alive() {
            cluster.store_of(index).heal();
            cluster.reconnect(index);
            cluster.skew(index, TimeDelta::zero());
            cluster.thaw(index);
        } else {
            cluster.restart(index);
        }
    }
    cluster.reconcile(plans(version));
    cluster.advance(secs(900));
}

/// What a run came to: what was done in which order, what the last check counted, how often something befell it.
pub(crate) type Outcome = (Trace, Summary, u64);

/// A run on the built-in ledger.
pub(crate) fn trace(seed: u64) -> Outcome {
    trace_on(seed, |clock| MemLedger::with_clock(Arc::new(clock)).keeping(usize::MAX))
}

/// A run on a ledger of one's own; clones share it.
pub(crate) fn trace_on<L: Store + Clone + 'static>(seed: u64, store: impl FnOnce(FakeClock) -> L) -> Outcome {
    let clock = FakeClock::seeded(seed);
    let ledger = store(clock.clone());
    trace_with(seed, clock, move |_| ledger.clone())
}

/// A run on a ledger that each instance opens with its own clock.
pub(crate) fn trace_opened<L: Store + 'static>(
    seed: u64,
    open: impl Fn(Arc<dyn Clock>) -> L + Send + 'static,
) -> Outcome {
    trace_with(seed, FakeClock::seeded(seed), open)
}

fn trace_with<L: Store + 'static>(
    seed: u64,
    clock: FakeClock,
    open: impl Fn(Arc<dyn Clock>) -> L + Send + 'static,
) -> Outcome {
    let dice = Dice(FakeClock::seeded(!seed));
    let n = usize::try_from(2 + dice.below(3)).unwrap_or(2);
    let mut version = 0;
    let keep = Retention { age: Some(secs(300)), count: Some(20), keep_last: 2 };
    let mut cluster = Cluster::builder()
        .clock(clock.clone())
        .instances(n)
        .store(open)
        .plans(plans(version))
        .job(job(clock))
        .configure(move |_, builder| builder.retention(keep))
        .build();
    let steps = 10 + dice.below(40);
    for _ in 0..steps {
        cluster.advance(Duration::from_millis(dice.below(60_000)));
        befall(&mut cluster, &dice, &mut version);
        // Most promises hold at each instant.
        let (_, violations) = cluster.violations();
        if let Some(first) = violations.first() {
            println!("{}", cluster.trace());
            panic!("{first} (and {} more), at {}", violations.len() - 1, cluster.now());
        }
    }
    recover(&mut cluster, version);
    let summary = cluster.check();
    // Nothing starves behind what its plan runs now.
    let oldest = summary.oldest_pending.map_or(cluster.now(), |at| at.timestamp());
    assert!(cluster.now().since(oldest) <= secs(420), "pending since {oldest}, at {}", cluster.now());
    (cluster.trace(), summary, steps)
}
