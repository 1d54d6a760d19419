//! The clocks that come along keep the contract: the system's, the simulated one, and one of a third party's kind.

#![expect(clippy::expect_used, reason = "tests, and what helps them")]

use std::sync::Arc;
use std::time::Duration;

use timertask_core::clock::{Clock, Signal, SystemClock, Until, Wake};
use timertask_core::time::Timestamp;
use timertask_testkit::FakeClock;
use timertask_testkit::conformance::{ClockHarness, StepClock};

struct OfTheSystem;

impl ClockHarness for OfTheSystem {
    type Clock = SystemClock;
    fn clock(&self) -> SystemClock {
        SystemClock
    }
    fn pass_time(&self, d: Duration) {
        let until = SystemClock.monotonic() + d;
        assert_eq!(SystemClock.wait(&Signal::new(), Some(Until::Monotonic(until))), Wake::Time);
    }
}

struct Simulated(FakeClock);

impl Simulated {
    fn fresh() -> Self {
        Self(FakeClock::new())
    }

    fn seeded() -> Self {
        Self(FakeClock::seeded(7))
    }
}

impl ClockHarness for Simulated {
    type Clock = FakeClock;
    fn clock(&self) -> FakeClock {
        self.0.clone()
    }
    fn pass_time(&self, d: Duration) {
        self.0.advance(d);
    }
}

impl StepClock for Simulated {
    fn step_back(&self, d: Duration) {
        self.0.step_wall(-chrono::TimeDelta::from_std(d).expect("an hour at most"));
        self.0.settle();
    }
}

/// A clock of one's own: the system's, an hour behind, as a program has it that tests how it lives with that.
#[derive(Clone)]
struct Behind(Arc<SystemClock>);

const HOUR: Duration = Duration::from_secs(3600);

impl Clock for Behind {
    fn now(&self) -> Timestamp {
        self.0.now().saturating_sub(HOUR)
    }
    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }
    fn wait(&self, signal: &Signal, until: Option<Until>) -> Wake {
        let until = until.map(|until| match until {
            Until::Wall(t) => Until::Wall(t.saturating_add(HOUR)),
            monotonic @ Until::Monotonic(_) => monotonic,
        });
        self.0.wait(signal, until)
    }
    fn entropy(&self) -> u64 {
        self.0.entropy()
    }
}

struct OfOnesOwn;

impl ClockHarness for OfOnesOwn {
    type Clock = Behind;
    fn clock(&self) -> Behind {
        Behind(Arc::new(SystemClock))
    }
    fn pass_time(&self, d: Duration) {
        OfTheSystem.pass_time(d);
    }
}

mod system {
    timertask_testkit::clock_conformance!(|| super::OfTheSystem);
}

mod fake {
    timertask_testkit::clock_conformance!(super::Simulated::fresh);
    timertask_testkit::stepped_clock_conformance!(super::Simulated::fresh);
}

mod seeded {
    timertask_testkit::clock_conformance!(super::Simulated::seeded);
    timertask_testkit::stepped_clock_conformance!(super::Simulated::seeded);
}

mod of_ones_own {
    timertask_testkit::clock_conformance!(|| super::OfOnesOwn);
}
