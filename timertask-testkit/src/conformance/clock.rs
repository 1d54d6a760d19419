//! The cases of a clock.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use timertask_core::clock::{Clock, Signal, Until, Wake};

use super::{ClockHarness, StepClock};

const MOMENT: Duration = Duration::from_millis(20);
const HOUR: Duration = Duration::from_secs(3600);

/// Wall time goes on with the time that passes.
pub fn wall_time_goes_on<H: ClockHarness>(harness: &H) {
    let clock = harness.clock();
    let before = clock.now();
    harness.pass_time(MOMENT);
    assert!(clock.now() >= before.saturating_add(MOMENT), "{before}, and then {}", clock.now());
}

/// Monotonic time goes on with it, never goes back, and is one for all handles.
pub fn monotonic_time_never_goes_back<H: ClockHarness>(harness: &H) {
    let (one, other) = (harness.clock(), harness.clock());
    let begin = one.monotonic();
    let mut last = begin;
    for _ in 0..1_000 {
        for clock in [&one, &other] {
            let now = clock.monotonic();
            assert!(now >= last, "{last:?}, and then {now:?}");
            last = now;
        }
    }
    harness.pass_time(MOMENT);
    assert!(other.monotonic() >= begin + MOMENT);
}

/// A wait for a monotonic instant ends when it is reached, and not before.
pub fn a_wait_ends_at_its_monotonic_time<H: ClockHarness>(harness: &H) {
    let clock = harness.clock();
    let until = clock.monotonic() + MOMENT;
    assert_eq!(clock.wait(&Signal::new(), Some(Until::Monotonic(until))), Wake::Time);
    assert!(clock.monotonic() >= until);
}

/// A wait for a wall instant likewise.
pub fn a_wait_ends_at_its_wall_time<H: ClockHarness>(harness: &H) {
    let clock = harness.clock();
    let until = clock.now().saturating_add(MOMENT);
    assert_eq!(clock.wait(&Signal::new(), Some(Until::Wall(until))), Wake::Time);
    assert!(clock.now() >= until);
}

/// What has passed already is not waited for.
pub fn a_wait_for_the_past_ends<H: ClockHarness>(harness: &H) {
    let clock = harness.clock();
    let (wall, monotonic) = (clock.now(), clock.monotonic());
    harness.pass_time(MOMENT);
    for until in [Until::Wall(wall), Until::Monotonic(monotonic), Until::Monotonic(Duration::ZERO)] {
        assert_eq!(clock.wait(&Signal::new(), Some(until)), Wake::Time);
    }
}

/// A notification that comes before the wait is kept, and taken once.
pub fn a_notification_before_the_wait_is_kept<H: ClockHarness>(harness: &H) {
    let (clock, signal) = (harness.clock(), Signal::new());
    signal.notify();
    signal.notify();
    assert_eq!(clock.wait(&signal, None), Wake::Signal);
    assert!(!signal.is_set());
    let soon = clock.monotonic() + MOMENT;
    assert_eq!(clock.wait(&signal, Some(Until::Monotonic(soon))), Wake::Time);
}

/// Where the time has come and the signal is set, it is the signal that is told: nothing would take it otherwise.
pub fn a_notification_is_not_hidden_by_the_time<H: ClockHarness>(harness: &H) {
    let (clock, signal) = (harness.clock(), Signal::new());
    let past = clock.monotonic();
    harness.pass_time(MOMENT);
    signal.notify();
    assert_eq!(clock.wait(&signal, Some(Until::Monotonic(past))), Wake::Signal);
    assert!(!signal.is_set());
}

/// A thread that waits is woken by another's notification, long before its time.
pub fn a_notification_ends_another_threads_wait<H: ClockHarness>(harness: &H) {
    let clock = harness.clock();
    let far =
        [None, Some(Until::Monotonic(clock.monotonic() + HOUR)), Some(Until::Wall(clock.now().saturating_add(HOUR)))];
    for until in far {
        let signal = Signal::new();
        thread::scope(|scope| {
            let waits = scope.spawn(|| harness.clock().wait(&signal, until));
            signal.notify();
            let woken = waits.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            assert_eq!(woken, Wake::Signal);
        });
    }
}

/// Two threads that notify each other in turn lose no notification, and each sees what the other had done before.
pub fn no_notification_is_lost<H: ClockHarness>(harness: &H) {
    const ROUNDS: u64 = 2_000;
    let (ping, pong, ball) = (Signal::new(), Signal::new(), Arc::new(AtomicU64::new(0)));
    let play = |mine: &Signal, yours: &Signal| {
        let clock = harness.clock();
        for _ in 0..ROUNDS {
            assert_eq!(clock.wait(mine, None), Wake::Signal);
            // The signal alone has to make the other's write visible.
            ball.store(ball.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            yours.notify();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| play(&ping, &pong));
        scope.spawn(|| play(&pong, &ping));
        ping.notify();
    });
    assert_eq!(ball.load(Ordering::Relaxed), 2 * ROUNDS);
}

/// A wait for wall time alone does not end by the signal of somebody else.
pub fn signals_are_independent<H: ClockHarness>(harness: &H) {
    let (clock, mine, other) = (harness.clock(), Signal::new(), Signal::new());
    other.notify();
    let soon = clock.now().saturating_add(MOMENT);
    assert_eq!(clock.wait(&mine, Some(Until::Wall(soon))), Wake::Time);
    assert!(other.is_set());
}

/// Nonces are made of it: no number comes twice.
pub fn entropy_does_not_repeat<H: ClockHarness>(harness: &H) {
    let clocks = [harness.clock(), harness.clock()];
    let drawn: BTreeSet<u64> = (0..1_000).map(|n| clocks[n % 2].entropy()).collect();
    assert_eq!(drawn.len(), 1_000);
    let bits = drawn.iter().fold(0, |all, n| all | n);
    assert_eq!(bits, u64::MAX, "bits that are never set");
}

/// A wait for a wall instant ends when wall time is set back, so that whoever planned by it can plan anew.
pub fn a_wait_for_wall_time_ends_when_it_is_set_back<H: StepClock>(harness: &H) {
    let until = harness.clock().now().saturating_add(HOUR);
    thread::scope(|scope| {
        let waits = scope.spawn(|| harness.clock().wait(&Signal::new(), Some(Until::Wall(until))));
        // When it has begun to wait is not known here; a step before that it does not notice.
        while !waits.is_finished() {
            harness.step_back(Duration::from_secs(1));
            thread::yield_now();
        }
        assert_eq!(waits.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), Wake::Time);
    });
    assert!(harness.clock().now() < until);
}

/// Monotonic time takes no part in a step of the wall clock.
pub fn monotonic_time_does_not_step<H: StepClock>(harness: &H) {
    let clock = harness.clock();
    let (wall, monotonic) = (clock.now(), clock.monotonic());
    harness.step_back(HOUR);
    assert!(clock.now() < wall);
    assert!(clock.monotonic() >= monotonic);
    let until = clock.monotonic() + MOMENT;
    assert_eq!(clock.wait(&Signal::new(), Some(Until::Monotonic(until))), Wake::Time);
}
