//! The fourth room: writes down how runs end, tells the store that runs live, fires deadlines, sweeps, opens
//! generations and accounts for gaps. Ends and renewals come first.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::backfill::Backfills;
use super::candidate::has_own_permit;
use super::claimer::ClaimerMail;
use super::lapses::Lapses;
use super::outbox::{GenerationOp, Outbox};
use super::reports::Reports;
use super::requests::Requests;
use super::retention::Keeping;
use super::rooms::SCRIBE;
use super::shared::{LEASE, MARGIN, Phase, RENEW_EVERY, ScribeMail, Shared, matched};
use super::stats::Counters;
use super::sweep::{Lists, Sweep, ended_elsewhere};
use super::timer::{GroupKey, Survey, TimerMail};
use super::walk::Walks;
use super::worker::{Finish, Finished};
use crate::clock::{Room, Signal, Turn, Until};
use crate::observer::Event;
use crate::record::{RunOutcome, RunRecord};
use crate::run::{RunCell, Stop, Trust, phase};
use crate::seam::{EndOp, EndRequest, Ended, Ending, Renewal, RunKind, SlotState, Term};
use crate::time::{Timestamp, Trigger};

/// At most so many ends, or renewals, go in one call.
const AT_ONCE: usize = 256;
/// The longest wait after a fault of ends or renewals.
const BACK_OFF: Duration = Duration::from_secs(1);

pub(crate) struct Scribe {
    shared: Arc<Shared>,
    ends: VecDeque<Finished>,
    ends_not_before: Duration,
    faults: u32,
    renew_at: Duration,
    sweep: Sweep,
    outbox: Outbox,
    walks: Walks,
    keeping: Keeping,
    lapses: Lapses,
    backfills: Backfills,
    requests: Requests,
}

