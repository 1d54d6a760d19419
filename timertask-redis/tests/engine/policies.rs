//! The policies on one real server, with instances of real threads: overlap, catch-up, orphans. Simulated clusters try the
//! same sentences at every instant; here the scripts judge.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use timertask_core::clock::{Clock, SystemClock};
use timertask_core::seam::{Ending, Ledger, NotStarted, Overlap, PlanOp, RunKind, SlotRow, SlotState};
use timertask_core::{BoxError, CatchUp, OnOrphan, Pace, Plan, Run, RunOutcome, Scheduler, Stop, Timestamp, Trigger};
use timertask_redis::Redis;

use crate::common::clock::FAST;
use crate::common::proxy::{Fate, Proxy};
use crate::common::*;
use crate::service::{close, history, slots};

const SUCCEEDED: SlotState = SlotState::Ended(Ending::Succeeded);
const ORPHANED: SlotState = SlotState::Ended(Ending::Orphaned);
const CANCELLED: SlotState = SlotState::Ended(Ending::Cancelled);

/// One entry of a job.
#[derive(Clone, Debug)]
struct Entry {
    plan: String,
    at: Trigger,
    instance: usize,
    attempt: u32,
    fence: u64,
    entered: Timestamp,
    left: Option<Timestamp>,
}

/// What the jobs of all instances did.
#[derive(Clone, Default)]
struct Log(Arc<std::sync::Mutex<Vec<Entry>>>);

impl Log {
    fn enter(&self, run: &Run, instance: usize) -> usize {
        let mut all = self.0.lock().unwrap();
        all.push(Entry {
            plan: run.plan().to_owned(),
            at: run.slot_key().at,
            instance,
            attempt: run.attempt(),
            fence: run.fence().as_u64(),
            entered: SystemClock.now(),
            left: None,
        });
        all.len() - 1
    }

    fn leave(&self, entry: usize) {
        self.0.lock().unwrap()[entry].left = Some(SystemClock.now());
    }

    fn of(&self, plan: &str) -> Vec<Entry> {
        self.0.lock().unwrap().iter().filter(|entry| entry.plan == plan).cloned().collect()
    }

    /// The most runs of a plan at one instant. An end is noted before the ledger hears of it, so the counts are exact.
    fn most_at_once(&self, plan: &str) -> usize {
        let all = self.of(plan);
        let at_work = |at: Timestamp| move |e: &&Entry| e.entered <= at && e.left.is_none_or(|left| left > at);
        all.iter().map(|entry| all.iter().filter(at_work(entry.entered)).count()).max().unwrap_or(0)
    }
}

/// Each slot was entered once for each of its attempts, fences rise in the order of entry, and the row says the same.
fn nothing_twice(store: &Redis, log: &Log, plan: &str) {
    let (entries, rows) = (log.of(plan), slots(store, plan));
    for (i, entry) in entries.iter().enumerate() {
        let before = &entries[..i];
        assert!(before.iter().all(|other| (other.at, other.attempt) != (entry.at, entry.attempt)), "{entries:?}");
        assert!(before.iter().all(|other| other.fence != entry.fence), "{entries:?}");
        assert!(before.iter().all(|other| other.at != entry.at || other.fence < entry.fence), "{entries:?}");
    }
    for row in rows.iter().filter(|row| row.attempt > 0) {
        let of_row: Vec<_> = entries.iter().filter(|entry| entry.at == row.key.at).collect();
        assert_eq!(of_row.len(), row.attempt as usize, "{row:?}: {of_row:?}");
        assert_eq!(of_row.last().unwrap().fence, row.fence.as_u64(), "{row:?}");
    }
}

fn count(rows: &[SlotRow], state: SlotState) -> usize {
    rows.iter().filter(|row| row.state == state).count()
}

