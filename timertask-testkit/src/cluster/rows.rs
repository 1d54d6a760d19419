//! Reading the whole store, page by page.

use timertask_core::key::{Namespace, PlanKey};
use timertask_core::seam::{Ledger, PlanRow, Query, RangeRow, SlotRow, StoreError};
use timertask_core::time::{Timestamp, Trigger};

/// Rows in one page.
const PAGE: usize = 4096;

/// One plan's rows, all of them.
pub(super) struct PlanRows {
    pub(super) key: PlanKey,
    pub(super) row: PlanRow,
    pub(super) slots: Vec<SlotRow>,
    pub(super) ranges: Vec<RangeRow>,
}

/// Reads the whole store.
pub(super) fn read_all(ledger: &dyn Ledger, namespace: &Namespace) -> Result<(Timestamp, Vec<PlanRows>), StoreError> {
    let (mut plans, mut after) = (Vec::new(), None);
    let now = loop {
        let query = Query::Plans { namespace: namespace.clone(), after: after.clone(), limit: PAGE };
        let answer = ledger.read(&query)?;
        let last = answer.value.plans.iter().filter_map(|(key, _)| key.plan.clone()).max();
        plans.extend(answer.value.plans);
        if last.is_none() || answer.value.more.is_none() {
            break answer.now;
        }
        after = last;
    };
    let read = |(key, row): (PlanKey, PlanRow)| {
        let (slots, ranges) = history(ledger, &key)?;
        Ok(PlanRows { key, row, slots, ranges })
    };
    Ok((now, plans.into_iter().map(read).collect::<Result<_, StoreError>>()?))
}

/// All slots and ranges of a plan.
pub(super) fn history(ledger: &dyn Ledger, plan: &PlanKey) -> Result<(Vec<SlotRow>, Vec<RangeRow>), StoreError> {
    // Farther than any schedule goes, and nowhere near overflow in microseconds.
    const FAR: i64 = 1 << 42;
    let (mut slots, mut ranges, mut page) = (Vec::new(), Vec::<RangeRow>::new(), None);
    loop {
        let query = Query::History {
            plan: plan.clone(),
            after: Trigger::from_secs(-FAR),
            upto: Trigger::from_secs(FAR),
            page,
            limit: PAGE,
        };
        let answer = ledger.read(&query)?.value;
        slots.extend(answer.slots);
        for range in answer.ranges {
            if !ranges.contains(&range) {
                ranges.push(range);
            }
        }
        page = answer.more;
        if page.is_none() {
            ranges.sort_by_key(|r| (r.first, r.last));
            return Ok((slots, ranges));
        }
    }
}
