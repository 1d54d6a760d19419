//! Skew, freeze, suspend, kill.

use std::sync::atomic::{AtomicBool, Ordering};

use chrono::TimeDelta;
use timertask_core::clock::Wake;

use super::*;
use crate::FakeClock;

fn ticker(clock: &ClockView, diary: &Diary, period: u64) {
    let (view, write) = (clock.clone(), diary.clone());
    adopt(clock, "ticker", move |now| {
        write.write(format!("{}{}", view.label(), elapsed(now)));
        Turn::Wait(after(&view, secs(period)))
    });
}

#[test]
fn a_view_has_a_wall_clock_of_its_own() {
    let (clock, diary) = (FakeClock::new(), Diary::default());
    let (a, b) = (clock.view("a"), clock.view("b"));
    b.set_skew(TimeDelta::seconds(90));
    assert_eq!((elapsed(a.now()), elapsed(b.now()), b.monotonic()), (0, 90, Duration::ZERO));
    let noon = clock.now().saturating_add(secs(100));
    for view in [a, b.clone()] {
        let write = diary.clone();
        let on = view.clone();
        adopt(&view, "waiter", move |now| {
            if now < noon {
                return Turn::Wait(Some(Until::Wall(noon)));
            }
            write.write(format!("{} {:?}", on.label(), on.monotonic()));
            Turn::Done
        });
    }
    clock.advance(secs(60));
    b.set_skew(TimeDelta::seconds(-90));
    clock.advance(secs(60));
    assert_eq!(diary.read(), ["b 10s", "a 100s"]);
    assert_eq!(b.skew(), TimeDelta::seconds(-90));
}

#[test]
fn a_frozen_view_gets_no_turn_and_its_waits_do_not_end() {
    let (clock, diary) = (FakeClock::new(), Diary::default());
    let (a, b) = (clock.view("a"), clock.view("b"));
    ticker(&a, &diary, 10);
    ticker(&b, &diary, 10);
    let (view, write) = (a.clone(), diary.clone());
    adopt(&a, "job", move |_| {
        let _ = view.wait(&Signal::new(), after(&view, secs(5)));
        write.write(format!("job {}", elapsed(view.now())));
        Turn::Done
    });
    clock.settle();
    a.freeze();
    clock.advance(secs(20));
    assert_eq!(diary.read(), ["a0", "b0", "b10", "b20"]);
    assert!(a.is_frozen() && !b.is_frozen());
    a.thaw();
    clock.settle();
    let mut late = diary.read();
    late.sort();
    assert_eq!(late, ["a20", "job 20"]);
    assert_eq!(a.monotonic(), secs(20), "a stopped process' clocks go on");
}

#[test]
fn a_suspended_view_has_no_monotonic_time_meanwhile() {
    let (clock, diary) = (FakeClock::new(), Diary::default());
    let a = clock.view("a");
    ticker(&a, &diary, 30);
    clock.advance(secs(10));
    a.suspend();
    clock.advance(secs(3600));
    a.thaw();
    clock.settle();
    assert_eq!((a.monotonic(), elapsed(a.now()), diary.read()), (secs(10), 3610, vec!["a0".to_owned()]));
    clock.advance(secs(20));
    assert_eq!(diary.read(), ["a3630"]);
}

#[test]
fn a_room_that_freezes_its_own_view_stops_right_there() {
    let (clock, diary) = (FakeClock::new(), Diary::default());
    let a = clock.view("a");
    let (view, write) = (a.clone(), diary.clone());
    adopt(&a, "room", move |_| {
        write.write("before");
        view.freeze();
        write.write(format!("after {}", elapsed(view.now())));
        Turn::Done
    });
    clock.advance(secs(60));
    assert_eq!(diary.read(), ["before"]);
    a.thaw();
    clock.settle();
    assert_eq!(diary.read(), ["after 60"]);
}

/// Notes that it was dropped, and waits on the clock while it is.
struct LastWords(ClockView, Diary);

impl Drop for LastWords {
    fn drop(&mut self) {
        let wake = self.0.wait(&Signal::new(), after(&self.0, secs(60)));
        self.1.write(format!("dropped, {wake:?}, goes on: {}", std::thread::panicking() && self.0.goes_on()));
    }
}