/// Three instances, a plan for each policy, whose runs take two seconds and a half of every second's slots; the one of
/// `CancelPrevious` runs until it is told.
#[test]
fn each_overlap_policy_holds_over_three_instances() {
    let plans = [
        ("skip", Overlap::Skip),
        ("queue", Overlap::QueueOne),
        ("cancel", Overlap::CancelPrevious),
        ("allow", Overlap::Allow(2)),
    ];
    let server = Server::start(&[]);
    let (log, over) = (Log::default(), Arc::new(AtomicBool::new(false)));
    let instances = [0, 1, 2].map(|n| {
        let (log, over) = (log.clone(), Arc::clone(&over));
        let job = move |run: &Run| -> Result<(), BoxError> {
            let entry = log.enter(run, n);
            let begin = SystemClock.monotonic();
            let is_over = |took| over.load(Ordering::SeqCst) || (run.plan() != "cancel" && took >= 2_500);
            let mut told = Ok(());
            while told.is_ok() && !is_over(SystemClock.monotonic().saturating_sub(begin).as_millis()) {
                wait(Duration::from_millis(5));
                told = run.check();
            }
            log.leave(entry);
            Ok(told?)
        };
        let builder = Scheduler::builder(job).concurrency(8).clock(FAST).catch_up(CatchUp::None);
        let scheduler = builder.ledger(server.connect()).start().unwrap();
        scheduler.reconcile(plans.map(|(id, overlap)| Plan::new(id, "@every 1s").overlap(overlap))).unwrap();
        scheduler
    });
    let store = server.connect();
    let not_started = |plan, reason| count(&slots(&store, plan), SlotState::NotStarted(reason));
    until(|| (not_started("skip", NotStarted::Overlap) > 3 && log.of("skip").len() > 2).then_some(()));
    until(|| (not_started("allow", NotStarted::Overlap) > 2 && log.of("allow").len() > 4).then_some(()));
    until(|| (not_started("queue", NotStarted::Superseded) > 1 && log.of("queue").len() > 2).then_some(()));
    until(|| (count(&slots(&store, "cancel"), CANCELLED) > 2).then_some(()));
    over.store(true, Ordering::SeqCst);
    instances.iter().for_each(close);

    for (plan, _) in plans {
        nothing_twice(&store, &log, plan);
        let most = log.most_at_once(plan);
        assert_eq!(most, if plan == "allow" { 2 } else { 1 }, "{plan}: {:?}", log.of(plan));
    }
    for scheduler in &instances {
        // What the ledger refused is told to whoever asked.
        let told = |plan, reason| scheduler.plan_stats(plan).unwrap().not_started_by.of(reason);
        assert!(told("skip", NotStarted::Overlap) > 0 && told("allow", NotStarted::Overlap) > 0);
        assert_eq!(scheduler.stats().store_faults, 0);
    }
    for (plan, reason) in [("skip", NotStarted::Superseded), ("allow", NotStarted::Superseded)] {
        assert_eq!(not_started(plan, reason), 0, "nothing waits under {plan}");
    }
    assert_eq!(not_started("queue", NotStarted::Overlap) + not_started("cancel", NotStarted::Overlap), 0);
    let rows = slots(&store, "cancel");
    for row in rows.iter().filter(|row| row.state == CANCELLED) {
        let cancel = row.cancel.as_ref().unwrap();
        assert!(cancel.why.contains("newer"), "it says why: {cancel:?}");
        assert!(rows.iter().any(|newer| newer.key.at > row.key.at && newer.attempt > 0), "{row:?} made room");
    }
    for plan in ["skip", "queue", "allow"] {
        let rows = slots(&store, plan);
        assert!(rows.iter().all(|row| row.attempt == 0 || row.state == SUCCEEDED), "{plan}: {rows:?}");
    }
}

