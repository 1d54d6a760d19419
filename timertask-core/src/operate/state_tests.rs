//! Each slot is in exactly one state, whatever the rows say.

use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::key::{Fence, Fingerprint, Namespace, PlanKey, SlotKey};
use crate::seam::Generation;

const DUE_AFTER: i64 = 3;
const WINDOW: i64 = 5;

fn trigger() -> impl Strategy<Value = Trigger> {
    prop_oneof![20 => (0..200_i64).prop_map(Trigger::from_secs), 1 => Just(Trigger::from_secs(i64::MAX)), 1 => Just(Trigger::from_secs(i64::MIN))]
}

fn plan_row() -> impl Strategy<Value = PlanRow> {
    (trigger(), trigger(), any::<bool>()).prop_map(|(cursor, low_water, closed)| PlanRow {
        generation: Generation { fingerprint: Fingerprint::EMPTY, effective_from: Trigger::from_secs(0) },
        closed,
        cursor,
        low_water,
        fence: Fence::NONE,
        last_success: None,
        window_from: None,
        pause: None,
    })
}

fn slot_row() -> impl Strategy<Value = SlotRow> {
    let state = prop_oneof![
        Just(SlotState::Running),
        Just(SlotState::Open),
        (0..4_u8).prop_map(|code| SlotState::Ended(Ending::from_code(code).unwrap())),
        (0..10_u8).prop_map(|code| SlotState::NotStarted(NotStarted::from_code(code).unwrap())),
    ];
    (state, 0..4_u8, trigger()).prop_map(|(state, kind, at)| {
        let plan = PlanKey::new(Namespace::default(), PlanId::new("p").unwrap());
        let key = SlotKey { plan, at, request: None };
        let row = SlotRow::not_started(key, RunKind::from_code(kind).unwrap(), NotStarted::Overlap, Timestamp::EPOCH);
        SlotRow { state, ..row }
    })
}

fn range() -> impl Strategy<Value = RangeRow> {
    (0..10_u8).prop_map(|code| RangeRow {
        first: Trigger::from_secs(0),
        last: Trigger::from_secs(0),
        count: None,
        reason: NotStarted::from_code(code).unwrap(),
        at: Timestamp::EPOCH,
    })
}

/// Every state, and when a slot without a row of its own is in it. Written as a table of independent conditions, of which
/// exactly one must hold.
fn conditions(at: i64, now: i64, row: &PlanRow, paused: bool, busy: bool) -> Vec<(AuditState, bool)> {
    let (low, cursor) = (row.low_water.as_secs(), row.cursor.as_secs());
    let passed = at <= cursor;
    let free = at > low && !passed;
    let live = free && !row.closed;
    let due = i128::from(now) >= i128::from(at) + i128::from(DUE_AFTER);
    let waits = live && due && !paused;
    let open = i128::from(now) <= i128::from(at) + i128::from(DUE_AFTER + WINDOW);
    let grace = i128::from(now) <= i128::from(at) + i128::from(DUE_AFTER + WINDOW + 60);
    vec![
        (AuditState::Purged, at <= low),
        (AuditState::NoRecord, at > low && passed),
        (AuditState::Closed, free && row.closed),
        (AuditState::NotDue, live && !due),
        (AuditState::Waiting(Waits::Pause), live && due && paused),
        (AuditState::Waiting(Waits::Start), waits && open),
        (AuditState::Waiting(Waits::Plan), waits && !open && busy),
        (AuditState::Waiting(Waits::CatchUp), waits && !open && !busy && grace),
        (AuditState::Overdue, waits && !open && !busy && !grace),
    ]
}

proptest! {
    #[test]
    fn a_slot_is_in_exactly_one_state(
        at in 0..200_i64,
        now in 0..400_i64,
        plan in plan_row(),
        slot in option::of(slot_row()),
        range in option::weighted(0.2, range()),
        paused: bool,
        busy: bool,
    ) {
        let facts = Facts {
            now: Trigger::from_secs(now).timestamp(),
            row: &plan,
            paused,
            busy,
            offset: Duration::from_secs(DUE_AFTER as u64),
            start_window: Duration::from_secs(WINDOW as u64),
        };
        let found = facts.state(Trigger::from_secs(at), slot.as_ref(), range.as_ref());
        match (&slot, &range) {
            (Some(slot), _) => prop_assert_eq!(found, facts.state_of_row(slot), "a row outranks all else"),
            (None, Some(range)) => prop_assert_eq!(found, AuditState::NotStarted(range.reason)),
            (None, None) => {
                let holding = conditions(at, now, &plan, paused, busy).into_iter().filter(|(_, holds)| *holds);
                prop_assert_eq!(holding.map(|(state, _)| state).collect::<Vec<_>>(), vec![found]);
            }
        }
        prop_assert_eq!(found.stands_out(), matches!(found, AuditState::Overdue | AuditState::NoRecord));
    }

    #[test]
    fn no_instant_makes_it_panic(at in trigger(), now in any::<i64>(), plan in plan_row(), seconds in any::<u64>()) {
        let facts = Facts {
            now: Timestamp::from_micros(now),
            row: &plan,
            paused: false,
            busy: false,
            offset: Duration::from_secs(seconds),
            start_window: Duration::MAX,
        };
        let _ = facts.state(at, None, None);
    }
}
