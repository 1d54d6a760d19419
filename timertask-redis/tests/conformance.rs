//! What every store must do, shown of this one on real servers, each case with one of its own: with handles that connect
//! each for itself, as processes do, and with clones of one handle, as schedulers of one process may have them.
//!
//! A server has a clock of its own, so where a case lets time pass, time passes.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::time::Duration;

use common::{APPENDS, Server, wait};
use timertask_redis::Redis;
use timertask_testkit::conformance::{BoardHarness, LedgerHarness, MutexHarness, Restart};

struct OnRedis {
    server: std::sync::Mutex<Server>,
    /// `None`: each handle connects for itself.
    clones_of: Option<Redis>,
}

impl OnRedis {
    fn connected_by_each() -> Self {
        Self { server: std::sync::Mutex::new(Server::start(&[])), clones_of: None }
    }

    fn appending() -> Self {
        Self { server: std::sync::Mutex::new(Server::start(APPENDS)), clones_of: None }
    }

    fn shared_by_clones() -> Self {
        let server = Server::start(&[]);
        let clones_of = Some(server.connect());
        Self { server: std::sync::Mutex::new(server), clones_of }
    }

    fn any_handle(&self) -> Redis {
        self.clones_of.clone().unwrap_or_else(|| self.server.lock().unwrap().connect())
    }
}

impl LedgerHarness for OnRedis {
    type Ledger = Redis;
    fn handle(&self) -> Redis {
        self.any_handle()
    }
    fn pass_time(&self, d: Duration) {
        wait(d);
    }
}

impl Restart for OnRedis {
    fn restart(&self) {
        let mut server = self.server.lock().unwrap();
        server.kill();
        server.start_again();
    }
}

impl MutexHarness for OnRedis {
    type Mutex = Redis;
    fn handle(&self) -> Redis {
        self.any_handle()
    }
    fn pass_time(&self, d: Duration) {
        wait(d);
    }
}

impl BoardHarness for OnRedis {
    type Board = Redis;
    fn handle(&self) -> Redis {
        self.any_handle()
    }
}

mod ledger {
    timertask_testkit::ledger_conformance!(super::OnRedis::connected_by_each);
    timertask_testkit::durable_ledger_conformance!(super::OnRedis::appending);
}

mod mutex {
    timertask_testkit::mutex_conformance!(super::OnRedis::connected_by_each);
}

mod mutex_shared_by_clones {
    timertask_testkit::mutex_conformance!(super::OnRedis::shared_by_clones);
}

mod board {
    timertask_testkit::board_conformance!(super::OnRedis::connected_by_each);
}

/// Clones wait for each other's connections; what happens when many work at once is what can differ.
mod ledger_shared_by_clones {
    use super::OnRedis;
    use timertask_testkit::conformance::ledger::contention;

    #[test]
    fn one_of_many_gets_a_slot() {
        contention::one_of_many_gets_a_slot(&OnRedis::shared_by_clones());
    }

    #[test]
    fn runs_of_a_plan_exclude_each_other() {
        contention::runs_of_a_plan_exclude_each_other(&OnRedis::shared_by_clones());
    }

    #[test]
    fn one_of_many_ends_is_recorded() {
        contention::one_of_many_ends_is_recorded(&OnRedis::shared_by_clones());
    }

    #[test]
    fn one_of_many_accounts_is_done() {
        contention::one_of_many_accounts_is_done(&OnRedis::shared_by_clones());
    }

    #[test]
    fn one_decision_asked_by_many_is_one_grant() {
        contention::one_decision_asked_by_many_is_one_grant(&OnRedis::shared_by_clones());
    }
}
