//! Deleting what is old, without ever opening it again.

use std::time::Duration;

use timertask_core::key::PlanKey;
use timertask_core::seam::{
    Applied, Claim, ClaimRequest, Cover, Ended, Ending, Gate, Ledger, NotStarted, Overlap, PlanOp, Purged, Refusal,
    Retention, RunKind, SlotState,
};
use timertask_core::time::{Timestamp, Trigger};

use super::super::LedgerHarness;
use super::super::probe::{Probe, plan_id, seconds, value};

const TOO_OLD: Claim = Claim::Refused(Refusal::TooOld);
const DAY: Duration = Duration::from_secs(86_400);
/// Keeps nothing that has ended, however little ago.
const NOTHING: Retention = Retention { age: Some(Duration::ZERO), count: None, keep_last: 0 };

fn purge<L: Ledger>(p: &Probe<L>, keep: Retention, at_most: usize) -> Purged {
    value(p.ledger.purge(&p.plan, keep, at_most))
}

fn low_water<L: Ledger>(p: &Probe<L>) -> i64 {
    p.row().low_water.as_secs() - p.base
}

/// Claims slot `n` and ends it `ago` before the store's now.
#[track_caller]
fn run<L: Ledger>(p: &Probe<L>, n: i64, ago: Duration) {
    run_as(p, &p.free(n), ago);
}

#[track_caller]
fn run_as<L: Ledger>(p: &Probe<L>, request: &ClaimRequest, ago: Duration) {
    let grant = p.grant(request);
    let ended_at = p.now().saturating_sub(ago);
    let ended = p.settle_at(request, grant, Ending::Succeeded, ended_at);
    assert_eq!(ended, Ended::Recorded(SlotState::Ended(Ending::Succeeded)));
}

/// What was purged is refused as too old, to everybody, and never starts again.
pub fn a_purged_slot_is_too_old<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    for n in 1..=3 {
        run(&p, n, DAY);
    }
    let purged = purge(&p, NOTHING, 100);
    assert_eq!(purged, Purged { deleted: 3, low_water: p.at(3), more: false });
    assert_eq!((low_water(&p), p.numbers()), (3, vec![]));
    for n in 1..=3 {
        for kind in [RunKind::Scheduled, RunKind::CatchUp, RunKind::Backfill] {
            assert_eq!(p.unchanged(|p| p.claim(&p.of_kind(n, kind))), TOO_OLD);
        }
        assert_eq!(p.claim(&p.run_now(n, "request")), TOO_OLD);
    }
    let again = purge(&p, NOTHING, 100);
    assert_eq!(again, Purged { deleted: 0, low_water: p.at(3), more: false });
    p.run(&p.live(4));
}

/// Fences go on rising after everything was purged.
pub fn fences_rise_after_a_purge<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.live(1);
    let grant = p.grant(&request);
    let _ = p.settle_at(&request, grant, Ending::Succeeded, Timestamp::EPOCH);
    assert_eq!(purge(&p, NOTHING, 100).deleted, 1);
    assert_eq!(p.row().fence, grant.fence);
    assert!(p.grant(&p.live(2)).fence > grant.fence);
}

/// Low water never passes the cursor: behind it there may be slots that nobody has looked at yet.
pub fn purge_never_passes_the_cursor<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    run(&p, 1, DAY);
    run(&p, 3, DAY);
    run_as(&p, &p.run_now(2, "request"), DAY);
    assert_eq!(p.cursor(), 1);
    assert_eq!(purge(&p, NOTHING, 100), Purged { deleted: 1, low_water: p.at(1), more: false });
    assert_eq!(p.numbers(), [2, 3]);
    p.run(&p.live(2));
    assert_eq!(p.claim(&p.live(3)), Claim::Ended(Ending::Succeeded));
}

/// Low water never passes a running slot, nor does a row behind it go.
pub fn purge_never_passes_a_running_slot<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    run(&p, 1, DAY);
    let running = p.free(2);
    let grant = p.grant(&running);
    run(&p, 3, DAY);
    assert_eq!(purge(&p, NOTHING, 100), Purged { deleted: 1, low_water: p.at(1), more: false });
    assert_eq!(p.numbers(), [2, 3]);
    let _ = p.settle_at(&running, grant, Ending::Failed, Timestamp::EPOCH);
    assert_eq!(purge(&p, NOTHING, 100), Purged { deleted: 2, low_water: p.at(3), more: false });
}

/// Nor does it pass an open slot.
pub fn purge_never_passes_an_open_slot<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let open = p.free(1);
    let grant = p.grant(&open);
    let _ = p.give_back(&open, grant);
    run(&p, 2, DAY);
    assert_eq!(purge(&p, NOTHING, 100), Purged { deleted: 0, low_water: Trigger::default(), more: false });
    p.run(&p.free(1));
}

/// A running `run_now` holds low water below its second, too.
pub fn purge_never_reaches_a_running_request<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    run(&p, 1, DAY);
    run(&p, 2, DAY);
    let mut request = p.run_now(2, "request");
    request.gate = Gate::Force;
    p.grant(&request);
    assert_eq!(purge(&p, NOTHING, 100), Purged { deleted: 1, low_water: p.at(1), more: false });
}

