//! Three instances on a store that fails at random, killed, frozen, restarted, their plans edited, by seed: whatever
//! happens, no slot starts twice, and once all is well everything is accounted for.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::HashMap;
use std::sync::Arc;

use common::*;
use timertask_core::clock::Clock;
use timertask_core::{BoxError, CatchUp, MemLedger, Overlap, Plan, Run, Scheduler, StoreErrorKind};
use timertask_testkit::{ClockView, FakeClock, Fault, Faulty};

struct Host {
    view: ClockView,
    store: Faulty<MemLedger>,
    scheduler: Option<Scheduler>,
}

struct World {
    clock: FakeClock,
    store: Faulty<MemLedger>,
    log: Log,
    hosts: Vec<Host>,
    births: usize,
    random: u64,
}

impl World {
    fn new(seed: u64, hosts: usize) -> Self {
        let clock = FakeClock::seeded(seed);
        let store = Faulty::new(ledger(&clock), Arc::new(clock.clone()));
        let mut world = Self { clock, store, log: Log::default(), hosts: Vec::new(), births: 0, random: seed | 1 };
        for _ in 0..hosts {
            let host = world.born();
            world.hosts.push(host);
        }
        world
    }

    fn pick(&mut self, n: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % n
    }

    fn born(&mut self) -> Host {
        self.births += 1;
        let view = self.clock.view(&format!("h{}", self.births));
        let store = self.store.handle(Arc::new(view.clone()));
        let (log, own) = (self.log.clone(), view.clone());
        let job = move |run: &Run| -> Result<(), BoxError> {
            log.add(format!("{} {}", run.plan(), run.slot_key().at));
            let length = run.fence().as_u64() % 25;
            run.wait(secs(length))?;
            // Killed on the way, its stack unwinds here.
            assert!(own.is_alive());
            if length == 3 { Err("three".into()) } else { Ok(()) }
        };
        let scheduler =
            Scheduler::builder(job).concurrency(2).clock(view.clone()).ledger(store.clone()).start().unwrap();
        Host { view, store, scheduler: Some(scheduler) }
    }

    fn reconcile(&self, version: u64) {
        for host in &self.hosts {
            if host.view.is_alive() && !host.view.is_frozen() {
                let _ = host.scheduler.as_ref().unwrap().reconcile(plans(version));
            }
        }
    }

    fn faults(&mut self) {
        for index in 0..self.hosts.len() {
            let kind = self.pick(8);
            let rules = self.hosts[index].store.on_any();
            match kind {
                0 => rules.chance(0.2, Fault::LostAnswer),
                1 => rules.chance(0.2, Fault::LostRequest),
                2 => rules.chance(0.1, Fault::Straggler(secs(20))),
                3 => rules.chance(0.2, Fault::Duplicate),
                4 => rules.chance(0.1, Fault::DuplicateLater(secs(30))),
                5 => rules.chance(0.5, Fault::Error(StoreErrorKind::Busy)),
                6 => rules.chance(0.1, Fault::SlowAnswer(secs(4))),
                _ => rules.chance(0.1, Fault::Slow(secs(40))),
            }
        }
    }
}

const SPECS: [(&str, &str); 4] =
    [("p", "*/20 * * * * *"), ("q", "30 * * * * *"), ("r", "* * * * *"), ("s", "*/10 * * * * *")];

fn plans(version: u64) -> Vec<Plan> {
    SPECS
        .iter()
        .map(|(id, spec)| {
            let plan = Plan::new(*id, *spec);
            match *id {
                "p" => plan.fingerprint(version.to_string()),
                "r" => plan.catch_up(CatchUp::None).start_window(secs(10)),
                "s" => plan.overlap(Overlap::Allow(2)).catch_up(CatchUp::All { cap: 5 }),
                _ => plan,
            }
        })
        .collect()
}

fn play(seed: u64) {
    let mut world = World::new(seed, 3);
    let mut version = 0;
    world.reconcile(version);
    world.clock.advance(secs(1));
    for _ in 0..40 {
        let d = secs(1 + world.pick(30));
        world.clock.advance(d);
        let index = world.pick(3) as usize;
        match world.pick(7) {
            0 => {
                if world.hosts[index].view.is_alive() {
                    world.hosts[index].view.kill();
                }
                // What is left of the handle of a dead process must not touch the store.
                std::mem::forget(world.hosts[index].scheduler.take());
                let born = world.born();
                world.hosts[index] = born;
                world.reconcile(version);
            }
            1 => world.hosts[index].view.freeze(),
            2 => world.hosts.iter().for_each(|h| h.view.thaw()),
            3 => world.faults(),
            4 => world.hosts.iter().for_each(|h| h.store.heal()),
            5 => {
                version += 1;
                world.reconcile(version);
            }
            _ => world.reconcile(version),
        }
    }
    // All is well from here on.
    world.hosts.iter().for_each(|h| {
        h.view.thaw();
        h.store.heal();
    });
    for _ in 0..3 {
        world.reconcile(version);
        world.clock.advance(secs(100));
    }
    check(seed, &world);
}

fn check(seed: u64, world: &World) {
    let mut starts: HashMap<String, usize> = HashMap::new();
    for line in world.log.lines() {
        *starts.entry(line).or_default() += 1;
    }
    let twice: Vec<_> = starts.iter().filter(|(_, n)| **n > 1).collect();
    assert!(twice.is_empty(), "seed {seed}: started twice: {twice:?}");
    let ledger = world.store.inner();
    // Start window, lease and three sweeps back.
    let upto = world.clock.now().saturating_sub(secs(125)).trigger();
    for (id, spec) in SPECS {
        let from = t("00:00:02");
        let missing = unaccounted(ledger, id, spec, from, upto);
        assert!(missing.is_empty(), "seed {seed}: {id} lacks {missing:?}: {:#?}", story(ledger, id));
        for slot in slots(ledger, id).iter().filter(|s| s.key.at <= upto) {
            let name = format!("{id} {}", slot.key.at);
            let started = starts.contains_key(&name);
            let state = slot.state.to_string();
            assert!(state != "running" && state != "open", "seed {seed}: {name} is {state}");
            assert!(!started || slot.attempt == 1, "seed {seed}: {name} was started, and is {state}");
            assert!(!started || !state.starts_with("not started"), "seed {seed}: {name} was started, and is {state}");
        }
    }
    for host in &world.hosts {
        let scheduler = host.scheduler.as_ref().unwrap();
        assert!(scheduler.health().threads_panicked.is_empty(), "seed {seed}: {:?}", scheduler.health());
        let plans = scheduler.plans().unwrap();
        assert!(plans.iter().all(|p| p.why_not.is_none()), "seed {seed}: {plans:?}");
    }
    let ended = world.log.len();
    assert!(ended > 60, "seed {seed}: only {ended} runs");
}

#[test]
fn whatever_happens_nothing_starts_twice_and_all_is_accounted_for() {
    let seeds = std::env::var("TIMERTASK_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(30);
    let first = std::env::var("TIMERTASK_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    (first..first + seeds).for_each(play);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let trace = |seed| {
        let mut world = World::new(seed, 3);
        world.reconcile(0);
        world.faults();
        world.clock.advance(secs(300));
        world.reconcile(1);
        world.clock.advance(secs(100));
        (world.clock.trace().hash, world.log.lines())
    };
    for seed in 0..5 {
        assert_eq!(trace(seed), trace(seed), "seed {seed}");
    }
}
