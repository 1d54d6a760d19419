//! One instance, as far as the ledger sees it.

use std::collections::BTreeMap;
use std::sync::Arc;

use timertask_core::key::{InstanceId, Nonce, SlotKey};
use timertask_core::rules::Look;
use timertask_core::seam::{
    Applied, Asked, Claim, ClaimRequest, Cover, EndOp, EndRequest, Ending, Gate, Generation, Grant, Ledger, NotStarted,
    Overlap, PlanOp, PlanRow, Query, Refusal, Renewal, RunKind, SlotRow, SlotState, Term,
};
use timertask_core::time::{Timestamp, Trigger};

use super::network::{Call, Reply};
use super::spec::{CATCH_UP_WINDOW, CatchUp, INTERVAL, SKEW, START_WINDOW, Spec, TTL};
use super::world::World;
use crate::conformance::Step;
use crate::conformance::probe::{id, value};

/// What a run does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    /// It has returned, and its end is to be recorded.
    Returned(Ending),
    /// It was not entered, and is to be given back.
    NotEntered,
}

struct Run {
    term: Term,
    stage: Stage,
    told_to_stop: bool,
}

pub(super) struct Instance {
    label: InstanceId,
    /// For how many more steps it does nothing, and thinks nothing of it afterwards.
    frozen: usize,
    /// The version that it has installed; `None`: none, or not yet.
    installed: Option<usize>,
    /// Its generation, once the ledger has confirmed it.
    confirmed: Option<Generation>,
    /// The decisions that it keeps for slots.
    nonces: BTreeMap<SlotKey, Nonce>,
    runs: Vec<Run>,
    looks: BTreeMap<SlotKey, Look>,
}

impl Instance {
    /// A fresh process.
    pub(super) fn new(n: usize) -> Self {
        Self {
            label: id(InstanceId::new(format!("instance {n}"))),
            frozen: 0,
            installed: None,
            confirmed: None,
            nonces: BTreeMap::new(),
            runs: Vec::new(),
            looks: BTreeMap::new(),
        }
    }

    pub(super) fn freeze(&mut self, steps: usize) {
        self.frozen = steps;
    }

    pub(super) fn thaw(&mut self) {
        self.frozen = 0;
    }

    /// Whether it is; each time it is asked a step goes by.
    pub(super) fn is_frozen(&mut self) -> bool {
        let frozen = self.frozen > 0;
        self.frozen = self.frozen.saturating_sub(1);
        frozen
    }

    pub(super) fn turn<H: Step>(&mut self, world: &mut World<'_, H>) {
        self.finish(world);
        self.renew(world);
        let Some((now, row)) = read(world) else { return };
        self.reconcile(world, row.as_ref());
        let Some(row) = row else { return };
        if row.cursor.timestamp() > now.saturating_add(SKEW) {
            send(world, PlanOp::SetBack { max_skew: SKEW });
        }
        if !world.chaos || world.chance(50) {
            self.sweep(world, now, &row);
        }
        let (Some(installed), Some(confirmed)) = (self.installed, self.confirmed) else { return };
        let spec = world.specs[installed];
        let current = row.generation.fingerprint == spec.fingerprint;
        // Instances follow the ledger's effective-from of their own generation.
        let from = if current { row.generation.effective_from } else { confirmed.effective_from };
        self.live(world, now, &row, from, spec);
        if current && !row.closed && (!world.chaos || world.chance(50)) {
            self.catch_up(world, now, &row, spec);
        }
    }

    /// Claims what an operator asks for.
    pub(super) fn ask<H: Step>(&mut self, world: &mut World<'_, H>, key: SlotKey, kind: RunKind, gate: Option<Gate>) {
        let Some(installed) = self.installed else { return };
        let spec = world.specs[installed];
        self.claim(world, spec, key, kind, gate);
    }

