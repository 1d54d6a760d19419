//! What must still be there after every process has ended and a new one has started.

use std::time::Duration;

use timertask_core::seam::{
    Applied, Claim, ClaimRequest, Cover, Durability, Ended, Ending, Gate, Ledger, NotStarted, PlanOp, Refusal,
    Retention, RunKind, SlotState,
};

use super::super::Restart;
use super::super::probe::{LONG, Probe, answer, fingerprint, seconds, value};

/// The plan of `before`, as a process finds it that starts after a restart.
fn restarted<H: Restart>(harness: &H, before: Probe<H::Ledger>) -> Probe<H::Ledger> {
    let (plan, base) = (before.plan.clone(), before.base);
    drop(before);
    harness.restart();
    Probe { ledger: harness.handle(), plan, base }
}

/// The store says that it survives.
pub fn it_says_that_it_is_durable<H: Restart>(harness: &H) {
    let durability = answer(harness.handle().describe());
    assert!(matches!(durability, Durability::Durable { .. } | Durability::Replicated { .. }), "{durability:?}");
}

/// Rows of every state, range records and the plan's row are as they were.
pub fn every_row_survives<H: Restart>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(3));
    let range = Cover::Range { count: Some(7), reason: NotStarted::OutsideWindow };
    assert_eq!(p.op(p.account(0, 2, range)), Applied::Done);
    p.grant(&p.free(3));
    let open = p.free(4);
    let grant = p.grant(&open);
    let _ = p.give_back(&open, grant);
    for (n, ending) in (5..).zip(Ending::ALL) {
        let request = p.free(n);
        let grant = p.grant(&request);
        let _ = p.settle(&request, grant, ending);
    }
    let _ = p.claim(&p.live(9));
    p.run(&ClaimRequest { gate: Gate::Force, ..p.run_now(9, "request") });
    let pause = PlanOp::Pause { by: "ops".to_owned(), why: "why".to_owned(), until: Some(p.now()) };
    assert_eq!(p.op(pause), Applied::Done);
    let before = p.everything();
    let p = restarted(harness, p);
    assert_eq!(p.everything(), before);
}

/// A run goes on over a restart of the store: held for others, renewed and ended by its runner.
pub fn a_run_survives<H: Restart>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.live(1);
    let grant = p.grant(&request);
    let p = restarted(harness, p);
    assert_eq!(p.claim(&p.live(1)), Claim::Held);
    assert_eq!(p.grant(&request).fence, grant.fence);
    let _ = p.renew(&request, grant.fence, LONG * 2);
    assert_eq!(p.settle(&request, grant, Ending::Succeeded), Ended::Recorded(SlotState::Ended(Ending::Succeeded)));
    let p = restarted(harness, p);
    assert_eq!(p.claim(&p.live(1)), Claim::Ended(Ending::Succeeded));
}

/// Fences go on rising.
pub fn fences_rise_over_a_restart<H: Restart>(harness: &H) {
    let p = Probe::open(harness);
    let before = p.grant(&p.free(1)).fence;
    let p = restarted(harness, p);
    assert!(p.grant(&p.free(2)).fence > before);
}

/// Released decisions stay refused, and what was purged stays too old.
pub fn refusals_survive<H: Restart>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.live(1);
    let grant = p.grant(&request);
    let _ = p.give_back(&request, grant);
    let p = restarted(harness, p);
    assert_eq!(p.claim(&request), Claim::Refused(Refusal::Released));
    p.run(&p.live(1));
    harness.pass_time(Duration::from_millis(1));
    let nothing = Retention { age: Some(Duration::ZERO), count: None, keep_last: 0 };
    assert_eq!(value(p.ledger.purge(&p.plan, nothing, 10)).deleted, 1);
    let p = restarted(harness, p);
    assert_eq!(p.claim(&p.of_kind(1, RunKind::Backfill)), Claim::Refused(Refusal::TooOld));
}

/// Generations and pauses survive: a restart moves nothing.
pub fn generations_survive<H: Restart>(harness: &H) {
    let p = Probe::open(harness);
    p.run(&p.live(1));
    assert_eq!(p.op(PlanOp::Open { fingerprint: fingerprint(2), replaces: None }), Applied::Done);
    let before = p.row();
    let p = restarted(harness, p);
    harness.pass_time(seconds(1));
    let state = p.state(PlanOp::Open { fingerprint: fingerprint(2), replaces: None });
    assert_eq!((state.applied, state.row), (Applied::Unchanged, Some(before)));
}
