//! A sound run passes, and each promise, broken once, is found broken.

use std::sync::Arc;

use timertask::key::{Fence, Fingerprint, Namespace, PlanKey, SlotKey};
use timertask::seam::{PlanRow, RunKind};
use timertask::{PlanId, Schedule};

use super::*;
use crate::timeline::RECOVERY;
use crate::witness::Witness;

const SECOND: i64 = 1_000_000;
/// When the plan began.
const BEGIN: i64 = 1_000;

/// A run of a plan with a slot each second, all of them started by the instance 0 and ended well, and what was seen of it.
struct Case {
    journal: Vec<Line>,
    timeline: Timeline,
    rows: Rows,
    now: i64,
    changed: Vec<String>,
    in_pause: Vec<String>,
}

fn fence(at: i64) -> u64 {
    u64::try_from(at * SECOND).unwrap()
}

fn start(plan: &str, at: i64, fence: u64, attempt: u32) -> Start {
    Start { plan: plan.to_owned(), at, fence, attempt, tries: 1 }
}

fn line(real: i64, node: usize, what: What) -> Line {
    Line { real, node, life: 1, what }
}

impl Case {
    fn of(plan: &str, slots: i64) -> Self {
        let id = PlanId::new(plan).unwrap();
        let key = PlanKey::new(Namespace::new("chaos").unwrap(), id.clone());
        let end = BEGIN + slots;
        let row = PlanRow {
            generation: Generation { fingerprint: Fingerprint::EMPTY, effective_from: Trigger::from_secs(BEGIN) },
            closed: false,
            cursor: Trigger::from_secs(end),
            low_water: Trigger::default(),
            fence: Fence::from_u64(fence(end)),
            last_success: None,
            window_from: None,
            pause: None,
        };
        let mut journal = Vec::new();
        let mut rows = Rows { id, row, slots: Vec::new(), ranges: Vec::new() };
        for at in BEGIN + 1..=end {
            let start = start(plan, at, fence(at), 1);
            journal.push(line(at * SECOND + 1, 0, What::Entered(start.clone())));
            journal.push(line(at * SECOND + 2, 0, What::Left(start.clone(), Left::Succeeded)));
            journal.push(line(at * SECOND + 3, 0, What::Recorded(start, Left::Succeeded)));
            let key = SlotKey { plan: key.clone(), at: Trigger::from_secs(at), request: None };
            let now = Timestamp::from_micros(at * SECOND);
            rows.slots.push(SlotRow {
                state: SlotState::Ended(Ending::Succeeded),
                fence: Fence::from_u64(fence(at)),
                attempt: 1,
                claimed_at: Some(now),
                ..SlotRow::not_started(key, RunKind::Scheduled, NotStarted::TooLate, now)
            });
        }
        let mut timeline = Timeline::new(2, BEGIN * SECOND);
        timeline.up(0, true, BEGIN * SECOND - RECOVERY);
        Self { journal, timeline, rows, now: end * SECOND, changed: Vec::new(), in_pause: Vec::new() }
    }

    fn judge(mut self) -> (Seen, Vec<Violation>) {
        let schedule = Arc::new(Schedule::parse("* * * * * *").unwrap());
        let id = self.rows.id.as_str().to_owned();
        let fit_since = self.timeline.finish(self.now);
        judge(&Evidence {
            journal: &self.journal,
            timeline: &self.timeline,
            rows: std::slice::from_ref(&self.rows),
            now: Timestamp::from_micros(self.now),
            fit_since,
            versions: &[((id.clone(), Fingerprint::EMPTY), schedule)].into(),
            generations: &[(id, vec![self.rows.row.generation])].into(),
            changed: &self.changed,
            in_pause: &self.in_pause,
        })
    }

    /// Fails unless exactly these promises are found broken.
    #[track_caller]
    fn breaks(self, promises: &[u8]) {
        let found = self.judge().1;
        let numbers: BTreeSet<u8> = found.iter().map(|violation| violation.promise).collect();
        assert_eq!(numbers, promises.iter().copied().collect(), "{found:#?}");
    }

    fn start_again(&mut self, at: i64, fence: u64, attempt: u32) {
        let plan = self.rows.id.as_str().to_owned();
        self.journal.push(line(at * SECOND + 9, 1, What::Entered(start(&plan, at, fence, attempt))));
    }

    /// The row of the slot `n`, from 1.
    fn slot(&mut self, n: usize) -> &mut SlotRow {
        &mut self.rows.slots[n - 1]
    }

