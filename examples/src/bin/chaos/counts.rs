//! What was done to the processes, and what became of the slots: the last lines of a run.

use std::collections::BTreeMap;
use std::fmt;

use timertask::Trigger;

/// What befell processes and store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Injected {
    pub(crate) killed: usize,
    pub(crate) frozen: usize,
    pub(crate) frozen_long: usize,
    pub(crate) restarts: usize,
    pub(crate) outages: usize,
    pub(crate) full: usize,
    pub(crate) steps: usize,
    pub(crate) edits: usize,
    pub(crate) pauses: usize,
}

impl Injected {
    /// How many in all.
    pub(crate) fn total(&self) -> usize {
        let Self { killed, frozen, frozen_long, restarts, outages, full, steps, edits, pauses } = *self;
        killed + frozen + frozen_long + restarts + outages + full + steps + edits + pauses
    }

    /// The kinds that never came up.
    pub(crate) fn missing(&self, on_redis: bool) -> Vec<&'static str> {
        let mut missing = Vec::new();
        let mut look = |count: usize, what| {
            if count == 0 {
                missing.push(what);
            }
        };
        look(self.killed, "no process was killed");
        look(self.frozen, "no process was frozen");
        look(self.outages + self.restarts, "the store never went away");
        look(if on_redis { self.restarts } else { 1 }, "the store was never started again");
        look(self.full, "the disk was never full");
        look(self.steps, "no clock was set");
        look(self.edits, "no plan was edited");
        look(self.pauses, "no plan was paused");
        missing
    }
}

impl fmt::Display for Injected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "faults {:>25}", self.total())?;
        writeln!(f, "  processes killed {:>13}", self.killed)?;
        writeln!(
            f,
            "  processes frozen {:>13}   {} of them for longer than a lease and three sweeps",
            self.frozen + self.frozen_long,
            self.frozen_long
        )?;
        writeln!(f, "  store restarts {:>15}", self.restarts)?;
        writeln!(f, "  other outages {:>16}", self.outages)?;
        writeln!(f, "  full disks {:>19}", self.full)?;
        writeln!(f, "  clock steps {:>18}", self.steps)?;
        writeln!(f, "  plan edits {:>19}", self.edits)?;
        writeln!(f, "  pauses {:>23}", self.pauses)
    }
}

/// What became of the slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Slots that the schedules have.
    pub(crate) expected: usize,
    pub(crate) started: usize,
    pub(crate) orphaned: usize,
    /// Starts of slots beyond their first.
    pub(crate) reruns: usize,
    pub(crate) not_started: usize,
    pub(crate) in_ranges: usize,
    /// Too young to have to be accounted for, or waiting: by plan, how many, and the oldest.
    pub(crate) pending: BTreeMap<String, (usize, Trigger)>,
    /// Slots that had to start, and were held against that.
    pub(crate) had_to_start: usize,
    /// Entries into jobs.
    pub(crate) entries: usize,
    /// Entries while the store was away, under an earlier grant.
    pub(crate) under_outage: usize,
    /// Ends that an instance was told are on record.
    pub(crate) recorded: usize,
}

impl Seen {
    /// A slot is not accounted for yet, and need not be.
    pub(crate) fn pending(&mut self, plan: &str, at: Trigger) {
        self.pending.entry(plan.to_owned()).or_insert((0, at)).0 += 1;
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "slots {:>26}", self.expected)?;
        writeln!(
            f,
            "  started {:>22}   {} of them orphaned, {} started again",
            self.started, self.orphaned, self.reruns
        )?;
        writeln!(f, "  not started, and why {:>9}", self.not_started + self.in_ranges)?;
        let pending: usize = self.pending.values().map(|(count, _)| count).sum();
        writeln!(f, "  waiting, or too young {pending:>8}")?;
        for (plan, (count, oldest)) in &self.pending {
            writeln!(f, "    {plan:<10} {count:>17}   since {oldest}")?;
        }
        writeln!(f, "  that had to start {:>12}", self.had_to_start)?;
        writeln!(
            f,
            "entries into jobs {:>14}   {} during an outage, under an earlier grant",
            self.entries, self.under_outage
        )?;
        writeln!(f, "ends told as recorded {:>10}", self.recorded)
    }
}
