//! Requests of operators in other processes: found on the notice board, carried out, answered, and only then taken off.
//! So one that an instance died over is found by the next, and what it asks for still starts once.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::Installed;
use super::backfill::Backfills;
use super::candidate::{Candidate, Origin};
use super::claimer::ClaimerMail;
use super::order::{Order, Reply};
use super::shared::{RENEW_EVERY, Shared};
use crate::key::SlotKey;
use crate::operate::OperateError;
use crate::operate::notice::{Notice, Verdict, Wish};
use crate::seam::{Posting, PostingKind, Query, RunKind};
use crate::time::Trigger;

/// How long an answer stays on the board.
const ANSWER_STAYS: Duration = Duration::from_secs(600);
/// So many requests that nobody understands are remembered, in order to tell of each once.
const TOLD: usize = 256;

/// Looks at the board as often as the sweep comes.
#[derive(Default)]
pub(crate) struct Requests {
    next: Duration,
    /// Runs that are with the claimer.
    orders: Vec<(Notice, Arc<Order>)>,
    told: HashSet<String>,
}

impl Requests {
    pub(crate) fn new(first: Duration) -> Self {
        Self { next: first, ..Self::default() }
    }

    pub(crate) fn due(&self, shared: &Shared) -> Option<Duration> {
        shared.board.is_some().then_some(self.next)
    }

    /// Something was put up.
    pub(crate) fn hurry(&mut self) {
        self.next = Duration::ZERO;
    }

    pub(crate) fn turn(&mut self, shared: &Shared, mono: Duration, backfills: &mut Backfills) {
        if shared.board.is_none() {
            return;
        }
        self.read_replies(shared);
        if mono < self.next {
            return;
        }
        self.next = mono + RENEW_EVERY;
        if shared.is_skewed() {
            return;
        }
        let namespace = &shared.config.namespace;
        let listed = shared.on_board("list", |board| board.list(namespace, PostingKind::Request));
        let Some(Ok(listed)) = listed else { return };
        let keys = listed.value.iter().map(|posting| posting.key.as_str()).collect();
        backfills.keep_posted(&keys);
        for posting in &listed.value {
            match Notice::parse(&posting.body) {
                Ok(notice) if notice.key() == posting.key => self.take_up(shared, notice, mono, backfills),
                Ok(_) => self.complain(shared, posting, "its key is not that of what it asks for"),
                Err(why) => self.complain(shared, posting, &why),
            }
        }
    }

    /// Once for each: it is left for those who understand it, until it ends by itself.
    fn complain(&mut self, shared: &Shared, posting: &Posting, why: &str) {
        if self.told.len() >= TOLD {
            self.told.clear();
        }
        if self.told.insert(posting.key.clone()) {
            log::warn!(target: "timertask::engine", "{}: request {:?} on the notice board is not understood: {why}", shared.config.instance, posting.key);
        }
    }

    fn take_up(&mut self, shared: &Shared, notice: Notice, mono: Duration, backfills: &mut Backfills) {
        let Some(plan) = shared.registry().get(&notice.plan).filter(|plan| plan.is_active()) else { return };
        match notice.wish {
            Wish::Backfill { .. } => backfills.take_up(notice, plan, true),
            Wish::RunNow { at, force } => {
                // What is not taken up now is when the board is looked at again.
                if self.orders.iter().any(|(other, _)| other.key() == notice.key()) || shared.admit().is_err() {
                    return;
                }
                let order = Order::new(force, mono + RENEW_EVERY, shared.scribe.signal().clone());
                shared.claimer.send(ClaimerMail::Ordered(candidate(shared, plan, at, &notice, &order)));
                self.orders.push((notice, order));
            }
        }
    }

    fn read_replies(&mut self, shared: &Shared) {
        let mut settled = Vec::new();
        self.orders.retain(|(notice, order)| match order.take_reply() {
            None => true,
            Some(reply) => {
                settled.push((notice.clone(), reply));
                false
            }
        });
        for (notice, reply) in settled {
            if let Some(verdict) = verdict(shared, &notice, reply)
                && answer(shared, &notice, &verdict)
            {
                take_off(shared, &notice);
            }
        }
    }
}

/// Puts up what came of a request; whether the store let us.
pub(super) fn answer(shared: &Shared, notice: &Notice, verdict: &Verdict) -> bool {
    let until = shared.clock.now().saturating_add(ANSWER_STAYS);
    let posting = verdict.posting(&shared.config.namespace, notice.key(), until);
    matches!(shared.on_board("post", |board| board.post(&posting)), Some(Ok(_)))
}

/// Whether an answer to it is up; where the store does not say, yes.
pub(super) fn is_answered(shared: &Shared, notice: &Notice) -> bool {
    let (namespace, key) = (&shared.config.namespace, notice.key());
    match shared.on_board("list", |board| board.list(namespace, PostingKind::Answer)) {
        Some(Ok(listed)) => listed.value.iter().any(|posting| posting.key == key),
        Some(Err(_)) | None => true,
    }
}

/// Takes a request off the board. Where the store does not let us, it is found once more, and the same comes of it.
pub(super) fn take_off(shared: &Shared, notice: &Notice) {
    let (namespace, key) = (&shared.config.namespace, notice.key());
    if let Some(Err(error)) = shared.on_board("take", |board| board.take(namespace, PostingKind::Request, &key)) {
        log::debug!(target: "timertask::store", "{}: request {key:?} is not taken off yet: {error}", shared.config.instance);
    }
}

/// What to tell the operator; `None` where another look, here or elsewhere, may come to more.
fn verdict(shared: &Shared, notice: &Notice, reply: Reply) -> Option<Verdict> {
    let Wish::RunNow { at, .. } = notice.wish else { return None };
    let key = SlotKey { request: Some(notice.id.clone()), ..shared.slot_key(&notice.plan, at) };
    let refused = |error: OperateError| Some(Verdict::Refused(error.to_string()));
    match reply {
        Reply::Started(at) => Some(Verdict::Started(at)),
        Reply::Held => Some(Verdict::Running(first_instant(shared, &key)?)),
        Reply::Ended(how) => Some(Verdict::Ended(first_instant(shared, &key)?, how)),
        Reply::Refused(refusal) => match OperateError::of_refusal(refusal, key) {
            OperateError::NotReady(_) => None,
            error => refused(error),
        },
        Reply::NotEntered | Reply::Busy | Reply::Skewed | Reply::NotInstalled | Reply::Stopped | Reply::Fault(_) => {
            None
        }
    }
}

/// The instant under which a request was first accepted.
fn first_instant(shared: &Shared, key: &SlotKey) -> Option<Trigger> {
    let query = Query::Slots(vec![key.clone()]);
    let answer = shared.store("read", |ledger| ledger.read(&query)).ok()?;
    Some(answer.value.slots.first().map_or(key.at, |row| row.key.at))
}

/// The candidate of a run that an operator asks for.
pub(crate) fn candidate(
    shared: &Shared,
    plan: Arc<Installed>,
    at: Trigger,
    notice: &Notice,
    order: &Arc<Order>,
) -> Candidate {
    let origin = Origin::Order(Arc::clone(order));
    let mut candidate = Candidate::new(shared, plan, at, None, RunKind::Manual, origin);
    // A calendar is user code; where it panics the plan's next search tells.
    let before = catch_unwind(AssertUnwindSafe(|| candidate.plan.schedule.prev_trigger(at)));
    candidate.from = before.unwrap_or_default();
    candidate.request = Some(notice.id.clone());
    candidate.asked = Some(Arc::new(notice.asked.clone()));
    candidate
}