/// The newest slot waits on every instance: where the runner's instance is told to stop at once, another one has it.
#[test]
fn what_queues_is_started_by_another_instance_when_the_runner_s_stops() {
    let server = Server::start(&[]);
    let log = Log::default();
    let instances = [0, 1].map(|n| {
        let log = log.clone();
        let job = move |run: &Run| -> Result<(), BoxError> {
            let entry = log.enter(run, n);
            let told = run.wait(Duration::from_secs(6_000));
            log.leave(entry);
            Ok(told?)
        };
        let scheduler = Scheduler::builder(job).clock(FAST).ledger(server.connect()).start().unwrap();
        let plan = Plan::new("p", "@every 1s").overlap(Overlap::QueueOne).catch_up(CatchUp::None);
        scheduler.reconcile([plan]).unwrap();
        scheduler
    });
    let store = server.connect();
    let superseded = || count(&slots(&store, "p"), SlotState::NotStarted(NotStarted::Superseded));
    until(|| (superseded() > 1).then_some(()));
    let runner = log.of("p")[0].instance;
    assert_eq!(log.of("p").len(), 1);
    let report = instances[runner].close_now().unwrap();
    assert!(report.is_clean(), "{report:?}");
    let entries = until(|| Some(log.of("p")).filter(|entries| entries.len() > 1));
    assert_eq!(entries[1].instance, 1 - runner);
    assert!(entries[1].entered >= entries[0].left.unwrap(), "{entries:?}");
    let report = instances[1 - runner].close_now().unwrap();
    assert!(report.is_clean(), "{report:?}");
    nothing_twice(&store, &log, "p");
    assert_eq!(log.most_at_once("p"), 1);
}

const MISSED: [(&str, CatchUp); 4] = [
    ("none", CatchUp::None),
    ("latest", CatchUp::Latest),
    ("all", CatchUp::All { cap: 1_000 }),
    ("some", CatchUp::All { cap: 2 }),
];

/// An instance that makes up what was missed as fast as it can. Slots can be late by two seconds.
fn catching_up(store: impl Ledger + 'static, log: &Log, n: usize, every: &str) -> Scheduler {
    let log = log.clone();
    let job = move |run: &Run| {
        log.leave(log.enter(run, n));
        Ok(())
    };
    let builder = Scheduler::builder(job).concurrency(8).clock(FAST).start_window(Duration::from_secs(2));
    let pace = Pace { at_once: 4, stagger: Duration::ZERO };
    let scheduler = builder.catch_up_pace(pace).ledger(store).start().unwrap();
    let plan = |(id, policy)| Plan::new(id, every).catch_up(policy).overlap(Overlap::Allow(1_000));
    scheduler.reconcile(MISSED.map(plan)).unwrap();
    scheduler
}

/// What became of the trigger points behind `gone` that were missed: started, and what the records say of the others,
/// which may reach beyond `back`.
fn missed(store: &Redis, plan: &str, gone: Trigger, back: Trigger) -> (Vec<SlotRow>, Vec<NotStarted>) {
    let (rows, ranges) = history(store, plan);
    let within = |at: Trigger| at > gone && at < back;
    let started = rows.into_iter().filter(|row| within(row.key.at) && row.attempt > 0).collect();
    (
        started,
        ranges.into_iter().filter(|range| range.last > gone && range.first < back).map(|range| range.reason).collect(),
    )
}

/// Waits until the plan's cursor has passed `at`: all up to it is accounted for.
fn until_past(store: &Redis, plan: &str, at: Trigger) {
    let cursor = || store.plan(&[(plan_key(plan), PlanOp::Read)]).unwrap().value.remove(0).row.unwrap().cursor;
    until(|| (cursor() >= at).then_some(()));
}

fn server_time(store: &Redis) -> Trigger {
    store.plan(&[]).unwrap().now.trigger()
}

/// Whether these are the slots from `first` on, every other second.
fn two_apart(first: Trigger, rows: &[SlotRow]) -> bool {
    rows.iter().enumerate().all(|(i, row)| row.key.at.as_secs() == first.as_secs() + 2 * i as i64)
}

