//! What a ledger holds, read whole.

use timertask::Trigger;
use timertask::key::{Namespace, PlanId, PlanKey};
use timertask::seam::{Ledger, PlanRow, Query, RangeRow, SlotRow, StoreError};

/// Rows in one page.
const PAGE: usize = 1000;

/// All slots of a plan from the epoch up to `upto`, and all ranges that reach into that.
///
/// # Errors
/// Where the ledger cannot be read.
pub fn history(
    ledger: &dyn Ledger,
    plan: &PlanKey,
    upto: Trigger,
) -> Result<(Vec<SlotRow>, Vec<RangeRow>), StoreError> {
    let (mut slots, mut ranges, mut page) = (Vec::new(), Vec::new(), None);
    loop {
        let query = Query::History { plan: plan.clone(), after: Trigger::from_secs(0), upto, page, limit: PAGE };
        let answer = ledger.read(&query)?.value;
        slots.extend(answer.slots);
        ranges.extend(answer.ranges);
        page = answer.more;
        if page.is_none() {
            return Ok((slots, ranges));
        }
    }
}

/// All plans of a namespace, by id.
///
/// # Errors
/// Where the ledger cannot be read.
pub fn plans(ledger: &dyn Ledger, namespace: &Namespace) -> Result<Vec<(PlanId, PlanRow)>, StoreError> {
    let (mut plans, mut after) = (Vec::new(), None);
    loop {
        let answer = ledger.read(&Query::Plans { namespace: namespace.clone(), after, limit: PAGE })?.value;
        // The namespace's own row, which holds the pause of all, names no plan.
        plans.extend(answer.plans.into_iter().filter_map(|(key, row)| Some((key.plan?, row))));
        after = answer.more.and_then(|_| plans.last().map(|(id, _)| id.clone()));
        if after.is_none() {
            return Ok(plans);
        }
    }
}
