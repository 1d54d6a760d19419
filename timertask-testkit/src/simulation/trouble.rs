//! What befalls a run.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use timertask_core::key::{InstanceId, Nonce, PlanKey, RequestId, SlotKey};
use timertask_core::operate::Standing;
use timertask_core::seam::{
    Asked, Cancel, Claim, ClaimRequest, Gate, Overlap, PlanOp, PlanRow, Query, Retention, RunKind, SlotState,
    StoreErrorKind,
};
use timertask_core::time::Trigger;
use timertask_core::{Backfill, RunNow};

use super::{Play, Scene};
use crate::faulty::{Call, Fault};

macro_rules! troubles {
    ($($(#[doc = $what:literal])+ $name:ident = $word:literal,)+) => {
        /// A kind of trouble.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Trouble {
            $($(#[doc = $what])+ $name,)+
        }

        impl Trouble {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// In a word or two.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)+
                }
            }
        }
    };
}

troubles! {
    /// A process is killed.
    Kill = "kills",
    /// A process is killed or stopped in the midst of a call of the store, before it takes effect or after.
    CrashInCall = "crashes in a call",
    /// An instance that does not live, or does, is started anew.
    Restart = "restarts",
    /// An instance is closed, as by a deploy.
    Stop = "stops",
    /// A process is frozen, or goes on.
    Freeze = "freezes and thaws",
    /// A host sleeps, or wakes.
    Suspend = "suspends",
    /// An instance is cut off the store, or connected again.
    CutOff = "cuts",
    /// An instance's clock is off by up to four seconds.
    Skew = "skews",
    /// All clocks are stepped, by up to half an hour either way.
    StepWall = "clock steps",
    /// All hosts sleep for up to ten minutes.
    SleepAll = "sleeps of all",
    /// Up to an hour goes by at once.
    Leap = "leaps",
    /// The next few calls of one method fail, get lost, come late or come twice.
    Calls = "bad calls",
    /// A fifth of all calls of an instance does, until it is healed.
    Network = "bad networks",
    /// The next claims of an instance are asked again, long after.
    Echo = "echoes",
    /// Each instance but the first dies right after one of its next claims; those that have died are started again.
    Plague = "plagues",
    /// A call hangs, until it is let go.
    Hang = "hangs",
    /// An instance's way to the store is well again.
    Heal = "heals",
    /// The plans are edited, on all instances.
    Edit = "edits",
    /// The plans are edited on one instance, in the midst of a rolling deploy.
    Roll = "rolls",
    /// Old records are purged.
    Purge = "purges",
    /// A plan is paused or resumed, or all are.
    Pause = "pauses",
    /// An operator's tool starts a slot, by hand or as a backfill, and dies.
    Tool = "dying tools",
    /// An operator asks an instance for a run by hand.
    RunNow = "runs by hand",
    /// An operator asks an instance for slots of the last minutes.
    Backfill = "backfills",
    /// A running slot is marked to be cancelled.
    Cancel = "cancels",
    /// What the store holds is remembered.
    Save = "saves",
    /// The store is set back to what was remembered.
    Rewind = "rewinds",
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn operator() -> Asked {
    match Asked::new("operator", "simulation") {
        Ok(asked) => asked,
        Err(error) => panic!("{error}"),
    }
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

impl Play {
    fn below(&mut self, n: u64) -> u64 {
        self.scene.below(n)
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    /// Between minus `n` and `n`.
    fn around(&mut self, n: i64) -> i64 {
        n - i64::try_from(self.below(2 * n.unsigned_abs() + 1)).unwrap_or(0)
    }

    /// Whether it could befall them.
    pub(super) fn befall(&mut self, trouble: Trouble) -> bool {
        match trouble {
            Trouble::StepWall => {
                let by = TimeDelta::seconds(self.around(1800));
                self.cluster.step_wall(by);
            }
            Trouble::SleepAll => {
                let d = secs(self.below(600));
                self.cluster.suspend_all(d);
            }
            Trouble::Leap => {
                let d = secs(600 + self.below(3000));
                self.cluster.advance(d);
            }
            Trouble::Edit => {
                self.version = self.below(Scene::VERSIONS);
                let plans = self.plans(self.version);
                self.cluster.reconcile(plans);
            }
            Trouble::Purge => self.purge(),
            Trouble::Plague => self.plague(),
            Trouble::Tool => return self.tool(),
            Trouble::Pause => self.pause(),
            Trouble::Cancel => return self.cancel(),
            Trouble::Save => self.saved = Some(self.cluster.save_store()),
            Trouble::Rewind => {
                let Some(saved) = &self.saved else { return false };
                self.cluster.restore_store(saved);
            }
            _ => {
                let n = self.cluster.instances() as u64;
                let index = usize::try_from(self.below(n)).unwrap_or(0);
                return self.befall_one(trouble, index);
            }
        }
        true
    }

    /// Something befalls one instance.
    fn befall_one(&mut self, trouble: Trouble, index: usize) -> bool {
        if !self.cluster.lives(index) {
            let starts = self.coin();
            if starts {
                self.cluster.restart(index);
            }
            return starts && trouble == Trouble::Restart;
        }
        let frozen = self.cluster.view(index).is_frozen();
        match trouble {
            Trouble::Kill => self.cluster.kill(index),
            Trouble::Restart => self.cluster.restart(index),
            Trouble::Stop if frozen => return false,
            Trouble::Stop => {
                let timeout = secs(self.below(30));
                self.cluster.stop(index, timeout);
            }
            Trouble::Freeze | Trouble::Suspend if frozen => self.cluster.thaw(index),
            Trouble::Freeze => self.cluster.freeze(index),
            Trouble::Suspend => self.cluster.suspend(index),
            Trouble::CutOff if self.coin() => self.cluster.cut_off(index),
            Trouble::CutOff => self.cluster.reconnect(index),
            Trouble::Skew => {
                let by = TimeDelta::milliseconds(self.around(4000));
                self.cluster.skew(index, by);
            }
            Trouble::Roll => {
                let version = self.below(Scene::VERSIONS);
                let plans = self.plans(version);
                self.cluster.reconcile_on(index, plans);
            }
            Trouble::RunNow | Trouble::Backfill if frozen || !self.cluster.view(index).is_alive() => return false,
            Trouble::RunNow => self.run_now(index),
            Trouble::Backfill => self.backfill(index),
            Trouble::CrashInCall => {
                let view = self.cluster.view(index).clone();
                let kills = self.coin();
                let hit = move || if kills { view.kill() } else { view.freeze() };
                let hit = if self.coin() { Fault::before(hit) } else { Fault::after(hit) };
                let (call, n) = (Call::WRITES[self.upto(4)], 1 + self.below(3));
                self.cluster.store_of(index).on(call).nth(n, hit);
            }
            Trouble::Calls => {
                let (call, n, fault) = (Call::ALL[self.upto(6)], 1 + self.below(4), self.fault());
                self.cluster.store_of(index).on(call).next(n, fault);
            }
            Trouble::Network => {
                let fault = self.fault();
                self.cluster.store_of(index).on_any().chance(0.2, fault);
            }
            Trouble::Echo => {
                let (n, late) = (1 + self.below(4), secs(30 + self.below(170)));
                self.cluster.store_of(index).on(Call::Claim).next(n, Fault::DuplicateLater(late));
            }
            Trouble::Hang => {
                let (call, n) = (Call::ALL[self.upto(6)], 1 + self.below(3));
                self.cluster.store_of(index).on(call).nth(n, Fault::Stall);
            }
            Trouble::Heal => self.cluster.store_of(index).heal(),
            _ => return false,
        }
        true
    }

    /// An operator asks an instance for a run, under an id that may have been used before, and may be refused.
    fn run_now(&mut self, index: usize) {
        let how = RunNow::new(operator()).within(secs(self.below(30)));
        let how = match RequestId::new(format!("by hand {}", self.below(6))) {
            Ok(id) => how.id(id),
            Err(error) => panic!("{error}"),
        };
        let how = if self.coin() { how.force() } else { how };
        let plan = format!("plan-{}", self.below(4));
        let before = self.cluster.starts().len();
        match self.cluster.scheduler(index).clone().run_now(&plan, &how) {
            Ok(accepted) if accepted.standing == Standing::Started => {
                let started = self.cluster.starts().len() > before;
                assert!(started, "{} was told to be started, and was not", accepted.slot);
            }
            Ok(_) | Err(_) => {}
        }
    }

    /// An operator asks an instance for slots of the last minutes.
    fn backfill(&mut self, index: usize) {
        let to = self.cluster.now().to_datetime();
        let from = to - TimeDelta::seconds(self.around(900) + 900);
        let plan = format!("plan-{}", self.below(4));
        let what = Backfill::new(from, to, operator()).cap(Backfill::MAX);
        let _ = self.cluster.scheduler(index).clone().backfill(&plan, &what);
    }

    fn upto(&mut self, n: u64) -> usize {
        usize::try_from(self.below(n)).unwrap_or(0)
    }

    /// A fault for the next few calls.
    fn fault(&mut self) -> Fault {
        match self.below(8) {
            0 => Fault::Error(StoreErrorKind::Busy),
            1 => Fault::LostAnswer,
            2 => Fault::LostRequest,
            3 => Fault::Straggler(secs(self.below(100))),
            4 => Fault::Slow(secs(self.below(40))),
            5 => Fault::SlowAnswer(secs(self.below(40))),
            6 => Fault::Duplicate,
            _ => Fault::DuplicateLater(secs(self.below(200))),
        }
    }

    fn some_plan(&mut self) -> PlanKey {
        let keys = self.plan_keys();
        let n = 1 + self.upto(keys.len().saturating_sub(1).max(1) as u64);
        keys.get(n).or(keys.first()).cloned().unwrap_or_else(|| PlanKey::whole(Default::default()))
    }

    /// What an operator asks of a plan, and the plan's row afterwards.
    pub(super) fn plan(&self, key: &PlanKey, op: PlanOp) -> Option<PlanRow> {
        match self.cluster.ledger().plan(&[(key.clone(), op)]) {
            Ok(mut answer) => answer.value.pop().and_then(|state| state.row),
            Err(error) => panic!("the store fails an operator: {error}"),
        }
    }

    fn purge(&mut self) {
        let key = self.some_plan();
        let count = if self.coin() { None } else { Some(self.upto(10)) };
        let keep = Retention { age: Some(secs(self.below(300))), count, keep_last: self.upto(4) };
        let at_most = 1 + self.upto(50);
        if let Err(error) = self.cluster.ledger().purge(&key, keep, at_most) {
            panic!("the store fails to purge: {error}");
        }
    }

    fn plague(&mut self) {
        for index in 0..self.cluster.instances() {
            if !self.cluster.lives(index) || !self.cluster.view(index).is_alive() {
                self.cluster.restart(index);
            }
            if index == 0 {
                continue;
            }
            let view = self.cluster.view(index).clone();
            let nth = 1 + self.below(3);
            self.cluster.store_of(index).on(Call::Claim).nth(nth, Fault::after(move || view.kill()));
        }
    }

    /// What a tool asks for, which is not heard of again. Without a job: its runs are orphaned.
    fn tool(&mut self) -> bool {
        let plan = self.some_plan();
        let Some(row) = self.plan(&plan, PlanOp::Read).filter(|_| plan.plan.is_some()) else { return false };
        let back = i64::try_from(self.below(600)).unwrap_or(0);
        let now = self.cluster.now().trigger();
        let (nonce, request) = (u128::from(self.below(u64::MAX)), format!("request {}", self.below(4)));
        let by_hand = self.coin();
        let (at, request, kind) = if by_hand {
            (now, RequestId::new(request).ok(), RunKind::Manual)
        } else {
            // A full minute: a trigger point of most plans.
            let second = now.as_secs() - back;
            (Trigger::from_secs(second - second.rem_euclid(60)), None, RunKind::Backfill)
        };
        let claim = ClaimRequest {
            key: SlotKey { plan, at, request },
            nonce: Nonce::from_bits(nonce),
            fingerprint: row.generation.fingerprint,
            // Never before the cursor: it does not know the plan's schedule, so it has no say about where that stands.
            prev: Some(at),
            kind,
            asked: Some(Arc::new(operator())),
            gate: Gate::Policy(Overlap::Skip),
            attempts_allowed: 1,
            ttl: secs(5),
            instance: match InstanceId::new("tool") {
                Ok(instance) => instance,
                Err(error) => panic!("{error}"),
            },
            version: None,
        };
        match self.cluster.ledger().claim(&[claim]) {
            Ok(answer) => answer.value.iter().any(|claim| matches!(claim, Claim::Granted(_))),
            Err(error) => panic!("the store fails an operator: {error}"),
        }
    }

    fn pause(&mut self) {
        let all = self.below(4) == 0;
        let key = if all { self.plan_keys().swap_remove(0) } else { self.some_plan() };
        if !self.resume(&key) {
            let pause = PlanOp::Pause { by: "operator".to_owned(), why: "simulation".to_owned(), until: None };
            self.plan(&key, pause);
        }
    }

    fn cancel(&mut self) -> bool {
        let plan = self.some_plan();
        let unfinished = self.cluster.ledger().read(&Query::Unfinished { plan: plan.clone(), limit: 20 });
        let slots = match unfinished {
            Ok(answer) => answer.value.slots,
            Err(error) => panic!("the store cannot be read: {error}"),
        };
        let Some(slot) = slots.into_iter().find(|slot| slot.state == SlotState::Running) else { return false };
        let cancel = Cancel { by: "operator".to_owned(), why: "simulation".to_owned() };
        self.plan(&plan, PlanOp::Cancel { at: slot.key.at, request: slot.key.request, cancel });
        true
    }
}
