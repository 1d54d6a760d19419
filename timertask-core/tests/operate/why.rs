//! `why(plan)`: each answer, and the rows in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use chrono::{NaiveDate, TimeDelta};

use super::cancel::{claim, open};
use super::common::*;
use super::{ana, operator, two};
use timertask_core::operate::{AuditState, Expected, Holder, Reason, Scope, Waits, Why};
use timertask_core::seam::{Claim, NotStarted};
use timertask_core::{
    BoxError, CatchUp, Ledger, OnOrphan, OperateError, Overlap, Plan, Run, Schedule, Scheduler, StoreErrorKind,
};
use timertask_testkit::{Call, FakeClock, Fault, Faulty};

fn lasting(d: u64) -> impl Fn(&Run) -> Result<(), BoxError> + Send + Sync + 'static {
    move |run: &Run| Ok(run.wait(secs(d))?)
}

fn next(at: &str) -> Reason {
    Reason::Next { at: t(at), due: micros(at) }
}

fn holder(why: &Why) -> &Holder {
    let mut holders = why.reasons.iter().filter_map(|reason| match reason {
        Reason::Running(holder) => Some(holder),
        _ => None,
    });
    holders.next().unwrap_or_else(|| panic!("{why}"))
}

#[test]
fn a_plan_that_waits_for_its_time_and_one_that_has_none_left() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let a = start(Scheduler::builder(lasting(1)), &clock, &ledger);
    a.reconcile([minutely("p"), Plan::new("once", "@at 2026-01-01T00:00:30Z"), minutely("spread").spread(secs(50))])
        .unwrap();
    clock.advance(secs(40));
    let why = a.why("p");
    assert_eq!((why.scope, why.reasons.as_slice()), (Scope::Shared, [next("00:01:00")].as_slice()));
    assert_eq!(why.to_string(), "\"p\": nothing else is due until 2026-01-01T00:01:00Z");
    assert_eq!(a.why("once").reasons, [Reason::Finished]);
    let [Reason::Next { at, due }] = &a.why("spread").reasons[..] else { panic!() };
    assert!(*due > at.timestamp(), "{at} {due}");
}

#[test]
fn a_plan_that_nobody_knows_or_is_not_installed_here_or_was_removed() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let a = start(Scheduler::builder(lasting(300)), &clock.view("a"), &ledger);
    let b = start(Scheduler::builder(lasting(1)), &clock.view("b"), &ledger);
    assert_eq!(a.why("p").reasons, [Reason::NotInstalled, Reason::Unknown]);
    assert_eq!(a.why("").reasons, [Reason::NotInstalled]);
    b.reconcile([minutely("p")]).unwrap();
    a.reconcile([minutely("q")]).unwrap();
    clock.advance(secs(70));
    assert_eq!(a.why("p").reasons, [Reason::NotInstalled], "it runs elsewhere");
    // Elsewhere it is seen to run here.
    let why = b.why("q");
    assert_eq!(why.reasons[0], Reason::NotInstalled);
    assert_eq!(holder(&why).instance.as_ref(), Some(a.instance()));
    b.remove("p").unwrap();
    clock.advance(secs(1));
    assert_eq!(b.why("p").reasons, [Reason::NotInstalled, Reason::Closed]);
    let unknown = operator(&ledger).why("", None);
    assert!(matches!(unknown, Err(OperateError::Id(_))));
    a.close_now().unwrap();
    assert_eq!(a.why("q").reasons[0], Reason::Closing);
}

#[test]
fn a_plan_that_the_ledger_has_not_opened_or_has_in_another_version() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let faulty = Faulty::new(ledger.clone(), Arc::new(clock.clone()));
    let a = Scheduler::builder(lasting(1)).clock(clock.clone()).ledger(faulty.clone()).start().unwrap();
    faulty.cut_off();
    a.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(5));
    let why = a.why("p");
    let [Reason::Pending, Reason::StoreFault(what)] = &why.reasons[..] else { panic!("{why}") };
    assert!(!what.is_empty() && why.to_string().contains("the store cannot be asked"), "{why}");
    faulty.heal();
    clock.advance(secs(5));
    assert_eq!(a.why("p").reasons, [next("00:01:00")]);
    let b = start(Scheduler::builder(lasting(1)), &clock.view("b"), &ledger);
    b.reconcile([minutely("p").fingerprint("2")]).unwrap();
    clock.advance(secs(1));
    assert_eq!(a.why("p").reasons, [Reason::OtherVersion]);
    // One call that fails is enough to say so, and not more.
    faulty.on(Call::Plan).next(1, Fault::Error(StoreErrorKind::Busy));
    assert!(matches!(&a.why("p").reasons[..], [Reason::StoreFault(_)]));
    assert_eq!(a.why("p").reasons, [Reason::OtherVersion]);
}

