//! Each sentence of the guarantees, held against the jobs' journal, the ledger and the timeline. A pure function: what it
//! is told decides.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use timertask::seam::{Generation, RangeRow, SlotRow, SlotState};
use timertask::{Ending, NotStarted, RunKind, Timestamp, Trigger};

use crate::counts::Seen;
use crate::journal::{Left, Line, Start, What};
use crate::plans::{self, Versions};
use crate::timeline::{Pass, Timeline};
use crate::witness::Rows;

/// A lease and three sweeps, microseconds: how long after its window, or after the store was back, a slot may take to be
/// accounted for.
pub(crate) const BOUND: i64 = 60_000_000;
/// How long a run that was granted before an outage, or before its clock went wrong, may take to be entered.
const ON_ITS_WAY: i64 = 2_000_000;
/// By how much clocks that agree may differ.
const MAX_SKEW: i64 = 5_000_000;

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Violation {
    /// The number of the sentence.
    pub(crate) promise: u8,
    pub(crate) text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "promise {}: {}", self.promise, self.text)
    }
}

/// All that was seen.
pub(crate) struct Evidence<'a> {
    pub(crate) journal: &'a [Line],
    pub(crate) timeline: &'a Timeline,
    pub(crate) rows: &'a [Rows],
    /// The store's now, when the processes were asked to stop; slots up to then are judged.
    pub(crate) now: Timestamp,
    /// Since when an instance had been fit that was so until then.
    pub(crate) fit_since: Option<Timestamp>,
    pub(crate) versions: &'a Versions,
    pub(crate) generations: &'a BTreeMap<String, Vec<Generation>>,
    /// What the witness saw change that was final.
    pub(crate) changed: &'a [String],
    /// What was granted while its plan was paused.
    pub(crate) in_pause: &'a [String],
}

/// A slot: plan and trigger point.
type Slot<'a> = (&'a str, i64);

/// What was written of one slot, by fence.
#[derive(Default)]
struct Log<'a> {
    entered: BTreeMap<u64, Vec<&'a Line>>,
    left: BTreeMap<u64, Left>,
    recorded: BTreeMap<u64, Left>,
}

/// What was found.
struct Court<'a> {
    evidence: &'a Evidence<'a>,
    logs: BTreeMap<Slot<'a>, Log<'a>>,
    seen: Seen,
    found: Vec<Violation>,
}

/// Judges.
pub(crate) fn judge(evidence: &Evidence<'_>) -> (Seen, Vec<Violation>) {
    let mut court = Court { evidence, logs: BTreeMap::new(), seen: Seen::default(), found: Vec::new() };
    court.read_journal();
    for rows in evidence.rows {
        court.plan(rows);
        court.expected(rows);
    }
    court.slots_of_the_journal();
    court.entries();
    court.found.extend(evidence.changed.iter().map(|text| Violation { promise: 3, text: text.clone() }));
    court.found.extend(evidence.in_pause.iter().map(|text| Violation { promise: 4, text: text.clone() }));
    court.found.sort();
    (court.seen, court.found)
}

impl<'a> Court<'a> {
    fn complain(&mut self, promise: u8, text: String) {
        self.found.push(Violation { promise, text });
    }

    fn read_journal(&mut self) {
        for line in self.evidence.journal {
            let (What::Entered(start) | What::Left(start, _) | What::Recorded(start, _)) = &line.what else { continue };
            let log = self.logs.entry((&start.plan, start.at)).or_default();
            match &line.what {
                What::Left(_, left) => drop(log.left.insert(start.fence, *left)),
                What::Recorded(_, left) => drop(log.recorded.insert(start.fence, *left)),
                _ => log.entered.entry(start.fence).or_default().push(line),
            }
        }
    }

