//! What the tests of the engine share. Not every test uses all of it.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test uses a part of it, and is a test")]

use std::sync::Arc;
use std::time::Duration;

use timertask_core::clock::Clock;
use timertask_core::key::{Namespace, PlanKey};
use timertask_core::seam::{Ledger, PlanOp, PlanRow, Query, SlotRow};
use timertask_core::time::{Timestamp, Trigger};
use timertask_core::{BoxError, Builder, Event, MemLedger, Observer, Plan, PlanId, Run, RunRecord, Scheduler};
use timertask_testkit::FakeClock;

pub const START: i64 = 1_767_225_600;

pub fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// `hh:mm:ss` of the fake clock's first day.
pub fn t(text: &str) -> Trigger {
    let parts: Vec<i64> = text.split(':').map(|p| p.parse().unwrap()).collect();
    Trigger::from_secs(START + parts[0] * 3600 + parts[1] * 60 + parts[2])
}

/// Lines that several closures write and a test reads.
#[derive(Clone, Default)]
pub struct Log(Arc<std::sync::Mutex<Vec<String>>>);

impl Log {
    pub fn add(&self, line: impl Into<String>) {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).push(line.into());
    }
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(|e| e.into_inner()))
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    pub fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).len()
    }
}

/// `01 hh:mm:ss`: day and time.
pub fn short(at: Trigger) -> String {
    at.to_datetime().format("%H:%M:%S").to_string()
}

/// A job that writes `plan hh:mm:ss`.
pub fn recorder(log: &Log) -> impl Fn(&Run) -> Result<(), BoxError> + Send + Sync + 'static {
    let log = log.clone();
    move |run: &Run| {
        log.add(format!("{} {}", run.plan(), short(run.slot_key().at)));
        Ok(())
    }
}

/// A job that notes its slot and then works for `d`.
pub fn worker(log: &Log, d: Duration) -> impl Fn(&Run) -> Result<(), BoxError> + Send + Sync + 'static {
    let log = log.clone();
    move |run: &Run| {
        log.add(format!("{} {}", run.plan(), short(run.slot_key().at)));
        run.wait(d)?;
        Ok(())
    }
}

/// A ledger on `clock` that forgets nothing.
pub fn ledger(clock: &FakeClock) -> MemLedger {
    MemLedger::with_clock(Arc::new(clock.clone())).keeping(usize::MAX)
}

pub fn key(plan: &str) -> PlanKey {
    PlanKey::new(Namespace::default(), PlanId::new(plan).unwrap())
}

pub fn row(ledger: &MemLedger, plan: &str) -> Option<PlanRow> {
    ledger.plan(&[(key(plan), PlanOp::Read)]).unwrap().value.pop().unwrap().row
}

pub fn slots(ledger: &MemLedger, plan: &str) -> Vec<SlotRow> {
    page(ledger, plan).slots
}

fn page(ledger: &MemLedger, plan: &str) -> timertask_core::seam::Page {
    let query = Query::History {
        plan: key(plan),
        after: Trigger::from_secs(0),
        upto: Trigger::from_secs(i64::MAX / 4),
        page: None,
        limit: usize::MAX,
    };
    ledger.read(&query).unwrap().value
}

/// What the ledger tells of a plan, old to new: `hh:mm:ss state`, `hh:mm:ss..hh:mm:ss reason × n`.
pub fn story(ledger: &MemLedger, plan: &str) -> Vec<String> {
    let page = page(ledger, plan);
    let slots = page.slots.iter().map(|s| (s.key.at, format!("{} {}", short(s.key.at), s.state)));
    let ranges = page.ranges.iter().map(|r| {
        let count = r.count.map_or("?".to_owned(), |n| n.to_string());
        (r.first, format!("{}..{} {} × {count}", short(r.first), short(r.last), r.reason))
    });
    let mut all: Vec<_> = slots.chain(ranges).collect();
    all.sort();
    all.into_iter().map(|(_, text)| text).collect()
}

