//! Gaps: walking from a plan's cursor to now, accounting for what was missed and making up what the policy wants.
//!
//! A walk begins wherever a gap shows. It goes in bounded steps, old to new, and never touches a slot whose start window
//! is open.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::claimer::{Candidate, ClaimerMail};
use super::shared::{Shared, matched};
use super::{Installed, state};
use crate::observer::Event;
use crate::plan::CatchUp;
use crate::schedule::Schedule;
use crate::seam::{Applied, Cover, NotStarted, Overlap, PlanOp, PlanRow, Query, RunKind};
use crate::time::{Timestamp, Trigger};

/// So many slots are looked up in one step,
const STEP: usize = 128;
/// so many plans take a step in one turn of the scribe.
const PLANS_AT_ONCE: usize = 16;
/// The most that a range record counts; beyond it the count is left out.
const COUNT: u64 = 1_000_000;
const DAY: Duration = Duration::from_secs(86_400);

struct Walk {
    plan: Arc<Installed>,
    not_before: Duration,
    /// A missed slot of it is with the claimer.
    in_flight: bool,
    /// When the plan was last seen running, for policies under which a slot may be waiting for that to end.
    seen_running: Option<Duration>,
    told: bool,
}

/// The plans that are being walked, by install number.
#[derive(Default)]
pub(crate) struct Walks(BTreeMap<u32, Walk>);

/// What a step came to.
enum Step {
    /// No gap is left.
    Done,
    /// Go on in the next turn.
    Again,
    /// Go on at this monotonic time.
    At(Duration),
    /// A missed slot was handed to the claimer; its answer goes on.
    InFlight,
}

impl Walks {
    /// A gap may be there.
    pub(crate) fn want(&mut self, plan: Arc<Installed>) {
        let walk = Walk { plan, not_before: Duration::ZERO, in_flight: false, seen_running: None, told: false };
        let there = self.0.entry(walk.plan.seq).or_insert(walk);
        if !there.in_flight {
            there.not_before = Duration::ZERO;
        }
    }

    /// The claimer has an answer for the plan's missed slot.
    pub(crate) fn caught_up(&mut self, plan: Arc<Installed>) {
        if let Some(walk) = self.0.get_mut(&plan.seq) {
            walk.in_flight = false;
            walk.not_before = Duration::ZERO;
        }
    }

    pub(crate) fn due(&self) -> Option<Duration> {
        self.0.values().filter(|walk| !walk.in_flight).map(|walk| walk.not_before).min()
    }

    /// Some steps.
    pub(crate) fn turn(&mut self, shared: &Shared, mono: Duration) {
        if shared.is_skewed() {
            for walk in self.0.values_mut() {
                walk.not_before = walk.not_before.max(mono + Duration::from_secs(1));
            }
            return;
        }
        let ready = |walk: &&mut Walk| !walk.in_flight && walk.not_before <= mono;
        let mut ended = Vec::new();
        for walk in self.0.values_mut().filter(ready).take(PLANS_AT_ONCE) {
            let step = if walk.plan.is_active() {
                // A calendar is user code, and this is where it is asked.
                catch_unwind(AssertUnwindSafe(|| walk.step(shared, mono))).unwrap_or_else(|panic| {
                    walk.plan.deactivate(state::FAILED);
                    let said = super::worker::panic_text(panic);
                    log::error!(target: "timertask::engine", "calendar of plan {:?} panicked: {said}", walk.plan.id);
                    Step::Done
                })
            } else {
                Step::Done
            };
            match step {
                Step::Done => ended.push(walk.plan.seq),
                Step::Again => {}
                Step::At(at) => walk.not_before = at,
                Step::InFlight => walk.in_flight = true,
            }
        }
        for seq in ended {
            self.0.remove(&seq);
        }
    }
}

impl Walk {
    fn step(&mut self, shared: &Shared, mono: Duration) -> Step {
        let plan = Arc::clone(&self.plan);
        let later = mono + Duration::from_secs(1);
        let Some((row, now)) = read(shared, &plan) else { return Step::At(later) };
        let Some(row) = row else { return Step::Done };
        if row.generation.fingerprint != plan.fingerprint || row.closed {
            // The current generation's instances know its slots.
            return Step::Done;
        }
        if row.pause.is_some() {
            // Its slots wait until it is resumed.
            return Step::At(mono + super::shared::RENEW_EVERY);
        }
        let upto = Trigger::from_secs(now.trigger().as_secs().saturating_sub(i64::from(plan.offset)));
        let mut slots = Vec::new();
        let mut at = row.cursor;
        while slots.len() < STEP
            && let Some(next) = plan.schedule.next_trigger(at).filter(|next| *next <= upto)
        {
            slots.push(next);
            at = next;
        }
        let Some(&last) = slots.last() else { return Step::Done };
        // First over what has rows already.
        let full = slots.len() == STEP;
        let Some((_, row)) = account(shared, &plan, row.cursor, last, Cover::Rows(slots.clone())) else {
            return Step::At(later);
        };
        let Some(&missed) = slots.iter().find(|slot| **slot > row.cursor) else {
            return if full { Step::Again } else { Step::Done };
        };
        let closes = plan.due(missed).saturating_add(plan.policy.start_window);
        if now <= closes {
            return Step::At(mono + closes.since(now) + Duration::from_millis(1));
        }
        if let Some(wait) = self.wait_for_queue(shared, &plan, mono) {
            return wait;
        }
        let Some(closed) = plan.schedule.prev_trigger(successor(plan.closed_upto(now))) else { return Step::Done };
        if closed < missed {
            return Step::At(later);
        }
        if !self.told {
            self.told = true;
            log::warn!(target: "timertask::engine", "{}: plan {:?} missed slots from {missed}", shared.config.instance, plan.id);
            shared.reports.event(&Event::Gap { plan: &plan.id });
        }
        make_up(shared, &plan, &row, Gap { missed, closed, upto }, now).unwrap_or(Step::At(later))
    }

