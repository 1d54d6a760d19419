//! Generations: what a plan is now, and since when.

use timertask_core::key::{Fence, PlanKey};
use timertask_core::seam::{Applied, ClaimRequest, Generation, Ledger, NotStarted, PlanOp, PlanRow, RunKind};
use timertask_core::time::Trigger;

use super::super::LedgerHarness;
use super::super::probe::{Probe, answer, fingerprint, only, plan_id, seconds, value};

fn open(n: u128, replaces: Option<Generation>) -> PlanOp {
    PlanOp::Open { fingerprint: fingerprint(n), replaces }
}

/// A plan that is new to the ledger counts from the store's now: nothing of the past fires.
pub fn a_new_plan_counts_from_now<H: LedgerHarness>(harness: &H) {
    let ledger = harness.handle();
    let key = PlanKey::new(harness.namespace(), plan_id("p"));
    let outcome = answer(ledger.plan(&[(key.clone(), open(1, None))]));
    let now = outcome.now.trigger();
    let state = only(outcome.value);
    let row = PlanRow {
        generation: Generation { fingerprint: fingerprint(1), effective_from: now },
        closed: false,
        cursor: now,
        low_water: Trigger::default(),
        fence: Fence::NONE,
        last_success: None,
        window_from: None,
        pause: None,
    };
    assert_eq!((state.applied, state.row.as_ref()), (Applied::Done, Some(&row)));
    let p = Probe { ledger, plan: key, base: now.as_secs() };
    assert_eq!(p.row(), row);
    assert_eq!(p.ranges(), []);
}

/// What is open under its fingerprint stays as it is: a restart moves nothing.
pub fn opening_again_changes_nothing<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(2));
    p.run(&p.live(1));
    let generation = p.row().generation;
    for replaces in [None, Some(generation), Some(Generation { fingerprint: fingerprint(9), ..generation })] {
        assert_eq!(p.unchanged(|p| p.op(open(1, replaces))), Applied::Unchanged);
    }
}

/// An edit counts from the store's now; what it jumps over is one range record, and the first window begins where the
/// accounted ones ended.
pub fn an_edit_counts_from_now<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(3));
    p.run(&p.live(1));
    let before = p.row();
    let outcome = answer(p.ledger_plan(open(2, Some(before.generation))));
    let now = outcome.now.trigger();
    assert!(now >= p.at(3));
    let row = PlanRow {
        generation: Generation { fingerprint: fingerprint(2), effective_from: now },
        cursor: now,
        window_from: Some(p.at(1)),
        ..before
    };
    let state = only(outcome.value);
    assert_eq!((state.applied, state.row.as_ref()), (Applied::Done, Some(&row)));
    assert_eq!(p.row(), row, "fence, low water and last success are the plan's, not the generation's");
    let last = now.as_secs() - p.base;
    assert_eq!(p.ranges(), [(2, last, NotStarted::Edited)]);
    let range = p.history().ranges.remove(0);
    assert_eq!((range.count, range.at), (None, outcome.now), "it cannot know how many slots the old plan had there");
    let request = ClaimRequest { fingerprint: fingerprint(2), prev: None, ..p.live(last + 1) };
    assert_eq!(p.grant(&request).window_from, Some(p.at(1)));
}

/// Back to an earlier fingerprint is an edit like any other.
pub fn an_edit_back_is_an_edit<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    for n in [2, 1] {
        harness.pass_time(seconds(1));
        assert_eq!(p.op(open(n, None)), Applied::Done);
    }
    let row = p.row();
    assert!(row.generation.fingerprint == fingerprint(1) && row.generation.effective_from >= p.at(2), "{row:?}");
    assert_eq!(row.cursor, row.generation.effective_from);
}

/// Where the cursor is ahead of the store's now, an edit counts from the cursor; it never moves back.
pub fn an_edit_never_moves_the_cursor_back<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    p.run(&ClaimRequest { prev: None, ..p.live(3_600) });
    assert_eq!(p.op(open(2, None)), Applied::Done);
    let row = p.row();
    assert_eq!((row.cursor, row.generation.effective_from), (p.at(3_600), p.at(3_600)));
    assert_eq!(p.ranges(), [], "it jumped over nothing");
}

