//! Reading: each query, page by page.

use timertask_core::key::{PlanKey, RequestId, SlotKey};
use timertask_core::seam::{
    Applied, ClaimRequest, Cover, Ending, Gate, Ledger, NotStarted, Page, PageToken, PlanOp, Query, Renewal, SlotState,
};
use timertask_core::time::Trigger;

use super::super::LedgerHarness;
use super::super::probe::{LONG, Probe, SHORT, SKEW, fingerprint, id, other, plan_id, seconds, value};

/// Reading what has lapsed changes nothing: whoever looks twice ends it by a request of its own, and until then its runner
/// may still renew.
pub fn a_look_ends_nothing<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let request = ClaimRequest { ttl: SHORT, ..p.live(1) };
    let grant = p.grant(&request);
    harness.pass_time(SHORT + SHORT / 2);
    for _ in 0..3 {
        let seen = p.unchanged(|_| keys(&lapsed(harness, 10)));
        assert_eq!(seen, std::slice::from_ref(&request.key));
    }
    assert!(matches!(p.renew(&request, grant.fence, LONG), Renewal::Held(_)));
    assert!(keys(&lapsed(harness, 10)).is_empty());
}

/// All pages of a query whose page goes on at `next(token)`.
#[track_caller]
fn pages<L: Ledger>(ledger: &L, query: impl Fn(Option<PageToken>) -> Query) -> Vec<Page> {
    let mut pages = vec![value(ledger.read(&query(None)))];
    while let Some(token) = pages.last().and_then(|page| page.more.clone()) {
        pages.push(value(ledger.read(&query(Some(token)))));
        assert!(pages.len() < 1_000, "the pages come to an end");
    }
    pages
}

fn lapsed<H: LedgerHarness>(harness: &H, limit: usize) -> Vec<Page> {
    let namespace = harness.namespace();
    pages(&harness.handle(), |after| Query::Lapsed { namespace: namespace.clone(), max_skew: SKEW, after, limit })
}

fn keys(pages: &[Page]) -> Vec<SlotKey> {
    let mut keys: Vec<_> = pages.iter().flat_map(|page| &page.slots).map(|row| row.key.clone()).collect();
    keys.sort();
    keys
}

/// A sweep sees what is open and what has lapsed, of all plans of its namespace, and nothing else.
pub fn a_sweep_sees_open_and_lapsed_slots<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let q = Probe::of(harness.handle(), PlanKey::new(harness.namespace(), plan_id("q")));
    let elsewhere = Probe::of(harness.handle(), PlanKey::new(other(&harness.namespace()), plan_id("p")));
    let mut expected = Vec::new();
    for p in [&p, &q, &elsewhere] {
        p.grant(&p.free(1));
        p.run(&p.free(2));
        let open = p.free(3);
        let grant = p.grant(&open);
        let _ = p.give_back(&open, grant);
        let lapsing = ClaimRequest { ttl: SHORT, ..p.free(4) };
        p.grant(&lapsing);
        let renewed = ClaimRequest { ttl: SHORT, ..p.free(5) };
        let grant = p.grant(&renewed);
        let _ = p.renew(&renewed, grant.fence, LONG);
        let resolved = p.free(6);
        let grant = p.grant(&resolved);
        let _ = p.give_back(&resolved, grant);
        let _ = p.resolve(&resolved.key, grant.fence, NotStarted::GivenBack);
        let mut run_now = ClaimRequest { ttl: SHORT, ..p.run_now(7, "request") };
        run_now.gate = Gate::Force;
        p.grant(&run_now);
        if p.plan.namespace == harness.namespace() {
            expected.extend([open.key, lapsing.key, run_now.key]);
        }
    }
    expected.sort();
    harness.pass_time(SHORT * 2);
    for limit in [1, 2, 3, 100] {
        let pages = lapsed(harness, limit);
        assert!(pages.iter().all(|page| page.slots.len() <= limit));
        assert_eq!(keys(&pages), expected, "{limit} a page");
    }
    let rows = lapsed(harness, 100).remove(0).slots;
    assert!(rows.iter().all(|row| p.slot(&row.key).as_ref() == Some(row)), "whole rows");
}

