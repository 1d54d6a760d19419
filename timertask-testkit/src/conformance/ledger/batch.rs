//! Groups of requests.

use timertask_core::key::PlanKey;
use timertask_core::seam::{
    Applied, Claim, ClaimRequest, EndOp, EndRequest, Ended, Ending, Ledger, NotStarted, PlanOp, Refusal, Renewal,
    RunKind, SlotState, Term,
};
use timertask_core::time::Timestamp;

use super::super::LedgerHarness;
use super::super::probe::{LONG, Probe, fingerprint, nonce, plan_id, value};

/// Claims are answered in order; one refusal inside changes nothing for the others.
pub fn claims_are_answered_in_order<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let q = Probe::of(harness.handle(), PlanKey::new(harness.namespace(), plan_id("q")));
    let mut unknown = p.live(1);
    unknown.key.plan = PlanKey::new(harness.namespace(), plan_id("unknown"));
    let requests = [p.live(1), unknown, q.live(1), p.live(2), p.live(1), q.run_now(1, "request"), p.free(3)];
    let answers = value(p.ledger.claim(&requests));
    assert_eq!(answers.len(), requests.len());
    assert!(matches!(answers[0], Claim::Granted(_)), "{answers:?}");
    assert_eq!(answers[1], Claim::Refused(Refusal::Unknown));
    assert!(matches!(answers[2], Claim::Granted(_)), "{answers:?}");
    assert_eq!(answers[3], Claim::Refused(Refusal::NotStarted(NotStarted::Overlap)), "the first of the group runs");
    assert_eq!(answers[4], Claim::Held, "by the first of the group");
    assert_eq!(answers[5], Claim::Refused(Refusal::Full));
    let (Claim::Granted(first), Claim::Granted(last)) = (&answers[0], &answers[6]) else { panic!("{answers:?}") };
    assert!(last.fence > first.fence);
    assert_eq!((last.cursor, p.cursor()), (p.at(2), 3), "as the ones before it had left it");
}

/// A large group of many plans is answered like each alone.
pub fn large_groups_are_answered_whole<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let plans: Vec<_> = (0..300).map(|n| PlanKey::new(harness.namespace(), plan_id(&format!("plan {n}")))).collect();
    let open = PlanOp::Open { fingerprint: fingerprint(1), replaces: None };
    let opens: Vec<_> = plans.iter().map(|plan| (plan.clone(), open.clone())).collect();
    let opened = value(p.ledger.plan(&opens));
    assert!(opened.len() == 300 && opened.iter().all(|state| state.applied == Applied::Done));
    let request = |plan: &PlanKey| {
        let mut request = ClaimRequest { nonce: nonce(), prev: None, ..p.live(10) };
        request.key.plan = plan.clone();
        request
    };
    let requests: Vec<_> = plans.iter().map(request).collect();
    let claims = value(p.ledger.claim(&requests));
    let grants: Vec<_> = claims
        .iter()
        .map(|claim| match claim {
            Claim::Granted(grant) => *grant,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(grants.len(), 300);
    let terms: Vec<_> = requests
        .iter()
        .zip(&grants)
        .map(|(request, grant)| Term { key: request.key.clone(), nonce: request.nonce, fence: grant.fence })
        .collect();
    let renewals = value(p.ledger.renew(&terms, LONG));
    assert!(renewals.len() == 300 && renewals.iter().all(|renewal| matches!(renewal, Renewal::Held(_))));
    let ends: Vec<_> = terms.iter().map(|term| settle(term, Ending::Succeeded)).collect();
    let ended = value(p.ledger.end(&ends));
    let recorded = Ended::Recorded(SlotState::Ended(Ending::Succeeded));
    assert!(ended.len() == 300 && ended.iter().all(|ended| *ended == recorded));
}

fn settle(term: &Term, ending: Ending) -> EndRequest {
    let at = Timestamp::EPOCH;
    let op = EndOp::Settle { nonce: term.nonce, ending, started_at: at, ended_at: at, tries: 1, detail: None };
    EndRequest { key: term.key.clone(), fence: term.fence, op }
}

/// Renewals and ends are answered in order, too, those of lost terms among them.
pub fn ends_are_answered_in_order<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let term = |n| {
        let request = p.free(n);
        let fence = p.grant(&request).fence;
        Term { key: request.key, nonce: request.nonce, fence }
    };
    let (a, b) = (term(1), term(2));
    let stale = Term { nonce: nonce(), ..a.clone() };
    let renewals = value(p.ledger.renew(&[a.clone(), stale.clone(), b.clone(), a.clone()], LONG));
    assert!(
        matches!(renewals[..], [Renewal::Held(_), Renewal::Lost, Renewal::Held(_), Renewal::Held(_)]),
        "{renewals:?}"
    );
    let give_back = |term: &Term| EndRequest {
        key: term.key.clone(),
        fence: term.fence,
        op: EndOp::GiveBack { nonce: term.nonce },
    };
    let ends = [
        settle(&stale, Ending::Failed),
        settle(&a, Ending::Succeeded),
        settle(&a, Ending::Succeeded),
        settle(&a, Ending::Failed),
        give_back(&b),
        settle(&b, Ending::Succeeded),
        EndRequest { key: b.key.clone(), fence: b.fence, op: EndOp::Resolve { reason: NotStarted::GivenBack } },
    ];
    let succeeded = SlotState::Ended(Ending::Succeeded);
    assert_eq!(
        value(p.ledger.end(&ends)),
        [
            Ended::Lost(Some(SlotState::Running)),
            Ended::Recorded(succeeded),
            Ended::AlreadyRecorded,
            Ended::Lost(Some(succeeded)),
            Ended::Recorded(SlotState::Open),
            Ended::Lost(Some(SlotState::Open)),
            Ended::Recorded(SlotState::NotStarted(NotStarted::GivenBack)),
        ]
    );
}

