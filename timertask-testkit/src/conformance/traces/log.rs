//! What was seen of a trace, and the promises checked against it.

use std::collections::{BTreeMap, BTreeSet};

use timertask_core::key::{Fence, Nonce, SlotKey};
use timertask_core::seam::{Claim, ClaimRequest, Ended, Ending, Generation, Page, PlanRow, SlotState};
use timertask_core::time::{Timestamp, Trigger};

use super::Tally;
use super::spec::Spec;

/// How long after its time a slot must be accounted for once all is healed: start window, lease, three sweeps, and the
/// catch-up of what was missed.
const SETTLED_AFTER: i64 = 200;

/// Everything that was seen. Each `see` says what is broken, if anything is.
#[derive(Default)]
pub(super) struct Log {
    pub(super) tally: Tally,
    highest: Fence,
    grants: BTreeMap<SlotKey, BTreeSet<(Fence, u128)>>,
    starts: BTreeMap<SlotKey, Vec<Fence>>,
    /// Slots whose end was accepted.
    ended: BTreeMap<SlotKey, Ending>,
    /// The generations, each from its effective-from on, to that of the next one.
    generations: Vec<Generation>,
    row: Option<PlanRow>,
}

impl Log {
    /// The plan's row after a request took effect; `set_back`: the clock rule was applied.
    pub(super) fn see_row(&mut self, row: &PlanRow, set_back: bool) -> Result<(), String> {
        if let Some(before) = &self.row {
            if row.cursor < before.cursor && !set_back {
                return Err(format!("the cursor went back from {} to {}", before.cursor, row.cursor));
            }
            if row.low_water < before.low_water {
                return Err(format!("low water sank from {} to {}", before.low_water, row.low_water));
            }
            if row.fence < before.fence {
                return Err(format!("the plan's fence sank from {} to {}", before.fence, row.fence));
            }
        }
        if row.low_water > row.cursor {
            return Err(format!("low water {} passed the cursor {}", row.low_water, row.cursor));
        }
        if self.generations.last() != Some(&row.generation) {
            if set_back {
                // What was to count from a time ahead counts from now; what came before it counts up to there.
                self.generations.pop();
                self.generations.retain(|old| old.effective_from < row.generation.effective_from);
            }
            self.generations.push(row.generation);
        }
        self.row = Some(row.clone());
        Ok(())
    }

    pub(super) fn see_claim(&mut self, request: &ClaimRequest, answer: &Claim) -> Result<(), String> {
        match answer {
            Claim::Granted(grant) => {
                let key = SlotKey { at: grant.at, ..request.key.clone() };
                let known = self.grants.entry(key.clone()).or_default();
                if !known.insert((grant.fence, request.nonce.bits())) {
                    return Ok(());
                }
                self.tally.grants += 1;
                if let Some(ending) = self.ended.get(&key) {
                    return Err(format!("{key} was granted again after it had ended: {ending}"));
                }
                if grant.fence <= self.highest {
                    return Err(format!("{key} was granted under {}, after {}", grant.fence, self.highest));
                }
                self.highest = grant.fence;
                if grant.attempt > request.attempts_allowed.max(1) {
                    let allowed = request.attempts_allowed;
                    return Err(format!("start {} of {key}, where {allowed} are allowed", grant.attempt));
                }
                Ok(())
            }
            // Of a repeated request the answer is about the run that its id finds, which may have another instant.
            Claim::Ended(_) if request.key.request.is_some() => Ok(()),
            Claim::Ended(ending) => self.see_ending(&request.key, *ending, false),
            Claim::Held | Claim::Refused(_) => Ok(()),
        }
    }

    pub(super) fn see_end(&mut self, key: &SlotKey, answer: Ended) -> Result<(), String> {
        match answer {
            Ended::Recorded(SlotState::Ended(ending)) => self.see_ending(key, ending, true),
            Ended::Lost(Some(SlotState::Ended(ending))) if key.request.is_none() => self.see_ending(key, ending, false),
            Ended::Recorded(_) | Ended::AlreadyRecorded | Ended::Lost(_) => Ok(()),
        }
    }

    fn see_ending(&mut self, key: &SlotKey, ending: Ending, accepted: bool) -> Result<(), String> {
        match self.ended.insert(key.clone(), ending) {
            Some(before) if accepted => Err(format!("{key} ended as {ending}, and had ended as {before}")),
            Some(before) if before != ending => Err(format!("{key} had ended as {before}, and now as {ending}")),
            _ => {
                self.tally.ends += u64::from(accepted);
                Ok(())
            }
        }
    }

    /// An instance enters a run; `most`: the highest number of starts that any version of the plan allows.
    pub(super) fn see_start(&mut self, key: &SlotKey, nonce: Nonce, fence: Fence, most: u32) -> Result<(), String> {
        self.tally.starts += 1;
        let starts = self.starts.entry(key.clone()).or_default();
        if starts.last().is_some_and(|last| *last >= fence) {
            return Err(format!("{key} was started under {fence}, after {starts:?} ({nonce})"));
        }
        starts.push(fence);
        if starts.len() > most as usize {
            return Err(format!("{key} was started {} times: {starts:?}", starts.len()));
        }
        Ok(())
    }

    /// The whole store, once all is healed.
    pub(super) fn check(&self, now: Timestamp, page: &Page, specs: &[Spec]) -> Result<(), String> {
        let Some((_, row)) = page.plans.first() else { return Err("the plan is gone".to_owned()) };
        let settled = Trigger::from_secs(now.trigger().as_secs() - SETTLED_AFTER);
        for slot in page.slots.iter().filter(|slot| slot.key.at <= settled) {
            match slot.state {
                SlotState::Running | SlotState::Open => return Err(format!("{} is still {}", slot.key, slot.state)),
                SlotState::NotStarted(_) if self.starts.contains_key(&slot.key) => {
                    return Err(format!("{} was started, and stands as {}", slot.key, slot.state));
                }
                SlotState::Ended(ending) if self.ended.get(&slot.key).is_some_and(|before| *before != ending) => {
                    return Err(format!("{} stands as {ending}, and was told otherwise", slot.key));
                }
                SlotState::Ended(_) | SlotState::NotStarted(_) => {}
            }
        }
        for (i, generation) in self.generations.iter().enumerate() {
            let upto = self.generations.get(i + 1).map_or(settled, |next| next.effective_from.min(settled));
            let spec = specs.iter().find(|spec| spec.fingerprint == generation.fingerprint);
            for at in spec.map(|spec| spec.slots(generation.effective_from, upto)).unwrap_or_default() {
                let has_row = page.slots.iter().any(|slot| slot.key.at == at && slot.key.request.is_none());
                let in_range = page.ranges.iter().any(|range| range.first <= at && at <= range.last);
                if at > row.low_water && !has_row && !in_range {
                    return Err(format!(
                        "nothing tells what became of {at}, a slot since {}",
                        generation.effective_from
                    ));
                }
                if at > row.cursor {
                    return Err(format!("the cursor stays at {}, before {at}", row.cursor));
                }
            }
        }
        Ok(())
    }
}