    /// What holds for one plan's rows by themselves, and each row against the journal.
    fn plan(&mut self, rows: &'a Rows) {
        let (id, row) = (rows.id.as_str(), &rows.row);
        if row.low_water > row.cursor {
            self.complain(4, format!("{id}: low water {} is ahead of the cursor {}", row.low_water, row.cursor));
        }
        let mut ranges: Vec<&RangeRow> = rows.ranges.iter().collect();
        ranges.sort_by_key(|range| (range.first, range.last));
        ranges.dedup();
        for pair in ranges.windows(2).filter(|pair| pair[1].first <= pair[0].last) {
            self.complain(4, format!("{id}: two range records overlap: {:?} and {:?}", pair[0], pair[1]));
        }
        let mut fences: BTreeMap<u64, Trigger> = BTreeMap::new();
        let mut places = BTreeSet::new();
        for slot in &rows.slots {
            if !places.insert((slot.key.at, &slot.key.request)) {
                self.complain(4, format!("slot {} is in two states", slot.key));
            }
            if slot.fence > row.fence {
                self.complain(2, format!("slot {} has fence {}, its plan only {}", slot.key, slot.fence, row.fence));
            }
            let other = (slot.fence.as_u64() > 0).then(|| fences.insert(slot.fence.as_u64(), slot.key.at)).flatten();
            if let Some(other) = other {
                self.complain(2, format!("{id}: slots {other} and {} have one fence, {}", slot.key.at, slot.fence));
            }
            self.row(id, slot);
        }
    }

    /// A slot's row against what its jobs wrote down.
    fn row(&mut self, id: &'a str, slot: &SlotRow) {
        let (at, fence) = (slot.key.at, slot.fence.as_u64());
        let none = Log::default();
        let log = self.logs.get(&(id, at.as_secs())).unwrap_or(&none);
        let left = log.left.get(&fence).copied();
        let entered = log.entered.keys().next_back().copied();
        let mut wrong = Vec::new();
        if slot.attempt > plans::starts_allowed(id) {
            wrong.push((2, format!("{id} {at}: the ledger counts {} starts", slot.attempt)));
        }
        if entered > Some(fence) {
            wrong.push((6, format!("{id} {at}: entered with fence {entered:?}, the ledger has granted {fence}")));
        }
        if slot.attempt == 0 && entered.is_some() {
            wrong.push((4, format!("{id} {at}: entered, and the ledger says {}", slot.state)));
        }
        let ended = match slot.state {
            SlotState::Ended(Ending::Succeeded) => Some(Left::Succeeded),
            SlotState::Ended(Ending::Failed) => Some(Left::Failed),
            SlotState::Ended(Ending::Cancelled) => Some(Left::Cancelled),
            _ => None,
        };
        if let Some(ended) = ended {
            // A run told to stop between its return and the engine's look is cancelled for one and failed for the other.
            let agree = left == Some(ended) || (left != Some(Left::Succeeded) && ended != Left::Succeeded);
            if left.is_none() || !agree {
                wrong.push((4, format!("{id} {at}: ended as {ended}, and its job left as {left:?}")));
            }
        }
        // Settled once: what an instance was told is on record is what stands there, under that fence.
        for (told, how) in &log.recorded {
            if *told != fence || ended != Some(*how) {
                let is = slot.state;
                wrong.push((
                    2,
                    format!("{id} {at}: recorded as {how} under {told}, and the ledger says {is} under {fence}"),
                ));
            }
        }
        self.seen.recorded += log.recorded.len();
        self.seen.orphaned += usize::from(slot.state == SlotState::Ended(Ending::Orphaned));
        self.seen.reruns += slot.attempt.saturating_sub(1) as usize;
        for (promise, text) in wrong {
            self.complain(promise, text);
        }
    }

    /// Starts of each slot, and that each has a row.
    fn slots_of_the_journal(&mut self) {
        let mut found = Vec::new();
        let rows: BTreeMap<&str, &Rows> = self.evidence.rows.iter().map(|rows| (rows.id.as_str(), rows)).collect();
        for ((id, at), log) in &self.logs {
            let allowed = plans::starts_allowed(id) as usize;
            let at = Trigger::from_secs(*at);
            if log.entered.len() > allowed {
                let promise = if allowed == 1 { 1 } else { 2 };
                found.push((promise, format!("{id} {at}: started {} times: {}", log.entered.len(), tell(log))));
            }
            let mut attempts = 0;
            for lines in log.entered.values() {
                let starts = lines.iter().filter_map(|line| entered(line));
                let tries: Vec<(usize, u32, u32, u32)> =
                    starts.zip(lines).map(|(start, line)| (line.node, line.life, start.attempt, start.tries)).collect();
                let (node, life, attempt, _) = tries[0];
                if tries.iter().enumerate().any(|(n, t)| *t != (node, life, attempt, n as u32 + 1)) {
                    found.push((1, format!("{id} {at}: one fence, several starts: {}", tell(log))));
                }
                if attempt <= attempts {
                    found.push((2, format!("{id} {at}: a higher fence is an earlier start: {}", tell(log))));
                }
                attempts = attempt;
            }
            let known = rows.get(id).is_some_and(|rows| {
                at <= rows.row.low_water || rows.slots.iter().any(|slot| slot.key.at == at && slot.fence.as_u64() > 0)
            });
            if !known && !log.entered.is_empty() {
                found.push((6, format!("{id} {at}: started without a claim: {}", tell(log))));
            }
            self.seen.entries += log.entered.len();
        }
        for (promise, text) in found {
            self.complain(promise, text);
        }
    }