/// Requests on plans see what those before them in the group did.
pub fn plan_requests_are_answered_in_order<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let new = PlanKey::new(harness.namespace(), plan_id("new"));
    let open = |n| PlanOp::Open { fingerprint: fingerprint(n), replaces: None };
    let pause = PlanOp::Pause { by: "ops".to_owned(), why: "why".to_owned(), until: None };
    let requests = [
        (new.clone(), PlanOp::Read),
        (new.clone(), pause.clone()),
        (new.clone(), open(1)),
        (p.plan.clone(), PlanOp::Read),
        (new.clone(), open(1)),
        (new.clone(), pause),
        (new.clone(), open(2)),
    ];
    let states = value(p.ledger.plan(&requests));
    let applied: Vec<_> = states.iter().map(|state| state.applied).collect();
    assert_eq!(
        applied,
        [
            Applied::Unchanged,
            Applied::Conflict,
            Applied::Done,
            Applied::Unchanged,
            Applied::Unchanged,
            Applied::Done,
            Applied::Done
        ]
    );
    assert_eq!(states[0].row, None);
    assert_eq!(states[3].row, Some(p.row()));
    let last = states.last().and_then(|state| state.row.as_ref());
    assert!(last.is_some_and(|row| row.pause.is_some() && row.generation.fingerprint == fingerprint(2)));
}

/// No requests, no answers.
pub fn empty_groups_are_answered<H: LedgerHarness>(harness: &H) {
    let ledger = harness.handle();
    assert_eq!(value(ledger.claim(&[])), []);
    assert_eq!(value(ledger.renew(&[], LONG)), []);
    assert_eq!(value(ledger.end(&[])), []);
    assert_eq!(value(ledger.plan(&[])), []);
}

/// A group with the same decision twice gets the same grant twice.
pub fn a_decision_twice_in_a_group_is_one_grant<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = p.of_kind(1, RunKind::CatchUp);
    let answers = value(p.ledger.claim(&[request.clone(), request]));
    let [Claim::Granted(a), Claim::Granted(b)] = answers[..] else { panic!("{answers:?}") };
    assert_eq!((a.fence, a.attempt), (b.fence, b.attempt));
}