    /// Makes the installed version equal to the wanted one, and has the ledger confirm it.
    fn reconcile<H: Step>(&mut self, world: &mut World<'_, H>, row: Option<&PlanRow>) {
        if self.installed != world.wanted && (!world.chaos || world.chance(30)) {
            self.installed = world.wanted;
            self.confirmed = None;
        }
        let Some(installed) = self.installed else {
            if let Some(row) = row.filter(|row| !row.closed) {
                send(world, PlanOp::Close { generation: row.generation });
            }
            return;
        };
        let fingerprint = world.specs[installed].fingerprint;
        let lost = row.is_none_or(|row| row.closed || row.generation.fingerprint != fingerprint);
        if self.confirmed.is_some() && lost && (!world.chaos || world.chance(15)) {
            // Twice running it found another generation than its own: it opens its own again.
            self.confirmed = None;
        }
        if self.confirmed.is_none() {
            let replaces = row.map(|row| row.generation);
            let state = send(world, PlanOp::Open { fingerprint, replaces });
            let opened = state.filter(|(_, applied, _)| *applied != Applied::Conflict).and_then(|(_, _, row)| row);
            self.confirmed = opened.map(|row| row.generation);
        }
    }

    fn finish<H: Step>(&mut self, world: &mut World<'_, H>) {
        let mut runs = std::mem::take(&mut self.runs);
        runs.retain_mut(|run| {
            if run.stage == Stage::Running && world.chance(if world.chaos { 25 } else { 60 }) {
                let endings = [Ending::Succeeded, Ending::Succeeded, Ending::Failed];
                let ending = endings[world.below(3)];
                run.stage = Stage::Returned(if run.told_to_stop { Ending::Cancelled } else { ending });
            }
            let op = match run.stage {
                Stage::Running => return true,
                Stage::NotEntered => EndOp::GiveBack { nonce: run.term.nonce },
                Stage::Returned(ending) => EndOp::Settle {
                    nonce: run.term.nonce,
                    ending,
                    started_at: Timestamp::EPOCH,
                    ended_at: run.term.key.at.timestamp(),
                    tries: 1,
                    detail: None,
                },
            };
            let request = EndRequest { key: run.term.key.clone(), fence: run.term.fence, op };
            // Sent until it is answered, one way or the other.
            world.send(Call::End(request)).is_none()
        });
        self.runs.append(&mut runs);
    }

    fn renew<H: Step>(&mut self, world: &mut World<'_, H>) {
        for run in &mut self.runs {
            if run.stage == Stage::Running && world.chance(70) {
                let renewal = world.send(Call::Renew(run.term.clone()));
                if matches!(renewal, Some((_, Reply::Renew(Renewal::Cancel(..) | Renewal::Lost)))) {
                    run.told_to_stop = true;
                }
            }
        }
    }

    /// Claims the slots whose start window is open.
    fn live<H: Step>(&mut self, world: &mut World<'_, H>, now: Timestamp, row: &PlanRow, from: Trigger, spec: Spec) {
        let opens = Trigger::from_secs(now.trigger().as_secs() - START_WINDOW);
        let slots = spec.slots(row.cursor.max(from).max(opens), now.trigger());
        let queues = matches!(spec.overlap, Overlap::QueueOne | Overlap::CancelPrevious);
        let Some((newest, older)) = slots.split_last() else { return };
        for at in older {
            if queues {
                let cover = Cover::Slots(vec![*at], NotStarted::Superseded);
                let from = spec.before(*at);
                send(world, PlanOp::Account { fingerprint: spec.fingerprint, from, to: *at, cover });
            } else {
                self.claim(world, spec, slot(world, *at), RunKind::Scheduled, None);
            }
        }
        self.claim(world, spec, slot(world, *newest), RunKind::Scheduled, None);
    }

