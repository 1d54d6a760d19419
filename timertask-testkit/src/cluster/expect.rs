//! What tests ask of a cluster. Each says, where it fails, which slot it was and which instances ran it.

use timertask_core::key::{PlanId, PlanKey, SlotKey};
use timertask_core::seam::{NotStarted, RangeRow, RunKind, SlotRow, SlotState};
use timertask_core::time::{Timestamp, Trigger};

use super::check::{Evidence, Summary, Violation, list};
use super::rows::history;
use super::{Cluster, Start};

impl Cluster {
    /// All entries into jobs so far, in order.
    #[must_use]
    pub fn starts(&self) -> Vec<Start> {
        self.journal.read(<[Start]>::to_vec)
    }

    /// Those of one plan.
    #[must_use]
    pub fn starts_of(&self, plan: &str) -> Vec<Start> {
        self.journal.read(|starts| starts.iter().filter(|s| s.plan() == plan).cloned().collect())
    }

    /// The ledger's rows of a plan, by trigger point.
    ///
    /// # Panics
    /// Where the store cannot be read, or the id is none.
    #[must_use]
    pub fn rows(&self, plan: &str) -> Vec<SlotRow> {
        match history(self.ledger(), &self.key(plan)) {
            Ok((slots, _)) => slots,
            Err(error) => panic!("the store cannot be read: {error}"),
        }
    }

    /// The ledger's range records of a plan, by time.
    ///
    /// # Panics
    /// Where the store cannot be read, or the id is none.
    #[must_use]
    pub fn ranges(&self, plan: &str) -> Vec<RangeRow> {
        match history(self.ledger(), &self.key(plan)) {
            Ok((_, ranges)) => ranges,
            Err(error) => panic!("the store cannot be read: {error}"),
        }
    }

    fn key(&self, plan: &str) -> PlanKey {
        match PlanId::new(plan) {
            Ok(id) => PlanKey::new(self.namespace.clone(), id),
            Err(error) => panic!("{error}"),
        }
    }

    /// What stands behind a failed expectation: how to run it again.
    fn replay(&self) -> String {
        match self.clock.seed() {
            0 => format!("at {}, fixed order", self.now()),
            seed => format!("at {}, seed {seed}", self.now()),
        }
    }

    /// The plan has been started so many times in all.
    ///
    /// # Panics
    /// Where it has not.
    pub fn expect_starts(&self, plan: &str, n: usize) {
        let starts = self.starts_of(plan);
        if starts.len() != n {
            let slots: Vec<String> = starts.iter().map(|s| format!("  {} by {s}", s.slot)).collect();
            panic!("{plan:?} was started {} times, not {n} ({}):\n{}", starts.len(), self.replay(), slots.join("\n"));
        }
    }

    /// Each of the plan's trigger points later than `after` and up to `upto` was started exactly once.
    ///
    /// # Panics
    /// Where one was not, naming it and who ran it; and where there is none at all.
    pub fn expect_each_once(&self, plan: &str, after: impl Into<Timestamp>, upto: impl Into<Timestamp>) {
        let (after, upto) = (after.into().trigger(), upto.into().trigger());
        let starts = self.starts_of(plan);
        let mut at = after;
        let mut n = 0;
        while let Some(next) = self.next_trigger(plan, at).filter(|next| *next <= upto) {
            at = next;
            n += 1;
            let of_slot: Vec<&Start> = starts.iter().filter(|s| s.slot.at == at && s.kind != RunKind::Manual).collect();
            if of_slot.len() != 1 {
                let state = self.rows(plan).iter().find(|row| row.key.at == at).map(|row| row.state);
                let state = state.map_or_else(|| "no row".to_owned(), |state| state.to_string());
                panic!(
                    "slot {} was started {} times, not once ({}): {}; the ledger has: {state}",
                    SlotKey { plan: self.key(plan), at, request: None },
                    of_slot.len(),
                    self.replay(),
                    list(&of_slot)
                );
            }
        }
        assert!(n > 0, "{plan:?} has no trigger point after {after}, up to {upto}");
    }

