//! On real servers that sentinels watch: who the master is, also after another was promoted; and writes that replicas must
//! have before they count.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::error::Error;
use std::time::Duration;

use common::nodes::{Watched, info, named_by, patient, prompt};
use common::*;
use timertask_core::clock::{Clock, SystemClock};
use timertask_core::seam::{Claim, Durability, Ended, Ledger, Mutex, PlanOp, Refusal, StoreError, StoreErrorKind};
use timertask_redis::Redis;

fn try_claim(store: &Redis, at: i64, nonce: u128) -> Result<Claim, StoreError> {
    store.claim(&[request(&plan_key("p"), at, nonce)]).map(|mut answer| answer.value.remove(0))
}

/// All that a person may get to see of an error.
fn everything_said(error: &StoreError) -> String {
    let mut said = format!("{error} / {error:?}");
    let mut cause: Option<&dyn Error> = error.source();
    while let Some(error) = cause {
        said += &format!(" / {error} / {error:?}");
        cause = error.source();
    }
    said
}

#[test]
fn one_sentinel_of_several_is_enough_and_none_is_waited_for_long() {
    let mut watched = Watched::start();
    let store = prompt().connect(&watched.url()).unwrap();
    let at = open(&store, &plan_key("p")) + 1;
    watched.sentinels[0].kill();
    let store = prompt().connect(&watched.url()).unwrap();
    assert!(matches!(try_claim(&store, at, 1), Ok(Claim::Granted(_))));
    let frozen = watched.sentinels[1].freeze();
    let before = SystemClock.monotonic();
    let store = prompt().connect(&watched.url()).unwrap();
    assert_eq!(try_claim(&store, at, 2).unwrap(), Claim::Held);
    // Not a matter of speed: without time-outs it would wait until the sentinel goes on.
    assert!(SystemClock.monotonic() - before < Duration::from_secs(30));
    drop(frozen);
    let unknown = watched.url().replace("/main", "/other");
    let error = patient().connect(&unknown).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{}", everything_said(&error));
    watched.sentinels.iter_mut().for_each(Server::kill);
    let error = prompt().connect(&watched.url()).unwrap_err();
    assert_eq!((error.kind(), error.outcome_unknown()), (StoreErrorKind::Unreachable, false));
    // What is connected goes on without them.
    assert!(matches!(try_claim(&store, at + 1, 1), Ok(Claim::Granted(_))));
}

#[test]
fn a_promotion_is_followed() {
    let watched = Watched::start();
    watched.until_known();
    let store = prompt().connect(&watched.url()).unwrap();
    let at = open(&store, &plan_key("p")) + 1;
    let running = request(&plan_key("p"), at, 1);
    let before = grant(&store, &running);
    let _: redis::Value = watched.sentinels[0].tell(&["SENTINEL", "FAILOVER", "main"]);
    until(|| (named_by(&watched.sentinels[0]) == watched.replica.port()).then_some(()));
    // Each call meanwhile is a fault or the truth, and soon it goes on where the sentinels say.
    let after = until(|| match try_claim(&store, at + 1, 1) {
        Ok(Claim::Granted(grant)) => (info(&watched.master, "role")? == "slave").then_some(grant),
        Ok(other) => panic!("{other:?}"),
        Err(_) => None,
    });
    assert!(after.fence > before.fence);
    assert_eq!(try_claim(&store, at, 2).unwrap(), Claim::Held, "what ran is known there");
    let ended = until(|| store.end(&[success(&running, &before)]).ok());
    assert!(matches!(ended.value[0], Ended::Recorded(_) | Ended::AlreadyRecorded), "{ended:?}");
    // The one that was the master tells nothing any more, and is not taken for it.
    until(|| watched.master.try_connect().err().filter(|error| error.kind() == StoreErrorKind::ReadOnly));
    assert_eq!(info(&watched.replica, "role").unwrap(), "master");
}

