//! The sweep: what runners that are not heard of any more have left behind, and a look at the plans' rows.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::candidate::Candidate;
use super::claimer::ClaimerMail;
use super::lapses::Lapses;
use super::outbox::Outbox;
use super::retention::Keeping;
use super::shared::{RENEW_EVERY, Shared, matched};
use super::walk::Walks;
use super::{Installed, PlanCounts, state, stats::Counters};
use crate::key::{PlanId, PlanKey, SlotKey};
use crate::observer::Event;
use crate::plan::CatchUp;
use crate::rules::Look;
use crate::seam::{
    EndOp, EndRequest, Ended, Ending, NotStarted, PageToken, PlanOp, PlanRow, Query, RunKind, SlotRow, SlotState,
};
use crate::time::Timestamp;

/// Rows of one page, and of one look at the plans.
const PAGE: usize = 256;
const PLANS: usize = 1000;
/// How often skew is measured while it is too large.
const MEASURE: Duration = Duration::from_secs(1);

/// Comes every renewal interval; one page a turn.
#[derive(Default)]
pub(crate) struct Sweep {
    next: Duration,
    page: Option<PageToken>,
    /// First looks at lapsed leases, and the sweep that last confirmed them.
    looks: HashMap<SlotKey, (Look, u64)>,
    round: u64,
    /// Where the look at the plans goes on.
    plans_after: Option<PlanId>,
    /// When it last asked the store.
    asked: Duration,
}

/// Where a look at the plans puts what it finds.
pub(crate) struct Lists<'a> {
    pub(crate) outbox: &'a mut Outbox,
    pub(crate) walks: &'a mut Walks,
    pub(crate) keeping: &'a mut Keeping,
    pub(crate) lapses: &'a mut Lapses,
}

impl Sweep {
    pub(crate) fn new(first: Duration) -> Self {
        Self { next: first, ..Self::default() }
    }

    /// While the clock is off the store's it asks each second, to measure.
    pub(crate) fn due(&self, shared: &Shared) -> Duration {
        if shared.is_skewed() { self.next.min(self.asked + MEASURE) } else { self.next }
    }

    pub(crate) fn turn(&mut self, shared: &Shared, mono: Duration, lists: &mut Lists<'_>) {
        if mono < self.due(shared) {
            return;
        }
        self.asked = mono;
        let page = self.page.take();
        let query = Query::Lapsed {
            namespace: shared.config.namespace.clone(),
            max_skew: shared.config.max_skew,
            after: page.clone(),
            limit: PAGE,
        };
        let Ok(answer) = shared.store("read", |ledger| ledger.read(&query)) else {
            self.next = mono + Duration::from_secs(1);
            return;
        };
        shared.look_at_durability();
        if shared.is_skewed() {
            // It only measured: an instance whose clock is off neither accounts nor ends others' slots.
            self.next = mono + MEASURE;
            return;
        }
        // A store that gives the same page again and again would never come to an end.
        self.page = answer.value.more.filter(|more| page.as_ref() != Some(more));
        let now = answer.now;
        let requests: Vec<_> =
            answer.value.slots.iter().filter_map(|slot| self.consider(shared, slot, now, mono)).collect();
        end(shared, &requests);
        settle_open(shared, &answer.value.slots, now);
        if self.page.is_some() {
            return;
        }
        let round = self.round;
        self.looks.retain(|_, (_, seen)| *seen == round);
        self.round += 1;
        self.next = mono + RENEW_EVERY;
        self.look_at_plans(shared, lists);
    }

    /// What to do about a running slot of the page.
    fn consider(&mut self, shared: &Shared, slot: &SlotRow, now: Timestamp, mono: Duration) -> Option<EndRequest> {
        if slot.state != SlotState::Running {
            return None;
        }
        let request = |op| EndRequest { key: slot.key.clone(), fence: slot.fence, op };
        let Some(look) = Look::at(slot, now, mono) else {
            return Some(request(EndOp::CutLease { max_skew: shared.config.max_skew }));
        };
        let (first, seen) = self.looks.entry(slot.key.clone()).or_insert((look, self.round));
        *seen = self.round;
        if first.fence != look.fence || first.lease_end != look.lease_end {
            *first = look;
            return None;
        }
        let attempts_allowed = installed(shared, &slot.key).map_or(1, |p| p.policy.on_orphan.attempts_allowed());
        first.confirmed_by(&look, RENEW_EVERY).then(|| request(EndOp::Expire { attempts_allowed }))
    }