#[test]
fn a_version_that_failed_while_the_last_good_one_goes_on() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let a = start(Scheduler::builder(lasting(1)), &clock, &ledger);
    a.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(1));
    a.reconcile([Plan::new("p", "61 * * * *"), Plan::new("new", "* * * * * * *")]).unwrap();
    let why = a.why("p");
    let [first, Reason::VersionFailed(said)] = &why.reasons[..] else { panic!("{why}") };
    assert!(*first == next("00:01:00") && said.contains("minute"), "{why}");
    assert!(matches!(&a.why("new").reasons[..], [Reason::NotInstalled, Reason::Unknown, Reason::VersionFailed(_)]));
}

#[test]
fn a_paused_plan_says_by_whom_and_what_waits() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let [a, b] = two(&clock, &ledger, || lasting(1), &[minutely("p")]);
    clock.advance(secs(5));
    let own = a.pause("p", &ana(), None).unwrap().pause;
    let until = t("01:00:00").to_datetime();
    let all = a.pause_all(&ana(), Some(until)).unwrap().pause;
    clock.advance(secs(125));
    let due = Reason::Due { first: t("00:01:00"), newest: t("00:02:00"), state: AuditState::Waiting(Waits::Pause) };
    let whole = Reason::Paused { pause: all, all: true };
    let wanted = [whole, Reason::Paused { pause: own, all: false }, due, next("00:03:00")];
    assert_eq!(b.why("p").reasons, wanted);
    let said = "\"p\": all plans are paused by ana since 2026-01-01T00:00:05Z until 2026-01-01T01:00:00Z: \
        the database moves; it is paused by ana since 2026-01-01T00:00:05Z: the database moves; it waits for an operator \
        to resume it; its slot of 2026-01-01T00:01:00Z, as others up to 2026-01-01T00:02:00Z, waits for the end of the \
        pause; nothing else is due until 2026-01-01T00:03:00Z";
    assert_eq!(b.why("p").to_string(), said);
    // To a program beside them, with the expression and without.
    let expected = Expected::new(Schedule::parse("* * * * *").unwrap());
    assert_eq!(operator(&ledger).why("p", Some(&expected)).unwrap().reasons, wanted);
    assert_eq!(operator(&ledger).why("p", None).unwrap().reasons, wanted[..2]);
}

#[test]
fn a_skewed_clock() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let view = clock.view("a");
    let a = start(Scheduler::builder(lasting(1)), &view, &ledger);
    a.reconcile([minutely("p")]).unwrap();
    clock.advance(secs(1));
    view.set_skew(TimeDelta::seconds(20));
    clock.advance(secs(20));
    let Reason::Skewed { micros, max } = a.why("p").reasons[0].clone() else { panic!("{}", a.why("p")) };
    assert_eq!((micros, max), (-20_000_000, secs(5)));
    assert!(a.why("p").to_string().contains("starts nothing until they agree"));
}

#[test]
fn a_live_run_stands_in_the_way_and_is_named_with_its_fence_and_lease() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let [a, b] = two(&clock, &ledger, || lasting(600), &[minutely("p").overlap(Overlap::Skip)]);
    clock.advance(secs(125));
    let row = slots(&ledger, "p").remove(0);
    for scheduler in [&a, &b] {
        let why = scheduler.why("p");
        let held = holder(&why);
        assert_eq!(
            (&held.slot, held.fence, held.blocks, held.lapsed),
            (&row.key, row.fence, Some(Overlap::Skip), false)
        );
        assert_eq!((held.instance.as_ref(), held.lease_end), (row.instance.as_ref(), row.lease_end));
        assert_eq!(held.swept_by, held.lease_end.saturating_add(secs(30)));
        let skipped = Reason::NotStarted { at: t("00:02:00"), reason: NotStarted::Overlap };
        assert_eq!(why.reasons[1..], [skipped, next("00:03:00")]);
        assert!(
            why.to_string()
                .starts_with("\"p\": timertask/cron/exec/p/2026-01-01T00:01:00Z stands in the way (overlap Skip)")
        );
    }
    a.cancel(&row.key, &ana()).unwrap();
    assert_eq!(holder(&a.why("p")).cancel.as_ref().unwrap().by, "ana");
    assert!(a.why("p").to_string().contains("told to stop by ana: the database moves"));
}

