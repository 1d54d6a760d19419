//! One trace: the store, the network, the instances, the clock and the operators.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

use timertask_core::key::{Namespace, Nonce, PlanKey, RequestId, SlotKey};
use timertask_core::seam::{Cancel, Gate, Generation, Ledger, PlanOp, PlanRow, Query, Retention, RunKind};
use timertask_core::time::{Timestamp, Trigger};

use super::Tally;
use super::instance::Instance;
use super::log::Log;
use super::network::{Call, Reply};
use super::spec::{Spec, pick};
use crate::conformance::Step;
use crate::conformance::probe::{answer, id, plan_id, value};
use crate::random::Random;

/// How many steps the bad part of a trace has.
const STEPS: u32 = 120;
/// How many rounds of five seconds heal it.
const ROUNDS: u32 = 90;
/// How many of the last requests a failure tells.
const REMEMBERED: usize = 60;

pub(super) struct World<'h, H: Step> {
    harness: &'h H,
    seed: u64,
    pub(super) ledger: H::Ledger,
    pub(super) plan: PlanKey,
    pub(super) random: Random,
    /// Whether the network and everybody else behave badly.
    pub(super) chaos: bool,
    /// Monotonic time; the harness's clock may be stepped.
    pub(super) monotonic: Duration,
    /// Requests that will arrive later.
    pub(super) late: Vec<Call>,
    pub(super) log: Log,
    /// The versions of the plan, the newest last.
    pub(super) specs: Vec<Spec>,
    /// The version that the plan's source gives; `None`: disabled.
    pub(super) wanted: Option<usize>,
    instances: Vec<Instance>,
    /// Runs that were asked for by hand; anybody may ask again.
    by_hand: Vec<SlotKey>,
    last: VecDeque<(Timestamp, &'static str, Call, Reply)>,
}

impl<'h, H: Step> World<'h, H> {
    pub(super) fn new(harness: &'h H, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let specs = vec![Spec::draw(0, &mut random)];
        let count = 2 + pick(&mut random, 3);
        Self {
            harness,
            seed,
            ledger: harness.handle(),
            plan: PlanKey::new(harness.namespace(), plan_id("p")),
            random,
            chaos: true,
            monotonic: Duration::ZERO,
            late: Vec::new(),
            log: Log::default(),
            specs,
            wanted: Some(0),
            instances: (0..count).map(Instance::new).collect(),
            by_hand: Vec::new(),
            last: VecDeque::new(),
        }
    }

    pub(super) fn run(mut self) -> Tally {
        for _ in 0..STEPS {
            let passes = 1 + self.below(6);
            self.pass(passes);
            self.misfortune();
            if self.chance(30) {
                self.operate();
            }
            self.turns();
            if self.chance(40) {
                self.arrive_late();
            }
        }
        self.heal();
        self.log.tally.traces = 1;
        self.log.tally
    }

    /// Stops all trouble, gives everybody time, and looks at the whole store.
    fn heal(&mut self) {
        while !self.late.is_empty() {
            self.arrive_late();
        }
        self.chaos = false;
        self.wanted = Some(self.specs.len() - 1);
        for key in [PlanKey::whole(self.plan.namespace.clone()), self.plan.clone()] {
            self.resume(key, false);
        }
        for instance in &mut self.instances {
            instance.thaw();
        }
        for _ in 0..ROUNDS {
            self.pass(5);
            self.turns();
        }
        let query = Query::History {
            plan: self.plan.clone(),
            after: Trigger::default(),
            upto: Trigger::from_secs(1 << 40),
            page: None,
            limit: 100_000,
        };
        let page = answer(self.ledger.read(&query));
        let checked = self.log.check(page.now, &page.value, &self.specs);
        self.hold(checked);
    }

    fn turns(&mut self) {
        for i in 0..self.instances.len() {
            if self.instances[i].is_frozen() || (self.chaos && self.chance(30)) {
                continue;
            }
            let mut instance = std::mem::replace(&mut self.instances[i], Instance::new(i));
            instance.turn(self);
            self.instances[i] = instance;
        }
    }

    fn pass(&mut self, secs: usize) {
        let d = Duration::from_secs(secs as u64);
        self.harness.pass_time(d);
        self.monotonic += d;
    }

    fn misfortune(&mut self) {
        let i = self.below(self.instances.len());
        match self.random.below(100) {
            0..=2 => {
                let steps = 1 + self.below(15);
                self.instances[i].freeze(steps);
            }
            3..=5 => self.instances[i] = Instance::new(i),
            6 => self.pass(120),
            7 => {
                let back = 20 + self.below(60);
                self.harness.step_back(Duration::from_secs(back as u64));
            }
            _ => return,
        }
        self.log.tally.accidents += 1;
    }

    fn operate(&mut self) {
        self.log.tally.operations += 1;
        let Some((now, row)) = self.row() else { return };
        match self.random.below(12) {
            0 | 1 => self.edit(),
            2 => self.wanted = None,
            3 | 4 => self.wanted = self.wanted.or(Some(self.specs.len() - 1)),
            5 => {
                let whole = self.chance(30);
                let key = if whole { PlanKey::whole(self.plan.namespace.clone()) } else { self.plan.clone() };
                let pause = PlanOp::Pause { by: "operator".to_owned(), why: "trace".to_owned(), until: Some(now) };
                self.send(Call::Plan(key, pause));
            }
            6 | 7 => {
                for key in [PlanKey::whole(self.plan.namespace.clone()), self.plan.clone()] {
                    let lapsed_only = self.chance(30);
                    self.resume(key, lapsed_only);
                }
            }
            8 => self.run_now(now),
            9 => self.backfill(now, &row),
            10 => self.cancel(now),
            _ => {
                let age = Some(Duration::from_secs(self.random.below(60)));
                let keep = Retention { age, count: Some(self.below(10)), keep_last: self.below(4) };
                let at_most = 1 + self.below(20);
                self.send(Call::Purge(keep, at_most));
            }
        }
    }

