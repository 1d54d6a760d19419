//! Servers that die, stand still or lose their network in the middle. Every call comes back, none takes silence for leave
//! to run, and what has become of a claim can be asked.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::time::Duration;

use common::proxy::{Fate, Proxy};
use common::*;
use timertask_core::key::{Namespace, Nonce};
use timertask_core::seam::{
    Applied, Board, Claim, Durability, Ended, Ending, Held, Lease, Ledger, Mutex, PlanOp, Posting, PostingKind, Query,
    Refusal, Renewal, Retention, SlotState, StoreError, StoreErrorKind, Term,
};
use timertask_core::time::{Timestamp, Trigger};
use timertask_redis::Redis;

fn try_claim(store: &Redis, at: i64, nonce: u128) -> Result<Claim, StoreError> {
    store.claim(&[request(&plan_key("p"), at, nonce)]).map(|mut answer| answer.value.remove(0))
}

/// The answer of a store that comes back by itself, once it has.
fn claim_once_back(store: &Redis, at: i64, nonce: u128) -> Claim {
    until(|| try_claim(store, at, nonce).ok())
}

/// A call of each method; each must fail in the way that `check` wants.
fn every_call(store: &Redis, at: i64, check: &dyn Fn(&str, Result<(), StoreError>)) {
    let request = request(&plan_key("p"), at, 77);
    let key = &request.key;
    let term = Term { key: key.clone(), nonce: request.nonce, fence: timertask_core::key::Fence::NONE };
    let lease = Lease { key: key.clone(), nonce: request.nonce, fence: term.fence };
    let namespace = Namespace::default();
    let ttl = Duration::from_secs(30);
    let posting = Posting {
        namespace: namespace.clone(),
        kind: PostingKind::View,
        key: "k".into(),
        body: "b".into(),
        until: Timestamp::MAX,
    };
    let keep = Retention { age: None, count: None, keep_last: 0 };
    let end = timertask_core::seam::EndRequest {
        key: key.clone(),
        fence: term.fence,
        op: timertask_core::seam::EndOp::GiveBack { nonce: request.nonce },
    };
    let pause = PlanOp::Pause { by: "b".into(), why: "w".into(), until: None };
    check("claim", store.claim(std::slice::from_ref(&request)).map(drop));
    check("renew", store.renew(&[term], ttl).map(drop));
    check("end", store.end(&[end]).map(drop));
    check("write plans", store.plan(&[(plan_key("q"), pause)]).map(drop));
    check("read plans", store.plan(&[(plan_key("p"), PlanOp::Read)]).map(drop));
    check("read", store.read(&Query::Slots(vec![key.clone()])).map(drop));
    check("purge", store.purge(&plan_key("p"), keep, 9).map(drop));
    check("describe", store.describe().map(drop));
    check("lock", store.try_lock(key, Nonce::from_bits(7), ttl).map(drop));
    check("extend", store.extend(&lease, ttl).map(drop));
    check("unlock", store.unlock(&lease).map(drop));
    check("post", store.post(&posting).map(drop));
    check("list", store.list(&namespace, PostingKind::View).map(drop));
    check("take", store.take(&namespace, PostingKind::View, "k").map(drop));
}

#[test]
fn killed_with_an_append_only_file_it_loses_nothing() {
    let mut server = Server::start(APPENDS);
    let store = server.connect_impatiently();
    assert_eq!(store.describe().unwrap(), Durability::Durable { synced: true });
    let plan = plan_key("p");
    let at = open(&store, &plan) + 1;
    let requests: Vec<_> = (0..50).map(|n| request(&plan, at + n, 1)).collect();
    let grants: Vec<_> = requests.iter().map(|request| grant(&store, request)).collect();
    assert_eq!(store.end(&[success(&requests[0], &grants[0])]).unwrap().value.len(), 1);
    server.kill();
    every_call(&store, at, &|what, done| {
        let error = done.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{what}: {error}");
    });
    server.start_again();
    assert_eq!(claim_once_back(&store, at, 2), Claim::Ended(Ending::Succeeded));
    for (request, grant) in requests.iter().zip(&grants).skip(1) {
        assert_eq!(claim(&store, &common::request(&plan, request.key.at.as_secs(), 2)), Claim::Held);
        let Claim::Granted(again) = claim(&store, request) else { panic!("the same decision gets the same grant") };
        assert_eq!(again.fence, grant.fence);
    }
    assert!(grant(&store, &request(&plan, at + 50, 1)).fence > grants[49].fence);
}