/// Nothing to sweep is an empty page and its end.
pub fn a_sweep_of_nothing_is_empty<H: LedgerHarness>(harness: &H) {
    assert_eq!(lapsed(harness, 10), [Page::default()]);
    let p = Probe::open(harness);
    p.grant(&p.live(1));
    assert_eq!(lapsed(harness, 10), [Page::default()]);
}

/// A plan's unfinished slots: running and open, by trigger point.
pub fn unfinished_slots_are_listed_in_order<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let q = Probe::of(harness.handle(), PlanKey::new(harness.namespace(), plan_id("q")));
    q.grant(&q.live(1));
    let open = p.free(2);
    let grant = p.grant(&open);
    let _ = p.give_back(&open, grant);
    p.grant(&p.free(5));
    p.run(&p.free(3));
    let mut run_now = p.run_now(2, "request");
    run_now.gate = Gate::Force;
    p.grant(&run_now);
    p.grant(&p.free(1));
    let unfinished = |limit| {
        let page = value(p.ledger.read(&Query::Unfinished { plan: p.plan.clone(), limit }));
        page.slots.into_iter().map(|row| row.key).collect::<Vec<_>>()
    };
    let all = [p.key(1), p.key(2), run_now.key, p.key(5)];
    assert_eq!(unfinished(100), all);
    assert_eq!(unfinished(2), all[..2]);
    let unknown = Query::Unfinished { plan: PlanKey::new(harness.namespace(), plan_id("unknown")), limit: 9 };
    assert_eq!(value(p.ledger.read(&unknown)).slots, []);
}

/// A plan's history: its row, its slots by trigger point and request, page by page, each once.
pub fn history_goes_page_by_page<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(2));
    let range = Cover::Range { count: Some(1), reason: NotStarted::TooLate };
    assert_eq!(p.op(p.account(0, 1, range)), Applied::Done);
    let mut expected = Vec::new();
    for n in 2..=6 {
        p.run(&p.free(n));
        expected.push(p.key(n));
    }
    // Request ids that sort among themselves, and look like what a token may be made of.
    for request in ["z", "a:1", "a", "9", ":"] {
        let request = p.run_now(4, request);
        p.run(&request);
        expected.push(request.key);
    }
    expected.sort();
    let history = |limit| {
        pages(&p.ledger, |page| Query::History { plan: p.plan.clone(), after: p.at(0), upto: p.at(100), page, limit })
    };
    for limit in [1, 2, 3, 10, 100] {
        let pages = history(limit);
        assert!(pages.iter().all(|page| page.slots.len() <= limit));
        let slots: Vec<_> = pages.iter().flat_map(|page| &page.slots).map(|row| row.key.clone()).collect();
        assert_eq!(slots, expected, "{limit} a page, old to new");
        let ranges: Vec<_> = pages.iter().map(|page| page.ranges.len()).collect();
        assert_eq!((ranges[0], ranges.iter().sum::<usize>()), (1, 1), "on the first page");
        assert_eq!(pages[0].plans, [(p.plan.clone(), p.row())]);
    }
}

/// An interval leaves out its beginning and holds its end; a range record that reaches into it is shown whole.
pub fn history_shows_an_interval<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    harness.pass_time(seconds(5));
    for (from, to) in [(0, 2), (2, 4)] {
        let range = Cover::Range { count: None, reason: NotStarted::TooLate };
        assert_eq!(p.op(p.account(from, to, range)), Applied::Done);
    }
    for n in 5..=8 {
        p.run(&p.free(n));
    }
    let history = |after, upto| {
        let (after, upto) = (p.at(after), p.at(upto));
        let query = Query::History { plan: p.plan.clone(), after, upto, page: None, limit: 100 };
        let page = value(p.ledger.read(&query));
        let number = |at: Trigger| at.as_secs() - p.base;
        let slots: Vec<_> = page.slots.iter().map(|row| number(row.key.at)).collect();
        let ranges: Vec<_> = page.ranges.iter().map(|range| number(range.last)).collect();
        (slots, ranges)
    };
    assert_eq!(history(5, 7), (vec![6, 7], vec![]));
    assert_eq!(history(3, 5), (vec![5], vec![4]), "the first lies before, the second reaches in");
    assert_eq!(history(1, 2), (vec![], vec![2]));
    assert_eq!(history(2, 3), (vec![], vec![4]));
    assert_eq!(history(0, 100), (vec![5, 6, 7, 8], vec![2, 4]));
    assert_eq!(history(8, 8), (vec![], vec![]));
    assert_eq!(history(8, 2), (vec![], vec![]), "nothing lies between");
}