    /// Accounts for slots whose start window has closed, or starts them.
    fn catch_up<H: Step>(&mut self, world: &mut World<'_, H>, now: Timestamp, row: &PlanRow, spec: Spec) {
        let second = now.trigger().as_secs();
        let closed = Trigger::from_secs(second - START_WINDOW);
        let fingerprint = spec.fingerprint;
        let account = |from, to, cover| PlanOp::Account { fingerprint, from, to, cover };
        if closed <= row.cursor {
            return;
        }
        let gap = spec.slots(row.cursor, closed);
        if gap.is_empty() {
            send(world, account(row.cursor, closed, Cover::Nothing));
            return;
        }
        let moved = send(world, account(row.cursor, closed, Cover::Rows(gap.clone())));
        let Some((_, Applied::Unchanged, _)) = moved else { return };
        let open = !spec.slots(closed, now.trigger()).is_empty();
        let young = gap.iter().filter(|at| at.as_secs() > second - CATCH_UP_WINDOW).count();
        let wanted = match spec.catch_up {
            CatchUp::None => 0,
            // A slot whose window is open is the latest itself.
            CatchUp::Latest => usize::from(!open),
            CatchUp::All(cap) => cap,
        };
        let (dropped, kept) = gap.split_at(gap.len() - young.min(wanted));
        let mut cursor = row.cursor;
        if let Some(last) = dropped.last() {
            let reason = if wanted == 0 { NotStarted::TooLate } else { NotStarted::OverCap };
            let cover = if dropped.len() > 2 {
                Cover::Range { count: Some(dropped.len() as u64), reason }
            } else {
                Cover::Slots(dropped.to_vec(), reason)
            };
            match send(world, account(cursor, *last, cover)) {
                Some((_, Applied::Done, _)) => cursor = *last,
                _ => return,
            }
        }
        for at in kept.iter().filter(|at| **at > cursor) {
            if !self.claim(world, spec, slot(world, *at), RunKind::CatchUp, None) {
                return;
            }
        }
    }

    /// Ends what has lapsed, after two looks, and takes up or lays to rest what is open.
    fn sweep<H: Step>(&mut self, world: &mut World<'_, H>, now: Timestamp, row: &PlanRow) {
        let query = Query::Lapsed { namespace: world.namespace(), max_skew: SKEW, after: None, limit: 1_000 };
        let mut rows = value(world.ledger.read(&query)).slots;
        // The order is the store's own; a trace is the same on each.
        rows.sort_by(|a, b| a.key.cmp(&b.key));
        let monotonic = world.monotonic;
        self.looks.retain(|key, _| rows.iter().any(|row| row.key == *key));
        let allowed = self.installed.map_or(1, |installed| world.specs[installed].attempts);
        for slot in rows {
            if slot.state == SlotState::Open {
                self.take_up(world, now, row, &slot);
                continue;
            }
            let op = match Look::at(&slot, now, monotonic) {
                None => EndOp::CutLease { max_skew: SKEW },
                Some(look) => {
                    let first = self.looks.entry(slot.key.clone()).or_insert(look);
                    if (first.fence, first.lease_end) != (look.fence, look.lease_end) {
                        *first = look;
                    }
                    if !first.confirmed_by(&look, INTERVAL) {
                        continue;
                    }
                    EndOp::Expire { attempts_allowed: allowed }
                }
            };
            world.send(Call::End(EndRequest { key: slot.key, fence: slot.fence, op }));
        }
    }

