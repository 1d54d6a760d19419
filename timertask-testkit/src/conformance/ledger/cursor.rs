//! The cursor, and accounting for what was not started.

use timertask_core::key::PlanKey;
use timertask_core::seam::{
    Applied, Claim, ClaimRequest, Cover, Ended, Ending, Gate, Ledger, NotStarted, PlanOp, RangeRow, Refusal, RunKind,
    SlotRow, SlotState,
};

use super::super::LedgerHarness;
use super::super::probe::{Probe, SKEW, answer, fingerprint, plan_id, seconds};

/// A grant moves the cursor to its slot and answers where it stood.
pub fn a_grant_moves_the_cursor<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    assert_eq!(p.cursor(), 0, "a new plan begins at its effective-from");
    assert_eq!(p.grant(&p.free(1)).cursor, p.at(0));
    assert_eq!(p.cursor(), 1);
    assert_eq!(p.grant(&p.free(2)).cursor, p.at(1));
    assert_eq!(p.grant(&ClaimRequest { prev: None, ..p.free(5) }).cursor, p.at(2), "none before: nothing in between");
    assert_eq!((p.cursor(), p.ranges()), (5, vec![]));
}

/// Where the slot before has no row the cursor stays, and the answer shows the gap.
pub fn a_gap_holds_the_cursor<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.free(3);
    let grant = p.grant(&request);
    assert!(Some(grant.cursor) < request.prev);
    assert_eq!(p.cursor(), 0);
}

/// Each answer that leaves the slot with a row moves the cursor: held, ended, and not started, too.
pub fn every_row_moves_the_cursor<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(5));
    let ended = p.free(2);
    p.run(&ended);
    let running = p.free(3);
    p.grant(&running);
    assert_eq!(p.claim(&p.live(4)), Claim::Refused(Refusal::NotStarted(NotStarted::Overlap)));
    assert_eq!(p.cursor(), 0);
    assert_eq!(p.op(p.account(0, 1, Cover::Nothing)), Applied::Done);
    for (n, answer) in [
        (2, Claim::Ended(Ending::Succeeded)),
        (3, Claim::Held),
        (4, Claim::Refused(Refusal::NotStarted(NotStarted::Overlap))),
    ] {
        assert_eq!(p.claim(&p.live(n)), answer);
        assert_eq!(p.cursor(), n);
    }
}

/// The cursor never moves back.
pub fn the_cursor_never_moves_back<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    p.run(&ClaimRequest { prev: None, ..p.live(5) });
    for n in 1..=4 {
        p.run(&p.of_kind(n, RunKind::Backfill));
    }
    assert_eq!(p.claim(&p.live(3)), Claim::Ended(Ending::Succeeded));
    assert_eq!(p.cursor(), 5);
}

/// `run_now` leaves the cursor alone, whatever it answers.
pub fn run_now_leaves_the_cursor_alone<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = ClaimRequest { prev: Some(p.at(0)), ..p.run_now(3, "request") };
    let grant = p.grant(&request);
    assert_eq!(p.cursor(), 0);
    assert_eq!(p.claim(&ClaimRequest { prev: None, ..p.run_now(3, "request") }), Claim::Held);
    let _ = p.settle(&request, grant, Ending::Succeeded);
    assert_eq!(p.claim(&p.run_now(3, "request")), Claim::Ended(Ending::Succeeded));
    assert_eq!(p.cursor(), 0);
}

/// Under a fingerprint that isn't the current one, what a claim's move passes becomes one range record (edited).
pub fn a_foreign_claim_leaves_a_range_behind<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let foreign = |n| ClaimRequest { fingerprint: fingerprint(2), prev: Some(p.at(0)), ..p.free(n) };
    let before = p.now();
    p.grant(&foreign(5));
    assert_eq!((p.cursor(), p.ranges()), (5, vec![(1, 4, NotStarted::Edited)]));
    let range = p.history().ranges.remove(0);
    assert!(range.count.is_none() && range.at >= before, "{range:?}");
    p.grant(&foreign(6));
    assert_eq!((p.cursor(), p.ranges().len()), (6, 1), "it passed no second");
    p.grant(&ClaimRequest { prev: Some(p.at(6)), ..p.free(9) });
    assert_eq!(p.ranges().len(), 1, "the current plan knows what lies between");
}

/// `account` is compared and set: where the cursor is elsewhere nothing changes.
pub fn account_compares_the_cursor<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(5));
    let range = |from, to| p.account(from, to, Cover::Range { count: None, reason: NotStarted::TooLate });
    assert_eq!(p.op(range(0, 2)), Applied::Done);
    for (from, to) in [(0, 2), (0, 3), (1, 3), (3, 4)] {
        assert_eq!(p.unchanged(|p| p.op(range(from, to))), Applied::Conflict, "{from} to {to}");
    }
    assert_eq!(p.op(range(2, 4)), Applied::Done);
    assert_eq!(p.ranges(), [(1, 2, NotStarted::TooLate), (3, 4, NotStarted::TooLate)]);
}

