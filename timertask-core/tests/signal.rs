//! The one primitive under every wait: no notification and no poke is lost, however it falls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use timertask_core::clock::{Clock, Signal, SystemClock, Until, Wake};

#[test]
fn a_notification_before_the_wait_is_kept_and_taken_once() {
    let (clock, signal) = (SystemClock, Signal::new());
    signal.notify();
    signal.notify();
    assert_eq!(clock.wait(&signal, None), Wake::Signal);
    assert!(!signal.is_set());
    let now = clock.monotonic();
    assert_eq!(clock.wait(&signal, Some(Until::Monotonic(now))), Wake::Time);
}

#[test]
fn a_poke_between_the_look_and_the_park_is_seen() {
    let signal = Signal::new();
    let since = signal.pokes();
    signal.poke();
    signal.park(since, None);
    assert!(!signal.is_set());
}

#[test]
fn two_threads_play_ping_pong_without_losing_a_ball() {
    const ROUNDS: u64 = 20_000;
    let (ping, pong, ball) = (Signal::new(), Signal::new(), Arc::new(AtomicU64::new(0)));
    let other = thread::spawn({
        let (ping, pong, ball) = (ping.clone(), pong.clone(), ball.clone());
        move || {
            for _ in 0..ROUNDS {
                assert_eq!(SystemClock.wait(&ping, None), Wake::Signal);
                // Relaxed: the signal alone has to make the other's write visible.
                ball.store(ball.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                pong.notify();
            }
        }
    });
    for round in 0..ROUNDS {
        ping.notify();
        assert_eq!(SystemClock.wait(&pong, None), Wake::Signal);
        assert_eq!(ball.load(Ordering::Relaxed), round + 1);
    }
    other.join().unwrap();
}

#[test]
fn a_parked_thread_is_woken_by_a_poke_without_a_notification() {
    let (signal, (ready, is_ready)) = (Signal::new(), std::sync::mpsc::channel());
    let parked = thread::spawn({
        let signal = signal.clone();
        move || {
            let since = signal.pokes();
            ready.send(()).unwrap();
            signal.park(since, Some(Duration::from_secs(600)));
            signal.is_set()
        }
    });
    is_ready.recv().unwrap();
    signal.poke();
    assert!(!parked.join().unwrap());
}
