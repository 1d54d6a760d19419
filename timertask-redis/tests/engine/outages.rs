//! Outages of every kind, and what becomes of runs that are at work meanwhile.

use std::time::Duration;

use timertask_core::clock::{Clock, SystemClock};
use timertask_core::seam::Ledger;
use timertask_redis::{Options, Redis};

use crate::common::clock::FAST;
use crate::common::proxy::{Fate, Proxy};
use crate::common::*;
use crate::service::*;

fn impatient() -> Options {
    Redis::options().connect_timeout(SHORT).response_timeout(SHORT).pool_wait(SHORT)
}

/// Two instances, one of them with a run at work, go through an outage: nothing starts, the run is told that its lease is
/// in doubt, and later that it isn't any more; afterwards all goes on, and what the jobs saw is what is on record.
fn go_through(mut server: Server, url: &str, begin: impl FnOnce(&mut Server), end: impl FnOnce(&mut Server)) {
    let journal = Journal::default();
    let [a, b] = [(); 2].map(|()| instance(impatient().connect(url).unwrap(), &journal, FAST));
    journal.until_held();
    journal.until_more_than(3);
    assert!(!journal.is_told());
    begin(&mut server);
    // What was granted before may still be entered; the first faults come after it.
    until_faults(&a, 2);
    until_faults(&b, 2);
    let before = journal.len();
    journal.until_told();
    until_faults(&a, 2);
    until_faults(&b, 2);
    assert_eq!(journal.len(), before, "nothing starts meanwhile");
    end(&mut server);
    journal.until_trusted_again();
    journal.until_more_than(before + 2);
    journal.release();
    let store = server.connect();
    until_settled(&store);
    close(&a);
    close(&b);
    journal.is_recorded(&store);
    assert_eq!(a.stats().orphaned + b.stats().orphaned, 0);
}

#[test]
fn killed_with_an_append_only_file_runs_go_on_and_no_slot_starts_twice() {
    let server = Server::start(APPENDS);
    let url = server.url();
    go_through(server, &url, Server::kill, Server::start_again);
}

/// A server that has forgotten all: runs at work are told, plans are opened anew, and nothing of the past starts, on no
/// instance.
#[test]
fn killed_without_persistence_runs_are_told_and_no_slot_starts_twice() {
    let mut server = Server::start(&[]);
    let journal = Journal::default();
    let [a, b] = [(); 2].map(|()| instance(impatient().connect(&server.url()).unwrap(), &journal, FAST));
    journal.until_held();
    journal.until_more_than(3);
    let before = journal.entered();
    server.kill();
    server.start_again();
    journal.until_told();
    // It runs each second again, under a generation that counts from the return on.
    journal.until_more_than(before.len() + 2);
    let store = server.connect();
    let known = |plan| store.plan(&[(plan_key(plan), timertask_core::seam::PlanOp::Read)]).unwrap().value.remove(0).row;
    let since = known(TICK).unwrap().generation.effective_from;
    assert!(before.iter().all(|(_, at, _)| *at <= since), "{before:?} and then from {since}");
    journal.release();
    close(&a);
    close(&b);
    journal.nothing_twice();
    let highest = before.iter().filter(|(plan, ..)| plan == TICK).map(|(.., fence)| *fence).max().unwrap();
    let after: Vec<_> = journal.entered().into_iter().filter(|(plan, at, _)| plan == TICK && *at > since).collect();
    assert!(!after.is_empty() && after.iter().all(|(.., fence)| *fence > highest), "fences rise: {after:?}");
}

/// Five seconds without a sign of life. Calls come back by themselves, while the server still stands still.
#[test]
fn frozen_for_five_seconds_every_call_comes_back_and_runs_are_told() {
    let server = Server::start(APPENDS);
    let url = server.url();
    let frozen = std::cell::Cell::new(None);
    let freeze = |server: &mut Server| {
        let store = server.connect_impatiently();
        let begin = SystemClock.monotonic();
        frozen.set(Some(server.freeze()));
        while SystemClock.monotonic().saturating_sub(begin) < Duration::from_secs(5) {
            let error = store.claim(&[request(&plan_key("other"), 1, 1)]).unwrap_err();
            assert_eq!(error.kind(), timertask_core::seam::StoreErrorKind::TimedOut, "{error}");
        }
    };
    go_through(server, &url, freeze, |_| drop(frozen.take()));
}