    /// Looks at some of the rows that the ledger has of plans, in turn: foreign generations, clocks that ran ahead,
    /// cursors that lag behind.
    fn look_at_plans(&mut self, shared: &Shared, lists: &mut Lists<'_>) {
        let query =
            Query::Plans { namespace: shared.config.namespace.clone(), after: self.plans_after.take(), limit: PLANS };
        let Ok(answer) = shared.store("read", |ledger| ledger.read(&query)) else { return };
        let full = answer.value.plans.len() >= PLANS;
        shared.pauses.saw(answer.value.plans.iter().map(|(key, row)| (key, Some(row))));
        // One plan a sweep is looked at for records that have grown old, in turn.
        let turn = self.round.checked_rem(answer.value.plans.len() as u64).unwrap_or(0);
        for (place, (key, row)) in (0..).zip(&answer.value.plans) {
            lists.lapses.look(key, row, answer.now);
            let Some(id) = &key.plan else { continue };
            let Some(plan) = shared.registry().get(id) else { continue };
            if !plan.is_active() {
                continue;
            }
            if place == turn && shared.config.retention.is_some() {
                lists.keeping.visit(id);
            }
            lists.outbox.look(shared, &plan, row, answer.now);
            if let Some(counts) = plan.counts_if_any() {
                counts.saw_success(row.last_success);
            }
            // A calendar is user code.
            match catch_unwind(AssertUnwindSafe(|| lags(shared, &plan, row, answer.now))) {
                Ok(true) => lists.walks.hurry(plan),
                Ok(false) => {}
                Err(panic) => failed_by_calendar(&plan, panic),
            }
        }
        if full {
            self.plans_after = answer.value.plans.last().and_then(|(key, _)| key.plan.clone());
        }
    }
}

/// The plan's calendar panicked: it starts nothing until the next reconcile.
pub(crate) fn failed_by_calendar(plan: &Installed, panic: Box<dyn std::any::Any + Send>) {
    plan.deactivate(state::FAILED);
    let said = super::worker::panic_text(panic);
    log::error!(target: "timertask::engine", "calendar of plan {:?} panicked: {said}; it waits for the next reconcile", plan.id);
}

/// Whether a slot whose window has closed lies behind the cursor.
fn lags(shared: &Shared, plan: &Installed, row: &PlanRow, now: Timestamp) -> bool {
    let next = plan.schedule.next_trigger(row.cursor);
    shared.pauses.of(&plan.id).is_none() && next.is_some_and(|next| next <= plan.closed_upto(now))
}

fn installed(shared: &Shared, key: &SlotKey) -> Option<Arc<Installed>> {
    let plan = shared.registry().get(key.plan.plan.as_ref()?)?;
    plan.is_active().then_some(plan)
}

/// Sends what a sweep found and tells what came of it.
fn end(shared: &Shared, requests: &[EndRequest]) {
    if requests.is_empty() {
        return;
    }
    let answer = shared.store("end", |ledger| matched("end", requests.len(), ledger.end(requests)?));
    let Ok(answer) = answer else { return };
    for (request, ended) in requests.iter().zip(answer.value) {
        let (Ended::Recorded(state), EndOp::Expire { .. }) = (ended, &request.op) else { continue };
        let rerun = state == SlotState::Open;
        log::warn!(target: "timertask::run", "{}: {} is {state}: its runner was not heard of any more", shared.config.instance, request.key);
        if !rerun {
            Counters::add(&shared.counters.orphaned, 1);
            if let Some(plan) = installed(shared, &request.key) {
                PlanCounts::add(&plan.counts().orphaned);
            }
        }
        shared.reports.event(&Event::Orphaned { slot: &request.key, rerun });
    }
}

