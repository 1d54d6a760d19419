//! Requests of another process, by the store's notice board.

use timertask_core::key::SlotKey;
use timertask_core::operate::{Accepted, Standing};
use timertask_core::seam::{Board, Ending, Posting, PostingKind, Query, SlotState, Store, StoreErrorKind};
use timertask_core::{Clock, OperateError, RequestId, RunNow, Timestamp};
use timertask_testkit::{Call, Cluster, Fault};

use super::*;

fn id(text: &str) -> RequestId {
    RequestId::new(text).unwrap()
}

fn now(text: &str) -> RunNow {
    RunNow::new(ana()).id(id(text))
}

fn outside(cluster: &Cluster) -> Operator {
    Operator::of_store(cluster.store(), Namespace::default()).clock(cluster.clock().clone())
}

/// What stands on the board.
fn posted(store: &impl Board, kind: PostingKind) -> Vec<Posting> {
    store.list(&Namespace::default(), kind).unwrap().value
}

/// Puts up a `run_now` of `p` without waiting for it.
fn post(store: &impl Store, id: &str, force: bool, until: Timestamp) {
    let at = store.describe().map(|_| posted_at(store)).unwrap();
    let force = if force { "yes" } else { "no" };
    let body = format!(
        "timertask-request 1\ndo run-now\nplan p\nid {id}\nby ana\nwhy the database moves\nat {at}\nforce {force}\n"
    );
    put(store, &format!("run-now\np\n{id}"), &body, until);
}

fn put(store: &impl Board, key: &str, body: &str, until: Timestamp) {
    let posting = Posting {
        namespace: Namespace::default(),
        kind: PostingKind::Request,
        key: key.to_owned(),
        body: body.to_owned(),
        until,
    };
    let _ = store.post(&posting).unwrap();
}

fn posted_at(store: &impl Board) -> i64 {
    store.list(&Namespace::default(), PostingKind::Request).unwrap().now.trigger().as_secs()
}

fn daily(instances: usize) -> Cluster {
    Cluster::builder().instances(instances).stagger(secs(3)).plans([Plan::new("p", "0 2 * * *")]).build()
}

#[test]
fn another_process_asks_and_one_instance_runs_it() {
    let mut cluster = daily(3);
    cluster.advance(secs(60));
    let operator = outside(&cluster);
    let before = cluster.now();
    let Accepted { slot, standing, .. } = operator.run_now("p", &now("x")).unwrap();
    assert_eq!((standing, slot.at, slot.request.as_ref()), (Standing::Started, before.trigger(), Some(&id("x"))));
    assert!(cluster.now().since(before) <= secs(11), "an instance looks every ten seconds");
    cluster.advance(secs(60));
    cluster.expect_starts("p", 1);
    let row = cluster.rows("p").pop().unwrap();
    assert_eq!((row.key, row.asked.as_deref()), (slot.clone(), Some(&ana())));
    for kind in [PostingKind::Request, PostingKind::Answer] {
        assert_eq!(posted(&cluster.store(), kind), [], "{kind:?}");
    }
    let again = operator.run_now("p", &now("x")).unwrap();
    assert_eq!((again.slot, again.standing), (slot, Standing::Ended(Ending::Succeeded)));
    cluster.check();
}

#[test]
fn the_instance_that_has_the_plan_takes_it_and_what_is_refused_is_told() {
    let mut cluster = Cluster::builder().instances(2).job(|run: &Run| Ok(run.wait(secs(60))?)).build();
    cluster.reconcile_on(1, [Plan::new("p", "0 2 * * *")]);
    cluster.advance(secs(30));
    let operator = outside(&cluster);
    assert_eq!(operator.run_now("p", &now("x")).unwrap().standing, Standing::Started);
    assert_eq!(cluster.starts()[0].instance, 1);
    assert_eq!(operator.run_now("p", &now("x")).unwrap().standing, Standing::Running);
    let error = operator.run_now("p", &now("y")).unwrap_err();
    assert!(matches!(&error, OperateError::Refused(why) if why.contains("overlap policy")), "{error:?}");
    assert_eq!(operator.run_now("p", &now("y").force()).unwrap().standing, Standing::Started);
    let error = operator.run_now("q", &now("x")).unwrap_err();
    assert!(matches!(&error, OperateError::Unknown(plan) if plan.as_str() == "q"), "{error:?}");
    cluster.reconcile_on(1, []);
    cluster.advance(secs(100));
    assert!(matches!(operator.run_now("p", &now("z")), Err(OperateError::Closed(_))));
    let operator = Operator::new(cluster.store(), Namespace::default());
    assert!(matches!(operator.run_now("p", &now("z")), Err(OperateError::NoBoard)));
    cluster.expect_starts("p", 2);
}

