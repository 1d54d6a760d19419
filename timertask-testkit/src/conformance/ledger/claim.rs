//! Who gets a slot, and who doesn't.

use std::sync::Arc;

use timertask_core::key::{InstanceId, PlanKey, SlotKey};
use timertask_core::seam::{
    Applied, Asked, Claim, ClaimRequest, Cover, Ended, Ending, Gate, Ledger, NotStarted, PlanOp, Query, Refusal,
    RunKind, SlotRow, SlotState,
};

use super::super::LedgerHarness;
use super::super::probe::{LONG, Probe, SHORT, answer, fingerprint, id, nonce, only, other, plan_id, seconds, value};

/// A slot that nobody had is granted: a fence, the first attempt, a lease of the asked length; and its row says so.
pub fn a_fresh_slot_is_granted<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let mut request = p.live(1);
    request.version = Some("1.2.3".into());
    let outcome = answer(p.ledger.claim(std::slice::from_ref(&request)));
    let now = outcome.now;
    let Claim::Granted(grant) = only(outcome.value) else { panic!("granted") };
    assert_eq!(grant.attempt, 1);
    assert_eq!(grant.lease_end, now.saturating_add(LONG));
    assert_eq!((grant.last_success, grant.window_from), (None, None));
    let row = p.slot(&request.key);
    assert_eq!(
        row,
        Some(SlotRow {
            key: request.key.clone(),
            state: SlotState::Running,
            kind: RunKind::Scheduled,
            asked: None,
            nonce: request.nonce,
            released: Vec::new(),
            fence: grant.fence,
            attempt: 1,
            lease_end: grant.lease_end,
            ttl: LONG,
            cancel: None,
            instance: Some(request.instance.clone()),
            version: request.version.clone(),
            claimed_at: Some(now),
            started_at: None,
            ended_at: None,
            tries: 0,
            detail: None,
        })
    );
}

/// A running slot is held for everybody else.
pub fn a_running_slot_is_held<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    p.grant(&p.live(1));
    let others = Probe { ledger: harness.handle(), plan: p.plan.clone(), base: p.base };
    for kind in [RunKind::Scheduled, RunKind::CatchUp, RunKind::Backfill] {
        let mut request = others.of_kind(1, kind);
        request.instance = id(InstanceId::new("another"));
        assert_eq!(p.unchanged(|_| others.claim(&request)), Claim::Held);
    }
}

/// A label proves nothing: another decision of the same instance is refused too.
pub fn the_same_instance_with_another_nonce_is_refused<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    p.grant(&p.live(1));
    assert_eq!(p.claim(&p.live(1)), Claim::Held);
}

/// The same decision asked again gets the same fence and attempt, and its lease is lengthened.
pub fn the_same_nonce_gets_the_same_grant_and_a_longer_lease<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.live(1);
    let first = p.grant(&request);
    harness.pass_time(SHORT);
    let again = p.grant(&request);
    assert_eq!((again.fence, again.attempt), (first.fence, first.attempt));
    assert!(again.lease_end >= first.lease_end.saturating_add(SHORT));
    let row = p.slot(&request.key);
    assert_eq!(row.map(|row| (row.lease_end, row.attempt)), Some((again.lease_end, 1)));
}

/// Asking again never shortens the lease.
pub fn the_same_nonce_never_shortens_the_lease<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.live(1);
    let first = p.grant(&request);
    let again = p.grant(&ClaimRequest { ttl: SHORT, ..request });
    assert_eq!(again.lease_end, first.lease_end);
}

/// A lease end that has passed is no permission: the slot is held as before.
pub fn expiry_never_grants<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = ClaimRequest { ttl: SHORT, ..p.live(1) };
    let grant = p.grant(&request);
    harness.pass_time(SHORT * 2);
    for kind in [RunKind::Scheduled, RunKind::CatchUp, RunKind::Backfill] {
        assert_eq!(p.claim(&p.of_kind(1, kind)), Claim::Held);
    }
    let again = p.grant(&request);
    assert_eq!(again.fence, grant.fence, "the runner itself may ask again at any time");
}

