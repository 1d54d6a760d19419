//! Gaps: walking from a plan's cursor to now, accounting for what was missed and making up what the policy wants.
//!
//! A walk begins wherever a gap shows. It goes in bounded steps, old to new, and never touches a slot whose start window
//! is open. Many plans take a step together, in three calls of the store, so that a host with many plans is soon through
//! after a time of being down.

use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::Installed;
use super::candidate::{Candidate, Origin};
use super::claimer::ClaimerMail;
use super::lapses::Lapses;
use super::make_up::{COUNT, Gap, MakeUp, make_up, successor};
use super::shared::{RENEW_EVERY, Shared, matched};
use super::sweep::failed_by_calendar;
use crate::key::{PlanId, PlanKey};
use crate::observer::Event;
use crate::plan::CatchUp;
use crate::seam::{Applied, Cover, NotStarted, Overlap, Pause, PlanOp, PlanRow, PlanState, Query, RunKind, SlotState};
use crate::time::{Timestamp, Trigger};

/// So many slots are looked up in one step,
const STEP: usize = 128;
/// so many plans take a step in one turn of the scribe.
const PLANS_AT_ONCE: usize = 128;
const SECOND: Duration = Duration::from_secs(1);

struct Walk {
    plan: Arc<Installed>,
    not_before: Duration,
    /// A missed slot of it is with the claimer.
    in_flight: bool,
    /// Since when the plan has not been seen running, for policies under which a slot may be waiting for that.
    free_since: Option<Duration>,
    /// When it last accounted for a gap or made a slot of it up.
    accounted: Option<Duration>,
    told: bool,
    /// It was seen paused: a slot whose start window is open may have been refused.
    paused: bool,
}

/// The plans that are being walked, by install number, and when those go on that are not in flight.
#[derive(Default)]
pub(crate) struct Walks {
    plans: HashMap<u32, Walk>,
    order: BTreeSet<(Duration, u32)>,
    /// All are paused: no step before this monotonic time.
    hold: Option<Duration>,
}

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

/// A walk in the midst of its step, and the cursor that it goes by.
struct Stepping {
    walk: Walk,
    /// Where the cursor was when `slots` were looked for.
    begun_at: Trigger,
    row: PlanRow,
    /// The last trigger point that is due.
    upto: Trigger,
    /// Slots after the cursor, in order.
    slots: Vec<Trigger>,
    /// How many missed slots are being recorded as not started, and why.
    passed_over: Option<(u64, NotStarted)>,
}

/// What a plan's step says of it, and what it goes on with.
enum Next {
    /// Over.
    Over(Step),
    /// This account, and its step goes on after it.
    Account(Trigger, Cover),
}

impl Walks {
    /// A gap may be there. Where the plan is being walked already that walk comes to it: it knows when the first missed
    /// slot's window closes.
    pub(crate) fn want(&mut self, plan: Arc<Installed>) {
        let seq = plan.seq;
        self.plans.entry(seq).or_insert_with(|| {
            self.order.insert((Duration::ZERO, seq));
            Walk {
                plan,
                not_before: Duration::ZERO,
                in_flight: false,
                free_since: None,
                accounted: None,
                told: false,
                paused: false,
            }
        });
    }

    /// A gap is there whose window has closed, by the store's clock, which may have stepped since the walk looked.
    pub(crate) fn hurry(&mut self, plan: Arc<Installed>) {
        let seq = plan.seq;
        match self.plans.get(&seq) {
            None => self.want(plan),
            Some(walk) if walk.in_flight => {}
            Some(_) => self.go_on(seq, Duration::ZERO),
        }
    }

    /// The claimer has an answer for the plan's missed slot.
    pub(crate) fn caught_up(&mut self, plan: &Installed, then: Duration) {
        self.go_on(plan.seq, then);
    }

    /// The plan, or all, is no longer paused.
    pub(crate) fn resumed(&mut self, plan: Option<&PlanId>) {
        self.hold = None;
        let of = |walk: &&Walk| !walk.in_flight && plan.is_none_or(|plan| walk.plan.id == *plan);
        let waiting: Vec<u32> = self.plans.values().filter(of).map(|walk| walk.plan.seq).collect();
        waiting.into_iter().for_each(|seq| self.go_on(seq, Duration::ZERO));
    }

    fn go_on(&mut self, seq: u32, at: Duration) {
        let Some(walk) = self.plans.get_mut(&seq) else { return };
        self.order.remove(&(walk.not_before, seq));
        (walk.not_before, walk.in_flight) = (at, false);
        self.order.insert((at, seq));
    }

