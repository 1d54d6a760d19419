//! Generations to open and close, in the order in which they were asked for, until the ledger has taken them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::Installed;
use super::shared::{Shared, matched};
use super::timer::TimerMail;
use crate::key::{PlanId, PlanKey};
use crate::seam::{Applied, Generation, PlanOp, PlanState};
use crate::time::Timestamp;

/// At most so many requests go in one call.
const AT_ONCE: usize = 500;
/// At least so many are kept before those that are pointless are looked for.
const TIDY: usize = 1024;
/// How long to wait after a fault.
const BACK_OFF: Duration = Duration::from_secs(1);

/// One thing to do with a plan's generation.
pub(crate) enum GenerationOp {
    /// Open it, in the place of this one.
    Open(Arc<Installed>, Option<Generation>),
    /// Close this one; `None`: the one that is current.
    Close(PlanId, Option<Generation>),
    /// The clock rule.
    SetBack(PlanId),
}

impl GenerationOp {
    fn id(&self) -> &PlanId {
        match self {
            Self::Open(plan, _) => &plan.id,
            Self::Close(id, _) | Self::SetBack(id) => id,
        }
    }
}

#[derive(Default)]
pub(crate) struct Outbox {
    ops: VecDeque<GenerationOp>,
    /// So many are kept before those that are pointless are looked for.
    tidy_at: usize,
    not_before: Duration,
    leaving: bool,
    /// Plans whose generation in the ledger was another's or closed, and the reconcile after which that was seen.
    foreign: HashMap<PlanId, u64>,
}

impl Outbox {
    pub(crate) fn push(&mut self, ops: impl IntoIterator<Item = GenerationOp>) {
        self.ops.extend(ops);
        if self.ops.len() > self.tidy_at {
            self.tidy();
            self.tidy_at = TIDY.max(2 * self.ops.len());
        }
    }

    /// Forgets what later edits have made pointless, so that edits during a long fault do not pile up: plans that are
    /// gone and were never opened, and of each plan all closes but the last.
    fn tidy(&mut self) {
        let mut later = HashSet::new();
        let mut kept = VecDeque::new();
        while let Some(op) = self.ops.pop_back() {
            let counts = match &op {
                GenerationOp::Open(plan, _) => !plan.is_gone(),
                GenerationOp::Close(id, _) => later.insert((id.clone(), true)),
                GenerationOp::SetBack(id) => later.insert((id.clone(), false)),
            };
            if counts {
                kept.push_front(op);
            }
        }
        self.ops = kept;
    }

    /// While the scheduler closes: generations that were to be closed still are, if the store can be reached; none is
    /// opened any more. Whether all is done; where nothing else is left to be done a fault is the end of it.
    pub(crate) fn leave(&mut self, shared: &Shared, mono: Duration, last: bool) -> bool {
        if !self.leaving {
            // Whatever an earlier fault said, it is tried now.
            (self.leaving, self.not_before) = (true, Duration::ZERO);
        }
        self.ops.retain(|op| matches!(op, GenerationOp::Close(..)));
        let _ = self.turn(shared, mono);
        if last && !self.ops.is_empty() && self.not_before > mono {
            let (instance, left) = (&shared.config.instance, self.ops.len());
            log::warn!(target: "timertask::store", "{instance}: {left} generations could not be closed before the end");
            self.ops.clear();
        }
        self.ops.is_empty()
    }

    /// When there is something to do.
    pub(crate) fn due(&self) -> Option<Duration> {
        (!self.ops.is_empty()).then_some(self.not_before)
    }

    /// One call's worth of work; the plans that may have a gap.
    pub(crate) fn turn(&mut self, shared: &Shared, mono: Duration) -> Vec<Arc<Installed>> {
        if self.ops.is_empty() || mono < self.not_before {
            return Vec::new();
        }
        let mut ops: Vec<GenerationOp> = Vec::new();
        while ops.len() < AT_ONCE {
            match self.ops.front() {
                None => break,
                // Replaced or removed before it was ever opened; what closes it comes behind it.
                Some(GenerationOp::Open(plan, _)) if plan.is_gone() => {
                    self.ops.pop_front();
                }
                // What is current must be read first, in a call of its own.
                Some(GenerationOp::Close(_, None)) if !ops.is_empty() => break,
                Some(GenerationOp::Close(_, None)) => {
                    ops.extend(self.ops.pop_front());
                    break;
                }
                Some(_) => ops.extend(self.ops.pop_front()),
            }
        }
        if self.ops.is_empty() {
            // A large install leaves no large queue behind.
            self.ops = VecDeque::new();
        }
        let requests: Vec<(PlanKey, PlanOp)> =
            ops.iter().map(|op| (shared.plan_key(op.id()), request(op, shared))).collect();
        let answer = shared.store("plan", |ledger| matched("plan", requests.len(), ledger.plan(&requests)?));
        match answer {
            Err(_) => {
                for op in ops.into_iter().rev() {
                    self.ops.push_front(op);
                }
                self.tidy();
                self.not_before = mono + BACK_OFF;
                Vec::new()
            }
            Ok(answer) => self.answered(shared, ops, answer.value, answer.now),
        }
    }

