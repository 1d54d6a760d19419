//! Looks at the ledger as it runs: which generations there were, and whether what was final stays so.

use std::collections::BTreeMap;

use timertask::key::{Namespace, PlanKey, SlotKey};
use timertask::seam::{Generation, Ledger, PlanRow, RangeRow, SlotRow, SlotState};
use timertask::{PlanId, Trigger};
use timertask_examples::rows;

use crate::Result;
use crate::store::NAMESPACE;

/// A plan with all its rows.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    pub(crate) id: PlanId,
    pub(crate) row: PlanRow,
    pub(crate) slots: Vec<SlotRow>,
    pub(crate) ranges: Vec<RangeRow>,
}

/// What was seen so far.
#[derive(Default)]
pub(crate) struct Witness {
    pub(crate) generations: BTreeMap<String, Vec<Generation>>,
    ended: BTreeMap<SlotKey, SlotRow>,
    /// Slots that had ended and did not stay so.
    pub(crate) changed: Vec<String>,
}

impl Witness {
    /// Looks which generations there are.
    pub(crate) fn glance(&mut self, ledger: &dyn Ledger) -> Result<()> {
        for (id, row) in rows::plans(ledger, &Namespace::new(NAMESPACE)?)? {
            let known = self.generations.entry(id.as_str().to_owned()).or_default();
            if known.last() != Some(&row.generation) {
                known.push(row.generation);
            }
        }
        Ok(())
    }

    /// Reads everything, and compares what had ended with what it is now.
    pub(crate) fn look(&mut self, ledger: &dyn Ledger) -> Result<Vec<Rows>> {
        self.glance(ledger)?;
        let namespace = Namespace::new(NAMESPACE)?;
        let mut all = Vec::new();
        for (id, _) in rows::plans(ledger, &namespace)? {
            let key = PlanKey::new(namespace.clone(), id.clone());
            let (slots, ranges) = rows::history(ledger, &key, Trigger::from_secs(1 << 40))?;
            // The plan's row is read last: what the cursor has passed by then may be missing above, but not the other
            // way round. At the end, when nothing changes any more, it makes no difference.
            let row = rows::plans(ledger, &namespace)?.into_iter().find(|(other, _)| *other == id);
            let Some((_, row)) = row else { continue };
            self.compare(&slots, &row);
            all.push(Rows { id, row, slots, ranges });
        }
        Ok(all)
    }

    pub(crate) fn compare(&mut self, slots: &[SlotRow], plan: &PlanRow) {
        let now: BTreeMap<&SlotKey, &SlotRow> = slots.iter().map(|slot| (&slot.key, slot)).collect();
        for slot in slots {
            let Some(before) = self.ended.get(&slot.key) else { continue };
            if (before.state, before.fence, before.attempt) != (slot.state, slot.fence, slot.attempt) {
                let (was, is) = (tell(before), tell(slot));
                self.changed.push(format!("slot {} had ended: {was}; and then it was {is}", slot.key));
            }
        }
        for slot in slots.iter().filter(|slot| matches!(slot.state, SlotState::Ended(_) | SlotState::NotStarted(_))) {
            self.ended.entry(slot.key.clone()).or_insert_with(|| slot.clone());
        }
        let plan_of = slots.first().map(|slot| slot.key.plan.clone());
        let gone = self
            .ended
            .keys()
            .filter(|key| Some(&key.plan) == plan_of.as_ref() && key.at > plan.low_water && !now.contains_key(key));
        let gone: Vec<SlotKey> = gone.cloned().collect();
        for key in gone {
            self.changed.push(format!("slot {key} had ended, and has no row any more, above low water"));
            self.ended.remove(&key);
        }
    }
}

fn tell(slot: &SlotRow) -> String {
    format!("{} with fence {} as start {}", slot.state, slot.fence, slot.attempt)
}