    /// A new version of the plan, or an old one again.
    fn edit(&mut self) {
        let next = self.specs.len() as u64;
        if self.chance(70) {
            self.specs.push(Spec::draw(next, &mut self.random));
            self.wanted = Some(self.specs.len() - 1);
        } else {
            self.wanted = Some(self.below(self.specs.len()));
        }
    }

    fn resume(&mut self, key: PlanKey, lapsed_only: bool) {
        let state = value(self.ledger.plan(&[(key.clone(), PlanOp::Read)])).remove(0);
        if let Some(pause) = state.row.and_then(|row| row.pause) {
            self.send(Call::Plan(key, PlanOp::Resume { since: pause.since, lapsed_only }));
        }
    }

    fn run_now(&mut self, now: Timestamp) {
        let again = !self.by_hand.is_empty() && self.chance(50);
        let key = if again {
            let i = self.below(self.by_hand.len());
            let key = self.by_hand[i].clone();
            // The id says which run is meant, not the instant.
            if self.chance(50) { SlotKey { at: now.trigger(), ..key } } else { key }
        } else {
            let request = id(RequestId::new(format!("request {}", self.by_hand.len())));
            SlotKey { plan: self.plan.clone(), at: now.trigger(), request: Some(request) }
        };
        self.by_hand.push(key.clone());
        let gate = self.chance(50).then_some(Gate::Force);
        self.ask(key, RunKind::Manual, gate);
    }

    fn backfill(&mut self, now: Timestamp, row: &PlanRow) {
        if self.chance(30) {
            // One that is open, or runs.
            if let Some(slot) = self.unfinished() {
                self.ask(slot, RunKind::Backfill, None);
            }
            return;
        }
        let version = self.below(self.specs.len());
        let spec = self.specs[version];
        let from = Trigger::from_secs(now.trigger().as_secs() - 200).max(row.low_water);
        let slots = spec.slots(from, now.trigger());
        if !slots.is_empty() {
            let at = slots[self.below(slots.len())];
            self.ask(SlotKey { plan: self.plan.clone(), at, request: None }, RunKind::Backfill, None);
        }
    }

    /// An instance claims what an operator asks for.
    fn ask(&mut self, key: SlotKey, kind: RunKind, gate: Option<Gate>) {
        let i = self.below(self.instances.len());
        if self.instances[i].is_frozen() {
            return;
        }
        let mut instance = std::mem::replace(&mut self.instances[i], Instance::new(i));
        instance.ask(self, key, kind, gate);
        self.instances[i] = instance;
    }

    fn cancel(&mut self, now: Timestamp) {
        if let Some(SlotKey { at, request, .. }) = self.unfinished() {
            let cancel = Cancel { by: "operator".to_owned(), why: now.to_string() };
            self.send(Call::Plan(self.plan.clone(), PlanOp::Cancel { at, request, cancel }));
        }
    }

    /// One of the slots that run or are open.
    fn unfinished(&mut self) -> Option<SlotKey> {
        let query = Query::Unfinished { plan: self.plan.clone(), limit: 100 };
        let slots = value(self.ledger.read(&query)).slots;
        let i = self.below(slots.len());
        slots.into_iter().nth(i).map(|slot| slot.key)
    }

    /// The plan's row as it is, past the network.
    fn row(&self) -> Option<(Timestamp, PlanRow)> {
        let states = answer(self.ledger.plan(&[(self.plan.clone(), PlanOp::Read)]));
        states.value.into_iter().next().and_then(|state| state.row).map(|row| (states.now, row))
    }

    pub(super) fn look_at_the_row(&mut self, set_back: bool) {
        if let Some((_, row)) = self.row() {
            let seen = self.log.see_row(&row, set_back);
            self.hold(seen);
        }
    }

    /// The highest number of starts that any version allows.
    pub(super) fn most_starts(&self) -> u32 {
        self.specs.iter().map(|spec| spec.attempts).max().unwrap_or(1)
    }

    pub(super) fn namespace(&self) -> Namespace {
        self.plan.namespace.clone()
    }

    pub(super) fn spec_of(&self, generation: Generation) -> Option<&Spec> {
        self.specs.iter().find(|spec| spec.fingerprint == generation.fingerprint)
    }

    pub(super) fn nonce(&mut self) -> Nonce {
        Nonce::from_bits((u128::from(self.random.next()) << 64) | u128::from(self.random.next()))
    }

    /// True in `percent` of a hundred cases.
    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.random.below(100) < percent
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        pick(&mut self.random, n)
    }

    pub(super) fn remember(&mut self, now: Timestamp, how: &'static str, call: &Call, reply: &Reply) {
        if self.last.len() >= REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back((now, how, call.clone(), reply.clone()));
    }

    /// Ends the trace where a promise is broken.
    #[track_caller]
    pub(super) fn hold(&self, seen: Result<(), String>) {
        let Err(broken) = seen else { return };
        let mut story = String::new();
        for (now, how, call, reply) in &self.last {
            let _ = writeln!(story, "  {now} {how}{call:?}\n      {reply:?}");
        }
        panic!("seed {}: {broken}\nthe last requests, old to new:\n{story}", self.seed);
    }
}
