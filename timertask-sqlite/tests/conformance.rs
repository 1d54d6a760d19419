//! What every store must do, shown of this one: once with handles that each opened the file for itself, as processes do,
//! and once with clones of one handle, as schedulers of one process may have them.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::time::Duration;

use common::TempDir;
use timertask_sqlite::Sqlite;
use timertask_testkit::FakeClock;
use timertask_testkit::conformance::{BoardHarness, LedgerHarness, MutexHarness, Restart, Step};

/// A file of its own, and a clock that the case sets.
struct File {
    clock: FakeClock,
    /// `None`: each handle opens the file.
    clones_of: std::sync::Mutex<Option<Sqlite>>,
    dir: TempDir,
}

impl File {
    fn opened_by_each() -> Self {
        Self { clock: FakeClock::new(), clones_of: std::sync::Mutex::new(None), dir: TempDir::new() }
    }

    fn shared_by_clones() -> Self {
        let file = Self::opened_by_each();
        *file.clones_of.lock().unwrap() = Some(file.open());
        file
    }

    fn open(&self) -> Sqlite {
        // Cases with many handles wait for each other; a slow disk is not what they are about.
        let options = Sqlite::options().clock(self.clock.clone()).busy_deadline(Duration::from_secs(60));
        options.open(self.dir.path("a.db")).unwrap()
    }

    fn any_handle(&self) -> Sqlite {
        self.clones_of.lock().unwrap().clone().unwrap_or_else(|| self.open())
    }
}

impl LedgerHarness for File {
    type Ledger = Sqlite;
    fn handle(&self) -> Sqlite {
        self.any_handle()
    }
    fn pass_time(&self, d: Duration) {
        self.clock.advance(d);
    }
}

impl Restart for File {
    fn restart(&self) {
        let mut clones_of = self.clones_of.lock().unwrap();
        if clones_of.take().is_some() {
            *clones_of = Some(self.open());
        }
    }
}

impl Step for File {
    fn step_back(&self, d: Duration) {
        self.clock.step_wall(-chrono::TimeDelta::from_std(d).unwrap());
    }
}

impl MutexHarness for File {
    type Mutex = Sqlite;
    fn handle(&self) -> Sqlite {
        self.any_handle()
    }
    fn pass_time(&self, d: Duration) {
        self.clock.advance(d);
    }
}

impl BoardHarness for File {
    type Board = Sqlite;
    fn handle(&self) -> Sqlite {
        self.any_handle()
    }
}

mod ledger_opened_by_each {
    timertask_testkit::ledger_conformance!(super::File::opened_by_each);
    timertask_testkit::durable_ledger_conformance!(super::File::opened_by_each);
    timertask_testkit::stepped_ledger_conformance!(super::File::opened_by_each);
}

mod ledger_shared_by_clones {
    timertask_testkit::ledger_conformance!(super::File::shared_by_clones);
    timertask_testkit::durable_ledger_conformance!(super::File::shared_by_clones);
    timertask_testkit::stepped_ledger_conformance!(super::File::shared_by_clones);
}

mod mutex_opened_by_each {
    timertask_testkit::mutex_conformance!(super::File::opened_by_each);
}

mod mutex_shared_by_clones {
    timertask_testkit::mutex_conformance!(super::File::shared_by_clones);
}

mod board {
    timertask_testkit::board_conformance!(super::File::opened_by_each);
}