#[test]
fn paused_writes_start_nothing_and_all_goes_on_after_it() {
    let server = Server::start(APPENDS);
    let url = server.url();
    let mut raw = server.raw();
    let mut tell = move |words: &[&str]| redis::cmd("CLIENT").arg(words).query::<()>(&mut raw).unwrap();
    tell(&["PAUSE", "1000000", "WRITE"]);
    tell(&["UNPAUSE"]);
    let tell = std::cell::RefCell::new(tell);
    go_through(
        server,
        &url,
        |_| tell.borrow_mut()(&["PAUSE", "1000000", "WRITE"]),
        |_| tell.borrow_mut()(&["UNPAUSE"]),
    );
}

/// A pause of all ends by itself; nobody could ask for it.
#[test]
fn a_pause_of_all_starts_nothing_and_all_goes_on_after_it() {
    let server = Server::start(APPENDS);
    let url = server.url();
    let begin = |server: &mut Server| {
        let () = server.tell(&["CLIENT", "PAUSE", "6000", "ALL"]);
    };
    go_through(server, &url, begin, |server| _ = server.tell::<String>(&["PING"]));
}

#[test]
fn without_memory_left_nothing_starts_and_all_goes_on_after_it() {
    let server = Server::start(APPENDS);
    let url = server.url();
    let limit = |bytes: &'static str| {
        move |server: &mut Server| {
            let () = server.tell(&["CONFIG", "SET", "maxmemory", bytes]);
        }
    };
    go_through(server, &url, limit("1"), limit("0"));
}

#[test]
fn fault_10_networks_that_swallow_cut_or_delay_enter_no_job() {
    std::thread::scope(|scope| {
        for (requests, answers) in [
            (Fate::Swallow, Fate::Pass),
            (Fate::Pass, Fate::Swallow),
            (Fate::Cut(30), Fate::Pass),
            (Fate::Pass, Fate::Cut(0)),
            (Fate::Pass, Fate::Cut(9)),
            (Fate::Pass, Fate::Late(SHORT * 2)),
        ] {
            scope.spawn(move || {
                let server = Server::start(APPENDS);
                let proxy = Proxy::to(server.port());
                let begin = |_: &mut Server| {
                    proxy.requests(requests);
                    proxy.answers(answers);
                };
                go_through(server, &proxy.url(), begin, |_| proxy.heal());
            });
        }
    });
}

/// Claims that hang end no lease of another plan's run: renewals have connections of their own.
#[test]
fn renewals_of_other_plans_go_on_while_claims_hang() {
    let server = Server::start(APPENDS);
    let proxy = Proxy::to(server.port());
    let journal = Journal::default();
    let scheduler = instance(impatient().connect(&proxy.url()).unwrap(), &journal, FAST);
    journal.until_held();
    journal.until_more_than(3);
    proxy.only(claim_script().get_hash());
    proxy.answers(Fate::Swallow);
    until_faults(&scheduler, 2);
    let before = journal.len();
    let held = || slots(&server.connect(), HELD).into_iter().find(|slot| slot.attempt > 0).unwrap();
    // Two leases' time: without renewals trust would have ended after one.
    let (first, mut renewed) = (held().lease_end, 0);
    let mut last = first;
    until(|| {
        let now = held().lease_end;
        renewed += u32::from(now > last);
        last = now;
        (renewed >= 6).then_some(())
    });
    assert!(!journal.is_told(), "it was renewed in time, each time");
    assert_eq!(journal.len(), before);
    proxy.heal();
    journal.until_more_than(before);
    journal.release();
    let store = server.connect();
    until_settled(&store);
    close(&scheduler);
    journal.is_recorded(&store);
}