    /// Under a policy by which a slot waits for the running one, a walk leaves it alone while the plan runs and for a
    /// start window after.
    fn wait_for_queue(&mut self, shared: &Shared, plan: &Installed, mono: Duration) -> Option<Step> {
        if !matches!(plan.policy.overlap, Overlap::QueueOne | Overlap::CancelPrevious) {
            return None;
        }
        let query = Query::Unfinished { plan: shared.plan_key(&plan.id), limit: STEP };
        let Ok(answer) = shared.store("read", |ledger| ledger.read(&query)) else {
            return Some(Step::At(mono + Duration::from_secs(1)));
        };
        if answer.value.slots.iter().any(|slot| slot.state == crate::seam::SlotState::Running) {
            self.seen_running = Some(mono);
            return Some(Step::At(mono + Duration::from_secs(1)));
        }
        let free = self.seen_running? + plan.policy.start_window;
        (mono < free).then_some(Step::At(free))
    }
}

/// Missed slots: the first, the last whose start window has closed, and the last that is due.
struct Gap {
    missed: Trigger,
    closed: Trigger,
    upto: Trigger,
}

/// Accounts for a gap and picks what is made up. `None`: a fault, or another instance was quicker; look again.
fn make_up(shared: &Shared, plan: &Arc<Installed>, row: &PlanRow, gap: Gap, now: Timestamp) -> Option<Step> {
    let schedule = &plan.schedule;
    let from = row.cursor;
    let oldest = oldest_wanted(plan, gap.closed, now);
    let drop_upto = |to: Trigger, reason: NotStarted| -> Option<Step> {
        let count = count(schedule, from, to);
        let (applied, _) = account(shared, plan, from, to, Cover::Range { count, reason })?;
        matches!(applied, Applied::Done | Applied::Unchanged).then_some(Step::Again)
    };
    let policy = if shared.mutex.is_some() { CatchUp::None } else { plan.policy.catch_up };
    let first = match policy {
        CatchUp::None | CatchUp::All { cap: 0 } => return drop_upto(gap.closed, NotStarted::TooLate),
        CatchUp::Latest => {
            // A slot whose window is open is the latest; it starts live.
            if schedule.next_trigger(gap.closed).is_some_and(|live| live <= gap.upto) {
                return drop_upto(gap.closed, NotStarted::Superseded);
            }
            gap.closed
        }
        CatchUp::All { cap } => nth_back(schedule, gap.closed, cap, gap.missed),
    };
    if gap.closed < oldest {
        return drop_upto(gap.closed, NotStarted::OutsideWindow);
    }
    let first = if first < oldest { schedule.next_trigger(predecessor(oldest)).unwrap_or(first) } else { first };
    let before = schedule.prev_trigger(first);
    if let Some(before) = before.filter(|before| *before >= gap.missed) {
        let reason = match policy {
            _ if before < oldest => NotStarted::OutsideWindow,
            CatchUp::Latest => NotStarted::Superseded,
            CatchUp::None | CatchUp::All { .. } => NotStarted::OverCap,
        };
        return drop_upto(before, reason);
    }
    // The cursor stands right before it, whatever the schedule was back then.
    let candidate = Candidate::new(shared, Arc::clone(plan), first, Some(from), RunKind::CatchUp);
    shared.claimer.send(ClaimerMail::Found(candidate));
    Some(Step::InFlight)
}

/// The oldest trigger point that may still be made up.
fn oldest_wanted(plan: &Installed, closed: Trigger, now: Timestamp) -> Trigger {
    let window = plan.policy.catch_up_window.unwrap_or_else(|| {
        let period = plan.schedule.period_after(predecessor(closed)).unwrap_or(DAY);
        period.max(DAY).min(31 * DAY)
    });
    let back = window.saturating_add(Duration::from_secs(u64::from(plan.offset)));
    now.saturating_sub(back).trigger()
}

/// The trigger point `n - 1` before `last`, not before `first`.
fn nth_back(schedule: &Schedule, last: Trigger, n: u32, first: Trigger) -> Trigger {
    let mut at = last;
    for _ in 1..n {
        match schedule.prev_trigger(at) {
            Some(before) if before >= first => at = before,
            _ => break,
        }
    }
    at
}

fn count(schedule: &Schedule, after: Trigger, upto: Trigger) -> Option<u64> {
    let n = schedule.count_between(after, upto, COUNT);
    (n < COUNT).then_some(n)
}

fn successor(at: Trigger) -> Trigger {
    Trigger::from_secs(at.as_secs().saturating_add(1))
}

fn predecessor(at: Trigger) -> Trigger {
    Trigger::from_secs(at.as_secs().saturating_sub(1))
}

fn read(shared: &Shared, plan: &Installed) -> Option<(Option<PlanRow>, Timestamp)> {
    let requests = [(shared.plan_key(&plan.id), PlanOp::Read)];
    let mut answer = shared.store("plan", |ledger| matched("plan", 1, ledger.plan(&requests)?)).ok()?;
    Some((answer.value.pop()?.row, answer.now))
}

fn account(shared: &Shared, plan: &Installed, from: Trigger, to: Trigger, cover: Cover) -> Option<(Applied, PlanRow)> {
    let op = PlanOp::Account { fingerprint: plan.fingerprint, from, to, cover };
    let requests = [(shared.plan_key(&plan.id), op)];
    let mut answer = shared.store("plan", |ledger| matched("plan", 1, ledger.plan(&requests)?)).ok()?;
    let state = answer.value.pop()?;
    Some((state.applied, state.row?))
}
