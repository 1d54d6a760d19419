//! A server that is gone for a while: nothing starts, nothing grows, and afterwards all is as if it had never been away,
//! but for what was missed, which each plan's policy decides.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use timertask_core::seam::{Ending, Ledger, RunKind, SlotRow, SlotState};
use timertask_core::time::Trigger;
use timertask_core::{CatchUp, Overlap, Plan, Run, Scheduler};
use timertask_redis::Redis;

use crate::common::*;
use crate::service::*;

/// In this variable a test tells the process that it starts for how many seconds.
const OUTAGE: &str = "TIMERTASK_TEST_OUTAGE";

#[test]
fn fault_49_an_outage_starts_nothing_grows_nothing_and_leaves_nothing_open() {
    alone("fault_49::fault_49_an_outage_starts_nothing_grows_nothing_and_leaves_nothing_open", &[4]);
}

/// Forty seconds, and ten minutes where there is time.
#[test]
#[ignore = "takes a minute or more; scripts/soak runs it"]
fn soak_outages_of_a_server() {
    let seconds = std::env::var("TIMERTASK_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(0_u64);
    let outages: &[u64] = if seconds >= 600 { &[40, 600] } else { &[40] };
    alone("fault_49::soak_outages_of_a_server", outages);
}

/// Carries each outage out in a process that does nothing else, since its memory is looked at.
fn alone(test: &str, outages: &[u64]) {
    if let Ok(seconds) = std::env::var(OUTAGE) {
        return outage(Duration::from_secs(seconds.parse().unwrap()));
    }
    for seconds in outages {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", test, "--nocapture", "--include-ignored"]).env(OUTAGE, seconds.to_string());
        let output = child.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        print!("{said}");
    }
}

/// Plans whose slots can be late by two seconds; what is later was missed.
const PLANS: [(&str, CatchUp); 3] =
    [("none", CatchUp::None), ("latest", CatchUp::Latest), ("all", CatchUp::All { cap: 1_000 })];
/// Plans beside them, so that what grows with each slot would show.
const CROWD: usize = 500;

fn outage(length: Duration) {
    let mut server = Server::start(APPENDS);
    let entered = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&entered);
    let job = move |_: &Run| {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(())
    };
    let entered = || entered.load(Ordering::SeqCst);
    let options = Redis::options().connect_timeout(PATIENT).response_timeout(PATIENT);
    let store = options.connect(&server.url()).unwrap();
    let builder = Scheduler::builder(job).concurrency(CROWD).start_window(Duration::from_secs(2));
    let scheduler = builder.store(store).start().unwrap();
    let plan = |id: String, policy| Plan::new(id, "@every 1s").catch_up(policy).overlap(Overlap::Allow(1_000));
    let crowd = (0..CROWD).map(|n| plan(format!("crowd-{n}"), CatchUp::None));
    let named = PLANS.iter().map(|(id, policy)| plan((*id).to_owned(), *policy));
    scheduler.reconcile(named.chain(crowd)).unwrap();
    until(|| (entered() > 3 * CROWD as u64).then_some(()));

    let gone = server.connect().plan(&[]).unwrap().now.trigger();
    server.kill();
    until_faults(&scheduler, 2);
    let (before, memory) = (entered(), resident());
    wait(length);
    assert_eq!(entered(), before, "nothing starts meanwhile");
    let grown = resident().saturating_sub(memory);
    // A plan's slot of each second, were it kept, would be more than that many bytes.
    assert!(grown < 2 << 20, "{grown} bytes more after {length:?} without a server");
    server.start_again();
    let store = server.connect();
    let back = store.plan(&[]).unwrap().now.trigger();
    println!("{} s away: {grown} bytes grown, {} dropped", back.as_secs() - gone.as_secs(), scheduler.stats().dropped);

    // Two ticks after the return all is as ever; two start windows later nothing is live any more that was missed.
    let (served, judged) = (Trigger::from_secs(back.as_secs() + 2), Trigger::from_secs(back.as_secs() + 5));
    until_time(&store, judged.as_secs() + 3);
    for (id, policy) in PLANS {
        let missing = || unaccounted(&store, id, judged);
        until(|| missing().is_empty().then_some(()));
        let rows = slots(&store, id);
        for slot in rows.iter().filter(|slot| slot.key.at >= served && slot.key.at <= judged) {
            assert_eq!((slot.kind, slot.state), (RunKind::Scheduled, SlotState::Ended(Ending::Succeeded)), "{slot:?}");
        }
        let missed: Vec<_> = rows.iter().filter(|slot| slot.kind == RunKind::CatchUp && slot.attempt > 0).collect();
        let in_between = |slot: &&SlotRow| slot.key.at > gone && slot.key.at < back;
        match policy {
            CatchUp::None => assert!(missed.is_empty(), "{missed:?}"),
            CatchUp::Latest => assert!(missed.len() <= 1, "{missed:?}"),
            CatchUp::All { .. } => {
                let started = rows.iter().filter(in_between).filter(|slot| slot.attempt == 1).count() as i64;
                assert_eq!(started, back.as_secs() - gone.as_secs() - 1, "each that was missed is made up");
                assert!(!missed.is_empty());
            }
        }
    }
    close(&scheduler);
    let rows: Vec<_> = (0..CROWD).flat_map(|n| slots(&store, &format!("crowd-{n}"))).collect();
    let rows = rows.into_iter().chain(PLANS.iter().flat_map(|(id, _)| slots(&store, id)));
    let attempts: Vec<_> = rows.map(|slot| slot.attempt).collect();
    assert!(attempts.iter().all(|attempt| *attempt <= 1));
    assert_eq!(attempts.iter().map(|attempt| u64::from(*attempt)).sum::<u64>(), entered(), "as many runs as rows");
}

/// The trigger points up to `upto` of which the ledger says nothing.
fn unaccounted(store: &Redis, plan: &str, upto: Trigger) -> Vec<i64> {
    let (slots, ranges) = history(store, plan);
    let known: BTreeSet<i64> = slots.iter().map(|slot| slot.key.at.as_secs()).collect();
    let first = slots.first().map_or(upto.as_secs(), |slot| slot.key.at.as_secs());
    let ranged = |at: i64| ranges.iter().any(|range| (range.first.as_secs()..=range.last.as_secs()).contains(&at));
    (first..=upto.as_secs()).filter(|at| !known.contains(at) && !ranged(*at)).collect()
}

/// The bytes of this process's memory that are in the machine's.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
