//! Backfills: an operator's range of slots, counted, and then started old to new, each under its own key. Every instance
//! that finds one on the notice board carries it out; the claims see to it that each slot starts once, and the board that
//! it goes on when an instance dies.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Installed;
use super::candidate::{Candidate, Errand, Origin};
use super::claimer::ClaimerMail;
use super::requests::{answer, is_answered, take_off};
use super::shared::{RENEW_EVERY, Shared};
use super::sweep::failed_by_calendar;
use crate::key::{PlanId, PlanKey, RequestId};
use crate::operate::notice::{Notice, Verdict, Wish};
use crate::operate::{Backfill, Judge, OperateError, Outlook, STEP};
use crate::seam::{RunKind, StoreError};
use crate::time::Trigger;

const SECOND: Duration = Duration::from_secs(1);

/// The backfills that this instance carries out.
#[derive(Default)]
pub(crate) struct Backfills {
    drives: BTreeMap<u64, Drive>,
    last: u64,
}

struct Drive {
    notice: Notice,
    plan: Arc<Installed>,
    errand: Arc<Errand>,
    on_board: bool,
    stage: Stage,
    /// Whether the number of its slots was found to be within its cap.
    counted: bool,
    not_before: Duration,
    /// A slot of it is with the claimer.
    in_flight: bool,
}

enum Stage {
    /// Finds out which slots it will start, from here on.
    Counting { next: Trigger, points: usize, starts: VecDeque<Trigger> },
    /// These are left.
    Starting(VecDeque<Trigger>),
}

/// What a step came to.
enum Step {
    /// Go on in the next turn.
    Again,
    /// Go on at this monotonic time.
    At(Duration),
    /// A slot was handed to the claimer; its answer goes on.
    InFlight,
    /// Nothing is left, or it is refused.
    Over(Option<Verdict>),
    /// It goes on, and this is to be told on the board.
    Tell(Verdict),
    /// The plan is not installed here any more.
    Forget,
}

impl Backfills {
    /// Takes up a backfill of an installed plan, unless it is under way here.
    pub(crate) fn take_up(&mut self, notice: Notice, plan: Arc<Installed>, on_board: bool) {
        let Wish::Backfill { from, .. } = notice.wish else { return };
        let same = |drive: &Drive| drive.notice.plan == notice.plan && drive.notice.id == notice.id;
        if self.drives.values().any(same) {
            return;
        }
        self.last += 1;
        let drive = Drive {
            notice,
            plan,
            errand: Arc::new(Errand { number: self.last, stopped: AtomicBool::new(false) }),
            on_board,
            stage: Stage::Counting { next: from, points: 0, starts: VecDeque::new() },
            counted: false,
            not_before: Duration::ZERO,
            in_flight: false,
        };
        self.drives.insert(self.last, drive);
    }

    /// What was taken off the board is over: done by another instance, or withdrawn.
    pub(crate) fn keep_posted(&mut self, keys: &HashSet<&str>) {
        self.stop(|drive| drive.on_board && !keys.contains(drive.notice.key().as_str()));
    }

    /// What is not started yet will not be.
    pub(crate) fn withdraw(&mut self, plan: &PlanId, id: &RequestId) {
        self.stop(|drive| drive.notice.plan == *plan && drive.notice.id == *id);
    }

    fn stop(&mut self, which: impl Fn(&Drive) -> bool) {
        self.drives.retain(|_, drive| {
            let stops = which(drive);
            if stops {
                drive.errand.stopped.store(true, Ordering::Release);
            }
            !stops
        });
    }

    /// The claimer has an answer for a slot.
    pub(crate) fn answered(&mut self, number: u64, then: Duration) {
        if let Some(drive) = self.drives.get_mut(&number) {
            (drive.in_flight, drive.not_before) = (false, then);
        }
    }

    pub(crate) fn due(&self) -> Option<Duration> {
        self.drives.values().filter(|drive| !drive.in_flight).map(|drive| drive.not_before).min()
    }

    /// A step of each whose time has come.
    pub(crate) fn turn(&mut self, shared: &Shared, mono: Duration) {
        let mut over = Vec::new();
        for (number, drive) in &mut self.drives {
            if drive.in_flight || drive.not_before > mono {
                continue;
            }
            match drive.step(shared, mono) {
                Step::Again => {}
                Step::At(at) => drive.not_before = at,
                Step::InFlight => drive.in_flight = true,
                Step::Tell(verdict) => {
                    // Who is first has counted before anything was started.
                    if drive.on_board && !is_answered(shared, &drive.notice) {
                        let _ = answer(shared, &drive.notice, &verdict);
                    }
                }
                // Where the store does not let us take it off, it is found once more, and nothing is left to do.
                Step::Over(verdict) => {
                    over.push(*number);
                    let told = verdict.is_none_or(|verdict| {
                        log::warn!(target: "timertask::engine", "{}: plan {:?}: backfill {}: {verdict:?}", shared.config.instance, drive.plan.id, drive.notice.id);
                        !drive.on_board || answer(shared, &drive.notice, &verdict)
                    });
                    if drive.on_board && told {
                        take_off(shared, &drive.notice);
                    }
                }
                Step::Forget => over.push(*number),
            }
        }
        for number in over {
            self.drives.remove(&number);
        }
    }
}