/// With `appendfsync everysec` a server whose disk is slow holds back for up to two seconds what it has acknowledged: what
/// it has written to the file by the time it is killed is there again, and `aof_buffer_length` tells how much it has not.
#[test]
fn killed_while_it_appends_each_second_it_keeps_what_it_had_written() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "everysec"]);
    let store = server.connect_impatiently();
    assert_eq!(store.describe().unwrap(), Durability::Durable { synced: false });
    let plan = plan_key("p");
    let at = open(&store, &plan) + 1;
    let requests: Vec<_> = (0..50).map(|n| request(&plan, at + n, 1)).collect();
    let grants: Vec<_> = requests.iter().map(|request| grant(&store, request)).collect();
    until(|| {
        let info: String = server.tell(&["INFO", "persistence"]);
        info.lines().any(|line| line == "aof_buffer_length:0").then_some(())
    });
    server.kill();
    server.start_again();
    for (request, grant) in requests.iter().zip(&grants) {
        assert_eq!(claim_once_back(&store, request.key.at.as_secs(), 2), Claim::Held);
        let Claim::Granted(again) = claim(&store, request) else { panic!("the same decision gets the same grant") };
        assert_eq!(again.fence, grant.fence);
    }
}

/// Nothing of the past is started on the word of a ledger that has forgotten it.
#[test]
fn killed_without_persistence_it_forgets_and_starts_nothing_of_the_past() {
    let mut server = Server::start(&[]);
    let store = server.connect_impatiently();
    let plan = plan_key("p");
    let at = open(&store, &plan) + 1;
    let before = grant(&store, &request(&plan, at, 1));
    until_time(&store, at);
    server.kill();
    server.start_again();
    assert_eq!(claim_once_back(&store, at, 2), Claim::Refused(Refusal::Unknown));
    // A connection of the ends' lane that was idle meanwhile has hung up, which a write of a plan has to tell.
    let _ = until(|| store.plan(&[(plan.clone(), PlanOp::Read)]).ok());
    let reopened = until(|| {
        let op = PlanOp::Open { fingerprint: fingerprint(1), replaces: None };
        store.plan(&[(plan.clone(), op)]).ok()
    });
    assert_ne!(reopened.value[0].applied, Applied::Conflict);
    assert_eq!(claim(&store, &request(&plan, at, 2)), Claim::Refused(Refusal::Accounted));
    let after = grant(&store, &request(&plan, reopened.now.trigger().as_secs() + 1, 2));
    assert!(after.fence > before.fence, "fences rise also after the counter was lost");
}

#[test]
fn frozen_every_call_comes_back_and_what_it_asked_for_can_land_later() {
    let server = Server::start(&["--tcp-backlog", "128"]);
    let store = server.connect_impatiently();
    let at = open(&store, &plan_key("p")) + 1;
    // One connection of each kind is open, and one kind has none.
    every_call(&store, at, &|what, done| done.unwrap_or_else(|e| panic!("{what}: {e}")));
    let frozen = server.freeze();
    for round in 0..2 {
        every_call(&store, at + 1, &|what, done| {
            let error = done.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::TimedOut, "{what}, round {round}: {error}");
            assert!(error.outcome_unknown(), "{what}, round {round}");
        });
    }
    // With a password the handshake itself waits for answers.
    let url = format!("redis://:password@127.0.0.1:{}/", server.port());
    let error = Redis::options().connect_timeout(SHORT).response_timeout(SHORT).connect(&url).unwrap_err();
    assert_eq!((error.kind(), error.outcome_unknown()), (StoreErrorKind::TimedOut, false));
    drop(frozen);
    // The claim that timed out has landed, or lands now: it is one decision, and no other gets the slot.
    assert!(matches!(claim_once_back(&store, at + 1, 77), Claim::Granted(_)));
    assert_eq!(claim_once_back(&store, at + 1, 78), Claim::Held);
}

#[test]
fn paused_writes_time_out_and_land_once() {
    let server = Server::start(&[]);
    let store = server.connect_impatiently();
    let at = open(&store, &plan_key("p")) + 1;
    // (A pause of all would hold back the word that ends it.)
    let mut raw = server.raw();
    let () = redis::cmd("CLIENT").arg(&["PAUSE", "1000000", "WRITE"]).query(&mut raw).unwrap();
    let error = try_claim(&store, at, 1).unwrap_err();
    assert_eq!((error.kind(), error.outcome_unknown()), (StoreErrorKind::TimedOut, true));
    let () = redis::cmd("CLIENT").arg("UNPAUSE").query(&mut raw).unwrap();
    assert!(matches!(claim_once_back(&store, at, 1), Claim::Granted(_)));
    assert_eq!(claim_once_back(&store, at, 2), Claim::Held);
}

