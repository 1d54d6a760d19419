//! What a run is about, drawn from its seed.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use timertask_core::clock::Clock;
use timertask_core::seam::Overlap;
use timertask_core::time::Timestamp;
use timertask_core::{Backoff, BoxError, CatchUp, Dst, Fold, Gap, OnOrphan, Plan, RetryBudget, Run};

use super::trouble::Trouble;
use crate::clock::FakeClock;
use crate::cluster::{Cluster, ClusterBuilder};
use crate::random::{Random, mix};

/// Zones, and instants (Unix seconds) at which their clocks change: forwards and back, by an hour and by half of one, at
/// two in the morning and at midnight.
const CHANGES: [(&str, i64); 7] = [
    ("Europe/Berlin", 1_774_746_000),       // 2026-03-29T01:00:00Z
    ("Europe/Berlin", 1_792_890_000),       // 2026-10-25T01:00:00Z
    ("America/New_York", 1_772_953_200),    // 2026-03-08T07:00:00Z
    ("America/New_York", 1_793_512_800),    // 2026-11-01T06:00:00Z
    ("Australia/Lord_Howe", 1_775_314_800), // 2026-04-04T15:00:00Z
    ("Australia/Lord_Howe", 1_791_041_400), // 2026-10-03T15:30:00Z
    ("Asia/Beirut", 1_774_735_200),         // 2026-03-28T22:00:00Z
];

const FREQUENT: [&str; 7] =
    ["* * * * *", "*/2 * * * *", "*/3 * * * *", "@every 20s", "@every 45s", "*/5 * * * *", "*/15 * * * * *"];

/// For runs in which clocks change.
const DAILY: [&str; 6] = ["30 2 * * *", "*/20 1-3 * * *", "15 0 * * *", "0 * * * *", "*/30 * * * *", "45 1 * * *"];

const DSTS: [Dst; 6] = [
    Dst::Auto,
    Dst::Cron,
    Dst::Exact(Gap::Skip, Fold::First),
    Dst::Exact(Gap::Skip, Fold::Both),
    Dst::Exact(Gap::Shift, Fold::First),
    Dst::Exact(Gap::Shift, Fold::Both),
];

/// How long a job takes in seconds, and how often it fails, panics or does not listen, of 16 times.
#[derive(Clone, Copy, Debug)]
struct Temper {
    seconds: u64,
    waits: u64,
    fails: u64,
    deaf: u64,
}

const TEMPERS: [Temper; 4] = [
    Temper { seconds: 1, waits: 0, fails: 3, deaf: 0 },
    Temper { seconds: 20, waits: 6, fails: 2, deaf: 1 },
    Temper { seconds: 120, waits: 8, fails: 1, deaf: 1 },
    Temper { seconds: 200, waits: 13, fails: 1, deaf: 2 },
];

/// What a run is about.
pub(super) struct Scene {
    pub(super) seed: u64,
    pub(super) clock: FakeClock,
    pub(super) random: Random,
    /// How many steps it has.
    pub(super) steps: u64,
    /// The longest step, in milliseconds.
    longest: u64,
    instances: usize,
    concurrency: usize,
    plans: u64,
    /// The zone of the plans, where one plays a part.
    zone: Option<&'static str>,
    temper: Temper,
    /// From when on jobs return at once.
    pub(super) calm: Arc<AtomicBool>,
    /// The kinds of trouble, each as often as it weighs.
    troubles: Vec<Trouble>,
}

impl Scene {
    /// `rewinds`: whether the store can be set back; `focus`: the kinds of trouble that there are, drawn where `None`.
    pub(super) fn draw(seed: u64, rewinds: bool, focus: Option<&[Trouble]>) -> Self {
        let mut random = Random::new(mix(seed));
        let (mut clock, mut zone) = (FakeClock::seeded(seed), None);
        if random.chance(0.25) {
            let (name, change) = pick(&mut random, &CHANGES);
            let before = i64::try_from(random.below(5400)).unwrap_or(0);
            clock = clock.starting_at(Timestamp::from_micros((change - before) * 1_000_000));
            zone = Some(name);
        }
        let mut troubles = Vec::new();
        // Drawn whether or not it can be set back: otherwise the same seed is another run.
        for kind in Trouble::ALL.iter().copied() {
            let weight = if random.chance(0.4) { 1 + random.below(4) } else { 0 };
            let weight = focus.map_or(weight, |focus| u64::from(focus.contains(&kind)));
            if rewinds || !matches!(kind, Trouble::Save | Trouble::Rewind) {
                troubles.extend((0..weight).map(|_| kind));
            }
        }
        Self {
            seed,
            clock,
            steps: 8 + random.below(22),
            longest: [20_000, 60_000, 60_000, 150_000][usize::try_from(random.below(4)).unwrap_or(0)],
            instances: usize::try_from(2 + random.below(3)).unwrap_or(2),
            concurrency: usize::try_from(1 + random.below(4)).unwrap_or(1),
            plans: 2 + random.below(4),
            zone,
            temper: pick(&mut random, &TEMPERS),
            calm: Arc::default(),
            troubles,
            random,
        }
    }

