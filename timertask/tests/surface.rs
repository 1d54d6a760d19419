//! What a service can name and do with it: each path of the facade exists, handles go to other threads, seams can be
//! used as `dyn`, errors can be passed on. It is the compiler that fails here.

use std::error::Error;
use std::fmt::Debug;
use std::sync::Arc;

fn shared<T: Debug + Send + Sync + 'static>() {}
fn handle<T: Clone + Debug + Send + Sync + 'static>() {}
fn error<T: Error + Send + Sync + 'static>() {}

#[test]
fn handles_and_values_go_to_other_threads() {
    use timertask::*;
    handle::<Scheduler>();
    handle::<Run>();
    handle::<Plan>();
    handle::<PlanView>();
    handle::<MemLedger>();
    handle::<LocalMutex>();
    handle::<Schedule>();
    handle::<ScheduleOptions>();
    handle::<RunRecord>();
    handle::<ReconcileReport>();
    handle::<CloseReport>();
    handle::<Stats>();
    handle::<Health>();
    handle::<clock::Signal>();
    handle::<PlanId>();
    handle::<SlotKey>();
    handle::<Namespace>();
    handle::<InstanceId>();
    handle::<RequestId>();
    handle::<(Fence, Fingerprint, Timestamp, Trigger, Window, RetryBudget, DropGuard, Retention)>();
    handle::<(CatchUp, OnOrphan, Overlap, Dst, Dialect, SpecLimits, EveryBase, RunKind, Ending, NotStarted)>();
    shared::<SystemClock>();
    shared::<Jobs>();
    shared::<Builder>();
}

#[test]
fn errors_can_be_passed_on() {
    use timertask::*;
    error::<StartError>();
    error::<SchedulerError>();
    error::<CloseError>();
    error::<StoreError>();
    error::<IdError>();
    error::<PlanError>();
    error::<SpecError>();
    error::<DstError>();
    error::<Stop>();
    error::<Permanent>();
}

#[test]
fn seams_are_dyn_and_an_arc_forwards() {
    use timertask::*;
    struct Nobody;
    impl Observer for Nobody {}
    fn ledger(_: impl Ledger + 'static) {}
    fn mutex(_: impl Mutex + 'static) {}
    fn clock(_: impl Clock + 'static) {}
    fn job(_: impl Job + 'static) {}
    fn observer(_: impl Observer + 'static) {}
    fn source(_: impl PlanSource + 'static) {}
    fn board<B: Board + ?Sized>() {}
    ledger(Arc::new(MemLedger::new()) as Arc<dyn Ledger>);
    mutex(Arc::new(LocalMutex::new()) as Arc<dyn Mutex>);
    clock(Arc::new(SystemClock) as Arc<dyn Clock>);
    job(Arc::new(|_: &Run| Ok(())) as Arc<dyn Job>);
    job(Arc::new(Jobs::new()));
    observer(Arc::new(Nobody) as Arc<dyn Observer>);
    source(Arc::new(|| Ok(Vec::new())) as Arc<dyn PlanSource>);
    board::<Arc<dyn Board>>();
}

#[test]
fn the_modules_for_authors_of_stores_are_there() {
    use timertask::key::{LockKey, Nonce, PlanKey};
    use timertask::seam::{Claim, ClaimRequest, Durability, EndRequest, Page, PlanOp, PlanState, Query, Renewal, Term};
    handle::<(LockKey, PlanKey, Nonce)>();
    handle::<(Claim, ClaimRequest, Durability, EndRequest)>();
    handle::<(Page, PlanOp, PlanState, Query)>();
    handle::<(Renewal, Term)>();
    let _ = (timertask::rules::next_fence, timertask::rules::lapsed);
    let _ = timertask::time::Timestamp::from_micros(0);
    assert!(!timertask::ZONE_DATA_VERSION.is_empty());
}

#[cfg(feature = "sqlite")]
#[test]
fn sqlite_is_a_module_of_the_facade() {
    use timertask::sqlite::{EndInError, Options, Sqlite, rusqlite};
    handle::<Sqlite>();
    handle::<Options>();
    error::<EndInError>();
    error::<rusqlite::Error>();
    fn store(_: impl Fn(Sqlite) -> (Arc<dyn timertask::Ledger>, Arc<dyn timertask::Mutex>, Arc<dyn timertask::Board>)) {
    }
    store(|sqlite| (Arc::new(sqlite.clone()), Arc::new(sqlite.clone()), Arc::new(sqlite)));
}

#[cfg(feature = "redis")]
#[test]
fn redis_is_a_module_of_the_facade() {
    use timertask::redis::{Options, Redis};
    handle::<Redis>();
    handle::<Options>();
    fn store(_: impl Fn(Redis) -> (Arc<dyn timertask::Ledger>, Arc<dyn timertask::Mutex>, Arc<dyn timertask::Board>)) {}
    store(|redis| (Arc::new(redis.clone()), Arc::new(redis.clone()), Arc::new(redis)));
}