/// A pause of all holds back every answer, the first of a new connection too.
#[test]
fn paused_altogether_every_call_comes_back_and_what_it_asked_for_lands_once() {
    let server = Server::start(&[]);
    let store = server.connect_impatiently();
    let at = open(&store, &plan_key("p")) + 1;
    let () = server.tell(&["CLIENT", "PAUSE", "1000", "ALL"]);
    let error = try_claim(&store, at, 1).unwrap_err();
    assert_eq!((error.kind(), error.outcome_unknown()), (StoreErrorKind::TimedOut, true));
    assert!(matches!(claim_once_back(&store, at, 1), Claim::Granted(_)));
    assert_eq!(claim_once_back(&store, at, 2), Claim::Held);
    // Nobody could ask for the end of this one.
    let () = server.tell(&["CLIENT", "PAUSE", "1000000", "ALL"]);
    for round in 0..2 {
        every_call(&store, at + 1, &|what, done| {
            let error = done.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::TimedOut, "{what}, round {round}: {error}");
        });
    }
}

/// A claim that waits for ever takes no connection from renewals and ends.
#[test]
fn renewals_and_ends_go_on_while_claims_hang() {
    let server = Server::start(&[]);
    let store = server.connect();
    let plan = plan_key("p");
    let at = open(&store, &plan) + 1;
    let requests = [request(&plan, at, 1), request(&plan, at + 1, 1)];
    let [first, second] = [grant(&store, &requests[0]), grant(&store, &requests[1])];
    let term = Term { key: requests[0].key.clone(), nonce: requests[0].nonce, fence: first.fence };
    assert!(matches!(
        store.renew(std::slice::from_ref(&term), Duration::from_secs(60)).unwrap().value[0],
        Renewal::Held(_)
    ));
    // All connections for claims are used up by calls that the server holds back.
    let hang = |n| {
        let store = store.clone();
        std::thread::spawn(move || try_claim(&store, at + 10 + n, 1))
    };
    let mut raw = server.raw();
    let () = redis::cmd("CLIENT").arg(&["PAUSE", "1000000", "WRITE"]).query(&mut raw).unwrap();
    let hanging = [hang(0), hang(1), hang(2)];
    until(|| {
        let clients: String = redis::cmd("INFO").arg("clients").query(&mut raw).unwrap();
        clients.contains("blocked_clients:2").then_some(())
    });
    let () = redis::cmd("CLIENT").arg("UNPAUSE").query(&mut raw).unwrap();
    assert!(matches!(store.renew(&[term], Duration::from_secs(90)).unwrap().value[0], Renewal::Held(_)));
    let ended = store.end(&[success(&requests[1], &second)]).unwrap().value[0];
    assert_eq!(ended, Ended::Recorded(SlotState::Ended(Ending::Succeeded)));
    for claim in hanging {
        assert!(matches!(claim.join().unwrap(), Ok(Claim::Granted(_))));
    }
}

#[test]
fn cut_in_the_middle_of_an_answer_it_can_be_asked_again() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.port());
    let options = Redis::options().connect_timeout(PATIENT).response_timeout(PATIENT).pool_wait(PATIENT);
    let store = options.connect(&proxy.url()).unwrap();
    let at = open(&store, &plan_key("p")) + 1;
    grant(&store, &request(&plan_key("p"), at, 1));
    let mut cut = 0;
    for n in 0..200 {
        proxy.answers(Fate::Cut(n));
        let slot = at + 1 + i64::try_from(n).unwrap();
        let done = try_claim(&store, slot, 1);
        proxy.answers(Fate::Pass);
        match done {
            Ok(Claim::Granted(_)) => {}
            Ok(other) => panic!("after {n} bytes: {other:?}"),
            Err(error) => {
                cut += 1;
                assert!(error.outcome_unknown(), "after {n} bytes: {error}");
                let Claim::Granted(_) = claim_once_back(&store, slot, 1) else {
                    panic!("the same decision, after {n} bytes")
                };
            }
        }
        assert_eq!(claim_once_back(&store, slot, 2), Claim::Held, "after {n} bytes");
    }
    assert!(cut > 100, "an answer has more than {cut} bytes");
}