impl Scribe {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let mono = shared.clock.monotonic();
        // Instances that start together need not sweep together.
        let jitter = Duration::from_micros(shared.clock.entropy() % 1_000_000);
        Self {
            ends: VecDeque::new(),
            ends_not_before: Duration::ZERO,
            faults: 0,
            renew_at: mono + RENEW_EVERY,
            sweep: Sweep::new(mono + RENEW_EVERY / 2 + jitter),
            outbox: Outbox::default(),
            walks: Walks::default(),
            keeping: Keeping::default(),
            lapses: Lapses::default(),
            backfills: Backfills::default(),
            requests: Requests::new(mono + RENEW_EVERY / 2 + jitter),
            shared,
        }
    }

    fn read_mail(&mut self) {
        while let Some(mail) = self.shared.scribe.try_recv() {
            match mail {
                ScribeMail::Finished(finished) => self.ends.push_back(finished),
                ScribeMail::Generations(ops) => self.outbox.push(ops),
                ScribeMail::Walk(plan) => {
                    plan.walk_read();
                    self.walks.want(plan);
                }
                ScribeMail::Backfill(notice) => {
                    if let Some(plan) = self.shared.registry().get(&notice.plan) {
                        self.backfills.take_up(notice, plan, false);
                    }
                }
                ScribeMail::Withdrawn(plan, id) => self.backfills.withdraw(&plan, &id),
                ScribeMail::LookAtBoard => self.requests.hurry(),
                ScribeMail::Backfilled(number, then) => self.backfills.answered(number, then),
                ScribeMail::CaughtUp(plan, then) => self.walks.caught_up(&plan, then),
                ScribeMail::Survey(key, upto) => self.survey(key, upto),
                ScribeMail::Unknown(plan) => {
                    if plan.is_active() {
                        plan.deactivate(super::state::PENDING);
                        self.outbox.push([GenerationOp::Open(plan, None)]);
                    }
                }
                ScribeMail::Resumed(plan) => self.walks.resumed(plan.as_ref()),
                ScribeMail::SteppedBack => {
                    let ids = self.shared.registry().ids();
                    self.outbox.push(ids.into_iter().map(GenerationOp::SetBack));
                }
            }
        }
    }

    /// Asks a calendar, which is user code, what lies around an instant.
    fn survey(&self, key: GroupKey, upto: Trigger) {
        let after = Trigger::from_secs(i64::MIN);
        match catch_unwind(AssertUnwindSafe(|| Survey::of(key.schedule(), upto, after, 1))) {
            Ok(survey) => self.shared.timer.send(TimerMail::Surveyed(key, survey)),
            Err(panic) => {
                let said = super::worker::panic_text(panic);
                let name = key.schedule().calendar_name().unwrap_or_default();
                log::error!(target: "timertask::engine", "calendar {name:?} panicked: {said}; its plans wait for the next reconcile");
                self.shared.timer.send(TimerMail::SurveyFailed(key));
            }
        }
    }

    /// Writes ends in one group: whatever waited during the last write.
    fn write_ends(&mut self, mono: Duration) {
        if self.ends.is_empty() || mono < self.ends_not_before {
            return;
        }
        let n = self.ends.len().min(AT_ONCE);
        let group: Vec<Finished> = self.ends.drain(..n).collect();
        let mut requests = Vec::with_capacity(n);
        let mut sent = Vec::with_capacity(n);
        let mut settled = Vec::new();
        for finished in group {
            match self.read_back(&finished) {
                ReadBack::Settled(ending) => settled.push((finished, ending)),
                ReadBack::Fault => {
                    self.ends.push_back(finished);
                    self.hold(mono);
                }
                ReadBack::Send(op) => {
                    requests.push(EndRequest { key: finished.cell.slot.clone(), fence: finished.cell.grant.fence, op });
                    sent.push(finished);
                }
            }
        }
        if !requests.is_empty() {
            let answer = self.shared.store("end", |ledger| matched("end", requests.len(), ledger.end(&requests)?));
            match answer {
                Err(_) => {
                    for finished in sent.into_iter().rev() {
                        self.ends.push_front(finished);
                    }
                    self.hold(mono);
                }
                Ok(answer) => {
                    self.faults = 0;
                    let done = sent.into_iter().zip(requests).zip(answer.value);
                    let done = done.map(|((finished, request), ended)| (finished, request, ended)).collect();
                    self.recorded(done, answer.now);
                }
            }
        }
        if !settled.is_empty() {
            let now = self.shared.clock.now();
            let done = settled.into_iter().map(|(finished, ending)| {
                let op = EndOp::Resolve { reason: crate::seam::NotStarted::GivenBack };
                let request = EndRequest { key: finished.cell.slot.clone(), fence: finished.cell.grant.fence, op };
                (finished, request, Ended::Recorded(SlotState::Ended(ending)))
            });
            self.recorded(done.collect(), now);
        }
    }

    fn hold(&mut self, mono: Duration) {
        self.faults = self.faults.saturating_add(1);
        self.ends_not_before = mono + BACK_OFF.min(Duration::from_millis(20) * (1 << self.faults.min(6)));
    }

    /// What to send for a finished run. Where a job says that its end was written with its own rows, that is read back:
    /// what isn't there was not committed, and has failed.
    fn read_back(&self, finished: &Finished) -> ReadBack {
        let cell = &finished.cell;
        let (ending, ended_at, detail) = match &finished.what {
            Finish::GivenBack => return ReadBack::Send(EndOp::GiveBack { nonce: cell.nonce }),
            Finish::Returned { ending, ended_at, detail } => (*ending, *ended_at, detail.clone()),
        };
        let (mut ending, mut detail) = (ending, detail);
        if cell.ended_elsewhere.load(Ordering::Acquire) {
            match ended_elsewhere(&self.shared, &cell.slot, cell.grant.fence) {
                None => return ReadBack::Fault,
                Some(Some(ending)) => return ReadBack::Settled(ending),
                Some(None) if ending == Ending::Succeeded => {
                    ending = Ending::Failed;
                    detail = Some("the transaction that held the run's end was not committed".into());
                }
                Some(None) => {}
            }
        }
        ReadBack::Send(EndOp::Settle {
            nonce: cell.nonce,
            ending,
            started_at: Timestamp::from_micros(cell.started_at.load(Ordering::Relaxed)),
            ended_at,
            tries: cell.tries.load(Ordering::Relaxed),
            detail,
        })
    }

    /// Runs whose end is recorded, or refused: they are no longer live.
    fn recorded(&mut self, done: Vec<(Finished, EndRequest, Ended)>, now: Timestamp) {
        let shared = Arc::clone(&self.shared);
        shared.live.remove(done.iter().map(|(finished, ..)| &finished.cell.nonce));
        let mut records = Vec::new();
        for (finished, request, ended) in done {
            let cell = &finished.cell;
            if shared.config.retention.is_some() {
                self.keeping.recorded(&cell.plan.id);
            }
            if has_own_permit(cell.kind) {
                shared.catching_up.fetch_sub(1, Ordering::AcqRel);
            }
            let (outcome, ended_at, detail) = outcome_of(&finished, &request.op, ended, now);
            if outcome == RunOutcome::LeaseLost {
                log::warn!(target: "timertask::run", "{}: {} ended too late: its term was over ({ended:?})", shared.config.instance, cell.slot);
            }
            let entered = cell.phase() == phase::RETURNED;
            let record = RunRecord {
                slot: cell.slot.clone(),
                kind: cell.kind,
                asked: cell.asked.clone(),
                instance: shared.config.instance.clone(),
                version: shared.config.version.clone(),
                attempt: if entered { cell.grant.attempt } else { 0 },
                fence: cell.fence(),
                due: cell.due,
                started_at: entered.then(|| Timestamp::from_micros(cell.started_at.load(Ordering::Relaxed))),
                ended_at,
                tries: cell.tries.load(Ordering::Relaxed),
                failed_tries: cell.take_failed(),
                outcome,
                detail,
            };
            shared.counters.record(cell.plan.counts(), &record);
            Reports::log(&record);
            if let (Finish::GivenBack, Some(lease)) = (&finished.what, cell.lease()) {
                super::mutex_only::unlock(&shared, lease);
            }
            if waits_for_end(cell) {
                shared.claimer.send(ClaimerMail::Ended(Arc::clone(&cell.plan)));
            }
            if shared.reports.wanted() {
                records.push(record);
            }
        }
        shared.reports.records(records);
        shared.progress.notify();
    }

    /// Fires the tokens of runs whose deadline has passed.
    fn fire_deadlines(&self, mono: Duration) {
        if self.shared.next_deadline().is_none_or(|at| at > mono) {
            return;
        }
        self.shared.clear_deadline();
        for cell in self.shared.live.all() {
            match cell.deadline() {
                Some(end) if end > mono => self.shared.note_deadline(end),
                // One that waits for another try has come to the end of its budget.
                Some(_) if matches!(cell.phase(), phase::ENTERED | phase::WAITING) => {
                    self.shared.stop(&cell, Stop::Deadline);
                }
                Some(_) | None => {}
            }
        }
    }

    /// Tells the store that all live runs live, to the end of a set budget; a run that goes on longer than its budget
    /// is reported once.
    fn renew(&mut self, now: Timestamp, mono: Duration) {
        if mono < self.renew_at {
            return;
        }
        self.renew_at = mono + RENEW_EVERY;
        let fixed = self.shared.mutex.is_some();
        let live = self.shared.live.all();
        for cell in &live {
            report_long(&self.shared, cell, now, mono);
        }
        let live: Vec<_> = live.into_iter().filter(|cell| cell.term_end.is_none_or(|end| mono < end)).collect();
        for group in live.chunks(AT_ONCE) {
            let terms: Vec<Term> = group
                .iter()
                .map(|cell| Term { key: cell.slot.clone(), nonce: cell.nonce, fence: cell.grant.fence })
                .collect();
            let (wall, mono) = (self.shared.clock.now(), self.shared.clock.monotonic());
            let answer =
                self.shared.store("renew", |ledger| matched("renew", terms.len(), ledger.renew(&terms, LEASE)?));
            let Ok(answer) = answer else {
                self.renew_at = mono + BACK_OFF;
                return;
            };
            for (cell, renewal) in group.iter().zip(answer.value) {
                let trust = Trust { wall, mono, span: Some(LEASE.saturating_sub(MARGIN)) };
                match renewal {
                    Renewal::Held(_) if fixed => {}
                    Renewal::Held(_) => cell.set_trust(trust),
                    Renewal::Cancel(_, cancel) => {
                        if !fixed {
                            cell.set_trust(trust);
                        }
                        let news = cell.fire_cancel(Arc::clone(&cancel), mono);
                        self.shared.stop(cell, Stop::Cancelled);
                        if news {
                            self.shared.reports.event(&Event::CancelAsked { slot: &cell.slot, cancel: &cancel });
                        }
                    }
                    Renewal::Lost => {
                        // One that has returned has its end under way; that answer tells.
                        if cell.phase() != phase::RETURNED && cell.stopped() != Some(Stop::LeaseLost) {
                            self.shared.stop(cell, Stop::LeaseLost);
                            log::warn!(target: "timertask::run", "{}: lease lost: {}", self.shared.config.instance, cell.slot);
                            self.shared.reports.event(&Event::LeaseLost { slot: &cell.slot });
                        }
                    }
                }
            }
        }
    }

    fn next_turn(&self, mono: Duration) -> Option<Until> {
        let ends = (!self.ends.is_empty()).then_some(self.ends_not_before);
        let closing = self.shared.is_closing();
        let soonest = [
            ends,
            Some(self.renew_at),
            self.shared.next_deadline(),
            self.outbox.due(),
            if closing { None } else { self.walks.due() },
            if closing { None } else { self.lapses.due() },
            if closing { None } else { self.requests.due(&self.shared) },
            if closing { None } else { self.backfills.due() },
            if closing { None } else { Some(self.sweep.due(&self.shared)) },
            if closing || !self.ends.is_empty() { None } else { self.keeping.due() },
        ];
        soonest.into_iter().flatten().min().map(|at| Until::Monotonic(at.max(mono)))
    }
}