#[test]
fn fault_21_the_row_of_a_dead_owner_is_named_and_when_it_is_swept_up() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let [a, b] = two(&clock, &ledger, || lasting(1), &[minutely("p").overlap(Overlap::Skip)]);
    clock.advance(secs(30));
    let planted = claim(&a, t("00:01:00"));
    assert!(matches!(ledger.claim(std::slice::from_ref(&planted)).unwrap().value[0], Claim::Granted(_)));
    let mut swept_by = None;
    for second in 31..130 {
        clock.advance(secs(1));
        let why = b.why("p");
        let Some(held) = why.reasons.iter().find_map(|r| if let Reason::Running(held) = r { Some(held) } else { None })
        else {
            assert!(Some(timertask_core::Clock::now(&*clock)) <= swept_by, "swept up later than was said: {second}");
            assert_eq!(swept_by.map(|_| tally(&ledger, "p")["orphaned"]), Some(1));
            return;
        };
        assert_eq!((&held.slot, held.instance.as_ref().unwrap().as_str()), (&planted.key, "long gone"));
        assert_eq!((held.lapsed, held.blocks), (second >= 60, Some(Overlap::Skip)));
        let heard = why.to_string().contains("has not been heard of, its lease ended at");
        assert_eq!(heard, held.lapsed, "{why}");
        swept_by = Some(held.swept_by);
    }
    panic!("it was never swept up");
}

#[test]
fn a_queued_slot_waits_for_its_plan() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let [a, b] = two(&clock, &ledger, || lasting(600), &[minutely("p").overlap(Overlap::QueueOne)]);
    clock.advance(secs(125));
    for scheduler in [&a, &b] {
        let why = scheduler.why("p");
        let due = Reason::Due { first: t("00:02:00"), newest: t("00:02:00"), state: AuditState::Waiting(Waits::Plan) };
        assert_eq!((holder(&why).blocks, &why.reasons[1]), (Some(Overlap::QueueOne), &due));
    }
    // Beside a plan of which two may run, one run is in nobody's way.
    let c = start(Scheduler::builder(lasting(50)), &clock.view("c"), &ledger);
    c.upsert(minutely("two").overlap(Overlap::Allow(2))).unwrap();
    clock.advance(secs(60));
    let why = c.why("two");
    assert_eq!((holder(&why).blocks, why.reasons.len()), (None, 2), "{why}");
    assert!(why.to_string().contains("00:03:00Z runs on"), "{why}");
}

#[test]
fn an_open_slot_waits_for_a_sweep() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let a = start(Scheduler::builder(lasting(1)), &clock, &ledger);
    a.reconcile([minutely("p").on_orphan(OnOrphan::Rerun { max: 1 })]).unwrap();
    clock.advance(secs(30));
    open(&ledger, &a, t("00:01:00"));
    let slot = claim(&a, t("00:01:00")).key;
    assert_eq!(a.why("p").reasons[0], Reason::Open { slot, attempt: 0 });
    assert!(a.why("p").to_string().contains("was given back before it was entered; the next sweep takes it up"));
}

#[test]
fn all_workers_are_at_work() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let a = start(Scheduler::builder(lasting(600)).concurrency(1), &clock, &ledger);
    a.reconcile([minutely("p"), minutely("q")]).unwrap();
    clock.advance(secs(70));
    let idle = if a.why("p").reasons.iter().any(|reason| matches!(reason, Reason::Running(_))) { "q" } else { "p" };
    let due = Reason::Due { first: t("00:01:00"), newest: t("00:01:00"), state: AuditState::Waiting(Waits::Start) };
    assert_eq!(a.why(idle).reasons, [due, Reason::NoWorker { workers: 1 }, next("00:02:00")]);
    assert!(a.why(idle).to_string().contains("all 1 workers of this instance are at work"));
}

#[test]
fn missed_slots_wait_for_catch_up() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let a = start(Scheduler::builder(lasting(1)), &clock, &ledger);
    a.reconcile([minutely("p").catch_up(CatchUp::All { cap: 9 })]).unwrap();
    clock.advance(secs(65));
    a.close(secs(1)).unwrap();
    clock.advance(secs(600));
    let expected = Expected::new(Schedule::parse("* * * * *").unwrap());
    let why = operator(&ledger).why("p", Some(&expected)).unwrap();
    let due = Reason::Due { first: t("00:02:00"), newest: t("00:11:00"), state: AuditState::Overdue };
    assert_eq!(why.reasons, [due, next("00:12:00")]);
    assert!(why.to_string().contains("was missed and waits for catch-up"), "{why}");
}

#[test]
fn a_calendar_that_panicked() {
    let clock = FakeClock::new();
    let ledger = ledger(&clock);
    let bad = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&bad);
    let calendar = move |_: NaiveDate| {
        assert!(!flag.load(Ordering::Relaxed), "the holidays are gone");
        false
    };
    let a = start(Scheduler::builder(lasting(1)).calendar("holidays", calendar), &clock, &ledger);
    a.reconcile([minutely("p").calendar("holidays")]).unwrap();
    clock.advance(secs(70));
    assert_eq!(a.why("p").reasons, [next("00:02:00")]);
    bad.store(true, Ordering::Relaxed);
    assert_eq!(a.why("p").reasons, [Reason::CalendarFailed], "asked just now");
    clock.advance(secs(60));
    assert_eq!(a.why("p").reasons, [Reason::CalendarFailed], "as the engine found");
    assert!(a.why("p").to_string().contains("searched again at the next reconcile"));
}
