//! Many at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use timertask_core::key::PlanKey;
use timertask_core::seam::{
    Applied, Claim, ClaimRequest, Cover, Ended, Ending, NotStarted, Overlap, Refusal, RunKind, SlotState,
};

use super::super::LedgerHarness;
use super::super::probe::{Probe, nonce};

const THREADS: usize = 4;
const SLOTS: i64 = 25;

fn another<H: LedgerHarness>(harness: &H, p: &Probe<H::Ledger>) -> Probe<H::Ledger> {
    let plan = PlanKey::clone(&p.plan);
    Probe { ledger: harness.handle(), plan, base: p.base }
}

/// Of all who ask for a slot at once, one gets it, and the fences of all grants differ.
pub fn one_of_many_gets_a_slot<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let fences = std::thread::scope(|scope| {
        let ask = || {
            let p = another(harness, &p);
            let mut fences = Vec::new();
            for n in 1..=SLOTS {
                match p.claim(&p.free(n)) {
                    Claim::Granted(grant) => fences.push(grant.fence),
                    Claim::Held => {}
                    other => panic!("{other:?}"),
                }
            }
            fences
        };
        let askers: Vec<_> = (0..THREADS).map(|_| scope.spawn(ask)).collect();
        askers.into_iter().flat_map(join).collect::<Vec<_>>()
    });
    let mut different = fences.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!((fences.len(), different.len()), (25, 25), "each slot once, each fence once");
}

/// Runs of one plan under `QueueOne` exclude each other: a counter that is read and written without care loses nothing.
pub fn runs_of_a_plan_exclude_each_other<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let (counter, threads) = (AtomicU64::new(0), i64::try_from(THREADS).unwrap_or(1));
    std::thread::scope(|scope| {
        let (p, counter) = (&p, &counter);
        let work = |thread: i64| {
            let p = another(harness, p);
            for turn in 0..SLOTS {
                // Catch-up waits at a full gate and is superseded by nobody.
                let mut request = p.under(1 + thread + turn * threads, Overlap::QueueOne);
                request.kind = RunKind::CatchUp;
                request.prev = Some(p.at(1_000_000));
                let grant = loop {
                    match p.claim(&request) {
                        Claim::Granted(grant) => break grant,
                        Claim::Refused(Refusal::Full) => std::thread::yield_now(),
                        other => panic!("{other:?}"),
                    }
                };
                let seen = counter.load(Ordering::Relaxed);
                std::thread::yield_now();
                counter.store(seen + 1, Ordering::Relaxed);
                let ended = p.settle(&request, grant, Ending::Succeeded);
                assert_eq!(ended, Ended::Recorded(SlotState::Ended(Ending::Succeeded)));
            }
        };
        let workers: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        workers.into_iter().for_each(join);
    });
    let expected = u64::try_from(SLOTS * threads).unwrap_or(0);
    assert_eq!(counter.load(Ordering::Relaxed), expected, "two ran at once");
}

/// Of all who end a term at once, one records it.
pub fn one_of_many_ends_is_recorded<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    for n in 1..=5 {
        let request = p.free(n);
        let grant = p.grant(&request);
        let recorded = std::thread::scope(|scope| {
            let end = |ending| {
                let p = another(harness, &p);
                let request = request.clone();
                scope.spawn(move || p.settle(&request, grant, ending))
            };
            let enders: Vec<_> = Ending::ALL.into_iter().map(end).collect();
            enders.into_iter().map(join).filter(|ended| matches!(ended, Ended::Recorded(_))).count()
        });
        assert_eq!(recorded, 1);
    }
}

/// Of all who account from the same cursor at once, one does.
pub fn one_of_many_accounts_is_done<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(Duration::from_secs(3));
    let done = std::thread::scope(|scope| {
        let account = |_| {
            let p = another(harness, &p);
            let cover = Cover::Range { count: None, reason: NotStarted::TooLate };
            scope.spawn(move || p.op(p.account(0, 2, cover)))
        };
        let askers: Vec<_> = (0..THREADS).map(account).collect();
        askers.into_iter().map(join).filter(|applied| *applied == Applied::Done).count()
    });
    assert_eq!((done, p.ranges().len()), (1, 1));
}

/// The same decision, asked many times at once, is one grant.
pub fn one_decision_asked_by_many_is_one_grant<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = ClaimRequest { nonce: nonce(), ..p.live(1) };
    let mut fences = std::thread::scope(|scope| {
        let ask = |_| {
            let p = another(harness, &p);
            let request = request.clone();
            scope.spawn(move || p.grant(&request).fence)
        };
        let askers: Vec<_> = (0..THREADS).map(ask).collect();
        askers.into_iter().map(join).collect::<Vec<_>>()
    });
    fences.dedup();
    assert_eq!(fences.len(), 1);
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    match thread.join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