enum ReadBack {
    Send(EndOp),
    Settled(Ending),
    Fault,
}

/// Whether somebody here may be waiting for this run's end.
fn waits_for_end(cell: &RunCell) -> bool {
    use crate::seam::Overlap;
    cell.kind != RunKind::Scheduled
        || matches!(cell.plan.policy.overlap, Overlap::QueueOne | Overlap::CancelPrevious)
        || cell.plan.policy.catch_up != crate::plan::CatchUp::None
}

type Came = (RunOutcome, Timestamp, Option<Arc<str>>);

fn outcome_of(finished: &Finished, sent: &EndOp, ended: Ended, now: Timestamp) -> Came {
    let (at, detail) = match (&finished.what, sent) {
        (Finish::GivenBack, _) => (now, None),
        (Finish::Returned { .. }, EndOp::Settle { ended_at, detail, .. }) => (*ended_at, detail.clone()),
        (Finish::Returned { ended_at, detail, .. }, _) => (*ended_at, detail.clone()),
    };
    let outcome = match (&finished.what, ended, sent) {
        (Finish::GivenBack, _, _) => RunOutcome::GivenBack,
        (_, Ended::Lost(_), _) => RunOutcome::LeaseLost,
        (_, _, EndOp::Settle { ending, .. }) => RunOutcome::Ended(*ending),
        (_, Ended::Recorded(SlotState::Ended(ending)), _) => RunOutcome::Ended(ending),
        (Finish::Returned { ending, .. }, _, _) => RunOutcome::Ended(*ending),
    };
    (outcome, at, detail)
}

