//! Time and verdicts.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The CPU time that all threads of this process have used.
#[must_use]
pub fn cpu() -> Duration {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(t.tv_sec.unsigned_abs(), u32::try_from(t.tv_nsec).unwrap_or(0))
}

/// How long something took.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    pub wall: Duration,
    pub cpu: Duration,
}

/// Does `f` and says how long that took.
pub fn measured<T>(f: impl FnOnce() -> T) -> (T, Took) {
    let (wall, before) = (Instant::now(), cpu());
    let value = f();
    (value, Took { wall: wall.elapsed(), cpu: cpu().saturating_sub(before) })
}

/// Milliseconds, for tables.
#[must_use]
pub fn ms(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}

/// The value that `percent` of the values do not exceed; sorts them.
#[must_use]
pub fn percentile(values: &mut [u64], percent: f64) -> u64 {
    values.sort_unstable();
    let at = (values.len() as f64 * percent / 100.0).ceil() as usize;
    values.get(at.saturating_sub(1)).copied().unwrap_or(0)
}

/// What must hold, said line by line.
#[derive(Default)]
pub struct Verdict {
    missed: usize,
}

impl Verdict {
    /// Says whether `what` holds.
    pub fn must(&mut self, holds: bool, what: &str) {
        println!("{:<12} {what}", if holds { "ok" } else { "NOT REACHED" });
        self.missed += usize::from(!holds);
    }

    /// Ends the process; with 1 where something does not hold.
    pub fn end(self) -> ! {
        std::process::exit(i32::from(self.missed > 0));
    }
}