/// A slot that has ended is never granted again, to nobody, and says how it ended.
pub fn an_ended_slot_stays_ended<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    for (n, ending) in (1..).zip(Ending::ALL) {
        let request = p.live(n);
        let grant = p.grant(&request);
        assert_eq!(p.settle(&request, grant, ending), Ended::Recorded(SlotState::Ended(ending)));
        assert_eq!(p.claim(&request), Claim::Ended(ending), "the same decision");
        for kind in [RunKind::Scheduled, RunKind::CatchUp, RunKind::Backfill] {
            let request = ClaimRequest { attempts_allowed: 9, ..p.of_kind(n, kind) };
            assert_eq!(p.unchanged(|p| p.claim(&request)), Claim::Ended(ending));
        }
    }
}

/// A decision that was given back is refused from then on; a late duplicate of its claim starts nothing.
pub fn a_released_nonce_is_refused<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.live(1);
    let grant = p.grant(&request);
    assert_eq!(p.give_back(&request, grant), Ended::Recorded(SlotState::Open));
    assert_eq!(p.unchanged(|p| p.claim(&request)), Claim::Refused(Refusal::Released));
    assert_eq!(p.grant(&p.live(1)).attempt, 1, "another decision gets the slot");
}

/// The last eight released decisions are remembered.
pub fn eight_released_nonces_are_remembered<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let requests: Vec<_> = (0..SlotRow::RELEASED).map(|_| p.live(1)).collect();
    for request in &requests {
        let grant = p.grant(request);
        assert_eq!(grant.attempt, 1, "a start that was given back does not count");
        let _ = p.give_back(request, grant);
    }
    for request in &requests {
        assert_eq!(p.claim(request), Claim::Refused(Refusal::Released));
    }
    let request = p.live(1);
    let grant = p.grant(&request);
    let _ = p.give_back(&request, grant);
    let row = p.slot(&request.key);
    let kept: Vec<_> = requests[1..].iter().chain([&request]).map(|request| request.nonce).collect();
    assert_eq!(row.map(|row| row.released), Some(kept), "the oldest goes");
}

/// Not started is refused, with its reason, except to a backfill, which starts the slot once.
pub fn only_a_backfill_starts_what_was_not_started<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(2));
    let cover = Cover::Slots(vec![p.at(1)], NotStarted::TooLate);
    assert_eq!(p.op(p.account(0, 1, cover)), Applied::Done);
    for kind in [RunKind::Scheduled, RunKind::CatchUp] {
        let refused = p.unchanged(|p| p.claim(&p.of_kind(1, kind)));
        assert_eq!(refused, Claim::Refused(Refusal::NotStarted(NotStarted::TooLate)));
    }
    let request = p.of_kind(1, RunKind::Backfill);
    let grant = p.grant(&request);
    assert_eq!(grant.attempt, 1);
    assert_eq!(p.slot(&request.key).map(|row| (row.state, row.kind)), Some((SlotState::Running, RunKind::Backfill)));
    let _ = p.settle(&request, grant, Ending::Failed);
    assert_eq!(p.claim(&p.of_kind(1, RunKind::Backfill)), Claim::Ended(Ending::Failed));
}

/// At or below the cursor a slot without a row lies in a range record: refused, except to a backfill and a `run_now`.
pub fn what_a_range_covers_is_refused_but_to_operators<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(5));
    let cover = Cover::Range { count: Some(4), reason: NotStarted::OverCap };
    assert_eq!(p.op(p.account(0, 4, cover)), Applied::Done);
    for kind in [RunKind::Scheduled, RunKind::CatchUp] {
        assert_eq!(p.unchanged(|p| p.claim(&p.of_kind(2, kind))), Claim::Refused(Refusal::Accounted));
    }
    p.run(&p.of_kind(2, RunKind::Backfill));
    p.run(&p.run_now(2, "request"));
    assert_eq!(p.claim(&p.of_kind(2, RunKind::Backfill)), Claim::Ended(Ending::Succeeded), "a row outranks the range");
}

