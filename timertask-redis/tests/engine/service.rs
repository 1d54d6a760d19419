//! A service of a few instances, and what its jobs saw.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use timertask_core::clock::Clock;

use timertask_core::seam::{Ending, Ledger, Overlap, Query, RangeRow, SlotRow, SlotState};
use timertask_core::time::Trigger;
use timertask_core::{Plan, Run, Scheduler, Stop};
use timertask_redis::Redis;

use crate::common::{plan_key, until, wait};

/// What the jobs of all instances did.
#[derive(Clone, Default)]
pub(crate) struct Journal(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Plan, trigger point and fence of each entry.
    entered: std::sync::Mutex<Vec<(String, Trigger, u64)>>,
    /// Whether the held run was told that its lease is in doubt, and whether trust came back.
    told: AtomicBool,
    trusted_again: AtomicBool,
    release: AtomicBool,
}

impl Journal {
    pub(crate) fn entered(&self) -> Vec<(String, Trigger, u64)> {
        self.0.entered.lock().unwrap().clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.entered.lock().unwrap().len()
    }

    /// Waits until more than `n` runs were entered.
    pub(crate) fn until_more_than(&self, n: usize) {
        until(|| (self.len() > n).then_some(()));
    }

    /// Waits until the held run is at work.
    pub(crate) fn until_held(&self) {
        until(|| self.entered().iter().any(|(plan, ..)| plan == HELD).then_some(()));
    }

    pub(crate) fn until_told(&self) {
        until(|| self.0.told.load(Ordering::SeqCst).then_some(()));
    }

    pub(crate) fn is_told(&self) -> bool {
        self.0.told.load(Ordering::SeqCst)
    }

    pub(crate) fn until_trusted_again(&self) {
        until(|| self.0.trusted_again.load(Ordering::SeqCst).then_some(()));
    }

    /// Lets the held run end.
    pub(crate) fn release(&self) {
        self.0.release.store(true, Ordering::SeqCst);
    }

    fn job(&self, run: &Run) {
        let at = run.slot_key().at;
        self.0.entered.lock().unwrap().push((run.plan().to_owned(), at, run.fence().as_u64()));
        if run.plan() != HELD {
            return;
        }
        while !self.0.release.load(Ordering::SeqCst) {
            match run.check() {
                Err(Stop::LeaseLost) => self.0.told.store(true, Ordering::SeqCst),
                Ok(()) if self.is_told() => self.0.trusted_again.store(true, Ordering::SeqCst),
                _ => {}
            }
            wait(Duration::from_millis(5));
        }
    }

    /// No slot was entered twice, and no two runs of a plan had the same fence.
    pub(crate) fn nothing_twice(&self) {
        let entered = self.entered();
        let slots: BTreeSet<_> = entered.iter().map(|(plan, at, _)| (plan, at)).collect();
        assert_eq!(slots.len(), entered.len(), "a slot was entered twice: {entered:?}");
        let fences: BTreeSet<_> = entered.iter().map(|(plan, _, fence)| (plan, fence)).collect();
        assert_eq!(fences.len(), entered.len(), "two runs of a plan had the same fence: {entered:?}");
    }

    /// What was entered is what the ledger says was started, each slot once and with the fence that the job saw.
    pub(crate) fn is_recorded(&self, store: &Redis) {
        self.nothing_twice();
        for plan in [TICK, HELD] {
            let started: BTreeMap<Trigger, u64> = slots(store, plan)
                .iter()
                .filter(|slot| slot.attempt > 0)
                .map(|slot| {
                    assert_eq!(slot.attempt, 1, "{slot:?}");
                    assert_eq!(slot.state, SlotState::Ended(Ending::Succeeded), "{slot:?}");
                    (slot.key.at, slot.fence.as_u64())
                })
                .collect();
            let entered: BTreeMap<Trigger, u64> =
                self.entered().into_iter().filter(|(of, ..)| of == plan).map(|(_, at, fence)| (at, fence)).collect();
            assert_eq!(started, entered, "{plan}");
        }
    }
}

/// A plan that runs each second and ends at once.
pub(crate) const TICK: &str = "tick";
/// A plan whose first run ends when it is released.
pub(crate) const HELD: &str = "held";

/// One instance of the service. What it missed is not made up: a run is one of the second that it belongs to.
pub(crate) fn instance(store: impl Ledger + 'static, journal: &Journal, clock: impl Clock + 'static) -> Scheduler {
    let journal = journal.clone();
    let job = move |run: &Run| {
        journal.job(run);
        Ok(())
    };
    let scheduler = Scheduler::builder(job).clock(clock).ledger(store).start().unwrap();
    let tick = Plan::new(TICK, "@every 1s").overlap(Overlap::Allow(1_000));
    scheduler.reconcile([tick, Plan::new(HELD, "@every 1s")]).unwrap();
    scheduler
}

/// All rows of a plan's slots, and its range records.
pub(crate) fn history(store: &Redis, plan: &str) -> (Vec<SlotRow>, Vec<RangeRow>) {
    let (mut slots, mut ranges, mut page) = (Vec::new(), Vec::new(), None);
    loop {
        let (after, upto) = (Trigger::default(), Trigger::from_secs(1 << 40));
        let query = Query::History { plan: plan_key(plan), after, upto, page, limit: 4_000 };
        let mut answer = store.read(&query).unwrap().value;
        slots.append(&mut answer.slots);
        ranges.append(&mut answer.ranges);
        page = answer.more;
        if page.is_none() {
            return (slots, ranges);
        }
    }
}

pub(crate) fn slots(store: &Redis, plan: &str) -> Vec<SlotRow> {
    history(store, plan).0
}

/// Waits for a moment in which nothing runs.
pub(crate) fn until_settled(store: &Redis) {
    for plan in [HELD, TICK] {
        let is_at_rest = |slot: &SlotRow| !matches!(slot.state, SlotState::Running | SlotState::Open);
        until(|| slots(store, plan).iter().all(is_at_rest).then_some(()));
    }
}

/// Waits until the instance's calls to the store have failed `more` times more.
pub(crate) fn until_faults(scheduler: &Scheduler, more: u64) {
    let wanted = scheduler.stats().store_faults + more;
    until(|| (scheduler.stats().store_faults >= wanted).then_some(()));
}

pub(crate) fn close(scheduler: &Scheduler) {
    let report = scheduler.close(Duration::from_secs(60)).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

/// The script of claims, by whose hash a proxy knows them.
pub(crate) fn claim_script() -> redis::Script {
    redis::Script::new(concat!(include_str!("../../src/lua/rows.lua"), "\n", include_str!("../../src/lua/claim.lua")))
}