/// One instance ran the plans and is gone; another one, which never had them, comes seven seconds later.
#[test]
fn what_one_instance_missed_another_makes_up_as_each_policy_says() {
    let server = Server::start(&[]);
    let (store, log) = (server.connect(), Log::default());
    let first = catching_up(server.connect(), &log, 0, "@every 2s");
    until(|| MISSED.iter().all(|(id, _)| log.of(id).len() > 1).then_some(()));
    close(&first);
    // Nothing is at work: what has a row now was not missed.
    let last = MISSED.map(|(id, _)| slots(&store, id).last().unwrap().key.at);
    let gone = *last.iter().max().unwrap();
    until_time(&store, gone.as_secs() + 9);
    let before = log.0.lock().unwrap().len();
    let second = catching_up(server.connect(), &log, 1, "@every 2s");
    let back = server_time(&store);
    for (id, _) in MISSED {
        until_past(&store, id, Trigger::from_secs(back.as_secs() + 2));
    }
    close(&second);
    assert!(log.0.lock().unwrap()[before..].iter().all(|entry| entry.instance == 1));
    // Those whose window had closed as it came; what was open then started live.
    let closed = Trigger::from_secs(back.as_secs() - 3);
    for ((id, _), last) in MISSED.iter().zip(last) {
        nothing_twice(&store, &log, id);
        let (started, ranges) = missed(&store, id, last, closed);
        let made_up: Vec<_> = log.of(id).into_iter().filter(|entry| entry.at > last && entry.at < closed).collect();
        assert!(made_up.windows(2).all(|pair| pair[0].at < pair[1].at), "old to new: {made_up:?}");
        let kinds_are = |kind| started.iter().all(|row| (row.kind, row.state) == (kind, SUCCEEDED));
        assert!(kinds_are(RunKind::CatchUp), "{started:?}");
        match *id {
            "none" => assert!(started.is_empty() && ranges == [NotStarted::TooLate], "{started:?} {ranges:?}"),
            // The latest started live.
            "latest" => assert!(started.len() <= 1 && ranges == [NotStarted::Superseded], "{started:?} {ranges:?}"),
            "all" => {
                assert!(started.len() >= 2 && ranges.is_empty(), "{started:?} {ranges:?}");
                assert!(two_apart(Trigger::from_secs(last.as_secs() + 2), &started), "each of them: {started:?}");
            }
            _ => assert!(started.len() <= 2 && ranges == [NotStarted::OverCap], "{started:?} {ranges:?}"),
        }
    }
}

/// The server is down for six seconds, and back with all it knew: two instances make up what was missed, each slot once.
#[test]
fn what_an_outage_of_the_server_left_is_made_up_once_over_two_instances() {
    let mut server = Server::start(APPENDS);
    let log = Log::default();
    let connect = |server: &Server| {
        let options = Redis::options().connect_timeout(PATIENT).response_timeout(PATIENT);
        options.connect(&server.url()).unwrap()
    };
    let instances = [0, 1].map(|n| catching_up(connect(&server), &log, n, "@every 1s"));
    until(|| MISSED.iter().all(|(id, _)| log.of(id).len() > 2).then_some(()));
    let gone = server_time(&server.connect());
    server.kill();
    instances.iter().for_each(|scheduler| crate::service::until_faults(scheduler, 2));
    let before = log.0.lock().unwrap().len();
    let down = SystemClock.now();
    until(|| (SystemClock.now().since(down) > Duration::from_secs(6)).then_some(()));
    assert_eq!(log.0.lock().unwrap().len(), before, "nothing starts meanwhile");
    server.start_again();
    let store = server.connect();
    let back = server_time(&store);
    for (id, _) in MISSED {
        until_past(&store, id, Trigger::from_secs(back.as_secs() + 1));
    }
    instances.iter().for_each(close);
    let closed = Trigger::from_secs(back.as_secs() - 3);
    for (id, _) in MISSED {
        nothing_twice(&store, &log, id);
        let (started, ranges) = missed(&store, id, Trigger::from_secs(gone.as_secs() + 1), closed);
        match id {
            "all" => assert_eq!(started.len() as i64, closed.as_secs() - gone.as_secs() - 2, "{started:?} {ranges:?}"),
            "some" => assert!(started.len() <= 2 && !ranges.is_empty(), "{started:?} {ranges:?}"),
            _ => assert!(started.is_empty() && !ranges.is_empty(), "{id}: {started:?} {ranges:?}"),
        }
    }
}