    fn take_up<H: Step>(&mut self, world: &mut World<'_, H>, now: Timestamp, row: &PlanRow, slot: &SlotRow) {
        let age = now.trigger().as_secs() - slot.key.at.as_secs();
        let spec = self.confirmed.and_then(|generation| world.spec_of(generation)).copied();
        let belongs = slot.key.at > row.generation.effective_from && slot.key.request.is_none();
        let resolve = |reason| EndRequest { key: slot.key.clone(), fence: slot.fence, op: EndOp::Resolve { reason } };
        match spec {
            Some(spec) if belongs && spec.has(slot.key.at) && age <= CATCH_UP_WINDOW => {
                let kind = if slot.attempt == 0 && age <= START_WINDOW {
                    RunKind::Scheduled
                } else if slot.attempt > 0 || spec.catch_up != CatchUp::None {
                    RunKind::CatchUp
                } else {
                    world.send(Call::End(resolve(NotStarted::GivenBack)));
                    return;
                };
                self.claim(world, spec, slot.key.clone(), kind, None);
            }
            Some(_) if belongs => drop(world.send(Call::End(resolve(NotStarted::OutsideWindow)))),
            Some(_) => drop(world.send(Call::End(resolve(NotStarted::Edited)))),
            None if row.closed => drop(world.send(Call::End(resolve(NotStarted::Disabled)))),
            None => {}
        }
    }

    /// Asks for a slot, and enters or gives back what is granted. Answers whether the next one may be asked for.
    fn claim<H: Step>(
        &mut self,
        world: &mut World<'_, H>,
        spec: Spec,
        key: SlotKey,
        kind: RunKind,
        gate: Option<Gate>,
    ) -> bool {
        if self.runs.iter().any(|run| run.term.key == key) {
            return true;
        }
        let fresh = world.nonce();
        let nonce = *self.nonces.entry(key.clone()).or_insert(fresh);
        let request = ClaimRequest {
            key: key.clone(),
            nonce,
            fingerprint: spec.fingerprint,
            prev: (kind != RunKind::Manual).then(|| spec.before(key.at)),
            kind,
            asked: matches!(kind, RunKind::Manual | RunKind::Backfill)
                .then(|| Arc::new(id(Asked::new(self.label.as_str(), "a trace")))),
            gate: gate.unwrap_or(Gate::Policy(spec.overlap)),
            // What operators ask for is started once.
            attempts_allowed: if matches!(kind, RunKind::Manual | RunKind::Backfill) { 1 } else { spec.attempts },
            ttl: TTL,
            instance: self.label.clone(),
            version: None,
        };
        match world.send(Call::Claim(Box::new(request))) {
            Some((_, Reply::Claim(Claim::Granted(grant)))) => {
                self.nonces.remove(&key);
                self.enter(world, SlotKey { at: grant.at, ..key }, nonce, grant);
                true
            }
            Some((_, Reply::Claim(Claim::Refused(Refusal::Released)))) => {
                self.nonces.remove(&key);
                false
            }
            Some((_, Reply::Claim(Claim::Refused(Refusal::Full | Refusal::Paused)))) | None => false,
            Some(_) => true,
        }
    }

    fn enter<H: Step>(&mut self, world: &mut World<'_, H>, key: SlotKey, nonce: Nonce, grant: Grant) {
        let entered = !world.chance(15);
        if entered {
            let most = world.most_starts();
            let seen = world.log.see_start(&key, nonce, grant.fence, most);
            world.hold(seen);
        }
        let term = Term { key, nonce, fence: grant.fence };
        let stage = if entered { Stage::Running } else { Stage::NotEntered };
        self.runs.push(Run { term, stage, told_to_stop: false });
    }
}

fn slot<H: Step>(world: &World<'_, H>, at: Trigger) -> SlotKey {
    SlotKey { plan: world.plan.clone(), at, request: None }
}

/// The store's now and the plan's row, where an answer comes.
fn read<H: Step>(world: &mut World<'_, H>) -> Option<(Timestamp, Option<PlanRow>)> {
    send(world, PlanOp::Read).map(|(now, _, row)| (now, row))
}

fn send<H: Step>(world: &mut World<'_, H>, op: PlanOp) -> Option<(Timestamp, Applied, Option<PlanRow>)> {
    match world.send(Call::Plan(world.plan.clone(), op)) {
        Some((now, Reply::Plan(state))) => Some((now, state.applied, state.row)),
        _ => None,
    }
}