/// A plan that the ledger doesn't know starts nothing, whoever asks; so nothing of the past fires after a loss.
pub fn an_unknown_plan_is_refused<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let unknown = PlanKey::new(harness.namespace(), plan_id("unknown"));
    for kind in RunKind::ALL {
        let mut request = p.of_kind(1, kind);
        request.key.plan = unknown.clone();
        assert_eq!(p.claim(&request), Claim::Refused(Refusal::Unknown));
        request.key.plan = PlanKey::whole(harness.namespace());
        assert_eq!(p.claim(&request), Claim::Refused(Refusal::Unknown), "a namespace is no plan");
    }
    let state = only(value(p.ledger.plan(&[(unknown, PlanOp::Read)])));
    assert_eq!(state.row, None, "asking does not make it known");
}

/// Plans, slots, requests and namespaces don't get in each other's way.
pub fn keys_are_independent<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let q = Probe::of(harness.handle(), PlanKey::new(harness.namespace(), plan_id("q")));
    let elsewhere = Probe::of(harness.handle(), PlanKey::new(other(&harness.namespace()), plan_id("p")));
    let requests = [p.free(1), p.free(2), p.run_now(1, "a"), p.run_now(1, "b")];
    for mut request in requests {
        request.gate = Gate::Force;
        for plan in [&p.plan, &q.plan, &elsewhere.plan] {
            request.key.plan = plan.clone();
            request.nonce = nonce();
            p.grant(&request);
            assert_eq!(p.claim(&ClaimRequest { nonce: nonce(), ..request.clone() }), Claim::Held);
        }
    }
    assert_eq!(p.history().slots.len(), 4);
    assert_eq!(elsewhere.history().slots.len(), 4);
}

/// A `run_now` is one run by its request id, however often and by whom it is asked for.
pub fn a_request_id_is_one_run<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.run_now(1, "request");
    let grant = p.grant(&request);
    assert_eq!(p.claim(&p.run_now(1, "request")), Claim::Held);
    let _ = p.settle(&request, grant, Ending::Succeeded);
    assert_eq!(p.claim(&p.run_now(1, "request")), Claim::Ended(Ending::Succeeded));
    p.run(&p.run_now(1, "another"));
    p.run(&p.live(1));
}

/// A `run_now` that is repeated later, with the instant of that moment, finds the run of its first acceptance, and is told
/// when that was; all that is said of the slot afterwards may name either instant.
pub fn a_repeated_request_keeps_its_first_instant<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let first = p.run_now(1, "request");
    let grant = p.grant(&first);
    assert_eq!(grant.at, p.at(1));
    for n in [0, 2, 9] {
        let later = p.run_now(n, "request");
        assert_eq!(p.claim(&later), Claim::Held);
        assert_eq!(p.slot(&later.key).map(|row| row.key), Some(first.key.clone()));
        let same = p.grant(&ClaimRequest { nonce: first.nonce, ..later });
        assert_eq!((same.at, same.fence), (p.at(1), grant.fence), "the same decision");
    }
    assert_eq!(
        p.give_back(&ClaimRequest { nonce: first.nonce, ..p.run_now(3, "request") }, grant),
        Ended::Recorded(SlotState::Open)
    );
    let taken_up = p.run_now(4, "request");
    let grant = p.grant(&taken_up);
    assert_eq!((grant.at, grant.attempt), (p.at(1), 1), "one that was given back");
    assert_eq!(p.settle(&taken_up, grant, Ending::Succeeded), Ended::Recorded(SlotState::Ended(Ending::Succeeded)));
    assert_eq!(p.claim(&p.run_now(5, "request")), Claim::Ended(Ending::Succeeded));
    assert_eq!(p.history().slots.len(), 1);
}

