//! What the cases of a ledger are written with: one plan, its slots a second apart, and short calls.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use timertask_core::key::{Fence, Fingerprint, InstanceId, Namespace, Nonce, PlanId, PlanKey, RequestId, SlotKey};
use timertask_core::seam::{
    Answer, Applied, Claim, ClaimRequest, Cover, EndOp, EndRequest, Ended, Ending, Gate, Grant, Ledger, NotStarted,
    Outcome, Overlap, Page, PlanOp, PlanRow, PlanState, Query, Renewal, RunKind, SlotRow, SlotState, StoreError, Term,
};
use timertask_core::time::{Timestamp, Trigger};

use super::LedgerHarness;

/// A TTL after which no case waits; a lease of it does not lapse, however slow the machine.
pub(super) const LONG: Duration = Duration::from_secs(3_600);
/// A TTL whose lapse cases wait for.
pub(super) const SHORT: Duration = Duration::from_secs(1);
/// How far ahead is still taken for skew.
pub(super) const SKEW: Duration = Duration::from_secs(5);

/// The value of an answer.
#[track_caller]
pub(super) fn value<T>(outcome: Result<Answer<T>, StoreError>) -> T {
    answer(outcome).value
}

/// The answer.
#[track_caller]
pub(super) fn answer<T>(outcome: Result<T, StoreError>) -> T {
    match outcome {
        Ok(answer) => answer,
        Err(e) => panic!("the store could not decide: {e} ({e:?})"),
    }
}

/// The only answer to a group of one.
#[track_caller]
pub(super) fn only<T: Debug>(mut values: Vec<T>) -> T {
    match (values.pop(), values.pop()) {
        (Some(one), None) => one,
        (last, _) => panic!("one request wants one answer, not {} (the last: {last:?})", values.len()),
    }
}

/// A plan id, request id or label that the case itself knows to be allowed.
#[track_caller]
pub(super) fn id<T>(made: Result<T, timertask_core::key::IdError>) -> T {
    match made {
        Ok(id) => id,
        Err(e) => panic!("{e}"),
    }
}

pub(super) fn plan_id(text: &str) -> PlanId {
    id(PlanId::new(text))
}

pub(super) fn fingerprint(n: u128) -> Fingerprint {
    Fingerprint::from_bits(n)
}

/// A nonce that no other call has had.
pub(super) fn nonce() -> Nonce {
    static LAST: AtomicU64 = AtomicU64::new(0);
    // Both halves are used, so that a store that keeps only one shows it.
    let n = u128::from(LAST.fetch_add(1, Ordering::Relaxed) + 1);
    Nonce::from_bits((n << 64) | (u128::MAX - n) & u128::from(u64::MAX))
}

/// A handle, and one plan in it, opened under fingerprint 1. Its slots are a second apart: slot `n` lies `n` seconds
/// after the plan's effective-from, so slot 0 was before its time.
pub(super) struct Probe<L> {
    pub(super) ledger: L,
    pub(super) plan: PlanKey,
    pub(super) base: i64,
}

impl<L: Ledger> Probe<L> {
    /// The plan `p` of a harness, opened.
    pub(super) fn open<H: LedgerHarness<Ledger = L>>(harness: &H) -> Self {
        Self::of(harness.handle(), PlanKey::new(harness.namespace(), plan_id("p")))
    }

    /// `plan`, opened.
    #[track_caller]
    pub(super) fn of(ledger: L, plan: PlanKey) -> Self {
        let mut probe = Self { ledger, plan, base: 0 };
        let state = probe.state(PlanOp::Open { fingerprint: fingerprint(1), replaces: None });
        assert_eq!(state.applied, Applied::Done, "a plan that is new to the ledger is opened");
        probe.base = probe.row().generation.effective_from.as_secs();
        probe
    }

    pub(super) fn at(&self, n: i64) -> Trigger {
        Trigger::from_secs(self.base + n)
    }

    pub(super) fn key(&self, n: i64) -> SlotKey {
        SlotKey { plan: self.plan.clone(), at: self.at(n), request: None }
    }