/// Nothing after the store's now is accounted for.
pub fn account_is_refused_beyond_now<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let range = Cover::Range { count: None, reason: NotStarted::TooLate };
    let covers = [Cover::Nothing, Cover::Slots(vec![p.at(3_600)], NotStarted::TooLate), range];
    for cover in covers {
        assert_eq!(p.unchanged(|p| p.op(p.account(0, 3_600, cover))), Applied::Conflict);
    }
}

/// `account` never moves the cursor back, and has nothing to do where it stands.
pub fn account_never_moves_back<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(3));
    p.run(&p.live(1));
    p.run(&p.live(2));
    assert_eq!(p.unchanged(|p| p.op(p.account(2, 1, Cover::Nothing))), Applied::Conflict);
    assert_eq!(p.unchanged(|p| p.op(p.account(2, 2, Cover::Nothing))), Applied::Unchanged);
}

/// Over a stretch without slots the cursor moves and nothing is written.
pub fn account_over_nothing_writes_nothing<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(4));
    let state = p.state(p.account(0, 3, Cover::Nothing));
    assert_eq!((state.applied, state.row.map(|row| row.cursor)), (Applied::Done, Some(p.at(3))));
    assert_eq!((p.numbers(), p.ranges()), (vec![], vec![]));
}

/// Over slots that have rows the cursor moves as far as they do.
pub fn account_moves_over_the_leading_rows<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(7));
    for n in [2, 4] {
        p.run(&ClaimRequest { prev: Some(p.at(n - 1)), ..p.live(n) });
    }
    p.run(&p.run_now(6, "request"));
    let rows = |slots: &[i64]| Cover::Rows(slots.iter().map(|n| p.at(*n)).collect());
    assert_eq!(p.unchanged(|p| p.op(p.account(0, 5, rows(&[1, 2])))), Applied::Unchanged, "the first has none");
    assert_eq!(p.op(p.account(0, 5, rows(&[2, 4, 5]))), Applied::Done);
    assert_eq!(p.cursor(), 4, "the last has none");
    assert_eq!(p.unchanged(|p| p.op(p.account(4, 6, rows(&[6])))), Applied::Unchanged, "a run_now's row is its own");
    assert_eq!(p.op(p.account(4, 6, Cover::Nothing)), Applied::Done);
    assert_eq!(p.cursor(), 6);
}

/// If all named slots have rows the cursor moves to the end asked for, which may lie behind the last of them.
pub fn account_moves_to_the_end_where_all_have_rows<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(6));
    p.run(&ClaimRequest { prev: Some(p.at(1)), ..p.live(2) });
    assert_eq!(p.op(p.account(0, 5, Cover::Rows(vec![p.at(2)]))), Applied::Done);
    assert_eq!((p.cursor(), p.ranges(), p.numbers()), (5, vec![], vec![2]));
}

/// Named slots without a row get one, as not started; those with one keep it.
pub fn account_writes_rows_where_there_are_none<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(5));
    let running = ClaimRequest { gate: Gate::Force, ..p.free(2) };
    let grant = p.grant(&ClaimRequest { prev: Some(p.at(1)), ..running.clone() });
    let kept = p.slot(&running.key);
    let cover = Cover::Slots(vec![p.at(1), p.at(2), p.at(4)], NotStarted::OutsideWindow);
    let outcome = answer(p.ledger.plan(&[(p.plan.clone(), p.account(0, 4, cover))]));
    assert_eq!(outcome.value[0].applied, Applied::Done);
    assert_eq!((p.cursor(), p.numbers()), (4, vec![1, 2, 4]));
    assert_eq!(p.slot(&running.key), kept, "the run goes on");
    let written = SlotRow::not_started(p.key(4), RunKind::Scheduled, NotStarted::OutsideWindow, outcome.now);
    assert_eq!(p.slot(&p.key(4)), Some(written));
    let ended = p.settle(&running, grant, Ending::Succeeded);
    assert_eq!(ended, Ended::Recorded(SlotState::Ended(Ending::Succeeded)));
}

/// A stretch becomes one range record: right behind the old cursor, with count, reason and the store's now.
pub fn account_writes_one_range<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(5));
    let cover = Cover::Range { count: Some(3), reason: NotStarted::OutsideWindow };
    let outcome = answer(p.ledger.plan(&[(p.plan.clone(), p.account(0, 4, cover))]));
    assert_eq!(outcome.value[0].applied, Applied::Done);
    let range =
        RangeRow { first: p.at(1), last: p.at(4), count: Some(3), reason: NotStarted::OutsideWindow, at: outcome.now };
    assert_eq!((p.cursor(), p.history().ranges), (4, vec![range]));
}