#[test]
fn what_nobody_takes_up_is_taken_back() {
    let mut cluster = daily(1);
    cluster.kill(0);
    let before = cluster.now();
    let error = outside(&cluster).run_now("p", &now("x").within(secs(25))).unwrap_err();
    assert_eq!(error.to_string(), "no answer within 25s; the request was taken back");
    assert_eq!(cluster.now().since(before), secs(25));
    assert_eq!(posted(&cluster.store(), PostingKind::Request), []);
    cluster.restart(0);
    cluster.advance(secs(60));
    cluster.expect_starts("p", 0);
}

#[test]
fn a_request_that_has_ended_is_run_by_nobody() {
    let mut cluster = daily(1);
    cluster.kill(0);
    post(&cluster.store(), "late", false, cluster.now().saturating_add(secs(60)));
    cluster.advance(secs(61));
    cluster.restart(0);
    cluster.advance(secs(60));
    cluster.expect_starts("p", 0);
    post(&cluster.store(), "in time", false, cluster.now().saturating_add(secs(60)));
    cluster.advance(secs(15));
    cluster.expect_starts("p", 1);
}

#[test]
fn two_instances_that_see_the_same_request_start_it_once() {
    for seed in 0..20 {
        let mut cluster = Cluster::builder().instances(3).seed(seed).plans([Plan::new("p", "0 2 * * *")]).build();
        // All of them look before any takes it off.
        for i in 0..3 {
            cluster.store_of(i).on(Call::Take).next(2, Fault::Error(StoreErrorKind::Unreachable));
            cluster.store_of(i).on(Call::Post).next(1, Fault::Error(StoreErrorKind::Unreachable));
        }
        post(&cluster.store(), "x", false, cluster.now().saturating_add(secs(300)));
        cluster.advance(secs(100));
        cluster.expect_starts("p", 1);
        assert_eq!(posted(&cluster.store(), PostingKind::Request), []);
        assert_eq!(posted(&cluster.store(), PostingKind::Answer).len(), 1);
        cluster.check();
    }
}

#[test]
fn an_instance_that_dies_at_any_step_leaves_the_request_to_the_next() {
    // Which call it dies at, and whether the call is carried out before.
    let calls = [Call::List, Call::Claim, Call::Post, Call::Take, Call::End];
    for (call, after) in calls.into_iter().flat_map(|call| [(call, false), (call, true)]) {
        for on_orphan in [timertask_core::OnOrphan::Record, timertask_core::OnOrphan::Rerun { max: 1 }] {
            let plan = Plan::new("p", "0 2 * * *").on_orphan(on_orphan);
            let mut cluster = Cluster::builder().instances(2).stagger(secs(5)).plans([plan]).build();
            cluster.advance(secs(30));
            for i in 0..2 {
                // Whoever is first dies; the other one has its life.
                let (view, other) = (cluster.view(i).clone(), cluster.view(1 - i).clone());
                let die = move || {
                    if other.is_alive() {
                        view.kill();
                    }
                };
                let fault = if after { Fault::after(die) } else { Fault::before(die) };
                cluster.store_of(i).on(call).next(1, fault);
            }
            post(&cluster.store(), "x", false, cluster.now().saturating_add(secs(600)));
            cluster.advance(secs(300));
            let what = format!("{call:?} after {after} {on_orphan:?}");
            let row = cluster.rows("p").pop().unwrap_or_else(|| panic!("{what}: no row"));
            let ended = matches!(row.state, SlotState::Ended(_));
            assert!(ended, "{what}: {}", row.state);
            let reruns = usize::from(on_orphan != timertask_core::OnOrphan::Record);
            // Granted and dead before its entry: a start all the same, which the ledger cannot tell from one that was entered.
            assert!(cluster.starts().len() <= 1 + reruns, "{what}: {:?}", cluster.starts());
            assert!(!cluster.starts().is_empty() || (call == Call::Claim && after && reruns == 0), "{what}");
            assert_eq!(posted(&cluster.store(), PostingKind::Request), [], "{what}");
            cluster.check();
        }
    }
}