    pub(super) fn now(&self) -> Timestamp {
        answer(self.ledger.plan(&[(self.plan.clone(), PlanOp::Read)])).now
    }

    /// What the plan's row is after `op`, and whether it took effect.
    #[track_caller]
    pub(super) fn state(&self, op: PlanOp) -> PlanState {
        only(value(self.ledger.plan(&[(self.plan.clone(), op)])))
    }

    pub(super) fn ledger_plan(&self, op: PlanOp) -> Outcome<Vec<PlanState>> {
        self.ledger_of(self.plan.clone(), op)
    }

    /// `op` on another plan, or on the namespace.
    pub(super) fn ledger_of(&self, key: PlanKey, op: PlanOp) -> Outcome<Vec<PlanState>> {
        self.ledger.plan(&[(key, op)])
    }

    #[track_caller]
    pub(super) fn op(&self, op: PlanOp) -> Applied {
        self.state(op).applied
    }

    #[track_caller]
    pub(super) fn row(&self) -> PlanRow {
        match self.state(PlanOp::Read).row {
            Some(row) => row,
            None => panic!("the ledger knows the plan"),
        }
    }

    #[track_caller]
    pub(super) fn cursor(&self) -> i64 {
        self.row().cursor.as_secs() - self.base
    }

    /// A live claim of slot `n`, under `Overlap::Skip` and a nonce of its own.
    pub(super) fn live(&self, n: i64) -> ClaimRequest {
        ClaimRequest {
            key: self.key(n),
            nonce: nonce(),
            fingerprint: fingerprint(1),
            prev: Some(self.at(n - 1)),
            kind: RunKind::Scheduled,
            asked: None,
            gate: Gate::Policy(Overlap::Skip),
            attempts_allowed: 1,
            ttl: LONG,
            instance: id(InstanceId::new("instance")),
            version: None,
        }
    }

    pub(super) fn of_kind(&self, n: i64, kind: RunKind) -> ClaimRequest {
        ClaimRequest { kind, ..self.live(n) }
    }

    pub(super) fn under(&self, n: i64, overlap: Overlap) -> ClaimRequest {
        ClaimRequest { gate: Gate::Policy(overlap), ..self.live(n) }
    }

    /// A claim that passes each gate, so that cases about other things can run several slots at once.
    pub(super) fn free(&self, n: i64) -> ClaimRequest {
        ClaimRequest { gate: Gate::Force, ..self.live(n) }
    }

    /// A `run_now` accepted at slot `n`'s instant.
    pub(super) fn run_now(&self, n: i64, request: &str) -> ClaimRequest {
        let mut claim = self.of_kind(n, RunKind::Manual);
        claim.key.request = Some(id(RequestId::new(request)));
        claim.prev = None;
        claim
    }

    #[track_caller]
    pub(super) fn claim(&self, request: &ClaimRequest) -> Claim {
        only(value(self.ledger.claim(std::slice::from_ref(request))))
    }

    /// The grant that `request` gets.
    #[track_caller]
    pub(super) fn grant(&self, request: &ClaimRequest) -> Grant {
        match self.claim(request) {
            Claim::Granted(grant) => grant,
            other => panic!("{} is granted, not {other:?}", request.key),
        }
    }

    /// Claims and ends as succeeded.
    #[track_caller]
    pub(super) fn run(&self, request: &ClaimRequest) -> Fence {
        let grant = self.grant(request);
        let ended = self.settle(request, grant, Ending::Succeeded);
        assert_eq!(ended, Ended::Recorded(SlotState::Ended(Ending::Succeeded)));
        grant.fence
    }

    #[track_caller]
    pub(super) fn settle(&self, request: &ClaimRequest, grant: Grant, ending: Ending) -> Ended {
        self.settle_at(request, grant, ending, self.now())
    }