    /// The trigger point of the plan after `after`, by the version that was reconciled last.
    fn next_trigger(&self, plan: &str, after: Trigger) -> Option<Trigger> {
        let key = self.key(plan);
        let last = self.witness.read(|seen| seen.plans.get(&key)?.generations.last().map(|g| g.fingerprint))?;
        self.expected.get(&(key, last))?.schedule.next_trigger(after)
    }

    /// The slot is in this state.
    ///
    /// # Panics
    /// Where it is in another, or has no row.
    pub fn expect_state(&self, plan: &str, at: impl Into<Trigger>, state: SlotState) {
        let key = SlotKey { plan: self.key(plan), at: at.into(), request: None };
        let row = self.rows(plan).into_iter().find(|row| row.key == key);
        let starts = self.starts_of(plan);
        let starts: Vec<&Start> = starts.iter().filter(|s| s.slot == key).collect();
        match row {
            Some(row) if row.state == state => {}
            Some(row) => panic!(
                "slot {key} is {}, not {state} ({}); the job's log has: {}",
                row.state,
                self.replay(),
                list(&starts)
            ),
            None => panic!("slot {key} has no row, and should be {state} ({})", self.replay()),
        }
    }

    /// The slot was not started, for this reason: it has a row that says so, or none and lies in such a range record.
    ///
    /// # Panics
    /// Where it is not so.
    pub fn expect_not_started(&self, plan: &str, at: impl Into<Trigger>, reason: NotStarted) {
        let key = SlotKey { plan: self.key(plan), at: at.into(), request: None };
        let row = self.rows(plan).into_iter().find(|row| row.key == key);
        let found = match row {
            Some(row) if row.state == SlotState::NotStarted(reason) => return,
            Some(row) => format!("is {}", row.state),
            None => {
                let ranges = self.ranges(plan);
                match ranges.iter().find(|r| r.first <= key.at && key.at <= r.last) {
                    Some(range) if range.reason == reason => return,
                    Some(range) => format!("lies in a range ({})", range.reason),
                    None => "has neither row nor range".to_owned(),
                }
            }
        };
        panic!("slot {key} {found}, and should not have been started ({reason}; {})", self.replay());
    }

    /// Verifies every promise over the whole store, the jobs' own log, and the order of what the store was asked; counts
    /// what it saw.
    ///
    /// It reads the store without anybody's faults. What is still allowed to be open (start windows that have not closed,
    /// leases that have not lapsed, catch-up that waits) is counted as pending; give it time first, to see it settled.
    ///
    /// # Panics
    /// With all violations, naming slots and instances, and with the seed; and where the engine has a panicked thread.
    #[expect(clippy::must_use_candidate, reason = "the panic is the answer; the counts are for those who want them")]
    pub fn check(&self) -> Summary {
        let (summary, violations) = self.violations();
        if !violations.is_empty() {
            let lines: Vec<String> = violations.iter().take(20).map(|v| format!("  {v}")).collect();
            let more = violations.len().saturating_sub(lines.len());
            let more = if more > 0 { format!("\n  and {more} more") } else { String::new() };
            panic!("{} violations ({}):\n{}{more}", violations.len(), self.replay(), lines.join("\n"));
        }
        for (index, life, _) in self.fit() {
            let health = life.scheduler.health();
            assert!(health.threads_panicked.is_empty(), "instance {index}: {:?}", health.threads_panicked);
        }
        summary
    }

    /// As [`check`](Self::check), as values.
    ///
    /// # Panics
    /// Where the store cannot be read.
    #[must_use]
    pub fn violations(&self) -> (Summary, Vec<Violation>) {
        let healthy_since = self.healthy_since();
        let cares = self.cares();
        let checked = self.journal.read(|starts| {
            self.witness.read(|seen| {
                let evidence = Evidence {
                    // Beneath the witness, whose notes are being read.
                    ledger: &*self.base.inner().ledger,
                    namespace: &self.namespace,
                    expected: &self.expected,
                    starts,
                    seen,
                    healthy_since,
                    cares: &cares,
                    lived_until: self.lived_until,
                };
                evidence.check()
            })
        });
        match checked {
            Ok(checked) => checked,
            Err(error) => panic!("the store cannot be read: {error}"),
        }
    }
}