/// Who asked for a run, and why, is kept to the letter, whatever becomes of the slot; who takes it up again without a word
/// of an operator's changes nothing about it.
pub fn who_asked_is_kept<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let asked = |by: &str, why: &str| Some(Arc::new(id(Asked::new(by, why))));
    let said = |key: &SlotKey| p.slot(key).and_then(|row| row.asked);
    let words = [
        ("ana", "the import was late"),
        ("back\\slash\\n", "it's \"quoted\"; DROP TABLE -- %s"),
        ("\u{fe0f}\u{1F980}", "+ plus and \u{a0}space "),
        (&"a".repeat(255), &"\u{e9}".repeat(500)),
    ];
    for (n, (by, why)) in (1..).zip(words) {
        for mut request in [p.run_now(n, &n.to_string()), p.of_kind(n, RunKind::Backfill)] {
            request.asked = asked(by, why);
            request.gate = Gate::Force;
            p.run(&request);
            assert_eq!(said(&request.key), request.asked);
        }
    }
    let silent = p.free(7);
    p.run(&silent);
    assert_eq!(said(&silent.key), None);

    let mut request = p.of_kind(8, RunKind::Backfill);
    request.asked = asked("ana", "first");
    let grant = p.grant(&request);
    let _ = p.give_back(&request, grant);
    assert_eq!(said(&request.key), request.asked);
    let again = p.of_kind(8, RunKind::CatchUp);
    let grant = p.grant(&again);
    assert_eq!(said(&request.key), request.asked, "taken up by an instance");
    let _ = p.give_back(&again, grant);
    let other = ClaimRequest { asked: asked("bo", "second"), ..p.of_kind(8, RunKind::Backfill) };
    p.run(&other);
    assert_eq!(said(&request.key), other.asked, "taken up by another operator");
}

/// Fences rise with each grant of a plan: across slots, across give-backs, and at least to the store's clock.
pub fn fences_rise_with_each_grant_of_a_plan<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let mut last = 0;
    let mut rises = |request: &ClaimRequest| {
        let outcome = answer(p.ledger.claim(std::slice::from_ref(request)));
        let now = outcome.now.as_micros().unsigned_abs();
        let Claim::Granted(grant) = only(outcome.value) else { panic!("granted") };
        assert!(grant.fence.as_u64() > last, "{} after {last}", grant.fence);
        assert!(grant.fence.as_u64() >= now, "{} at {now}", grant.fence);
        last = grant.fence.as_u64();
        assert_eq!(p.row().fence, grant.fence);
        grant
    };
    let first = p.free(1);
    let grant = rises(&first);
    let _ = p.give_back(&first, grant);
    rises(&p.free(2));
    rises(&p.free(1));
    rises(&ClaimRequest { gate: Gate::Force, ..p.run_now(1, "request") });
    rises(&p.free(3));
}

/// Fences are exact: many grants in one instant differ, and each names its term to the last digit.
pub fn fences_are_exact_integers<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let mut last = None;
    for n in 1..=50 {
        let request = p.free(n);
        let grant = p.grant(&request);
        assert!(Some(grant.fence) > last, "{} after {last:?}", grant.fence);
        last = Some(grant.fence);
        let ended = p.settle(&request, grant, Ending::Succeeded);
        assert_eq!(
            ended,
            Ended::Recorded(SlotState::Ended(Ending::Succeeded)),
            "the fence of the answer names the term"
        );
    }
}

/// A slot can be claimed under a fingerprint that isn't the current one: in a rolling deploy old and new both start slots.
pub fn an_old_fingerprint_still_starts_slots<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    p.run(&ClaimRequest { fingerprint: fingerprint(2), ..p.live(1) });
    assert_eq!(p.claim(&p.live(1)), Claim::Ended(Ending::Succeeded), "each slot once");
}

/// The slots of one decision are read back as they were claimed.
pub fn slots_are_read_back_by_key<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    p.run(&p.live(1));
    p.grant(&p.run_now(1, "request"));
    let keys = vec![p.run_now(1, "request").key, p.key(7), p.key(1)];
    let rows = value(p.ledger.read(&Query::Slots(keys.clone()))).slots;
    let found: Vec<_> = rows.into_iter().map(|row| row.key).collect();
    assert_eq!(found, [keys[0].clone(), keys[2].clone()], "in the order asked, without those that have no row");
}
