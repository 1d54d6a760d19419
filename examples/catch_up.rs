//! What happens to slots that were missed, because nobody was there: the three policies, and the pace, in simulated time.

use std::error::Error;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use timertask::clock::Clock;
use timertask::{CatchUp, MemLedger, Pace, Plan, Run, RunKind, Scheduler};
use timertask_testkit::FakeClock;

const HOUR: Duration = Duration::from_secs(3600);

/// What was made up, in order, and when.
type MadeUp = Arc<std::sync::Mutex<Vec<(String, Duration)>>>;

/// A service that is there for ten minutes, is away for a day, and comes back for ten minutes; what it made up.
fn a_day_off(plans: &[Plan], pace: Pace) -> Result<Vec<(String, Duration)>, Box<dyn Error>> {
    let (clock, made_up) = (FakeClock::new(), MadeUp::default());
    let ledger = MemLedger::with_clock(Arc::new(clock.clone()));
    let service = || -> Result<Scheduler, Box<dyn Error>> {
        let (time, made_up) = (clock.clone(), Arc::clone(&made_up));
        let job = move |run: &Run| {
            if run.kind() == RunKind::CatchUp {
                let line = format!("{} of {}", run.plan(), run.trigger().format("%H:%M"));
                made_up.lock().unwrap_or_else(PoisonError::into_inner).push((line, time.monotonic()));
            }
            Ok(())
        };
        let builder = Scheduler::builder(job).clock(clock.clone()).ledger(ledger.clone());
        let scheduler = builder.catch_up_pace(pace).start()?;
        scheduler.reconcile(plans.to_vec())?.all_taken()?;
        Ok(scheduler)
    };
    let before = service()?;
    clock.advance(HOUR / 6);
    before.close(HOUR)?;
    clock.advance(24 * HOUR);
    let _back = service()?;
    clock.advance(HOUR / 6);
    let lines = made_up.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(lines)
}

fn main() -> Result<(), Box<dyn Error>> {
    let plan = |id: &str, policy| Plan::new(id, "@hourly").catch_up(policy);
    let plans = [plan("none", CatchUp::None), plan("latest", CatchUp::Latest), plan("all", CatchUp::All { cap: 3 })];
    let made_up = a_day_off(&plans, Pace::default())?;
    let lines: Vec<&str> = made_up.iter().map(|(line, _)| line.as_str()).collect();
    println!("{lines:?}");
    // Old to new within a plan. The other slots share one record each, with how many they are and why.
    let of = |id: &str| lines.iter().filter(|line| line.starts_with(id)).copied().collect::<Vec<_>>();
    assert_eq!(of("none"), [""; 0]);
    assert_eq!(of("latest"), ["latest of 00:00"]);
    assert_eq!(of("all"), ["all of 22:00", "all of 23:00", "all of 00:00"]);

    // A hundred plans come back together: they are made up one after the other, a second apart; or as is wanted.
    let many: Vec<Plan> = (0..100).map(|n| plan(&format!("p{n:02}"), CatchUp::Latest)).collect();
    for (pace, least) in [(Pace::default(), 99), (Pace { at_once: 4, stagger: Duration::ZERO }, 0)] {
        let made_up = a_day_off(&many, pace)?;
        let took = made_up.last().ok_or("nothing was made up")?.1 - made_up[0].1;
        println!("{pace:?}: {} made up within {took:?}", made_up.len());
        assert!(made_up.len() == 100 && took >= Duration::from_secs(least));
    }

    println!("ok: what was missed was made up as each plan wants it, without a storm");
    Ok(())
}
