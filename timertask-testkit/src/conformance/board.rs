//! The cases of a notice board. Each function shows one sentence of the contract and panics where it does not hold.

use timertask_core::key::Namespace;
use timertask_core::seam::{Board, Posting, PostingKind};
use timertask_core::time::Timestamp;

use super::BoardHarness;
use super::probe::{answer, other, value};

const KINDS: [PostingKind; 3] = [PostingKind::Heartbeat, PostingKind::View, PostingKind::Request];

fn posting(namespace: Namespace, kind: PostingKind, key: &str, body: &str) -> Posting {
    Posting { namespace, kind, key: key.to_owned(), body: body.to_owned(), until: Timestamp::from_micros(1 << 52) }
}

#[track_caller]
fn post<B: Board>(board: &B, posting: &Posting) {
    value(board.post(posting));
}

#[track_caller]
fn list<B: Board>(board: &B, namespace: &Namespace, kind: PostingKind) -> Vec<Posting> {
    value(board.list(namespace, kind))
}

/// What was posted is listed, to every handle, by key, whole.
pub fn postings_are_listed_by_key<H: BoardHarness>(harness: &H) {
    let board = harness.handle();
    assert_eq!(list(&board, &harness.namespace(), PostingKind::View), []);
    let keys = ["b", "a", "a b", "{a}", "é", "'", "", "10", "9", "B"];
    let mut expected: Vec<_> = keys
        .into_iter()
        .map(|key| posting(harness.namespace(), PostingKind::View, key, &format!("{key}: \"body\"\n\u{1F980}")))
        .collect();
    for posting in &expected {
        post(&board, posting);
    }
    expected.sort_by(|a, b| a.key.cmp(&b.key));
    assert_eq!(list(&harness.handle(), &harness.namespace(), PostingKind::View), expected);
}

/// A posting takes the place of one of the same namespace, kind and key.
pub fn a_posting_replaces_its_like<H: BoardHarness>(harness: &H) {
    let board = harness.handle();
    for body in ["one", "two"] {
        post(&board, &posting(harness.namespace(), PostingKind::Heartbeat, "a", body));
    }
    let listed = list(&board, &harness.namespace(), PostingKind::Heartbeat);
    assert_eq!(listed, [posting(harness.namespace(), PostingKind::Heartbeat, "a", "two")]);
}

/// Kinds and namespaces are apart.
pub fn kinds_and_namespaces_are_apart<H: BoardHarness>(harness: &H) {
    let board = harness.handle();
    let namespaces = [harness.namespace(), other(&harness.namespace())];
    for namespace in &namespaces {
        for kind in KINDS {
            post(&board, &posting(namespace.clone(), kind, "a", &format!("{kind:?} in {namespace}")));
        }
    }
    for namespace in &namespaces {
        for kind in KINDS {
            let listed = list(&board, namespace, kind);
            assert_eq!(listed, [posting(namespace.clone(), kind, "a", &format!("{kind:?} in {namespace}"))]);
        }
    }
}

/// What is past its time is neither listed nor taken.
pub fn what_is_past_its_time_is_gone<H: BoardHarness>(harness: &H) {
    let board = harness.handle();
    let now = answer(board.list(&harness.namespace(), PostingKind::Request)).now;
    let gone = Posting { until: now, ..posting(harness.namespace(), PostingKind::Request, "gone", "") };
    post(&board, &gone);
    assert_eq!(list(&board, &harness.namespace(), PostingKind::Request), []);
    assert_eq!(value(board.take(&harness.namespace(), PostingKind::Request, "gone")), None);
}

/// One gets what is taken, and then it is gone.
pub fn one_of_many_takes_a_posting<H: BoardHarness>(harness: &H) {
    let board = harness.handle();
    let wanted = posting(harness.namespace(), PostingKind::Request, "a", "body");
    post(&board, &wanted);
    post(&board, &posting(harness.namespace(), PostingKind::Request, "b", "body"));
    let taken = std::thread::scope(|scope| {
        let take = |_| scope.spawn(|| value(harness.handle().take(&harness.namespace(), PostingKind::Request, "a")));
        let takers: Vec<_> = (0..4).map(take).collect();
        let joined = takers.into_iter().map(|taker| match taker.join() {
            Ok(taken) => taken,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.flatten().collect::<Vec<_>>()
    });
    assert_eq!(taken, [wanted]);
    assert_eq!(list(&board, &harness.namespace(), PostingKind::Request).len(), 1, "the other one stays");
    assert_eq!(value(board.take(&harness.namespace(), PostingKind::Request, "never")), None);
}