#[test]
fn swallowed_answers_are_time_outs() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.port());
    let store = Redis::options().response_timeout(SHORT).connect(&proxy.url()).unwrap();
    let at = open(&store, &plan_key("p")) + 2;
    // So that the server knows the script.
    grant(&store, &request(&plan_key("p"), at - 1, 1));
    proxy.answers(Fate::Swallow);
    let error = try_claim(&store, at, 1).unwrap_err();
    assert_eq!((error.kind(), error.outcome_unknown()), (StoreErrorKind::TimedOut, true));
    let row =
        server.connect().read(&Query::Slots(vec![request(&plan_key("p"), at, 1).key])).unwrap().value.slots.remove(0);
    proxy.answers(Fate::Pass);
    let Claim::Granted(again) = claim_once_back(&store, at, 1) else { panic!("asked again with the same nonce") };
    assert_eq!((again.fence, again.attempt), (row.fence, 1), "the grant whose answer was lost");
    assert_eq!(claim(&store, &request(&plan_key("p"), at, 2)), Claim::Held);
}

/// A request that never arrives, or arrives in part, or late: nobody has the slot but who asked.
#[test]
fn swallowed_cut_and_late_requests_are_asked_again() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.port());
    let options = Redis::options().connect_timeout(SHORT).response_timeout(SHORT).connections(1);
    let store = options.connect(&proxy.url()).unwrap();
    let at = open(&store, &plan_key("p")) + 1;
    for (n, fate) in (0..).zip([Fate::Swallow, Fate::Cut(0), Fate::Cut(100), Fate::Cut(200), Fate::Late(SHORT * 2)]) {
        proxy.requests(fate);
        let error = try_claim(&store, at + n, 1).unwrap_err();
        let kinds = [StoreErrorKind::TimedOut, StoreErrorKind::Unreachable];
        assert!(kinds.contains(&error.kind()), "{fate:?}: {error}");
        proxy.heal();
        assert!(matches!(claim_once_back(&store, at + n, 1), Claim::Granted(_)), "{fate:?}");
        assert_eq!(claim_once_back(&store, at + n, 2), Claim::Held, "{fate:?}");
    }
}

/// A network that carries a request twice: it is carried out once.
#[test]
fn doubled_requests_are_one_decision() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.port());
    let store = Redis::options().connections(1).connect(&proxy.url()).unwrap();
    let plan = plan_key("p");
    let at = open(&store, &plan) + 1;
    proxy.requests(Fate::Twice);
    for n in 0..20 {
        // Its answer comes twice too, so that the next call on the connection meets the one left over.
        if let Err(error) = try_claim(&store, at + n, 1) {
            assert_eq!((error.kind(), error.outcome_unknown()), (StoreErrorKind::Internal, true), "{error}");
        }
    }
    proxy.heal();
    for n in 0..20 {
        let Claim::Granted(grant) = claim_once_back(&store, at + n, 1) else { panic!("slot {n} is ours") };
        assert_eq!(grant.attempt, 1);
        assert_eq!(claim(&store, &request(&plan, at + n, 2)), Claim::Held);
    }
}

/// An answer that is left over on a connection is never taken for that of the next call.
#[test]
fn doubled_answers_never_belong_to_another_call() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.port());
    let store = Redis::options().connections(1).connect(&proxy.url()).unwrap();
    let plan = plan_key("p");
    let at = open(&store, &plan) + 1;
    let taken = grant(&server.connect(), &request(&plan, at, 9));
    proxy.answers(Fate::Twice);
    let mut mixed_up = 0;
    for n in 1..40 {
        // Every other call asks for the slot that another has.
        let slot = if n % 2 == 0 { at } else { at + n };
        match try_claim(&store, slot, u128::try_from(n).unwrap()) {
            Ok(Claim::Held) => assert_eq!(slot, at),
            Ok(Claim::Granted(grant)) => assert!(slot != at && grant.fence > taken.fence, "{grant:?}"),
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                mixed_up += 1;
                assert!(error.outcome_unknown(), "{error}");
                assert!(matches!(error.kind(), StoreErrorKind::Internal), "{error}");
            }
        }
    }
    assert!(mixed_up > 0, "a doubled answer is seen");
}

#[test]
fn a_connection_that_was_hung_up_is_replaced_where_asking_twice_is_harmless() {
    let server = Server::start(&[]);
    let store = server.connect();
    let plan = plan_key("p");
    let at = open(&store, &plan) + 1;
    grant(&store, &request(&plan, at, 1));
    let hang_up = || server.tell::<i64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    assert!(hang_up() >= 2);
    assert!(matches!(try_claim(&store, at + 1, 1), Ok(Claim::Granted(_))), "nobody notices");
    let close = PlanOp::SetBack { max_skew: Duration::ZERO };
    let error = store.plan(&[(plan.clone(), close.clone())]).unwrap_err();
    assert_eq!((error.kind(), error.outcome_unknown()), (StoreErrorKind::Unreachable, true), "the caller looks first");
    let _ = store.plan(&[(plan, close)]).unwrap();
}

