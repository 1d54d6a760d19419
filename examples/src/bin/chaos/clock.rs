//! A clock that can be set wrong while it runs: the system's, and what a file says that is to be added to it. All processes
//! read the same file, so that a step is seen by all of them at once, also by those that were frozen when it came.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use timertask::Timestamp;
use timertask::clock::{Clock, Signal, SystemClock, Until, Wake};

use crate::Result;

/// How far to sleep at most towards an instant, so that a step is noticed; what the system's clock does, too.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// One place of eight bytes for each process, and one for the parent; microseconds.
#[derive(Debug)]
pub(crate) struct Offsets(File);

impl Offsets {
    /// Makes the file; all clocks go right.
    pub(crate) fn create(path: &Path, places: usize) -> Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        file.write_all_at(&vec![0; 8 * places], 0)?;
        Ok(Self(file))
    }

    /// Sets the clock of this place.
    pub(crate) fn set(&self, place: usize, micros: i64) -> Result<()> {
        Ok(self.0.write_all_at(&micros.to_le_bytes(), 8 * place as u64)?)
    }
}

/// The clock of one place.
#[derive(Debug)]
pub(crate) struct OffsetClock {
    file: File,
    at: u64,
}

impl OffsetClock {
    pub(crate) fn open(path: &Path, place: usize) -> Result<Self> {
        Ok(Self { file: File::open(path)?, at: 8 * place as u64 })
    }

    fn offset(&self) -> i64 {
        let mut bytes = [0; 8];
        // The file is there as long as its parent is; without one this process is about to end.
        match self.file.read_exact_at(&mut bytes, self.at) {
            Ok(()) => i64::from_le_bytes(bytes),
            Err(_) => 0,
        }
    }
}

impl Clock for OffsetClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(SystemClock.now().as_micros() + self.offset())
    }

    fn monotonic(&self) -> Duration {
        SystemClock.monotonic()
    }

    fn wait(&self, signal: &Signal, until: Option<Until>) -> Wake {
        let Some(Until::Wall(until)) = until else { return SystemClock.wait(signal, until) };
        let mut seen = Timestamp::from_micros(i64::MIN);
        loop {
            let now = self.now();
            if now < seen || now >= until {
                return if signal.take() { Wake::Signal } else { Wake::Time };
            }
            seen = now;
            let nap = SystemClock.monotonic().saturating_add(until.since(now).min(LONGEST_SLEEP));
            if SystemClock.wait(signal, Some(Until::Monotonic(nap))) == Wake::Signal {
                return Wake::Signal;
            }
        }
    }

    fn entropy(&self) -> u64 {
        SystemClock.entropy()
    }
}