impl Drive {
    fn step(&mut self, shared: &Shared, mono: Duration) -> Step {
        if shared.is_skewed() {
            return Step::At(mono + SECOND);
        }
        if !self.plan.is_active() {
            match shared.registry().get(&self.notice.plan).filter(|plan| plan.is_active()) {
                // Edited: the slots that are left are those of the new version.
                Some(plan) => {
                    self.plan = plan;
                    self.count_anew();
                }
                // Where it stands on the board, another instance goes on, or this one once the plan is back.
                None if self.on_board => return Step::Forget,
                None => return Step::At(mono + RENEW_EVERY),
            }
        }
        let plan = Arc::clone(&self.plan);
        let key = shared.plan_key(&plan.id);
        let stepped = catch_unwind(AssertUnwindSafe(|| match &mut self.stage {
            Stage::Counting { .. } => self.count(shared, &key),
            Stage::Starting(_) => self.start(shared, &key),
        }));
        match stepped {
            Ok(Ok(step)) => step,
            Ok(Err(_)) => Step::At(mono + SECOND),
            Err(panic) => {
                failed_by_calendar(&plan, panic);
                Step::At(mono + RENEW_EVERY)
            }
        }
    }

    fn count_anew(&mut self) {
        let Wish::Backfill { from, .. } = self.notice.wish else { return };
        let next = match &self.stage {
            Stage::Counting { .. } => from,
            Stage::Starting(left) => left.front().copied().unwrap_or(from),
        };
        self.stage = Stage::Counting { next, points: 0, starts: VecDeque::new() };
    }

    fn count(&mut self, shared: &Shared, key: &PlanKey) -> Result<Step, StoreError> {
        let Wish::Backfill { to, cap, .. } = self.notice.wish else { return Ok(Step::Forget) };
        let Stage::Counting { next, points, starts } = &mut self.stage else { return Ok(Step::Again) };
        let judge = judge(key, &self.plan);
        let slots = judge.step(*next, to);
        let found = judge.look(&slots, |query| shared.store("read", |ledger| ledger.read(query)))?;
        *points += slots.len();
        starts.extend(found.iter().filter(|prospect| prospect.starts()).map(|prospect| prospect.slot.at));
        if *points > Backfill::MAX {
            return Ok(Step::Over(Some(Verdict::Refused(OperateError::TooWide.to_string()))));
        }
        if let Some(last) = slots.last().filter(|_| slots.len() == STEP) {
            *next = Trigger::from_secs(last.as_secs().saturating_add(1));
            return Ok(Step::Again);
        }
        let count = starts.len();
        let cap = cap.min(Backfill::MAX);
        if !self.counted && count > cap {
            return Ok(Step::Over(Some(Verdict::Refused(OperateError::OverCap { starts: count, cap }.to_string()))));
        }
        let Notice { id, asked, .. } = &self.notice;
        if !self.counted {
            log::info!(target: "timertask::engine", "{}: plan {:?}: backfill {id} of {count} slots, asked by {:?}", shared.config.instance, self.plan.id, asked.by());
        }
        self.counted = true;
        self.stage = Stage::Starting(std::mem::take(starts));
        Ok(Step::Tell(Verdict::Goes(count)))
    }

    /// Looks at the first slot that is left, and hands it to the claimer where it is still to be started.
    fn start(&mut self, shared: &Shared, key: &PlanKey) -> Result<Step, StoreError> {
        let Stage::Starting(left) = &mut self.stage else { return Ok(Step::Again) };
        let Some(at) = left.front().copied() else { return Ok(Step::Over(None)) };
        let judge = judge(key, &self.plan);
        let found = judge.look(&[at], |query| shared.store("read", |ledger| ledger.read(query)))?;
        let starts = found.first().map(|prospect| prospect.outlook).is_some_and(Outlook::starts);
        if !starts {
            left.pop_front();
            return Ok(Step::Again);
        }
        let prev = self.plan.schedule.prev_trigger(at);
        let origin = Origin::Backfill(Arc::clone(&self.errand));
        let mut candidate = Candidate::new(shared, Arc::clone(&self.plan), at, prev, RunKind::Backfill, origin);
        candidate.asked = Some(Arc::new(self.notice.asked.clone()));
        shared.claimer.send(ClaimerMail::Found(candidate));
        Ok(Step::InFlight)
    }
}

/// What the slots of an installed plan are judged by.
pub(crate) fn judge<'a>(key: &'a PlanKey, plan: &'a Installed) -> Judge<'a> {
    Judge {
        plan: key,
        schedule: &plan.schedule,
        allowed: plan.policy.on_orphan.attempts_allowed(),
        open_for: plan.policy.start_window.saturating_add(Duration::from_secs(u64::from(plan.offset))),
    }
}