    fn answered(
        &mut self,
        shared: &Shared,
        ops: Vec<GenerationOp>,
        states: Vec<PlanState>,
        now: Timestamp,
    ) -> Vec<Arc<Installed>> {
        let mut opened = Vec::new();
        for (op, plan_state) in ops.into_iter().zip(states) {
            match (op, plan_state.row) {
                (GenerationOp::Open(plan, _), Some(row)) => {
                    if row.cursor.timestamp() > now.saturating_add(shared.config.max_skew) {
                        self.ops.push_back(GenerationOp::SetBack(plan.id.clone()));
                    }
                    if plan_state.applied == Applied::Conflict {
                        // Another instance has gone on to another generation. Until the next two reconciles tell who
                        // is behind, each slot still starts once, by whichever generation claims it.
                        self.foreign.insert(plan.id.clone(), reconciles(shared));
                    } else {
                        self.foreign.remove(&plan.id);
                    }
                    // One that was confirmed before is with the timer already.
                    let first = plan.generation().is_none();
                    plan.follow(&row);
                    if plan.activate() && first {
                        opened.push(plan);
                    }
                }
                (GenerationOp::Open(plan, replaces), None) => {
                    // A ledger that opens a plan and has no row of it talks nonsense; asked again later.
                    self.ops.push_back(GenerationOp::Open(plan, replaces));
                    self.not_before = shared.clock.monotonic() + BACK_OFF;
                }
                (GenerationOp::Close(id, None), Some(row)) if !row.closed => {
                    self.ops.push_front(GenerationOp::Close(id, Some(row.generation)));
                }
                (GenerationOp::Close(id, _), _) => {
                    self.foreign.remove(&id);
                }
                (GenerationOp::SetBack(id), Some(row)) => {
                    if let Some(plan) = shared.registry().get(&id) {
                        plan.follow(&row);
                    }
                }
                (GenerationOp::SetBack(_), None) => {}
            }
        }
        if opened.is_empty() {
            return opened;
        }
        // Removed while the call was under way: nothing of it may start.
        opened.retain(|plan| plan.is_active());
        shared.timer.send(TimerMail::Add(opened.clone()));
        opened
    }

    /// A look at a plan's row as the ledger has it: whether its generation is still the one that was confirmed here.
    /// Where it is another's or closed at two reconciles running, it is opened again.
    pub(crate) fn look(&mut self, shared: &Shared, plan: &Arc<Installed>, row: &crate::seam::PlanRow, now: Timestamp) {
        let ahead = now.saturating_add(shared.config.max_skew);
        if row.cursor.timestamp() > ahead || row.generation.effective_from.timestamp() > ahead {
            self.ops.push_back(GenerationOp::SetBack(plan.id.clone()));
        }
        if !row.closed && row.generation.fingerprint == plan.fingerprint {
            self.foreign.remove(&plan.id);
            if Some(row.generation) != plan.generation() {
                plan.follow(row);
            }
            return;
        }
        let seen = reconciles(shared);
        match self.foreign.get(&plan.id) {
            Some(before) if *before < seen => {
                self.foreign.remove(&plan.id);
                self.ops.push_back(GenerationOp::Open(Arc::clone(plan), Some(row.generation)));
            }
            Some(_) => {}
            None => {
                self.foreign.insert(plan.id.clone(), seen);
            }
        }
    }
}

fn reconciles(shared: &Shared) -> u64 {
    shared.reconciles.load(std::sync::atomic::Ordering::Acquire)
}

fn request(op: &GenerationOp, shared: &Shared) -> PlanOp {
    match op {
        GenerationOp::Open(plan, replaces) => PlanOp::Open { fingerprint: plan.fingerprint, replaces: *replaces },
        GenerationOp::Close(_, Some(generation)) => PlanOp::Close { generation: *generation },
        GenerationOp::Close(_, None) => PlanOp::Read,
        GenerationOp::SetBack(_) => PlanOp::SetBack { max_skew: shared.config.max_skew },
    }
}
