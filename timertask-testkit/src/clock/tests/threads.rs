//! Threads that are not the clock's, and the clock without a driver.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;

use timertask_core::clock::Wake;

use super::*;
use crate::FakeClock;

#[test]
fn another_thread_is_woken_by_time_and_rest_waits_for_it() {
    let (clock, diary) = (FakeClock::new(), Diary::default());
    let (theirs, write) = (clock.clone(), diary.clone());
    let other = thread::spawn(move || {
        for _ in 0..3 {
            let _ = theirs.wait(&Signal::new(), after(&theirs, secs(10)));
            write.write(format!("other {}", elapsed(theirs.now())));
        }
    });
    clock.await_threads(1);
    clock.advance(secs(25));
    assert_eq!(diary.read(), ["other 10", "other 20"]);
    clock.advance(secs(5));
    assert_eq!(diary.read(), ["other 30"]);
    other.join().unwrap();
    clock.advance(secs(1000));
}

#[test]
fn another_thread_and_a_room_talk_to_each_other() {
    let (clock, diary) = (FakeClock::new(), Diary::default());
    let answer = Signal::new();
    let (ring, write) = (answer.clone(), diary.clone());
    let ask = adopt(&clock, "room", move |now| {
        if elapsed(now) > 0 {
            write.write(format!("asked {}", elapsed(now)));
            ring.notify();
        }
        Turn::Wait(None)
    });
    let (theirs, write) = (clock.clone(), diary.clone());
    let other = thread::spawn(move || {
        let _ = theirs.wait(&Signal::new(), after(&theirs, secs(10)));
        ask.notify();
        let wake = theirs.wait(&answer, after(&theirs, secs(100)));
        write.write(format!("answered {} {wake:?}", elapsed(theirs.now())));
    });
    clock.await_threads(1);
    clock.advance(secs(60));
    assert_eq!(diary.read(), ["asked 10", "answered 10 Signal"]);
    other.join().unwrap();
}

#[test]
fn a_thread_that_does_not_come_back_is_named() {
    let clock = FakeClock::new().patience(Duration::from_millis(50));
    let (release, released) = mpsc::channel::<()>();
    let theirs = clock.clone();
    let other = thread::Builder::new().name("straggler".into());
    let other = other.spawn(move || {
        let _ = theirs.wait(&Signal::new(), after(&theirs, secs(10)));
        let _ = released.recv();
    });
    let other = other.unwrap();
    while clock.line.lock().participants.is_empty() {
        thread::yield_now();
    }
    let panic = catch_unwind(AssertUnwindSafe(|| clock.advance(secs(20)))).expect_err("no rest");
    let message = panic.downcast_ref::<String>().expect("a message");
    assert!(message.contains("thread `straggler` has not come back"), "{message}");
    drop(release);
    other.join().unwrap();
    clock.settle();
}

#[test]
fn killing_and_freezing_reach_other_threads_too() {
    let (clock, diary) = (FakeClock::threaded(), Diary::default());
    let (a, b) = (clock.view("a"), clock.view("b"));
    let threads = [a.clone(), b.clone()].map(|view| {
        let write = diary.clone();
        thread::spawn(move || {
            loop {
                let _ = view.wait(&Signal::new(), after(&view, secs(10)));
                write.write(format!("{}{}", view.label(), elapsed(view.now())));
            }
        })
    });
    clock.await_threads(2);
    a.freeze();
    clock.advance(secs(20));
    assert_eq!(diary.read(), ["b10", "b20"]);
    a.thaw();
    clock.settle();
    assert_eq!(diary.read(), ["a20"]);
    a.kill();
    clock.advance(secs(10));
    assert_eq!(diary.read(), ["b30"]);
    clock.shutdown();
    // Unwound silently, not returned.
    assert!(threads.into_iter().all(|t| t.join().is_err()));
}

/// The engine's loop around a room on a thread of its own.
fn run_on_a_thread(clock: &ClockView, mut room: impl Room + 'static) -> thread::JoinHandle<()> {
    let clock = clock.clone();
    thread::spawn(move || {
        while let Turn::Wait(until) = room.turn(clock.now()) {
            let _ = clock.wait(room.signal(), until);
        }
    })
}

#[test]
fn rooms_on_real_threads_come_to_rest_between_deadlines() {
    let (clock, diary) = (FakeClock::threaded(), Diary::default());
    assert!(clock.driver().is_none());
    let (to, from) = mpsc::channel();
    let (work, stop) = (Signal::new(), Signal::new());
    let (write, view, ended) = (diary.clone(), clock.clone(), stop.clone());
    let worker = FnRoom {
        name: "worker".into(),
        signal: work.clone(),
        turn: move |now| {
            while let Ok(job) = from.try_recv() {
                let _ = view.wait(&Signal::new(), after(&*view, secs(1)));
                write.write(format!("job {job} at {}", elapsed(now)));
            }
            if ended.is_set() { Turn::Done } else { Turn::Wait(None) }
        },
    };
    let (view, wake, ended) = (clock.clone(), work.clone(), stop.clone());
    let timer = FnRoom {
        name: "timer".into(),
        signal: Signal::new(),
        turn: move |now| {
            if ended.is_set() {
                return Turn::Done;
            }
            to.send(elapsed(now)).unwrap();
            wake.notify();
            Turn::Wait(after(&*view, secs(60)))
        },
    };
    let threads = [run_on_a_thread(&clock, worker), run_on_a_thread(&clock, timer)];
    clock.await_threads(2);
    clock.advance(secs(3600));
    let done = diary.read();
    assert_eq!(done.len(), 60, "{done:?}");
    assert_eq!(done.last().map(String::as_str), Some("job 3540 at 3540"));
    stop.notify();
    work.notify();
    clock.advance(secs(60));
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(clock.wait(&Signal::new(), after(&*clock, secs(1))), Wake::Time);
}
