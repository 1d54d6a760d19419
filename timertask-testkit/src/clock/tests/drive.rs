//! Turns, waits within turns, order, rest, and the test's own waits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

use timertask_core::clock::Wake;

use super::*;
use crate::FakeClock;

/// A room that writes its name and the second each `period`.
fn ticker(clock: &ClockView, diary: &Diary, name: &'static str, period: u64) {
    let (view, diary) = (clock.clone(), diary.clone());
    adopt(clock, name, move |now| {
        diary.write(format!("{name}{}", elapsed(now)));
        Turn::Wait(after(&view, secs(period)))
    });
}

#[test]
fn every_deadline_on_the_way_is_met_in_order() {
    let (clock, diary) = (FakeClock::new(), Diary::default());
    ticker(&clock, &diary, "a", 3);
    ticker(&clock, &diary, "b", 2);
    assert!(diary.read().is_empty(), "the first turn never comes within adopt");
    clock.settle();
    assert_eq!(diary.read(), ["a0", "b0"]);
    clock.advance(secs(6));
    assert_eq!(diary.read(), ["b2", "a3", "b4", "a6", "b6"]);
    assert_eq!(clock.monotonic(), secs(6));
    clock.advance_to(clock.now().saturating_add(secs(1)));
    assert!(diary.read().is_empty());
    assert_eq!(clock.now().to_string(), "2026-01-01T00:00:07Z");
}

#[test]
fn a_room_that_is_notified_gets_its_turn_at_the_same_instant() {
    let (clock, diary) = (FakeClock::new(), Diary::default());
    let write = diary.clone();
    let second = adopt(&clock, "second", move |now| {
        write.write(format!("second {}", elapsed(now)));
        Turn::Wait(None)
    });
    let (view, write) = (clock.clone(), diary.clone());
    adopt(&clock, "first", move |now| {
        write.write(format!("first {}", elapsed(now)));
        second.notify();
        Turn::Wait(after(&view, secs(10)))
    });
    clock.settle();
    assert_eq!(diary.read(), ["second 0", "first 0", "second 0"]);
    clock.advance(secs(10));
    assert_eq!(diary.read(), ["first 10", "second 10"]);
}

#[test]
fn a_room_that_is_done_is_dropped_and_may_have_brought_others() {
    let (clock, diary) = (FakeClock::new(), Diary::default());
    let (view, write) = (clock.clone(), diary.clone());
    adopt(&clock, "parent", move |_| {
        ticker(&view, &write, "child", 60);
        Turn::Done
    });
    clock.settle();
    assert_eq!((clock.rooms(), diary.read()), (1, vec!["child0".to_owned()]));
}

#[test]
fn while_one_waits_within_its_turn_the_others_go_on() {
    let (clock, diary) = (FakeClock::new(), Diary::default());
    let (view, write) = (clock.clone(), diary.clone());
    adopt(&clock, "job", move |now| {
        write.write(format!("job begins {}", elapsed(now)));
        let wake = view.wait(&Signal::new(), after(&view, secs(5)));
        write.write(format!("job ends {} {wake:?}", elapsed(view.now())));
        Turn::Wait(after(&view, secs(20)))
    });
    ticker(&clock, &diary, "t", 2);
    clock.advance(secs(6));
    assert_eq!(diary.read(), ["job begins 0", "t0", "t2", "t4", "job ends 5 Time", "t6"]);
    clock.advance(secs(19));
    let late: Vec<_> = diary.read().into_iter().filter(|l| l.starts_with("job")).collect();
    assert_eq!(late, ["job begins 25"]);
}