    /// Entries while nothing can have been granted, or by an instance whose clock is off.
    fn entries(&mut self) {
        let timeline = self.evidence.timeline;
        let mut claimed = BTreeMap::new();
        for rows in self.evidence.rows {
            for slot in &rows.slots {
                claimed.insert((rows.id.as_str(), slot.key.at.as_secs(), slot.fence.as_u64()), slot.claimed_at);
            }
        }
        let offset_at = |real: i64| timeline.offsets.iter().rev().find(|(from, _)| *from <= real).map_or(0, |o| o.1);
        let mut found = Vec::new();
        for line in self.evidence.journal {
            let Some(start) = entered(line).filter(|start| start.tries == 1) else { continue };
            let at = Trigger::from_secs(start.at);
            let claimed_at = claimed.get(&(start.plan.as_str(), start.at, start.fence)).copied().flatten();
            if let Some(outage) = timeline.outages.iter().find(|o| (o.from..o.to).contains(&line.real)) {
                self.seen.under_outage += 1;
                // A later grant of the slot hides this one's instant; that it was granted is checked elsewhere.
                let before = Timestamp::from_micros(outage.from + offset_at(outage.from));
                if claimed_at.is_some_and(|claimed| claimed > before) {
                    found.push(format!("{} {at}: granted during an outage: {line}", start.plan));
                }
            }
            let beyond = timeline
                .beyond
                .iter()
                .find(|b| b.node == line.node && (b.from + ON_ITS_WAY..b.to).contains(&line.real));
            if beyond.is_some() {
                found.push(format!("{} {at}: entered by an instance whose clock was off: {line}", start.plan));
            }
        }
        for text in found {
            self.complain(6, text);
        }
    }

    /// Every slot that the schedules have is in exactly one state, and started if it had to.
    fn expected(&mut self, rows: &'a Rows) {
        let Evidence { now, versions, generations, fit_since, .. } = *self.evidence;
        let id = rows.id.as_str();
        let slots: BTreeMap<Trigger, &SlotRow> =
            rows.slots.iter().filter(|slot| slot.key.request.is_none()).map(|slot| (slot.key.at, slot)).collect();
        let none = Vec::new();
        let generations = generations.get(id).unwrap_or(&none);
        // What is missed waits for its plan and for a permit, of which there is one.
        let catching_up = self.evidence.rows.iter().flat_map(|rows| &rows.slots).filter(|slot| slot.attempt > 0);
        let free_since = catching_up.filter_map(|slot| slot.ended_at).filter(|t| *t <= now).max();
        let busy = rows.slots.iter().any(|slot| matches!(slot.state, SlotState::Running | SlotState::Open));
        let newest = rows.slots.iter().filter(|slot| slot.attempt > 0 && slot.kind == RunKind::Scheduled);
        let newest = newest.map(|slot| slot.key.at).max();
        let passes = self.evidence.timeline.passes(now.as_micros() - self.evidence.timeline.offset());
        for (n, generation) in generations.iter().enumerate() {
            let Some(schedule) = versions.get(&(id.to_owned(), generation.fingerprint)) else {
                self.complain(4, format!("{id}: a generation of no version: {generation:?}"));
                continue;
            };
            // A generation ends where a later one begins, which a clock that was set back may have moved; the last one now.
            let later = generations[n + 1..].iter().map(|later| later.effective_from).min();
            let end = later.unwrap_or(now.trigger()).min(now.trigger());
            let mut at = generation.effective_from;
            while let Some(next) = schedule.next_trigger(at).filter(|next| *next <= end) {
                at = next;
                self.seen.expected += 1;
                let slot = slots.get(&at).copied();
                let range = rows.ranges.iter().find(|range| (range.first..=range.last).contains(&at));
                match (slot.map(|slot| slot.state), range) {
                    (Some(SlotState::NotStarted(_)), _) => self.seen.not_started += 1,
                    (Some(SlotState::Open), _) => self.seen.pending(id, at),
                    (Some(_), _) => self.seen.started += 1,
                    (None, Some(_)) => self.seen.in_ranges += 1,
                    (None, None) if at <= rows.row.low_water => self.seen.expected -= 1,
                    (None, None) if at <= rows.row.cursor => {
                        let text = format!("{id} {at}: unaccounted, and the cursor {} has passed it", rows.row.cursor);
                        self.complain(4, text);
                    }
                    (None, None) if rows.row.closed => self.seen.expected -= 1,
                    (None, None) => {
                        self.seen.pending(id, at);
                        let closes = at.timestamp().saturating_add(plans::WINDOW);
                        let from = fit_since.map(|since| since.max(closes).max(free_since.unwrap_or(Timestamp::EPOCH)));
                        let overdue = from.is_some_and(|from| now.as_micros() > from.as_micros() + BOUND);
                        // What a newer one has overtaken does not wait for the plan to be free.
                        let waits = rows.row.pause.is_some() || (busy && newest < Some(at));
                        if overdue && !waits {
                            self.complain(
                                4,
                                format!("{id} {at}: unaccounted at {now}; the cursor is {}", rows.row.cursor),
                            );
                        }
                    }
                }
                if plans::always_starts(id) && at < end {
                    self.had_to_start(id, at, slot, range, &passes);
                }
            }
        }
        for slot in rows.slots.iter().filter(|slot| slot.state == SlotState::Running) {
            let since = fit_since.map(|since| since.max(slot.lease_end));
            if since.is_some_and(|since| now.as_micros() > since.as_micros() + BOUND) {
                self.complain(4, format!("{id} {}: still running, its lease ended at {}", slot.key.at, slot.lease_end));
            }
        }
    }