#[test]
fn kill_unwinds_waits_silently_and_drops_rooms_without_a_turn() {
    let (clock, diary) = (FakeClock::new(), Diary::default());
    let (a, b) = (clock.view("a"), clock.view("b"));
    let (view, write) = (a.clone(), diary.clone());
    adopt(&a, "job", move |_| {
        let _words = LastWords(view.clone(), write.clone());
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = view.wait(&Signal::new(), after(&view, secs(100)));
            write.write("never");
        }));
        write.write(format!("job ended, as a panic: {}", caught.is_err()));
        // An engine that takes the death for a job's panic gets no farther than the next wait or the store's wrapper.
        let _ = view.goes_on();
        write.write("never");
        Turn::Wait(None)
    });
    ticker(&a, &diary, 10);
    ticker(&b, &diary, 10);
    clock.advance(secs(10));
    assert_eq!(diary.read(), ["a0", "b0", "a10", "b10"]);
    a.kill();
    assert!(!a.is_alive() && b.is_alive());
    assert_eq!(diary.read(), ["job ended, as a panic: true", "dropped, Time, goes on: false"]);
    adopt(&a, "late", |_| unreachable!("a dead process starts nothing"));
    clock.advance(secs(100));
    assert_eq!(clock.rooms(), 1);
    assert!(diary.read().iter().all(|l| l.starts_with('b')));
    assert!(clock.trace().recent.iter().any(|l| l.ends_with("a/job: is killed")));
    a.kill();
}

#[test]
fn a_room_that_kills_its_own_view_goes_no_further() {
    let (clock, diary) = (FakeClock::new(), Diary::default());
    let (a, b) = (clock.view("a"), clock.view("b"));
    let (view, write) = (a.clone(), diary.clone());
    adopt(&a, "room", move |_| {
        write.write("before");
        view.kill();
        write.write("never");
        Turn::Done
    });
    ticker(&a, &diary, 1);
    ticker(&b, &diary, 10);
    clock.advance(secs(10));
    assert_eq!(diary.read(), ["before", "b0", "b10"]);
    assert_eq!(clock.rooms(), 1);
}

#[test]
fn a_room_that_kills_another_view_goes_on_and_the_other_unwinds_next() {
    let (clock, diary) = (FakeClock::new(), Diary::default());
    let (a, b) = (clock.view("a"), clock.view("b"));
    let (view, write) = (a.clone(), diary.clone());
    adopt(&a, "job", move |_| {
        let _words = LastWords(view.clone(), write.clone());
        let _ = view.wait(&Signal::new(), None);
        Turn::Done
    });
    let (victim, write) = (a.clone(), diary.clone());
    adopt(&b, "killer", move |_| {
        victim.kill();
        write.write("killed");
        Turn::Wait(None)
    });
    ticker(&b, &diary, 100);
    clock.settle();
    assert_eq!(diary.read(), ["killed", "dropped, Time, goes on: false", "b0"]);
}

#[test]
fn a_frozen_view_can_be_killed_where_it_stands() {
    let (clock, dropped) = (FakeClock::new(), Arc::new(AtomicBool::new(false)));
    struct Flag(Arc<AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let a = clock.view("a");
    let (view, flag) = (a.clone(), Arc::clone(&dropped));
    adopt(&a, "room", move |_| {
        let _flag = Flag(Arc::clone(&flag));
        view.freeze();
        unreachable!("it was never thawed");
    });
    clock.advance(secs(1));
    assert!(!dropped.load(Ordering::SeqCst));
    a.kill();
    assert!(dropped.load(Ordering::SeqCst));
    assert_eq!(clock.rooms(), 0);
}

#[test]
#[should_panic(expected = "waiting on the clock of `a`, which was killed")]
fn the_tests_own_wait_on_a_killed_view_says_so() {
    let a = FakeClock::new().view("a");
    a.kill();
    let _ = a.wait(&Signal::new(), None);
}

#[test]
fn shutdown_unwinds_everything_and_ends_the_threads() {
    let (clock, diary) = (FakeClock::new(), Diary::default());
    for _ in 0..3 {
        let (view, write) = (clock.view("a"), diary.clone());
        adopt(&view.clone(), "job", move |_| {
            let _words = LastWords(view.clone(), write.clone());
            assert_eq!(view.wait(&Signal::new(), None), Wake::Signal);
            Turn::Done
        });
    }
    clock.advance(secs(1));
    let line = Arc::downgrade(&clock.line);
    clock.shutdown();
    assert_eq!((clock.rooms(), diary.read().len(), clock.is_alive()), (0, 3, false));
    assert!(!clock.view("late").is_alive());
    drop(clock);
    assert!(line.upgrade().is_none(), "threads and rooms hold the timeline no more");
}