/// A claim may have been carried out before the server hung up. That nothing could be asked after it changes nothing.
#[test]
fn hung_up_on_and_not_let_in_again_the_outcome_is_unknown() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.port());
    let () = server.tell(&["CONFIG", "SET", "requirepass", "sesame"]);
    let url = proxy.url().replace("//", "//:sesame@");
    let store = Redis::options().connect_timeout(PATIENT).response_timeout(PATIENT).connect(&url).unwrap();
    let at = open(&store, &plan_key("p")) + 1;
    grant(&store, &request(&plan_key("p"), at, 1));
    proxy.answers(Fate::Cut(0));
    let error = try_claim(&store, at + 1, 1).unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
    proxy.heal();
    assert_eq!(claim_once_back(&store, at + 1, 2), Claim::Held, "it had been carried out");
    assert!(matches!(claim_once_back(&store, at + 1, 1), Claim::Granted(_)));
}

#[test]
fn nobody_there_is_unreachable_and_nothing_was_asked() {
    let mut server = Server::start(&[]);
    let store = server.connect_impatiently();
    server.kill();
    every_call(&store, 1, &|what, done| assert_eq!(done.unwrap_err().kind(), StoreErrorKind::Unreachable, "{what}"));
    every_call(&store, 1, &|what, done| {
        let error = done.unwrap_err();
        assert_eq!((error.kind(), error.outcome_unknown()), (StoreErrorKind::Unreachable, false), "{what}: {error}");
    });
    let missing = Redis::connect("unix:///nowhere/redis.sock").unwrap_err();
    assert_eq!(missing.kind(), StoreErrorKind::Unreachable);
}

/// A lock is lost with the server's memory, and its fence rises all the same.
#[test]
fn locks_of_a_killed_server_are_lost_and_fences_rise() {
    let mut server = Server::start(&[]);
    let store = server.connect_impatiently();
    let key = request(&plan_key("p"), 1, 1).key;
    let ttl = Duration::from_secs(60);
    let first = store.try_lock(&key, Nonce::from_bits(1), ttl).unwrap().unwrap();
    server.kill();
    server.start_again();
    assert_eq!(until(|| store.extend(&first, ttl).ok()), Held::Lost);
    let second = until(|| store.try_lock(&key, Nonce::from_bits(2), ttl).ok()).unwrap();
    assert!(second.fence > first.fence);
}

/// A replica that had not got the last writes becomes the master: what it never saw is lost, and may be started again.
/// That is the documented bound; what it had seen stays, and fences rise.
#[test]
fn fault_08_a_failover_loses_what_was_not_replicated_and_no_more() {
    let master = Server::start(&[]);
    let replica = Server::start(&["--replicaof", "127.0.0.1", &master.port().to_string()]);
    let store = master.connect();
    until(|| (store.describe().unwrap() == Durability::Replicated { acknowledged_by: 0 }).then_some(()));
    let plan = plan_key("p");
    let at = open(&store, &plan) + 1;
    let seen = grant(&store, &request(&plan, at, 1));
    let mut raw = master.raw();
    let () = redis::cmd("SET").arg("marker").arg(1).query(&mut raw).unwrap();
    let acknowledged: i64 = redis::cmd("WAIT").arg(&["1", "0"]).query(&mut raw).unwrap();
    assert_eq!(acknowledged, 1);
    // The failover: from here on the old master's writes go nowhere.
    let () = replica.tell(&["REPLICAOF", "NO", "ONE"]);
    let lost = grant(&store, &request(&plan, at + 1, 1));
    let promoted = replica.connect();
    assert_eq!(claim(&promoted, &request(&plan, at, 2)), Claim::Held, "what was replicated is known");
    let again = grant(&promoted, &request(&plan, at + 1, 2));
    assert!(again.fence > lost.fence && lost.fence > seen.fence, "{again:?} after {lost:?} after {seen:?}");
    let cursor = promoted.plan(&[(plan, PlanOp::Read)]).unwrap().value[0].row.as_ref().unwrap().cursor;
    assert_eq!(cursor, Trigger::from_secs(at + 1));
}