/// A connection to what has become a replica is given up, for reading too: it would tell what was.
#[test]
fn a_server_that_became_a_replica_is_left_also_by_readers() {
    let (server, master) = (Server::start(&[]), Server::start(&[]));
    let config = format!("sentinel monitor main 127.0.0.1 {} 1\n", server.port());
    let sentinel = Server::start_sentinel(&config);
    let store = prompt().connect(&format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port())).unwrap();
    let plan = plan_key("p");
    open(&store, &plan);
    let read = |store: &Redis| store.plan(&[(plan.clone(), PlanOp::Read)]).map(|answer| answer.value[0].row.is_some());
    assert!(read(&store).unwrap());
    let () = server.tell(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    // The sentinel names it still; a claim finds out, and so does a reader.
    for kind in [try_claim(&store, 1, 1).unwrap_err().kind(), read(&store).unwrap_err().kind()] {
        assert_eq!(kind, StoreErrorKind::ReadOnly);
    }
    // The sentinel watches another: both find it, with an empty ledger.
    let _: redis::Value = sentinel.tell(&["SENTINEL", "REMOVE", "main"]);
    let port = master.port().to_string();
    let _: redis::Value = sentinel.tell(&["SENTINEL", "MONITOR", "main", "127.0.0.1", &port, "1"]);
    assert_eq!(until(|| try_claim(&store, 1, 1).ok()), Claim::Refused(Refusal::Unknown));
    assert!(!until(|| read(&store).ok()));
}

/// The replica that is promoted has not seen the last claims, nor the counter of fences. Fences rise all the same.
#[test]
fn fault_08_fences_rise_where_the_promoted_replica_had_fallen_behind() {
    let mut watched = Watched::start();
    watched.until_known();
    let store = prompt().connect(&watched.url()).unwrap();
    let at = open(&store, &plan_key("p")) + 1;
    let seen = grant(&store, &request(&plan_key("p"), at, 1));
    let offset = || info(&watched.master, "master_repl_offset").unwrap().parse::<u64>().unwrap();
    let had = until(|| {
        let has: u64 = info(&watched.replica, "slave_repl_offset")?.parse().ok()?;
        (has >= offset()).then_some(has)
    });
    // From here on the replica is shut out.
    let mut raw = watched.master.raw();
    let () = redis::cmd("CONFIG").arg(&["SET", "requirepass", "shut-out"]).query(&mut raw).unwrap();
    let _: i64 = redis::cmd("CLIENT").arg(&["KILL", "TYPE", "replica"]).query(&mut raw).unwrap();
    let lost: Vec<_> = (1..20).map(|n| grant(&store, &request(&plan_key("p"), at + n, 1))).collect();
    assert_eq!(info(&watched.replica, "slave_repl_offset").unwrap().parse::<u64>().unwrap(), had);
    watched.master.kill();
    until(|| (named_by(&watched.sentinels[0]) == watched.replica.port()).then_some(()));
    let held = until(|| try_claim(&store, at, 2).ok());
    assert_eq!(held, Claim::Held, "what was replicated is known");
    let Claim::Granted(again) = until(|| try_claim(&store, at + 1, 2).ok()) else { panic!("it was lost") };
    assert!(again.fence > lost.last().unwrap().fence && again.fence > seen.fence);
}

#[test]
fn sentinels_have_credentials_of_their_own_and_nobody_is_told_them() {
    let master = Server::start(&["--requirepass", "sesame-master"]);
    let config = format!(
        "sentinel monitor main 127.0.0.1 {} 1\nsentinel auth-pass main sesame-master\nrequirepass sesame-sentinel\n\
         user watcher on >sesame-watcher +sentinel|get-master-addr-by-name\n",
        master.port()
    );
    let sentinel = Server::start_sentinel(&config);
    let url = |password: &str| format!("redis+sentinel://:{password}@127.0.0.1:{}/main", sentinel.port());
    let options = || patient().sentinel_password("sesame-sentinel");
    let store = options().connect(&url("sesame-master")).unwrap();
    let at = open(&store, &plan_key("p")) + 1;
    let watcher = patient().sentinel_username("watcher").sentinel_password("sesame-watcher");
    let other = watcher.clone().connect(&url("sesame-master")).unwrap();
    assert!(matches!(try_claim(&other, at, 1), Ok(Claim::Granted(_))));
    let mut said = format!("{store:?} {:?} {watcher:?}", options());
    for refused in [
        patient().connect(&url("sesame-master")),
        patient().sentinel_password("sesame-wrong").connect(&url("sesame-master")),
        options().connect(&url("sesame-wrong")),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Auth, "{}", everything_said(&error));
        said += &everything_said(&error);
    }
    assert!(!said.contains("sesame"), "{said}");
}