/// Open slots of a page: claimed again, or laid to rest.
fn settle_open(shared: &Shared, slots: &[SlotRow], now: Timestamp) {
    let open: Vec<&SlotRow> = slots.iter().filter(|slot| slot.state == SlotState::Open).collect();
    if open.is_empty() {
        return;
    }
    let whole = PlanKey::whole(shared.config.namespace.clone());
    let plans = open.iter().map(|slot| slot.key.plan.clone()).chain([whole]);
    let keys: Vec<(PlanKey, PlanOp)> = plans.map(|plan| (plan, PlanOp::Read)).collect();
    let answer = shared.store("plan", |ledger| matched("plan", keys.len(), ledger.plan(&keys)?));
    let Ok(mut answer) = answer else { return };
    let all_paused = answer.value.pop().and_then(|whole| whole.row).is_some_and(|whole| whole.pause.is_some());
    let mut requests = Vec::new();
    for (slot, state) in open.into_iter().zip(answer.value) {
        let Some(row) = state.row else { continue };
        match what_of(shared, slot, &row, all_paused, now) {
            WhatOf::Leave => {}
            WhatOf::Claim(candidate) => shared.claimer.send(ClaimerMail::Found(candidate)),
            WhatOf::Rest(reason) => {
                requests.push(EndRequest { key: slot.key.clone(), fence: slot.fence, op: EndOp::Resolve { reason } });
            }
        }
    }
    end(shared, &requests);
}

enum WhatOf {
    Leave,
    Claim(Candidate),
    Rest(NotStarted),
}

fn what_of(shared: &Shared, slot: &SlotRow, row: &PlanRow, all_paused: bool, now: Timestamp) -> WhatOf {
    let Some(plan) = installed(shared, &slot.key) else {
        return if row.closed { WhatOf::Rest(NotStarted::Disabled) } else { WhatOf::Leave };
    };
    let at = slot.key.at;
    let operators = matches!(slot.kind, RunKind::Manual | RunKind::Backfill);
    if !operators && at <= row.generation.effective_from {
        return WhatOf::Rest(NotStarted::Edited);
    }
    if !operators && (all_paused || row.pause.is_some()) {
        // It waits until the plan is resumed.
        return WhatOf::Leave;
    }
    let Ok((prev, next)) =
        catch_unwind(AssertUnwindSafe(|| (plan.schedule.prev_trigger(at), plan.schedule.next_trigger(at))))
            .map_err(|panic| failed_by_calendar(&plan, panic))
    else {
        return WhatOf::Leave;
    };
    let claim = |plan, kind| WhatOf::Claim(Candidate::open(shared, plan, slot, prev, kind));
    // What is made up as the latest is so until a newer one is due.
    let latest = |plan: Arc<Installed>| {
        let until = next.map(|next| plan.due(next));
        WhatOf::Claim(Candidate { until, ..Candidate::open(shared, plan, slot, prev, RunKind::CatchUp) })
    };
    if slot.attempt > 0 {
        let allowed = plan.policy.on_orphan.attempts_allowed();
        if slot.attempt >= allowed {
            return WhatOf::Rest(NotStarted::GivenBack);
        }
        return claim(plan, if operators { slot.kind } else { RunKind::CatchUp });
    }
    match slot.kind {
        // Who asked for it was told that it did not run, and may ask again.
        RunKind::Manual if now <= at.timestamp().saturating_add(plan.policy.start_window) => return WhatOf::Leave,
        RunKind::Manual => return WhatOf::Rest(NotStarted::GivenBack),
        RunKind::Backfill => return claim(plan, slot.kind),
        RunKind::Scheduled | RunKind::CatchUp => {}
    }
    if now < plan.due(at) {
        // Given back by an instance whose clock was ahead; its time is still to come.
        return WhatOf::Leave;
    }
    if now <= plan.due(at).saturating_add(plan.policy.start_window) {
        return claim(plan, RunKind::Scheduled);
    }
    let newer = next.is_some_and(|next| plan.due(next) <= now);
    match plan.policy.catch_up {
        CatchUp::None => WhatOf::Rest(NotStarted::TooLate),
        // A lock that has lapsed guards nothing any more: nobody may start it here.
        _ if shared.mutex.is_some() => WhatOf::Rest(NotStarted::TooLate),
        CatchUp::Latest if newer => WhatOf::Rest(NotStarted::Superseded),
        CatchUp::Latest => latest(plan),
        CatchUp::All { .. } => claim(plan, RunKind::CatchUp),
    }
}

/// How the read-back of a run shows that its end was written elsewhere.
pub(crate) fn ended_elsewhere(shared: &Shared, key: &SlotKey, fence: crate::key::Fence) -> Option<Option<Ending>> {
    let query = Query::Slots(vec![key.clone()]);
    let answer = shared.store("read", |ledger| ledger.read(&query)).ok()?;
    Some(answer.value.slots.first().filter(|slot| slot.fence == fence).and_then(|slot| match slot.state {
        SlotState::Ended(ending) => Some(ending),
        _ => None,
    }))
}