/// Tells of a run that goes on for long, and of one that has been told to stop and does not.
fn report_long(shared: &Shared, cell: &RunCell, now: Timestamp, mono: Duration) {
    if cell.phase() != phase::ENTERED {
        return;
    }
    if shared.is_long(cell, now) && !cell.reported_long.swap(true, Ordering::Relaxed) {
        let running = shared.still_running(cell);
        log::warn!(target: "timertask::run", "{}: a long run: {running}", shared.config.instance);
        shared.reports.event(&Event::LongRun(&running));
    }
    if shared.is_stuck(cell, mono) && !cell.reported_stuck.swap(true, Ordering::Relaxed) {
        let running = shared.still_running(cell);
        log::warn!(target: "timertask::run", "{}: a stuck run: {running}", shared.config.instance);
        shared.reports.event(&Event::Stuck(&running));
    }
}

impl Room for Scribe {
    fn name(&self) -> &str {
        SCRIBE
    }

    fn signal(&self) -> &Signal {
        self.shared.scribe.signal()
    }

    fn turn(&mut self, now: Timestamp) -> Turn {
        // Before the mail is read: who is gone by now has sent all that it had.
        let alone = self.shared.senders_left.load(Ordering::Acquire) == 0;
        self.read_mail();
        let mono = self.shared.clock.monotonic();
        self.write_ends(mono);
        self.fire_deadlines(mono);
        self.renew(now, mono);
        let phase = self.shared.phase();
        if phase == Phase::Open {
            for plan in self.outbox.turn(&self.shared, mono) {
                // A gap from before it was opened; for a calendar only a walk can tell.
                if plan.schedule.has_calendar() || opened_with_gap(&plan, now) {
                    self.walks.want(plan);
                }
            }
            let mut lists = Lists {
                outbox: &mut self.outbox,
                walks: &mut self.walks,
                keeping: &mut self.keeping,
                lapses: &mut self.lapses,
            };
            self.sweep.turn(&self.shared, mono, &mut lists);
            self.lapses.turn(&self.shared, mono, &mut self.walks);
            self.walks.turn(&self.shared, mono, &mut self.lapses);
            self.requests.turn(&self.shared, mono, &mut self.backfills);
            self.backfills.turn(&self.shared, mono);
            if self.ends.is_empty() {
                self.keeping.turn(&self.shared, mono);
            }
        }
        let last = alone && self.ends.is_empty();
        let done = (phase != Phase::Closing || self.outbox.leave(&self.shared, mono, last)) && last;
        if phase == Phase::Leaving || (phase == Phase::Closing && done) {
            let left = self.ends.len();
            if left > 0 {
                log::error!(target: "timertask::store", "{}: {left} ends could not be recorded; their leases lapse", self.shared.config.instance);
                Counters::add(&self.shared.counters.unrecorded, left);
            }
            return Turn::Done;
        }
        Turn::Wait(self.next_turn(mono))
    }
}

fn opened_with_gap(plan: &super::Installed, now: Timestamp) -> bool {
    let next = plan.schedule.next_trigger(plan.start());
    next.is_some_and(|next| next <= plan.closed_upto(now))
}