    pub(crate) fn due(&self) -> Option<Duration> {
        self.order.first().map(|(at, _)| (*at).max(self.hold.unwrap_or_default()))
    }

    /// Takes those out whose time has come, up to as many as take a step together.
    fn ready(&mut self, mono: Duration) -> Vec<Walk> {
        let mut ready = Vec::new();
        if self.hold.is_some_and(|until| mono < until) {
            return ready;
        }
        while ready.len() < PLANS_AT_ONCE
            && let Some(&(at, seq)) = self.order.first()
            && at <= mono
        {
            self.order.remove(&(at, seq));
            ready.extend(self.plans.remove(&seq));
        }
        ready
    }

    fn put_back(&mut self, mut walk: Walk, step: Step, mono: Duration) {
        let seq = walk.plan.seq;
        match step {
            Step::Done => return,
            Step::InFlight => walk.in_flight = true,
            Step::Again | Step::At(_) => {
                walk.not_before = if let Step::At(at) = step { at } else { mono };
                self.order.insert((walk.not_before, seq));
            }
        }
        self.plans.insert(seq, walk);
    }

    /// A step for some plans.
    pub(crate) fn turn(&mut self, shared: &Shared, mono: Duration, lapses: &mut Lapses) {
        let mut ready = self.ready(mono);
        if ready.is_empty() {
            return;
        }
        let later = mono + SECOND;
        if shared.is_skewed() {
            ready.into_iter().for_each(|walk| self.put_back(walk, Step::At(later), mono));
            return;
        }
        ready.retain(|walk| walk.plan.is_active());
        if ready.is_empty() {
            return;
        }
        let all = PlanKey::whole(shared.config.namespace.clone());
        let keys: Vec<PlanKey> = ready.iter().map(|walk| shared.plan_key(&walk.plan.id)).chain([all]).collect();
        let read = ask(shared, keys.iter().map(|key| (key.clone(), PlanOp::Read)).collect());
        let Some((mut states, now)) = read else {
            ready.into_iter().for_each(|walk| self.put_back(walk, Step::At(later), mono));
            return;
        };
        let rows = || keys.iter().zip(states.iter().map(|state| state.row.as_ref()));
        shared.pauses.saw(rows());
        rows().for_each(|(key, row)| row.into_iter().for_each(|row| lapses.look(key, row, now)));
        let all = states.pop().and_then(|all| all.row);
        if let Some(pause) = all.and_then(|all| all.pause) {
            // Slots wait until all is resumed.
            ready.into_iter().for_each(|walk| self.put_back(walk, Step::Again, mono));
            self.plans.values_mut().for_each(|walk| walk.paused = true);
            self.hold = Some(look_again(&pause, now, mono));
            return;
        }
        self.hold = None;
        // First over what has rows already.
        let begun = ready.into_iter().zip(states).filter_map(|(mut walk, state)| {
            let plan = Arc::clone(&walk.plan);
            match contained(&plan, || begin(shared, &mut walk, state.row, now, mono)) {
                Ok((row, upto, slots)) => {
                    Some(Stepping { walk, begun_at: row.cursor, row, upto, slots, passed_over: None })
                }
                Err(step) => {
                    self.put_back(walk, step, mono);
                    None
                }
            }
        });
        let rows = |stepping: &Stepping| {
            let last = stepping.slots.last().copied().unwrap_or(stepping.row.cursor);
            (last, Cover::Rows(stepping.slots.clone()))
        };
        let begun: Vec<_> = begun.map(|stepping| (rows(&stepping), stepping)).collect();
        let passed = self.account(shared, begun, mono);
        let mut missed = Vec::new();
        for (_, mut stepping) in passed {
            if stepping.row.cursor < stepping.begun_at {
                // Set back meanwhile: slots lie behind it that this step has not looked for.
                self.put_back(stepping.walk, Step::Again, mono);
                continue;
            }
            let plan = Arc::clone(&stepping.walk.plan);
            match contained(&plan, || Ok(stepping.go_on(shared, now, mono))) {
                Ok(Next::Account(to, cover)) => {
                    if let Cover::Range { count, reason } = cover {
                        stepping.passed_over = Some((count.unwrap_or(COUNT), reason));
                    }
                    missed.push(((to, cover), stepping));
                }
                Ok(Next::Over(step)) | Err(step) => self.put_back(stepping.walk, step, mono),
            }
        }
        for (applied, stepping) in self.account(shared, missed, mono) {
            if let (Applied::Done, Some((count, reason))) = (applied, stepping.passed_over) {
                shared.missed(&stepping.walk.plan, count, Some(reason));
            }
            let step = if applied == Applied::Conflict { Step::At(later) } else { Step::Again };
            self.put_back(stepping.walk, step, mono);
        }
    }