/// Of a plan that the ledger doesn't know there is no history.
pub fn an_unknown_plan_has_no_history<H: LedgerHarness>(harness: &H) {
    let plan = PlanKey::new(harness.namespace(), plan_id("unknown"));
    let (after, upto) = (Trigger::default(), Trigger::from_secs(1 << 40));
    let query = Query::History { plan: plan.clone(), after, upto, page: None, limit: 10 };
    assert_eq!(value(harness.handle().read(&query)), Page::default());
    let slot = SlotKey { plan, at: Trigger::from_secs(1), request: Some(id(RequestId::new("request"))) };
    assert_eq!(value(harness.handle().read(&Query::Slots(vec![slot]))), Page::default());
    assert_eq!(value(harness.handle().read(&Query::Slots(Vec::new()))), Page::default());
}

/// The plans of a namespace, by id, page by page; the namespace's own row is none of them.
pub fn plans_go_page_by_page<H: LedgerHarness>(harness: &H) {
    let ledger = harness.handle();
    let names = ["b", "B", "a", "ab", "a b", "é", "zz", "_", "10", "9"];
    let mut expected = Vec::new();
    for (n, name) in names.into_iter().enumerate() {
        let key = PlanKey::new(harness.namespace(), plan_id(name));
        let bits = u128::try_from(n).unwrap_or(0);
        let op = PlanOp::Open { fingerprint: fingerprint(bits), replaces: None };
        let state = value(ledger.plan(&[(key.clone(), op)])).remove(0);
        expected.push((key, state.row));
    }
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    let _ = Probe::of(harness.handle(), PlanKey::new(other(&harness.namespace()), plan_id("elsewhere")));
    let pause = PlanOp::Pause { by: "ops".to_owned(), why: String::new(), until: None };
    let _ = value(ledger.plan(&[(PlanKey::whole(harness.namespace()), pause)]));
    for limit in [1, 3, 5, 10, 100] {
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let query = Query::Plans { namespace: harness.namespace(), after: after.take(), limit };
            let page = value(ledger.read(&query));
            assert!(page.plans.len() <= limit);
            after = page.plans.last().and_then(|(key, _)| key.plan.clone());
            found.extend(page.plans.into_iter().map(|(key, row)| (key, Some(row))));
            if page.more.is_none() {
                break;
            }
            assert!(found.len() < 100, "the pages come to an end");
        }
        assert_eq!(found, expected, "{limit} a page, by bytes");
    }
    let late = Query::Plans { namespace: harness.namespace(), after: Some(plan_id("é")), limit: 9 };
    assert_eq!(value(ledger.read(&late)), Page::default(), "é is the last by bytes");
}

/// Whatever state a slot is in, its row is read back whole.
pub fn every_state_is_read_back<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let mut expected = vec![SlotState::Running];
    p.grant(&p.free(1));
    let open = p.free(2);
    let grant = p.grant(&open);
    let _ = p.give_back(&open, grant);
    expected.push(SlotState::Open);
    for (n, ending) in (3..).zip(Ending::ALL) {
        let request = p.free(n);
        let grant = p.grant(&request);
        let _ = p.settle(&request, grant, ending);
        expected.push(SlotState::Ended(ending));
    }
    let _ = p.claim(&p.live(7));
    expected.push(SlotState::NotStarted(NotStarted::Overlap));
    let states: Vec<_> = p.history().slots.iter().map(|row| row.state).collect();
    assert_eq!(states, expected);
}