/// An edit names what it replaces; where another generation is current by now, nothing changes.
pub fn an_edit_names_what_it_replaces<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let first = p.row().generation;
    harness.pass_time(seconds(1));
    assert_eq!(p.op(open(2, Some(first))), Applied::Done);
    let state = p.unchanged(|p| p.state(open(3, Some(first))));
    assert_eq!((state.applied, state.row), (Applied::Conflict, Some(p.row())), "the answer shows what is current");
    let older = Generation { effective_from: p.at(0), ..p.row().generation };
    assert_eq!(
        p.unchanged(|p| p.op(open(3, Some(older)))),
        Applied::Conflict,
        "the same fingerprint, but not since then"
    );
    assert_eq!(p.op(open(3, Some(p.row().generation))), Applied::Done);
}

/// A plan that is not there replaces nothing, and is opened all the same.
pub fn a_lost_plan_is_opened_again<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let lost = PlanKey::new(harness.namespace(), plan_id("lost"));
    let state = only(value(p.ledger_of(lost, open(1, Some(p.row().generation)))));
    assert_eq!(state.applied, Applied::Done);
}

/// A closed generation that is opened again counts from then on; the time between was disabled.
pub fn a_closed_plan_counts_from_its_reopening<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    p.run(&p.live(1));
    let generation = p.row().generation;
    assert_eq!(p.op(PlanOp::Close { generation }), Applied::Done);
    assert!(p.row().closed);
    harness.pass_time(seconds(3));
    assert_eq!(p.op(open(1, Some(generation))), Applied::Done);
    let row = p.row();
    assert!(!row.closed && row.cursor >= p.at(3) && row.generation.effective_from == row.cursor, "{row:?}");
    assert_eq!(row.window_from, Some(p.at(1)));
    assert_eq!(p.ranges(), [(2, row.cursor.as_secs() - p.base, NotStarted::Disabled)]);
}

/// `close` names its generation; a later one is left alone, and twice is once.
pub fn close_names_its_generation<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let first = p.row().generation;
    harness.pass_time(seconds(1));
    assert_eq!(p.op(open(2, None)), Applied::Done);
    assert_eq!(p.unchanged(|p| p.op(PlanOp::Close { generation: first })), Applied::Conflict);
    let same_text = Generation { effective_from: first.effective_from, ..p.row().generation };
    assert_eq!(p.unchanged(|p| p.op(PlanOp::Close { generation: same_text })), Applied::Conflict);
    let generation = p.row().generation;
    let state = p.state(PlanOp::Close { generation });
    assert_eq!((state.applied, state.row.map(|row| row.closed)), (Applied::Done, Some(true)));
    assert_eq!(p.unchanged(|p| p.op(PlanOp::Close { generation })), Applied::Unchanged);
    let unknown = PlanKey::new(harness.namespace(), plan_id("unknown"));
    let state = only(value(p.ledger_of(unknown, PlanOp::Close { generation })));
    assert_eq!((state.applied, state.row), (Applied::Conflict, None));
}

/// Claims don't look at `closed`: during a rolling deploy an instance that still has the plan starts its slots.
pub fn claims_dont_look_at_closed<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    assert_eq!(p.op(PlanOp::Close { generation: p.row().generation }), Applied::Done);
    for (n, kind) in (1..).zip([RunKind::Scheduled, RunKind::CatchUp, RunKind::Backfill]) {
        p.run(&p.of_kind(n, kind));
    }
    assert!(p.row().closed);
}

/// Reading shows the row and changes nothing; of a plan that the ledger doesn't know there is none.
pub fn reading_changes_nothing<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let state = p.unchanged(|p| p.state(PlanOp::Read));
    assert_eq!((state.applied, state.row), (Applied::Unchanged, Some(p.row())));
    let unknown = PlanKey::new(harness.namespace(), plan_id("unknown"));
    let state = only(value(p.ledger_of(unknown, PlanOp::Read)));
    assert_eq!((state.applied, state.row), (Applied::Unchanged, None));
}

/// A namespace is no plan: what makes sense only for plans is refused there.
pub fn a_namespace_is_no_plan<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let whole = PlanKey::whole(harness.namespace());
    let generation = p.row().generation;
    for op in [open(1, None), PlanOp::Close { generation }, PlanOp::SetBack { max_skew: seconds(1) }] {
        let state = only(value(p.ledger_of(whole.clone(), op)));
        assert_eq!((state.applied, state.row), (Applied::Conflict, None));
    }
}