    /// Takes all that the journal says of a slot.
    fn forget(&mut self, at: i64) {
        self.journal.retain(|line| match &line.what {
            What::Entered(start) | What::Left(start, _) | What::Recorded(start, _) => start.at != at,
            What::Up => true,
        });
    }

    fn not_started(&mut self, n: usize, ended_at: i64) {
        let key = self.slot(n).key.clone();
        self.forget(key.at.as_secs());
        let ended_at = Timestamp::from_micros(ended_at * SECOND);
        *self.slot(n) = SlotRow::not_started(key, RunKind::Scheduled, NotStarted::TooLate, ended_at);
    }
}

#[test]
fn a_sound_run_passes() {
    let (seen, found) = Case::of("quick", 20).judge();
    assert_eq!(found, []);
    // The last five windows were still open.
    let expected = Seen { expected: 20, started: 20, had_to_start: 15, entries: 20, recorded: 20, ..Seen::default() };
    assert_eq!(seen, expected);
}

#[test]
fn a_second_start_breaks_the_first_promise() {
    let mut case = Case::of("quick", 20);
    case.start_again(BEGIN + 3, fence(BEGIN + 2) + 1, 1);
    case.breaks(&[1, 2]);
    // Under the same fence, by somebody else.
    let mut case = Case::of("quick", 20);
    case.start_again(BEGIN + 3, fence(BEGIN + 3), 1);
    case.breaks(&[1]);
}

#[test]
fn starts_beyond_the_limit_and_fences_that_do_not_rise_break_the_second() {
    // Two reruns are allowed.
    let mut case = Case::of("rerun", 20);
    let at = BEGIN + 3;
    case.start_again(at, fence(at) - 20, 1);
    case.start_again(at, fence(at) - 10, 2);
    case.slot(3).attempt = 3;
    case.journal.iter_mut().for_each(|line| match &mut line.what {
        What::Entered(start) if start.at == at && start.fence == fence(at) => start.attempt = 3,
        _ => {}
    });
    let sound = Case { journal: case.journal.clone(), rows: case.rows.clone(), ..Case::of("rerun", 20) };
    sound.breaks(&[]);
    case.slot(3).attempt = 4;
    case.breaks(&[2]);

    let mut case = Case::of("rerun", 20);
    case.start_again(BEGIN + 3, fence(BEGIN + 3) - 10, 2);
    case.breaks(&[2]);

    let mut case = Case::of("rerun", 20);
    case.slot(3).fence = Fence::from_u64(fence(BEGIN + 4));
    assert!(case.judge().1.iter().any(|violation| violation.promise == 2 && violation.text.contains("one fence")));
}

#[test]
fn an_end_that_was_told_as_recorded_and_is_another_breaks_the_second() {
    let mut case = Case::of("quick", 20);
    case.slot(3).state = SlotState::Ended(Ending::Orphaned);
    case.breaks(&[2]);
}

#[test]
fn an_end_that_changes_breaks_the_third() {
    let mut case = Case::of("quick", 20);
    case.changed.push("it did".to_owned());
    case.breaks(&[3]);
}

#[test]
fn a_slot_without_a_state_breaks_the_fourth() {
    // Behind the cursor at once,
    let mut case = Case::of("skip", 20);
    case.rows.slots.remove(2);
    case.forget(BEGIN + 3);
    case.breaks(&[4]);
    // ahead of it once the bound is over.
    for (late, broken) in [(-SECOND, &[][..]), (SECOND, &[4])] {
        let mut case = Case::of("skip", 20);
        case.rows.slots.pop();
        case.forget(BEGIN + 20);
        case.rows.row.cursor = Trigger::from_secs(BEGIN + 19);
        case.now = (BEGIN + 20) * SECOND + plans::WINDOW.as_micros() as i64 + BOUND + late;
        let (_, found) = case.judge();
        let first: BTreeSet<u8> = found.iter().filter(|v| v.text.contains("00:17:00")).map(|v| v.promise).collect();
        assert_eq!(first, broken.iter().copied().collect(), "{late}: {found:#?}");
    }
}

#[test]
fn a_row_that_contradicts_the_job_breaks_the_fourth() {
    let mut case = Case::of("skip", 20);
    case.journal.retain(|line| !matches!(&line.what, What::Left(start, _) if start.at == BEGIN + 3));
    case.breaks(&[4]);

    let mut case = Case::of("skip", 20);
    let key = case.slot(3).key.clone();
    *case.slot(3) = SlotRow::not_started(key, RunKind::Scheduled, NotStarted::Overlap, Timestamp::EPOCH);
    assert!(case.judge().1.iter().any(|violation| violation.promise == 4));
}

