//! A clock that is not quite that of the server.

use std::time::Duration;

use timertask_core::clock::{Clock, Signal, SystemClock, Until, Wake};
use timertask_core::time::Timestamp;

/// The system's clock, on which monotonic time runs faster, and wall time is off by so much.
///
/// Leases, renewals and back-off are counted in monotonic time: ten times as fast, a run loses trust three seconds after
/// its last renewal, and not only after half a minute, while due instants and the server's clock stay what they are.
#[derive(Clone, Copy)]
pub struct OddClock {
    pub times: u32,
    pub off_by: i64,
}

/// Ten times as fast.
pub const FAST: OddClock = OddClock { times: 10, off_by: 0 };

impl Clock for OddClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(SystemClock.now().as_micros() + self.off_by)
    }

    fn monotonic(&self) -> Duration {
        SystemClock.monotonic() * self.times
    }

    fn wait(&self, signal: &Signal, until: Option<Until>) -> Wake {
        let until = until.map(|until| match until {
            Until::Wall(at) => Until::Wall(Timestamp::from_micros(at.as_micros().saturating_sub(self.off_by))),
            Until::Monotonic(at) => Until::Monotonic(at / self.times),
        });
        SystemClock.wait(signal, until)
    }

    fn entropy(&self) -> u64 {
        SystemClock.entropy()
    }
}