    /// A slot in whose whole window an instance was fit is started, and in time.
    fn had_to_start(
        &mut self,
        id: &str,
        at: Trigger,
        slot: Option<&SlotRow>,
        range: Option<&RangeRow>,
        passes: &[Pass],
    ) {
        let due = at.timestamp().as_micros();
        let closes = due + plans::WINDOW.as_micros() as i64;
        let fit = self.evidence.timeline.fit.iter();
        let Some(fit) =
            fit.filter(|fit| fit.from + fit.offset <= due && closes <= fit.to + fit.offset).max_by_key(|fit| fit.to)
        else {
            return;
        };
        // While the clock was ahead, or before it was set back, it may have been judged already; and that stays.
        let written = match (slot.map(|slot| slot.state), range) {
            (Some(SlotState::NotStarted(reason)), _) => slot.and_then(|slot| slot.ended_at).map(|t| (t, reason)),
            (None, Some(range)) => Some((range.at, range.reason)),
            _ => None,
        };
        let earlier = |stamp: Timestamp| {
            let stamp = stamp.as_micros();
            let current = self.evidence.timeline.offsets.iter().rposition(|(since, _)| *since <= fit.from).unwrap_or(0);
            passes.iter().take(current).any(|pass| (pass.from..=pass.to).contains(&stamp) && due <= pass.to)
        };
        if written.is_some_and(|(stamp, _)| earlier(stamp)) {
            return;
        }
        // It was held in between, by an instance that gave it back.
        if matches!(written, Some((_, NotStarted::GivenBack))) {
            return;
        }
        self.seen.had_to_start += 1;
        let started = slot.filter(|slot| slot.attempt > 0);
        match started {
            None => {
                let is = slot.map_or_else(|| format!("{range:?}"), |slot| slot.state.to_string());
                self.complain(5, format!("{id} {at}: an instance was fit from {fit:?}, and it did not start: {is}"));
            }
            // The last start of a rerun is later.
            Some(slot) if slot.attempt == 1 => {
                let late = slot.claimed_at.map_or(0, |claimed| claimed.as_micros() - closes);
                if late > MAX_SKEW {
                    self.complain(5, format!("{id} {at}: started {late} µs after its window"));
                }
            }
            Some(_) => {}
        }
    }
}

fn entered(line: &Line) -> Option<&Start> {
    match &line.what {
        What::Entered(start) => Some(start),
        _ => None,
    }
}

fn tell(log: &Log<'_>) -> String {
    let lines: Vec<String> = log.entered.values().flatten().map(ToString::to_string).collect();
    lines.join("; ")
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