#[test]
fn what_is_granted_in_a_pause_breaks_the_fourth() {
    let mut case = Case::of("paused", 20);
    case.in_pause.push("it was".to_owned());
    case.breaks(&[4]);
}

#[test]
fn a_run_that_stays_running_breaks_the_fourth() {
    let mut case = Case::of("skip", 100);
    case.forget(BEGIN + 3);
    case.slot(3).state = SlotState::Running;
    case.slot(3).lease_end = Timestamp::from_micros((BEGIN + 30) * SECOND);
    case.breaks(&[4]);
}

#[test]
fn a_slot_that_had_to_start_and_did_not_breaks_the_fifth() {
    let mut case = Case::of("quick", 20);
    case.not_started(3, BEGIN + 9);
    case.breaks(&[5]);
    // Nobody was fit in the whole of its window.
    let mut case = Case::of("quick", 20);
    case.not_started(3, BEGIN + 9);
    case.timeline.store(true, false, (BEGIN + 7) * SECOND);
    case.breaks(&[]);
    // It was accounted for while the clock was ahead.
    let mut case = Case::of("quick", 40);
    case.timeline = Timeline::new(2, (BEGIN - 100) * SECOND);
    case.timeline.up(0, true, (BEGIN - 100) * SECOND);
    case.timeline.step(200 * SECOND, (BEGIN - 50) * SECOND);
    case.timeline.step(0, (BEGIN - 40) * SECOND);
    case.not_started(30, BEGIN + 155);
    let before = Case { journal: case.journal.clone(), rows: case.rows.clone(), ..Case::of("quick", 40) };
    case.breaks(&[]);
    before.breaks(&[5]);
    // Far too late.
    let mut case = Case::of("quick", 20);
    case.slot(3).claimed_at = Some(Timestamp::from_micros((BEGIN + 19) * SECOND));
    case.breaks(&[5]);
}

#[test]
fn a_start_without_a_claim_breaks_the_sixth() {
    let mut case = Case::of("skip", 20);
    let key = case.slot(3).key.clone();
    *case.slot(3) = SlotRow::not_started(key, RunKind::Scheduled, NotStarted::Overlap, Timestamp::EPOCH);
    assert!(case.judge().1.iter().any(|violation| violation.promise == 6));
    // With a higher fence than the ledger ever gave.
    let mut case = Case::of("rerun", 20);
    case.start_again(BEGIN + 3, fence(BEGIN + 3) + 5, 2);
    case.breaks(&[6]);
}

#[test]
fn a_grant_in_an_outage_breaks_the_sixth() {
    let mut case = Case::of("skip", 20);
    case.timeline.store(true, true, (BEGIN + 2) * SECOND + 500_000);
    case.timeline.store(false, false, (BEGIN + 4) * SECOND - 1);
    case.breaks(&[6]);
    // Granted just before.
    let mut case = Case::of("skip", 20);
    case.timeline.store(true, true, (BEGIN + 3) * SECOND);
    case.timeline.store(false, false, (BEGIN + 4) * SECOND - 1);
    let (seen, found) = case.judge();
    assert_eq!((seen.under_outage, found), (1, vec![]));
}

#[test]
fn a_start_by_an_instance_whose_clock_is_off_breaks_the_sixth() {
    let mut case = Case::of("skip", 20);
    case.timeline.skewed(0, true, true, (BEGIN + 2) * SECOND);
    case.timeline.skewed(0, false, false, (BEGIN + 10) * SECOND);
    case.breaks(&[6]);
}

#[test]
fn the_witness_sees_what_changes_and_what_goes() {
    let mut case = Case::of("quick", 3);
    let mut witness = Witness::default();
    witness.compare(&case.rows.slots, &case.rows.row);
    witness.compare(&case.rows.slots, &case.rows.row);
    assert_eq!(witness.changed, Vec::<String>::new());
    case.slot(2).attempt = 2;
    witness.compare(&case.rows.slots, &case.rows.row);
    assert_eq!(witness.changed.len(), 1);
    case.rows.slots.remove(0);
    witness.compare(&case.rows.slots, &case.rows.row);
    assert_eq!(witness.changed.len(), 3, "the changed one again, and the one that is gone: {:?}", witness.changed);
}
