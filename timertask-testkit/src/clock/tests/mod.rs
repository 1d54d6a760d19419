//! The fake clock with small rooms written by hand; no engine.

mod drive;
mod threads;
mod views;

use std::sync::Arc;
use std::time::Duration;

use timertask_core::clock::{Clock, Room, Signal, Turn, Until};
use timertask_core::time::Timestamp;

use super::ClockView;

/// A room made of a closure.
struct FnRoom<F> {
    name: String,
    signal: Signal,
    turn: F,
}

impl<F: FnMut(Timestamp) -> Turn + Send> Room for FnRoom<F> {
    fn name(&self) -> &str {
        &self.name
    }
    fn signal(&self) -> &Signal {
        &self.signal
    }
    fn turn(&mut self, now: Timestamp) -> Turn {
        (self.turn)(now)
    }
}

/// Gives the clock a room, and answers its signal.
fn adopt(clock: &ClockView, name: &str, turn: impl FnMut(Timestamp) -> Turn + Send + 'static) -> Signal {
    let signal = Signal::new();
    let room = FnRoom { name: name.to_owned(), signal: signal.clone(), turn };
    clock.driver().expect("a clock that drives").adopt(Box::new(room));
    signal
}

/// What happened, in order.
#[derive(Clone, Default)]
struct Diary(Arc<std::sync::Mutex<Vec<String>>>);

impl Diary {
    fn write(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    fn read(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Monotonic time `d` from now.
fn after(clock: &impl Clock, d: Duration) -> Option<Until> {
    Some(Until::Monotonic(clock.monotonic() + d))
}

/// Wall seconds since the clock's start.
fn elapsed(now: Timestamp) -> i64 {
    (now.as_micros() - super::START.as_micros()) / 1_000_000
}