#[test]
fn waits_within_turns_end_in_the_order_of_their_deadlines_not_of_their_stacks() {
    let (clock, diary) = (FakeClock::new(), Diary::default());
    for (name, wait) in [("long", 30), ("short", 10), ("middle", 20)] {
        let (view, write) = (clock.clone(), diary.clone());
        adopt(&clock, name, move |_| {
            let _ = view.wait(&Signal::new(), after(&view, secs(wait)));
            write.write(format!("{name} {}", elapsed(view.now())));
            Turn::Done
        });
    }
    clock.advance(secs(60));
    assert_eq!(diary.read(), ["short 10", "middle 20", "long 30"]);
    assert_eq!(clock.rooms(), 0);
}

#[test]
fn a_wait_within_a_turn_ends_with_its_signal() {
    let (clock, diary) = (FakeClock::new(), Diary::default());
    let bell = Signal::new();
    let (view, write, wait_for) = (clock.clone(), diary.clone(), bell.clone());
    adopt(&clock, "job", move |_| {
        let wake = view.wait(&wait_for, None);
        write.write(format!("{wake:?} at {}", elapsed(view.now())));
        Turn::Done
    });
    clock.advance(secs(3600));
    assert!(diary.read().is_empty());
    bell.notify();
    clock.settle();
    assert_eq!(diary.read(), ["Signal at 3600"]);
    assert!(!bell.is_set());
}

#[test]
fn wall_deadlines_follow_the_wall_and_monotonic_ones_do_not() {
    let (clock, diary) = (FakeClock::new(), Diary::default());
    let start = clock.now();
    for (name, until) in [("wall", Until::Wall(start.saturating_add(secs(100)))), ("mono", Until::Monotonic(secs(100)))]
    {
        let (view, write) = (clock.clone(), diary.clone());
        adopt(&clock, name, move |_| {
            let _ = view.wait(&Signal::new(), Some(until));
            write.write(format!("{name} {:?}", view.monotonic()));
            Turn::Done
        });
    }
    clock.advance(secs(10));
    clock.step_wall(chrono::TimeDelta::seconds(70));
    clock.advance(secs(20));
    assert_eq!(diary.read(), ["wall 30s"]);
    clock.step_wall(chrono::TimeDelta::seconds(-3600));
    clock.suspend(secs(60));
    clock.advance(secs(200));
    assert_eq!(diary.read(), ["mono 100s"]);
    assert_eq!(clock.now(), start.saturating_add(secs(230 + 70 + 60)).saturating_sub(secs(3600)));
}

/// Six rooms that hand a ball to one of the others each second, and wait within their turn now and then.
fn play(clock: &FakeClock) -> crate::Trace {
    let signals: Vec<Signal> = (0..6).map(|_| Signal::new()).collect();
    for (i, signal) in signals.iter().enumerate() {
        let (view, others) = (clock.clone(), signals.clone());
        let room = FnRoom {
            name: format!("room {i}"),
            signal: signal.clone(),
            turn: move |_| {
                let draw = view.entropy();
                if draw % 5 == 0 {
                    let _ = view.wait(&Signal::new(), after(&*view, Duration::from_millis(draw % 3000)));
                }
                if draw % 3 == 0 {
                    others[(draw % 6) as usize].notify();
                }
                Turn::Wait(after(&*view, secs(1)))
            },
        };
        clock.driver().expect("it drives").adopt(Box::new(room));
    }
    clock.advance(secs(300));
    clock.note("the end");
    let trace = clock.trace();
    clock.shutdown();
    trace
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_one_another() {
    let first = play(&FakeClock::seeded(7));
    assert_eq!(first, play(&FakeClock::seeded(7)));
    assert_ne!(first.hash, play(&FakeClock::seeded(8)).hash);
    assert_eq!(play(&FakeClock::new()), play(&FakeClock::new()));
    assert!(first.steps > 1000, "{first}");
    assert!(first.recent.last().is_some_and(|l| l.ends_with("- the end")), "{first}");
}

#[test]
fn a_panic_in_a_room_surfaces_and_the_others_go_on() {
    let (clock, diary) = (FakeClock::new(), Diary::default());
    let view = clock.clone();
    adopt(&clock, "broken", move |now| {
        assert!(elapsed(now) < 5, "out of order");
        Turn::Wait(after(&view, secs(5)))
    });
    ticker(&clock, &diary, "t", 10);
    let panic = catch_unwind(AssertUnwindSafe(|| clock.advance(secs(60)))).expect_err("it has to surface");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"out of order"));
    assert_eq!((clock.monotonic(), clock.rooms()), (secs(5), 1));
    clock.advance(secs(15));
    assert_eq!(diary.read(), ["t0", "t10", "t20"]);
}