/// With `min_replicas` nothing counts that is on the master alone.
#[test]
fn what_too_few_replicas_have_is_a_fault_and_never_a_grant() {
    let master = Server::start(&[]);
    let port = master.port().to_string();
    let options = || patient().min_replicas(1, Duration::from_millis(300));
    let refused = options().connect(&master.url()).unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Full, "there is no replica yet: {refused}");
    assert!(refused.to_string().contains("replica"), "{refused}");
    let replica = Server::start(&["--replicaof", "127.0.0.1", &port]);
    let store = until(|| options().connect(&master.url()).ok());
    assert_eq!(store.describe().unwrap(), Durability::Replicated { acknowledged_by: 1 });
    let two = patient().min_replicas(2, Duration::from_millis(1)).connect(&master.url()).unwrap_err();
    assert_eq!(two.kind(), StoreErrorKind::Full);
    let plan = plan_key("p");
    let at = until(|| {
        let op = PlanOp::Open { fingerprint: fingerprint(1), replaces: None };
        store.plan(&[(plan.clone(), op)]).ok()?.value.remove(0).row
    });
    let at = at.generation.effective_from.as_secs() + 1;
    let running = request(&plan, at, 1);
    let granted = until(|| try_claim(&store, at, 1).ok());
    let Claim::Granted(granted) = granted else { panic!("{granted:?}") };

    let frozen = replica.freeze();
    let told = |what: &str, done: Result<(), StoreError>| {
        let error = done.unwrap_err();
        assert_eq!((error.kind(), error.outcome_unknown()), (StoreErrorKind::Full, true), "{what}: {error}");
    };
    told("claim", try_claim(&store, at + 1, 1).map(drop));
    told("the same again", try_claim(&store, at + 1, 1).map(drop));
    told("end", store.end(&[success(&running, &granted)]).map(drop));
    told("the same end again", store.end(&[success(&running, &granted)]).map(drop));
    let pause = PlanOp::Pause { by: "b".into(), why: "w".into(), until: None };
    told("change of a plan", store.plan(&[(plan.clone(), pause)]).map(drop));
    let key = running.key.clone();
    let nonce = running.nonce;
    told("lock", store.try_lock(&key, nonce, Duration::from_secs(9)).map(drop));
    drop(frozen);
    let claim = until(|| try_claim(&store, at + 1, 1).ok());
    assert!(matches!(claim, Claim::Granted(_)), "asked again with the same nonce: {claim:?}");
    assert!(matches!(store.end(&[success(&running, &granted)]).unwrap().value[0], Ended::AlreadyRecorded));

    // Whatever else `WAIT` comes to: by then the claim has been carried out.
    let other = plan_key("q");
    let at = open(&store, &other) + 1;
    let () = master.tell(&["ACL", "SETUSER", "default", "-wait"]);
    let error = store.claim(&[request(&other, at, 1)]).unwrap_err();
    assert_eq!((error.kind(), error.outcome_unknown()), (StoreErrorKind::Auth, true), "{error}");
    assert_eq!(common::claim(&master.connect(), &request(&other, at, 2)), Claim::Held);
    let () = master.tell(&["ACL", "SETUSER", "default", "+wait"]);
    let for_ever = patient().min_replicas(1, Duration::MAX).connect(&master.url()).unwrap();
    for store in [&store, &for_ever] {
        grant(store, &request(&other, at, 1));
    }
}

/// Slow: sentinels wait before they agree that a master is lost. Run by `scripts/soak`.
#[test]
#[ignore = "each failover takes several seconds; scripts/soak runs it"]
fn soak_master_after_master_is_lost_and_what_was_acknowledged_stays() {
    let mut watched = Watched::start();
    watched.until_known();
    let store = until(|| prompt().min_replicas(1, Duration::from_secs(1)).connect(&watched.url()).ok());
    let plan = plan_key("p");
    let at = open(&store, &plan) + 1;
    let mut granted = Vec::new();
    for round in 0..4 {
        for n in 0..50 {
            let request = request(&plan, at + round * 50 + n, 1);
            let answer = until(|| store.claim(std::slice::from_ref(&request)).ok());
            let Claim::Granted(grant) = &answer.value[0] else { panic!("{answer:?}") };
            assert!(granted.last().is_none_or(|(_, fence)| *fence < grant.fence));
            granted.push((request, grant.fence));
        }
        let lost = if round % 2 == 0 { &mut watched.master } else { &mut watched.replica };
        lost.kill();
        let promoted = if round % 2 == 0 { watched.replica.port() } else { watched.master.port() };
        until(|| (named_by(&watched.sentinels[0]) == promoted).then_some(()));
        let plain = until(|| prompt().connect(&watched.url()).ok());
        for (request, fence) in &granted {
            let Claim::Granted(again) = claim(&plain, request) else { panic!("{} was lost", request.key) };
            assert_eq!(again.fence, *fence, "what one replica had acknowledged is there");
        }
        let back = if round % 2 == 0 { &mut watched.master } else { &mut watched.replica };
        back.start_again();
        until(|| store.describe().ok());
    }
}