/// All slots of `spec` in (after, upto] without a row and outside of every range record.
pub fn unaccounted(ledger: &MemLedger, plan: &str, spec: &str, after: Trigger, upto: Trigger) -> Vec<Trigger> {
    let page = page(ledger, plan);
    let schedule = timertask_core::Schedule::parse(spec).unwrap();
    let mut missing = Vec::new();
    let mut at = after;
    while let Some(next) = schedule.next_trigger(at).filter(|next| *next <= upto) {
        at = next;
        let has_row = page.slots.binary_search_by_key(&next, |s| s.key.at).is_ok();
        if !has_row && !page.ranges.iter().any(|r| r.first <= next && next <= r.last) {
            missing.push(next);
        }
    }
    missing
}

/// Counts of what the ledger tells of a plan, by state.
pub fn tally(ledger: &MemLedger, plan: &str) -> std::collections::BTreeMap<String, usize> {
    let mut tally = std::collections::BTreeMap::new();
    for slot in slots(ledger, plan) {
        *tally.entry(slot.state.to_string()).or_default() += 1;
    }
    tally
}

/// Every minute.
pub fn minutely(id: &str) -> Plan {
    Plan::new(id, "* * * * *")
}

/// A scheduler on the clock and ledger, with one plan set.
pub fn start(builder: Builder, clock: &impl CloneClock, ledger: &MemLedger) -> Scheduler {
    builder.clock(clock.cloned()).ledger(ledger.clone()).start().unwrap()
}

/// A clock that can be given away.
pub trait CloneClock {
    type C: Clock + 'static;
    fn cloned(&self) -> Self::C;
}
impl<C: Clock + Clone + 'static> CloneClock for C {
    type C = C;
    fn cloned(&self) -> C {
        self.clone()
    }
}

/// Writes the events down.
pub struct Ear(pub Log);
impl Observer for Ear {
    fn event(&self, event: &Event<'_>) {
        self.0.add(match event {
            Event::Started { slot, .. } => format!("started {}", short(slot.at)),
            Event::Record(record) => told(record),
            Event::LeaseLost { slot } => format!("lease lost {}", short(slot.at)),
            Event::CancelAsked { slot, .. } => format!("cancel asked {}", short(slot.at)),
            Event::TryFailed { slot, failed, next_in } => {
                let error = failed.error.as_deref().unwrap_or_default();
                format!("try {} of {} failed: {error}, next in {next_in:?}", failed.number, short(slot.at))
            }
            Event::LongRun(run) => format!("long run {}", short(run.slot.at)),
            Event::Stuck(run) => format!("stuck {} on {} {}", short(run.slot.at), run.instance, run.worker),
            Event::Orphaned { slot, rerun } => format!("orphaned {} rerun {rerun}", short(slot.at)),
            Event::Gap { plan } => format!("gap {plan}"),
            Event::Due { .. } => return,
            Event::Missed { plan, count, reason } => match reason {
                Some(reason) => format!("missed {plan} {count} {reason}"),
                None => format!("missed {plan} {count}, made up"),
            },
            Event::StoreFault { call, .. } => format!("store fault {call}"),
            Event::StoreBack => "store back".to_owned(),
            Event::Skew { beyond, .. } => format!("skew beyond {beyond}"),
            Event::Reconciled(report) => format!("reconciled {report}"),
            Event::SourceFailed { error } => format!("source failed {error}"),
            Event::RoomPanicked { room } => format!("room panicked {room}"),
            _ => "?".to_owned(),
        });
    }
}

pub fn told(record: &RunRecord) -> String {
    format!("{} {} {}", record.slot.plan.plan_str(), short(record.slot.at), record.outcome)
}

pub fn history(scheduler: &Scheduler) -> Vec<String> {
    scheduler.run_history(None).iter().map(|r| told(r)).collect()
}

pub fn micros(at: &str) -> Timestamp {
    t(at).timestamp()
}