#[test]
fn without_rest_advance_panics_and_names_who_is_busy() {
    let clock = FakeClock::new().patience(Duration::from_millis(50));
    let (release, released) = mpsc::channel::<()>();
    let blocked = std::sync::Mutex::new(released);
    adopt(&clock.view("app"), "worker", move |_| {
        let _ = blocked.lock().unwrap().recv();
        Turn::Done
    });
    let panic = catch_unwind(AssertUnwindSafe(|| clock.advance(secs(1)))).expect_err("no rest");
    let message = panic.downcast_ref::<String>().expect("a message");
    assert!(message.contains("room `app/worker` is inside its turn"), "{message}");
    drop(release);
    let clock = clock.patience(secs(10));
    clock.settle();
    assert_eq!(clock.rooms(), 0);

    let clock = FakeClock::new().patience(Duration::from_millis(50));
    let view = clock.clone();
    adopt(&clock, "spinner", move |_| Turn::Wait(after(&view, secs(0))));
    let panic = catch_unwind(AssertUnwindSafe(|| clock.advance(secs(1)))).expect_err("no rest");
    assert!(panic.downcast_ref::<String>().expect("a message").contains("spinner"));
    clock.shutdown();
}

#[test]
fn the_tests_own_wait_moves_time_on_until_the_signal_or_the_end() {
    let clock = FakeClock::new();
    let bell = Signal::new();
    let (view, ring) = (clock.clone(), bell.clone());
    adopt(&clock, "ringer", move |now| match elapsed(now) {
        0 => Turn::Wait(after(&view, secs(40))),
        _ => {
            ring.notify();
            Turn::Done
        }
    });
    assert_eq!(clock.wait(&bell, after(&clock, secs(30))), Wake::Time);
    assert_eq!(clock.monotonic(), secs(30));
    assert_eq!(clock.wait(&bell, after(&clock, secs(30))), Wake::Signal);
    assert_eq!(clock.monotonic(), secs(40));
    let end = Until::Wall(clock.now().saturating_add(secs(5)));
    assert_eq!(clock.wait(&bell, Some(end)), Wake::Time);
    assert_eq!(clock.monotonic(), secs(45));
}

#[test]
#[should_panic(expected = "would wait for ever")]
fn the_tests_own_wait_without_an_end_panics_at_rest() {
    let clock = FakeClock::new();
    let view = clock.clone();
    adopt(&clock, "idle", move |_| Turn::Wait(after(&view, secs(40))));
    let _ = clock.wait(&Signal::new(), None);
}

#[test]
#[should_panic(expected = "from inside a turn")]
fn a_room_cannot_advance_the_clock() {
    let clock = FakeClock::new();
    let again = clock.clone();
    adopt(&clock, "meddler", move |_| {
        again.advance(secs(1));
        Turn::Done
    });
    clock.settle();
}

#[test]
fn numbers_come_from_the_seed() {
    let draw = |clock: FakeClock| (0..4).map(|_| clock.entropy()).collect::<Vec<_>>();
    assert_eq!(draw(FakeClock::seeded(1)), draw(FakeClock::seeded(1)));
    assert_ne!(draw(FakeClock::seeded(1)), draw(FakeClock::seeded(2)));
    let start = Timestamp::from_micros(5);
    let clock = FakeClock::seeded(9).starting_at(start);
    assert_eq!((clock.now(), clock.seed(), clock.monotonic()), (start, 9, Duration::ZERO));
}