    /// Accounts for all of these in one call; each with its row as it is then, those left out of which that is not known.
    fn account(
        &mut self,
        shared: &Shared,
        accounts: Vec<((Trigger, Cover), Stepping)>,
        mono: Duration,
    ) -> Vec<(Applied, Stepping)> {
        let (asked, steppings): (Vec<_>, Vec<_>) = accounts.into_iter().unzip();
        let op = |stepping: &Stepping, (to, cover)| {
            let plan = &stepping.walk.plan;
            let op = PlanOp::Account { fingerprint: plan.fingerprint, from: stepping.row.cursor, to, cover };
            (shared.plan_key(&plan.id), op)
        };
        let requests = steppings.iter().zip(asked).map(|(stepping, asked)| op(stepping, asked)).collect();
        let states = ask(shared, requests).map(|(states, _)| states);
        let rows = states.into_iter().flatten().map(|state| state.row.map(|row| (state.applied, row)));
        let mut done = Vec::new();
        for (mut stepping, row) in steppings.into_iter().zip(rows.chain(std::iter::repeat_with(|| None))) {
            match row {
                Some((applied, row)) => {
                    stepping.row = row;
                    done.push((applied, stepping));
                }
                None => self.put_back(stepping.walk, Step::At(mono + SECOND), mono),
            }
        }
        done
    }
}

/// Calls what may ask a calendar, which is user code; a panic fails the plan.
fn contained<T>(plan: &Installed, f: impl FnOnce() -> Result<T, Step>) -> Result<T, Step> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        failed_by_calendar(plan, panic);
        Err(Step::Done)
    })
}

fn ask(shared: &Shared, requests: Vec<(PlanKey, PlanOp)>) -> Option<(Vec<PlanState>, Timestamp)> {
    if requests.is_empty() {
        return Some((Vec::new(), shared.clock.now()));
    }
    let answer = shared.store("plan", |ledger| matched("plan", requests.len(), ledger.plan(&requests)?)).ok()?;
    Some((answer.value, answer.now))
}

/// The slots after the cursor that are due, a step's worth.
fn begin(
    shared: &Shared,
    walk: &mut Walk,
    row: Option<PlanRow>,
    now: Timestamp,
    mono: Duration,
) -> Result<(PlanRow, Trigger, Vec<Trigger>), Step> {
    let plan = Arc::clone(&walk.plan);
    let Some(row) = row else { return Err(Step::Done) };
    if row.generation.fingerprint != plan.fingerprint || row.closed {
        // The current generation's instances know its slots.
        return Err(Step::Done);
    }
    if let Some(pause) = &row.pause {
        // Its slots wait until it is resumed.
        walk.paused = true;
        return Err(Step::At(look_again(pause, now, mono)));
    }
    let upto = Trigger::from_secs(now.trigger().as_secs().saturating_sub(i64::from(plan.offset)));
    if std::mem::take(&mut walk.paused) {
        start_live(shared, &plan, &row, upto, now);
    }
    let mut slots = Vec::new();
    let mut at = row.cursor;
    while slots.len() < STEP
        && let Some(next) = plan.schedule.next_trigger(at).filter(|next| *next <= upto)
    {
        slots.push(next);
        at = next;
    }
    if slots.is_empty() { Err(Step::Done) } else { Ok((row, upto, slots)) }
}

/// When to look again whether a pause is over: each sweep, and when it ends by itself.
fn look_again(pause: &Pause, now: Timestamp, mono: Duration) -> Duration {
    let end = pause.until.filter(|until| *until > now).map_or(RENEW_EVERY, |until| until.since(now));
    mono + end.min(RENEW_EVERY)
}

/// After a pause: a slot whose start window is open was refused when it fell due, and is live now.
fn start_live(shared: &Shared, plan: &Arc<Installed>, row: &PlanRow, upto: Trigger, now: Timestamp) {
    let newest = plan.schedule.prev_trigger(successor(upto));
    let live = |at: &Trigger| *at > row.cursor && now <= plan.due(*at).saturating_add(plan.policy.start_window);
    let Some(at) = newest.filter(live) else { return };
    let prev = plan.schedule.prev_trigger(at);
    let candidate = Candidate::new(shared, Arc::clone(plan), at, prev, RunKind::Scheduled, Origin::Sweep);
    shared.claimer.send(ClaimerMail::Found(candidate));
}