    #[track_caller]
    pub(super) fn settle_at(&self, request: &ClaimRequest, grant: Grant, ending: Ending, ended_at: Timestamp) -> Ended {
        let op = EndOp::Settle { nonce: request.nonce, ending, started_at: ended_at, ended_at, tries: 1, detail: None };
        self.end(&request.key, grant.fence, op)
    }

    #[track_caller]
    pub(super) fn give_back(&self, request: &ClaimRequest, grant: Grant) -> Ended {
        self.end(&request.key, grant.fence, EndOp::GiveBack { nonce: request.nonce })
    }

    #[track_caller]
    pub(super) fn expire(&self, key: &SlotKey, fence: Fence, attempts_allowed: u32) -> Ended {
        self.end(key, fence, EndOp::Expire { attempts_allowed })
    }

    #[track_caller]
    pub(super) fn resolve(&self, key: &SlotKey, fence: Fence, reason: NotStarted) -> Ended {
        self.end(key, fence, EndOp::Resolve { reason })
    }

    #[track_caller]
    pub(super) fn end(&self, key: &SlotKey, fence: Fence, op: EndOp) -> Ended {
        only(value(self.ledger.end(&[EndRequest { key: key.clone(), fence, op }])))
    }

    #[track_caller]
    pub(super) fn renew(&self, request: &ClaimRequest, fence: Fence, ttl: Duration) -> Renewal {
        let term = Term { key: request.key.clone(), nonce: request.nonce, fence };
        only(value(self.ledger.renew(&[term], ttl)))
    }

    /// A slot's row.
    #[track_caller]
    pub(super) fn slot(&self, key: &SlotKey) -> Option<SlotRow> {
        let mut rows = value(self.ledger.read(&Query::Slots(vec![key.clone()]))).slots;
        assert!(rows.len() <= 1, "one slot has one row");
        rows.pop()
    }

    #[track_caller]
    pub(super) fn slot_state(&self, n: i64) -> Option<SlotState> {
        self.slot(&self.key(n)).map(|row| row.state)
    }

    pub(super) fn account(&self, from: i64, to: i64, cover: Cover) -> PlanOp {
        PlanOp::Account { fingerprint: fingerprint(1), from: self.at(from), to: self.at(to), cover }
    }

    /// Everything of the plan.
    #[track_caller]
    pub(super) fn history(&self) -> Page {
        let (after, upto) = (Trigger::default(), self.at(1_000_000));
        let query = Query::History { plan: self.plan.clone(), after, upto, page: None, limit: 10_000 };
        let page = value(self.ledger.read(&query));
        assert_eq!(page.more, None, "10,000 rows are more than a case writes");
        page
    }

    /// The slots that have a row, by number.
    #[track_caller]
    pub(super) fn numbers(&self) -> Vec<i64> {
        self.history().slots.iter().map(|row| row.key.at.as_secs() - self.base).collect()
    }

    /// The range records, as first, last and reason.
    #[track_caller]
    pub(super) fn ranges(&self) -> Vec<(i64, i64, NotStarted)> {
        let number = |at: Trigger| at.as_secs() - self.base;
        self.history().ranges.iter().map(|range| (number(range.first), number(range.last), range.reason)).collect()
    }

    /// Everything of the plan, to be compared: a request that changes nothing leaves it as it was.
    #[track_caller]
    pub(super) fn everything(&self) -> Page {
        self.history()
    }

    /// Checks that `act` changes nothing.
    #[track_caller]
    pub(super) fn unchanged<T>(&self, act: impl FnOnce(&Self) -> T) -> T {
        let before = self.everything();
        let answer = act(self);
        assert_eq!(self.everything(), before, "nothing was to be changed");
        answer
    }
}

/// The range of slots that a harness's time must pass for slot `n` not to be ahead of the store's now.
pub(super) fn seconds(n: i64) -> Duration {
    Duration::from_secs(n.unsigned_abs())
}

/// The other namespace of a case.
pub(super) fn other(namespace: &Namespace) -> Namespace {
    let text = namespace.as_str();
    id(Namespace::new(if text.is_empty() { "other".to_owned() } else { format!("{text}.o") }))
}
