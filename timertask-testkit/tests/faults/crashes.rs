//! What a crash leaves behind.

use timertask_core::key::{InstanceId, Namespace, Nonce, PlanId, PlanKey, SlotKey};
use timertask_core::operate::Reason;
use timertask_core::seam::{Claim, ClaimRequest, Ending, Gate, NotStarted, Overlap, RunKind, SlotState};
use timertask_core::{Job, Jobs, Plan};
use timertask_testkit::{Call, Cluster, Fault};

use super::*;

/// Killed before and after each of its first writes, of each kind, and restarted: within lease and sweeps every slot is
/// accounted for, and the next ones start.
#[test]
fn fault_17_a_crash_at_any_write_is_put_right() {
    let mut crashes = 0;
    for call in [Call::Plan, Call::Claim, Call::Renew, Call::End] {
        let before = crashes;
        for nth in 1..=8 {
            for after in [false, true] {
                let seed = nth * 2 + u64::from(after);
                let mut cluster =
                    Cluster::builder().instances(2).seed(seed).plans(minute_plans(3)).job(lasting(secs(25))).build();
                let view = cluster.view(0).clone();
                let kill = move || view.kill();
                let store = cluster.store_of(0);
                store.on(call).nth(nth, if after { Fault::after(kill) } else { Fault::before(kill) });
                cluster.advance(minutes(3));
                // Edits write, too.
                cluster.reconcile(minute_plans(4));
                cluster.advance(minutes(2));
                cluster.reconcile(minute_plans(3));
                cluster.advance(minutes(1));
                crashes += u64::from(!cluster.view(0).is_alive());
                cluster.restart(0);
                cluster.advance(minutes(3));
                let recent = minute(6).timestamp();
                (0..3).for_each(|i| cluster.expect_each_once(&format!("plan-{i}"), recent, minute(8).timestamp()));
                assert_eq!(cluster.check().pending, 0, "{call} {nth}, after: {after}");
            }
        }
        assert!(crashes > before, "no crash at {call}");
    }
}

#[test]
fn fault_19_a_killed_run_does_not_block_the_ones_after_it() {
    let mut cluster = Cluster::builder()
        .instances(2)
        .seed(19)
        .plans([Plan::new("p", "*/5 * * * *").overlap(Overlap::Skip)])
        .job(lasting(minutes(2)))
        .build();
    cluster.advance(minutes(6));
    let runner = cluster.starts()[0].instance;
    cluster.kill(runner);
    cluster.advance(minutes(3));
    cluster.expect_state("p", minute(5), SlotState::Ended(Ending::Orphaned));
    cluster.advance(minutes(20));
    cluster.expect_each_once("p", minute(5).timestamp(), cluster.now());
    cluster.check();
}

fn slow_and_quick() -> impl Job {
    Jobs::new().on("slow", lasting(minutes(10))).on("quick", |_: &Run| Ok(()))
}

#[test]
fn fault_20_a_killed_owner_delays_its_own_slot_only() {
    let plans = [Plan::new("slow", "10 * * * *"), Plan::new("quick", "* * * * *")];
    let mut cluster = Cluster::builder().instances(2).seed(20).plans(plans).job(slow_and_quick()).build();
    cluster.advance(minutes(11));
    let owner = cluster.starts_of("slow")[0].instance;
    cluster.kill(owner);
    cluster.restart(owner);
    cluster.advance(minutes(120));
    for start in cluster.starts_of("quick") {
        assert_eq!(start.at, start.slot.at.timestamp(), "on time: {start}");
    }
    cluster.expect_each_once("quick", midnight(), cluster.now());
    cluster.expect_each_once("slow", midnight(), cluster.now());
    let next = &cluster.starts_of("slow")[1];
    assert_eq!(next.at, minute(70).timestamp(), "{next}");
    cluster.check();
}

#[test]
fn fault_20_a_stopped_owner_gives_back_what_it_has_not_entered() {
    let mut cluster = Cluster::builder().instances(2).seed(20).plans([Plan::new("p", "*/10 * * * *")]).build();
    // Its grant is on the way home when it is told to close.
    cluster.store_of(0).on(Call::Claim).nth(1, Fault::SlowAnswer(secs(5)));
    cluster.cut_off(1);
    cluster.advance(minutes(10) + secs(2));
    cluster.stop(0, secs(30));
    cluster.expect_starts("p", 0);
    cluster.expect_state("p", minute(10), SlotState::Open);
    cluster.reconnect(1);
    cluster.advance(secs(40));
    cluster.expect_each_once("p", midnight(), cluster.now());
    assert_eq!(cluster.starts()[0].instance, 1);
    cluster.check();
}

#[test]
fn fault_21_the_row_of_a_dead_run_is_named_and_does_not_block_for_long() {
    let plans = [Plan::new("p", "* * * * *").overlap(Overlap::Skip)];
    let mut cluster = Cluster::builder().instances(2).seed(21).plans(plans).build();
    cluster.advance(secs(30));
    let plan = PlanKey::new(Namespace::default(), PlanId::new("p").unwrap());
    let key = SlotKey { plan, at: minute(1), request: None };
    let fingerprint = cluster.scheduler(0).plan("p").unwrap().unwrap().fingerprint;
    let dead = ClaimRequest {
        key: key.clone(),
        nonce: Nonce::from_bits(21),
        fingerprint,
        prev: Some(minute(0)),
        kind: RunKind::Scheduled,
        asked: None,
        gate: Gate::Policy(Overlap::Skip),
        attempts_allowed: 1,
        ttl: secs(30),
        instance: InstanceId::new("long gone").unwrap(),
        version: None,
    };
    assert!(matches!(cluster.ledger().claim(&[dead]).unwrap().value[0], Claim::Granted(_)));
    cluster.advance(secs(30) + secs(1));
    // The row that stands in the way has a name.
    for index in 0..2 {
        let why = cluster.scheduler(index).why("p");
        let Some(Reason::Running(holder)) = why.reasons.first() else { panic!("{why}") };
        assert_eq!((&holder.slot, holder.instance.as_ref().unwrap().as_str()), (&key, "long gone"));
        assert!(holder.lapsed && holder.blocks == Some(Overlap::Skip), "{why}");
        assert_eq!(holder.swept_by, minute(1).timestamp().saturating_add(secs(30)), "{why}");
    }
    cluster.advance(minutes(5));
    cluster.expect_state("p", minute(1), SlotState::Ended(Ending::Orphaned));
    for start in cluster.starts() {
        assert!(start.slot.at >= minute(2), "{start}");
    }
    let blocked = cluster.rows("p").iter().filter(|r| r.state == SlotState::NotStarted(NotStarted::Overlap)).count();
    assert!(blocked <= 1, "lease and sweeps are over before the slot after next: {blocked}");
    cluster.expect_each_once("p", minute(2).timestamp(), cluster.now());
}
