//! `Signal` on a model of threads and memory: every order in which its steps can fall, and every value that a relaxed read
//! may see. Its source is taken in as it is; only what it is made of is another.
//!
//! Not covered: the time-outs of `park`, which the model leaves out (a park that ends too early is harmless, since every
//! clock looks again), more than three threads, and what the engine does with its signals: the seeded `FakeClock` goes
//! through the orders of its rooms' turns.

/// What `src/sync.rs` is in the library.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use loom::sync::{Arc, Condvar};

    pub(crate) type Gate = loom::sync::Mutex<()>;
}

#[allow(dead_code, unreachable_pub, reason = "the tests use a part of it")]
#[path = "../src/signal.rs"]
mod signal;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use signal::Signal;

/// What `SystemClock::wait` does without a time.
fn wait(signal: &Signal) {
    loop {
        let since = signal.pokes();
        if signal.take() {
            return;
        }
        signal.park(since, None);
    }
}

fn explore(test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    // More switches of threads than that against their will have never found anything in a primitive of this size.
    model.preemption_bound = Some(3);
    model.check(test);
}

#[test]
fn a_notification_is_never_lost_and_shows_what_came_before_it() {
    explore(|| {
        let (signal, written) = (Signal::new(), Arc::new(AtomicUsize::new(0)));
        let notifier = thread::spawn({
            let (signal, written) = (signal.clone(), Arc::clone(&written));
            move || {
                written.store(1, Ordering::Relaxed);
                signal.notify();
            }
        });
        wait(&signal);
        assert_eq!(written.load(Ordering::Relaxed), 1);
        notifier.join().unwrap();
        assert!(!signal.is_set());
    });
}

#[test]
fn a_notification_on_a_set_signal_shows_what_came_before_it_too() {
    explore(|| {
        let (signal, written) = (Signal::new(), Arc::new(AtomicUsize::new(0)));
        signal.notify();
        let notifier = thread::spawn({
            let (signal, written) = (signal.clone(), Arc::clone(&written));
            move || {
                written.store(1, Ordering::Relaxed);
                signal.notify();
            }
        });
        // The first may be taken before the second comes: then that is kept.
        wait(&signal);
        if written.load(Ordering::Relaxed) == 0 {
            wait(&signal);
            assert_eq!(written.load(Ordering::Relaxed), 1);
        }
        notifier.join().unwrap();
    });
}

#[test]
fn of_two_notifiers_neither_is_lost() {
    explore(|| {
        let (signal, written) = (Signal::new(), Arc::new(AtomicUsize::new(0)));
        let notifiers = [(); 2].map(|()| {
            let (signal, written) = (signal.clone(), Arc::clone(&written));
            thread::spawn(move || {
                written.fetch_add(1, Ordering::Relaxed);
                signal.notify();
            })
        });
        while written.load(Ordering::Relaxed) < 2 {
            wait(&signal);
        }
        for notifier in notifiers {
            notifier.join().unwrap();
        }
    });
}

#[test]
fn two_threads_hand_a_ball_to_and_fro() {
    explore(|| {
        let (ping, pong) = (Signal::new(), Signal::new());
        let other = thread::spawn({
            let (ping, pong) = (ping.clone(), pong.clone());
            move || {
                wait(&ping);
                pong.notify();
            }
        });
        ping.notify();
        wait(&pong);
        other.join().unwrap();
        assert!(!ping.is_set() && !pong.is_set());
    });
}

/// What a clock does: it moves the time, and pokes whoever may be waiting for it.
#[test]
fn a_poke_is_never_lost() {
    explore(|| {
        let (signal, time) = (Signal::new(), Arc::new(AtomicUsize::new(0)));
        let clock = thread::spawn({
            let (signal, time) = (signal.clone(), Arc::clone(&time));
            move || {
                time.store(1, Ordering::Relaxed);
                signal.poke();
            }
        });
        loop {
            let since = signal.pokes();
            if time.load(Ordering::Relaxed) == 1 {
                break;
            }
            signal.park(since, None);
        }
        clock.join().unwrap();
        assert!(!signal.is_set(), "a poke sets nothing");
    });
}