    pub(super) fn builder(&self) -> ClusterBuilder {
        Cluster::builder()
            .clock(self.clock.clone())
            .instances(self.instances)
            .concurrency(self.concurrency)
            .plans(self.plans(0))
            .job(job(self.clock.clone(), self.temper, Arc::clone(&self.calm)))
    }

    /// How long until something befalls them again.
    pub(super) fn step(&mut self) -> Duration {
        Duration::from_millis(self.random.below(self.longest))
    }

    /// What it is; `None`: nothing.
    pub(super) fn trouble(&mut self) -> Option<Trouble> {
        (!self.troubles.is_empty()).then(|| pick(&mut self.random, &self.troubles))
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.random.below(n)
    }

    /// How many versions of the plans there are.
    pub(super) const VERSIONS: u64 = 256;

    /// The plans in one of their versions: each plan has its own two bits of it.
    pub(super) fn plans(&self, version: u64) -> Vec<Plan> {
        let variant = |n: u64| (version >> (2 * (n % 4))) & 3;
        (0..self.plans).filter(|n| *n == 0 || variant(*n) != 3).map(|n| self.plan(n, variant(n) % 3)).collect()
    }

    fn plan(&self, n: u64, variant: u64) -> Plan {
        // Policies change with an edit, too.
        let mut random = Random::new(mix(self.seed.wrapping_add(n << 32).wrapping_add(variant << 40)));
        let spec = match self.zone {
            Some(_) if random.chance(0.7) => pick(&mut random, &DAILY),
            _ => pick(&mut random, &FREQUENT),
        };
        let overlaps = [Overlap::Skip, Overlap::Skip, Overlap::QueueOne, Overlap::CancelPrevious, Overlap::Allow(2)];
        let catch_ups = [CatchUp::Latest, CatchUp::Latest, CatchUp::None, CatchUp::All { cap: 5 }];
        let orphans = [OnOrphan::Record, OnOrphan::Record, OnOrphan::Rerun { max: 1 }, OnOrphan::Rerun { max: 2 }];
        let windows = [10, 30, 60, 60];
        let mut plan = Plan::new(format!("plan-{n}"), spec)
            .overlap(pick(&mut random, &overlaps))
            .catch_up(pick(&mut random, &catch_ups))
            .on_orphan(pick(&mut random, &orphans))
            .start_window(Duration::from_secs(pick(&mut random, &windows)));
        if random.chance(0.2) {
            plan = plan.spread(Duration::from_secs(1 + random.below(30)));
        }
        if random.chance(0.2) {
            let secs = Duration::from_secs;
            plan = plan.retry(RetryBudget {
                attempts: 2,
                timeout: secs(20),
                backoff: Backoff::Fixed(secs(3)),
                slack: secs(10),
            });
        }
        if let Some(zone) = self.zone {
            plan = plan.zone(zone).dst(pick(&mut random, &DSTS));
        }
        plan
    }
}

/// Does what the clock's next number says: returns at once, takes a while, fails, panics, or does not listen.
fn job(
    clock: FakeClock,
    temper: Temper,
    calm: Arc<AtomicBool>,
) -> impl Fn(&Run) -> Result<(), BoxError> + Send + Sync + 'static {
    move |run| {
        if calm.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (lot, takes) = (clock.entropy() % 16, Duration::from_secs(1 + clock.entropy() % temper.seconds));
        if lot < temper.waits {
            run.wait(takes)?;
            return Ok(());
        }
        match lot - temper.waits {
            n if n < temper.deaf => {
                let _ = run.wait(takes);
                Ok(())
            }
            n if n < temper.deaf + temper.fails => Err("failed".into()),
            // Not `panic!`: nobody wants to read it.
            n if n == temper.deaf + temper.fails => resume_unwind(Box::new("panicked")),
            _ => Ok(()),
        }
    }
}

/// One of them.
pub(super) fn pick<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[usize::try_from(random.below(of.len() as u64)).unwrap_or(0)]
}