impl Stepping {
    /// What is to be done about the first slot without a row.
    fn go_on(&mut self, shared: &Shared, now: Timestamp, mono: Duration) -> Next {
        let plan = Arc::clone(&self.walk.plan);
        let later = mono + SECOND;
        let Some(&missed) = self.slots.iter().find(|slot| **slot > self.row.cursor) else {
            return Next::Over(if self.slots.len() == STEP { Step::Again } else { Step::Done });
        };
        let closes = plan.due(missed).saturating_add(plan.policy.start_window);
        if now <= closes {
            let closed = mono.saturating_add(closes.since(now)).saturating_add(Duration::from_millis(1));
            // Where slots come thick, those of some seconds share a record.
            let apart = self.walk.accounted.map_or(Duration::ZERO, |last| last.saturating_add(RENEW_EVERY));
            return Next::Over(Step::At(closed.max(apart)));
        }
        let Some(mut closed) = plan.schedule.prev_trigger(successor(plan.closed_upto(now))) else {
            return Next::Over(Step::Done);
        };
        match self.newest_waits(shared, mono) {
            Err(step) => return Next::Over(step),
            Ok(None) => {}
            Ok(Some(again)) => {
                let newest = plan.schedule.prev_trigger(successor(self.upto)).unwrap_or(missed);
                if missed >= newest {
                    return Next::Over(Step::At(again));
                }
                closed = closed.min(plan.schedule.prev_trigger(newest).unwrap_or(closed));
            }
        }
        if closed < missed {
            return Next::Over(Step::At(later));
        }
        if !self.walk.told {
            self.walk.told = true;
            log::warn!(target: "timertask::engine", "{}: plan {:?} missed slots from {missed}", shared.config.instance, plan.id);
            shared.reports.event(&Event::Gap { plan: &plan.id });
        }
        let upto = match plan.policy.catch_up {
            CatchUp::All { .. } => match self.end_of_gap(shared, missed, now, mono) {
                Ok(end) => end,
                Err(step) => return Next::Over(step),
            },
            CatchUp::Latest | CatchUp::None => self.upto,
        };
        self.walk.accounted = Some(mono);
        match make_up(shared, &plan, self.row.cursor, &Gap { missed, closed, upto }, now) {
            MakeUp::Drop(to, cover) => Next::Account(to, cover),
            MakeUp::One(candidate) => {
                shared.claimer.send(ClaimerMail::Found(candidate));
                Next::Over(Step::InFlight)
            }
        }
    }

    /// The last slot before the next one that has a row, or the last that is due, but for one that starts live: so far the
    /// gap reaches, whoever asks and however long it takes to be closed.
    fn end_of_gap(&self, shared: &Shared, missed: Trigger, now: Timestamp, mono: Duration) -> Result<Trigger, Step> {
        let plan = &self.walk.plan;
        let query =
            Query::History { plan: shared.plan_key(&plan.id), after: missed, upto: self.upto, page: None, limit: STEP };
        let page = shared.store("read", |ledger| ledger.read(&query)).map_err(|_| Step::At(mono + SECOND))?.value;
        let row = page.slots.iter().filter(|slot| slot.key.request.is_none()).map(|slot| slot.key.at).min();
        let last = plan.schedule.prev_trigger(row.unwrap_or(successor(self.upto))).unwrap_or(missed);
        let live = row.is_none() && now <= plan.due(last).saturating_add(plan.policy.start_window);
        Ok(if live { plan.schedule.prev_trigger(last).unwrap_or(missed) } else { last })
    }

    /// Under a policy by which the newest slot waits for the running one, a walk leaves it alone while the plan runs and for
    /// a start window after; `Some`: until this monotonic time at least.
    fn newest_waits(&mut self, shared: &Shared, mono: Duration) -> Result<Option<Duration>, Step> {
        let plan = &self.walk.plan;
        if !matches!(plan.policy.overlap, Overlap::QueueOne | Overlap::CancelPrevious) {
            return Ok(None);
        }
        let query = Query::Unfinished { plan: shared.plan_key(&plan.id), limit: STEP };
        let answer = shared.store("read", |ledger| ledger.read(&query)).map_err(|_| Step::At(mono + SECOND))?;
        if answer.value.slots.iter().any(|slot| slot.state == SlotState::Running) {
            self.walk.free_since = None;
            return Ok(Some(mono + RENEW_EVERY));
        }
        // A walk that has just begun does not know how long the plan has been free.
        let free = *self.walk.free_since.get_or_insert(mono);
        let closes = free.saturating_add(plan.policy.start_window);
        Ok((mono <= closes).then(|| closes.saturating_add(Duration::from_millis(1))))
    }
}