/// An instance that the network cuts off in the midst of its runs, which do not listen. Its leases lapse, by the server's
/// clock; another instance ends the one and runs the other again; and when it is back, nobody takes its word.
#[test]
fn what_a_zombie_left_is_recorded_or_run_again_and_its_end_is_refused() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.port());
    let (log, over) = (Log::default(), Arc::new(AtomicBool::new(false)));
    let verdicts = Arc::new(std::sync::Mutex::new(Vec::new()));
    let start = |store: Redis, n: usize| {
        let (log, over, verdicts) = (log.clone(), Arc::clone(&over), Arc::clone(&verdicts));
        let job = move |run: &Run| {
            let entry = log.enter(run, n);
            if n == 0 {
                until(|| over.load(Ordering::SeqCst).then_some(()));
                verdicts.lock().unwrap().push((run.plan().to_owned(), run.check(), run.trust_left()));
            }
            log.leave(entry);
            Ok(())
        };
        let scheduler = Scheduler::builder(job).clock(FAST).ledger(store).start().unwrap();
        let plan = |id, on_orphan| Plan::new(id, "@every 1s").on_orphan(on_orphan).catch_up(CatchUp::None);
        scheduler.reconcile([plan("record", OnOrphan::Record), plan("rerun", OnOrphan::Rerun { max: 1 })]).unwrap();
        scheduler
    };
    let impatient = Redis::options().connect_timeout(SHORT).response_timeout(SHORT).pool_wait(SHORT);
    let zombie = start(impatient.connect(&proxy.url()).unwrap(), 0);
    until(|| ["record", "rerun"].iter().all(|plan| log.of(plan).len() == 1).then_some(()));
    let held = ["record", "rerun"].map(|plan| log.of(plan).remove(0));
    proxy.requests(Fate::Swallow);
    let store = server.connect();
    let other = start(server.connect(), 1);
    let row = |n: usize| slots(&store, &held[n].plan).into_iter().find(|row| row.key.at == held[n].at).unwrap();
    let lapses = row(0).lease_end;
    until(|| (row(0).state == ORPHANED && row(1).state == SUCCEEDED).then_some(()));
    assert!(store.plan(&[]).unwrap().now > lapses, "not before its lease had lapsed");
    let again = row(1);
    assert!(again.attempt == 2 && again.fence.as_u64() > held[1].fence && again.kind == RunKind::CatchUp, "{again:?}");
    proxy.heal();
    over.store(true, Ordering::SeqCst);
    let lost = |scheduler: &Scheduler| {
        let all = scheduler.run_history(None);
        all.iter()
            .filter(|record| record.outcome == RunOutcome::LeaseLost)
            .map(|record| record.fence.as_u64())
            .collect()
    };
    let mut refused: Vec<u64> = until(|| Some(lost(&zombie)).filter(|lost: &Vec<u64>| lost.len() == 2));
    refused.sort_unstable();
    let mut fences = held.each_ref().map(|entry| entry.fence);
    fences.sort_unstable();
    assert_eq!(refused, fences);
    for (plan, check, trust) in verdicts.lock().unwrap().iter() {
        assert_eq!((check, trust), (&Err(Stop::LeaseLost), &Some(Duration::ZERO)), "{plan}");
    }
    assert_eq!((row(0).state, row(0).attempt, row(1)), (ORPHANED, 1, again), "its word changes nothing");
    assert_eq!(other.stats().orphaned, 1);
    close(&zombie);
    close(&other);
    for entry in &held {
        nothing_twice(&store, &log, &entry.plan);
    }
}