#[test]
fn faults_of_the_store_in_each_step_start_nothing_twice() {
    let faults = [
        Fault::Error(StoreErrorKind::Busy),
        Fault::LostRequest,
        Fault::LostAnswer,
        Fault::Straggler(secs(25)),
        Fault::SlowAnswer(secs(12)),
        Fault::Duplicate,
        Fault::DuplicateLater(secs(25)),
    ];
    for call in [Call::List, Call::Claim, Call::Post, Call::Take, Call::Read] {
        for fault in &faults {
            let mut cluster = daily(2);
            cluster.advance(secs(30));
            for i in 0..2 {
                cluster.store_of(i).on(call).next(2, fault.clone());
            }
            post(&cluster.store(), "x", false, cluster.now().saturating_add(secs(50)));
            cluster.advance(secs(300));
            assert!(cluster.starts().len() <= 1, "{call:?} {fault:?}");
            let query = Query::Slots(vec![SlotKey { ..slot_of(&cluster) }]);
            let rows = cluster.ledger().read(&query).unwrap().value.slots;
            let open = rows.iter().any(|row| matches!(row.state, SlotState::Running | SlotState::Open));
            assert!(!open, "{call:?} {fault:?}: {rows:?}");
            cluster.check();
        }
    }
}

fn slot_of(cluster: &Cluster) -> SlotKey {
    SlotKey { plan: key("p"), at: cluster.now().trigger(), request: Some(id("x")) }
}

#[test]
fn what_is_not_understood_is_left_and_told_once() {
    let mut cluster = daily(1);
    let until = cluster.now().saturating_add(secs(100));
    let good = "timertask-request 1\ndo run-now\nplan p\nid x\nby ana\nwhy w\nat 1767225600\nforce no\n";
    let bodies = [
        String::new(),
        "\u{0}".repeat(3),
        "do run-now".to_owned(),
        good.replace("request 1", "request 2"),
        good.replace("id x", "id "),
        good.replace("at 1767225600", "at noon"),
        good.replace("force no", "force no\nat 3"),
        good.trim_end().to_owned(),
        // Under the key of another request.
        good.to_owned(),
    ];
    for (n, body) in bodies.iter().enumerate() {
        put(&cluster.store(), &format!("odd {n}"), body, until);
    }
    cluster.advance(secs(50));
    cluster.expect_starts("p", 0);
    assert_eq!(posted(&cluster.store(), PostingKind::Request).len(), bodies.len());
    assert!(cluster.scheduler(0).health().threads_panicked.is_empty());
    // It goes on with those that it understands.
    put(&cluster.store(), "run-now\np\nx", good, until);
    cluster.advance(secs(15));
    cluster.expect_starts("p", 1);
    cluster.advance(secs(100));
    assert_eq!(posted(&cluster.store(), PostingKind::Request), []);
}

#[test]
fn a_flood_of_requests_is_worked_off_at_its_limit() {
    let mut cluster = Cluster::builder().plans([Plan::new("p", "0 2 * * *")]).build();
    cluster.advance(secs(30));
    let until = cluster.now().saturating_add(secs(600));
    for n in 0..100 {
        post(&cluster.store(), &n.to_string(), true, until);
    }
    cluster.advance(secs(11));
    assert!((60..80).contains(&cluster.starts().len()), "{}", cluster.starts().len());
    cluster.advance(secs(60));
    cluster.expect_starts("p", 100);
    cluster.check();
}

#[test]
fn without_a_board_an_instance_asks_its_store_nothing_more() {
    let calls = |cluster: &Cluster| cluster.store_of(0).calls(Call::List);
    let mut with = daily(1);
    with.advance(secs(600));
    assert!((58..=61).contains(&calls(&with)), "{}", calls(&with));
    let ledger = |clock: std::sync::Arc<dyn Clock>| MemLedger::with_clock(clock);
    let mut without = Cluster::builder().ledger(ledger).plans([Plan::new("p", "0 2 * * *")]).build();
    without.advance(secs(600));
    assert_eq!(calls(&without), 0);
    without.scheduler(0).run_now("p", &now("x")).unwrap();
    without.expect_starts("p", 1);
}