/// Every reason is kept as it was given.
pub fn every_reason_is_kept<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    for (n, reason) in (1..).zip(NotStarted::ALL) {
        let request = p.free(n);
        let grant = p.grant(&request);
        let _ = p.give_back(&request, grant);
        assert_eq!(p.resolve(&request.key, grant.fence, reason), Ended::Recorded(SlotState::NotStarted(reason)));
        assert_eq!(p.claim(&p.live(n)), Claim::Refused(Refusal::NotStarted(reason)));
    }
}

/// Named slots that don't rise, or lie outside the stretch, are refused as a whole.
pub fn account_refuses_slots_out_of_order<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(5));
    for slots in [vec![2, 1], vec![1, 1], vec![0, 1], vec![1, 4]] {
        let slots: Vec<_> = slots.into_iter().map(|n| p.at(n)).collect();
        for cover in [Cover::Rows(slots.clone()), Cover::Slots(slots.clone(), NotStarted::TooLate)] {
            assert_eq!(p.unchanged(|p| p.op(p.account(0, 3, cover))), Applied::Conflict, "{slots:?}");
        }
    }
}

/// Under a fingerprint that isn't the current one, what an `account` passes is a range record, too: the asker cannot know
/// what slots the current plan has there.
pub fn a_foreign_account_leaves_a_range_behind<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(5));
    let foreign = |from: i64, to: i64, cover| PlanOp::Account {
        fingerprint: fingerprint(2),
        from: p.at(from),
        to: p.at(to),
        cover,
    };
    assert_eq!(p.op(foreign(0, 1, Cover::Nothing)), Applied::Done);
    assert_eq!(p.op(foreign(1, 3, Cover::Slots(vec![p.at(2)], NotStarted::TooLate))), Applied::Done);
    let range = Cover::Range { count: Some(1), reason: NotStarted::OverCap };
    assert_eq!(p.op(foreign(3, 4, range)), Applied::Done);
    let expected = [(1, 1, NotStarted::Edited), (2, 3, NotStarted::Edited), (4, 4, NotStarted::OverCap)];
    assert_eq!((p.ranges(), p.numbers()), (expected.to_vec(), vec![2]));
}

/// Nothing of a plan that the ledger doesn't know is accounted for.
pub fn an_unknown_plan_is_not_accounted<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(2));
    let key = PlanKey::new(harness.namespace(), plan_id("unknown"));
    let q = Probe { ledger: harness.handle(), plan: key, base: p.base };
    let state = q.state(q.account(0, 1, Cover::Nothing));
    assert_eq!((state.applied, state.row), (Applied::Conflict, None));
}

/// The clock rule: a cursor and an effective-from that are ahead of the store's now by more than the skew are set back to
/// it; range records are cut there, rows stay.
pub fn a_cursor_ahead_of_now_is_set_back<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let ahead = ClaimRequest { prev: None, fingerprint: fingerprint(2), ..p.free(3_600) };
    p.run(&ahead);
    assert_eq!(p.op(PlanOp::Open { fingerprint: fingerprint(3), replaces: None }), Applied::Done);
    assert_eq!(p.row().generation.effective_from, p.at(3_600), "the later of now and the cursor");
    let state = p.state(PlanOp::SetBack { max_skew: SKEW });
    assert_eq!(state.applied, Applied::Done);
    let row = p.row();
    assert_eq!(state.row.as_ref(), Some(&row));
    assert!(row.cursor < p.at(3_000) && row.cursor >= p.at(0), "{row:?}");
    assert_eq!(row.generation.effective_from, row.cursor);
    assert_eq!(row.generation.fingerprint, fingerprint(3));
    let cursor = row.cursor.as_secs() - p.base;
    let cut: Vec<_> = (cursor > 0).then_some((1, cursor, NotStarted::Edited)).into_iter().collect();
    assert_eq!(p.ranges(), cut, "withdrawn from there on");
    assert_eq!(p.claim(&p.live(3_600)), Claim::Ended(Ending::Succeeded), "rows stay");
    assert_eq!(p.unchanged(|p| p.op(PlanOp::SetBack { max_skew: SKEW })), Applied::Unchanged);
    p.run(&ClaimRequest { fingerprint: fingerprint(3), prev: None, ..p.live(1_000) });
}

/// What is ahead by less than the skew is left alone.
pub fn a_cursor_within_the_skew_stays<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    p.run(&ClaimRequest { prev: None, ..p.live(1_000) });
    let max_skew = seconds(3_600);
    assert_eq!(p.unchanged(|p| p.op(PlanOp::SetBack { max_skew })), Applied::Unchanged);
}

/// What `prev` a retried claim names does not matter to its slot: the cursor is all that it moves.
pub fn a_slot_below_the_cursor_keeps_its_row<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(5));
    let open = p.free(1);
    let grant = p.grant(&open);
    let _ = p.give_back(&open, grant);
    p.run(&p.free(2));
    assert_eq!(p.cursor(), 2);
    p.run(&p.live(1));
}