/// At most so many records go at once, the oldest first; the answer tells whether there is more.
pub fn purge_goes_in_steps<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    for n in 1..=5 {
        run(&p, n, DAY);
    }
    for (low, left) in [(2, vec![3, 4, 5]), (4, vec![5])] {
        assert_eq!(purge(&p, NOTHING, 2), Purged { deleted: 2, low_water: p.at(low), more: true });
        assert_eq!((low_water(&p), p.numbers()), (low, left));
    }
    assert_eq!(purge(&p, NOTHING, 2), Purged { deleted: 1, low_water: p.at(5), more: false });
}

/// What ended longer ago than the age goes, but the last ones stay.
pub fn purge_by_age_keeps_the_last<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    for (n, days) in (1..).zip([9, 8, 7, 3, 2, 1]) {
        run(&p, n, DAY * days);
    }
    let week = Retention { age: Some(DAY * 7 - DAY / 2), count: None, keep_last: 4 };
    assert_eq!(purge(&p, week, 100), Purged { deleted: 2, low_water: p.at(2), more: false }, "four always stay");
    let week = Retention { keep_last: 1, ..week };
    assert_eq!(purge(&p, week, 100), Purged { deleted: 1, low_water: p.at(3), more: false });
    let never = Retention { age: None, count: None, keep_last: 0 };
    assert_eq!(purge(&p, never, 100).deleted, 0);
}

/// What is beyond the newest so many goes, but for what ended within the last day.
pub fn purge_by_count_spares_the_last_day<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    for (n, hours) in (1..).zip([50, 40, 30, 20, 10, 1]) {
        run(&p, n, Duration::from_secs(hours * 3_600));
    }
    let count = |count| Retention { age: None, count: Some(count), keep_last: 0 };
    assert_eq!(purge(&p, count(5), 100), Purged { deleted: 1, low_water: p.at(1), more: false });
    assert_eq!(purge(&p, count(0), 100), Purged { deleted: 2, low_water: p.at(3), more: false });
    assert_eq!(p.numbers(), [4, 5, 6]);
}

/// Not-started rows and range records go like ended ones; a record goes only once low water has passed all of it.
pub fn purge_deletes_what_was_not_started<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(5));
    let running = p.free(1);
    let grant = p.grant(&running);
    assert_eq!(p.claim(&p.under(2, Overlap::Skip)), Claim::Refused(Refusal::NotStarted(NotStarted::Overlap)));
    let cover = Cover::Range { count: Some(2), reason: NotStarted::OverCap };
    assert_eq!(p.op(p.account(2, 4, cover)), Applied::Done);
    let blocking = p.of_kind(3, RunKind::Backfill);
    let inside = p.grant(&ClaimRequest { gate: Gate::Force, ..blocking.clone() });
    let _ = p.settle_at(&running, grant, Ending::Succeeded, Timestamp::EPOCH);
    harness.pass_time(Duration::from_millis(1));
    assert_eq!(purge(&p, NOTHING, 100), Purged { deleted: 2, low_water: p.at(2), more: false });
    assert_eq!(p.ranges(), [(3, 4, NotStarted::OverCap)], "a slot inside it still runs");
    let _ = p.settle_at(&blocking, inside, Ending::Succeeded, Timestamp::EPOCH);
    assert_eq!(purge(&p, NOTHING, 100), Purged { deleted: 2, low_water: p.at(4), more: false });
    assert_eq!((p.numbers(), p.ranges()), (vec![], vec![]));
    assert_eq!(p.claim(&p.of_kind(4, RunKind::Backfill)), TOO_OLD);
}

/// A purge concerns its plan alone; of a plan that the ledger doesn't know there is nothing.
pub fn purge_concerns_its_plan_alone<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let q = Probe::of(harness.handle(), PlanKey::new(harness.namespace(), plan_id("q")));
    run(&p, 1, DAY);
    run(&q, 1, DAY);
    assert_eq!(purge(&p, NOTHING, 100).deleted, 1);
    assert_eq!((q.numbers(), q.row().low_water), (vec![1], Trigger::default()));
    let unknown = PlanKey::new(harness.namespace(), plan_id("unknown"));
    let purged = value(p.ledger.purge(&unknown, NOTHING, 100));
    assert_eq!((purged.deleted, purged.more), (0, false));
}

/// A cursor that is set back stays above low water: what was purged stays refused until the clock has passed it.
pub fn the_clock_rule_stays_above_low_water<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    run_as(&p, &ClaimRequest { prev: None, ..p.free(3_600) }, DAY);
    run_as(&p, &ClaimRequest { prev: None, ..p.free(7_200) }, Duration::ZERO);
    assert_eq!(purge(&p, Retention { keep_last: 1, ..NOTHING }, 100).low_water, p.at(3_600));
    let set_back = PlanOp::SetBack { max_skew: seconds(5) };
    assert_eq!(p.op(set_back), Applied::Done);
    assert_eq!(p.cursor(), 3_600);
    assert_eq!(p.claim(&p.live(3_600)), TOO_OLD);
}
