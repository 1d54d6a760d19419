//! Networks that lose, cut, double and delay what they carry.

use std::time::Duration;

use timertask_core::clock::SystemClock;
use timertask_core::seam::SlotState;
use timertask_redis::Redis;

use crate::common::clock::FAST;
use crate::common::proxy::{Fate, Proxy};
use crate::common::*;
use crate::service::*;

/// The claim was carried out, its answer lost: it is asked again with the same nonce, gets the same fence, and is entered
/// once.
#[test]
fn a_claim_whose_answer_was_lost_is_asked_again_and_entered_once() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.port());
    let journal = Journal::default();
    let store = Redis::options().response_timeout(SHORT).connect(&proxy.url()).unwrap();
    let scheduler = instance(store, &journal, FAST);
    journal.until_held();
    journal.release();
    journal.until_more_than(3);
    proxy.only(claim_script().get_hash());
    proxy.answers(Fate::Swallow);
    let store = server.connect();
    let is_entered = |at| journal.entered().iter().any(|(plan, entered, _)| plan == TICK && *entered == at);
    let unknown = until(|| {
        // Its client has given up: nobody is about to enter it.
        let faults = scheduler.stats().store_faults;
        let mut rows = slots(&store, TICK).into_iter();
        rows.find(|slot| slot.state == SlotState::Running && faults > 2 && !is_entered(slot.key.at))
    });
    proxy.heal();
    until(|| is_entered(unknown.key.at).then_some(()));
    until_settled(&store);
    close(&scheduler);
    journal.is_recorded(&store);
    let row = slots(&store, TICK).into_iter().find(|slot| slot.key.at == unknown.key.at).unwrap();
    assert_eq!((row.fence, row.nonce, row.attempt), (unknown.fence, unknown.nonce, 1));
}

/// Two instances, each behind a network of its own in which one piece in five meets a mishap, in either direction.
#[test]
fn soak_a_network_full_of_mishaps_starts_no_slot_twice() {
    let seconds = std::env::var("TIMERTASK_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(8_u64);
    let server = Server::start(&[]);
    let journal = Journal::default();
    journal.release();
    let seed = timertask_core::clock::Clock::entropy(&SystemClock);
    println!("seed {seed}");
    let (proxies, instances): (Vec<_>, Vec<_>) = [seed, !seed]
        .into_iter()
        .map(|seed| {
            let proxy = Proxy::to(server.port());
            proxy.seed(seed);
            let store = Redis::options().connect_timeout(SHORT).response_timeout(SHORT).connect(&proxy.url()).unwrap();
            let scheduler = instance(store, &journal, SystemClock);
            proxy.requests(Fate::AnyOf);
            proxy.answers(Fate::AnyOf);
            (proxy, scheduler)
        })
        .unzip();
    wait(Duration::from_secs(seconds));
    let faults: u64 = instances.iter().map(|scheduler| scheduler.stats().store_faults).sum();
    assert!(faults > 0 && journal.len() > 0, "{faults} faults, {} runs", journal.len());
    proxies.iter().for_each(Proxy::heal);
    let before = journal.len();
    journal.until_more_than(before + 2);
    let store = server.connect();
    until_settled(&store);
    instances.iter().for_each(close);
    println!("{faults} faults, {} runs", journal.len());
    journal.is_recorded(&store);
}
