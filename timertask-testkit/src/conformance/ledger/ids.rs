//! Ids of all shapes: hostile, long, alike to the eye.

use std::time::Duration;

use timertask_core::key::{InstanceId, Namespace, Nonce, PlanKey, RequestId};
use timertask_core::seam::{Claim, ClaimRequest, Ending, Ledger, Query, RunKind};

use super::super::LedgerHarness;
use super::super::probe::{Probe, id, nonce, plan_id, value};

/// Texts that break what is put together from strings.
fn hostile() -> Vec<String> {
    let mut ids: Vec<String> = [
        "{",
        "}",
        "{}",
        "{p}",
        "}{",
        "{{p}}",
        "p}q",
        "'",
        "''",
        "\"",
        "`",
        "\\",
        "\\0",
        "\\n",
        "%",
        "%s",
        "%00",
        "_",
        "*",
        "?",
        "[a]",
        "a*",
        "/",
        "a/b",
        "..",
        "../p",
        ":",
        "a:b",
        ";",
        "#",
        "$1",
        "${x}",
        "&",
        "|",
        "<p>",
        "--",
        " ",
        " p",
        "p ",
        "  ",
        "NULL",
        "null",
        "nil",
        "0",
        "-1",
        "1e9",
        "true",
        "p",
        "P",
        "'; DROP TABLE plan; --",
        "\" OR \"\"=\"",
        "a,b",
        "a\u{A0}b",
        "\u{FEFF}p",
        "p\u{200B}",
        "\u{202E}p",
        // Composed and decomposed, and other letters that look alike: different plans.
        "\u{E9}",
        "e\u{301}",
        "\u{212B}",
        "\u{C5}",
        "A\u{30A}",
        "\u{430}",
        "a",
        "\u{FB01}",
        "fi",
        "\u{130}",
        "i\u{307}",
        "\u{1F980}",
        "\u{1F468}\u{200D}\u{1F469}\u{200D}\u{1F467}",
        "\u{10FFFF}",
        "\u{FFFD}",
        "日本語",
        "عربي",
    ]
    .map(str::to_owned)
    .into();
    ids.push("x".repeat(255));
    ids.push(format!("{}y", "x".repeat(254)));
    ids.push("}".repeat(255));
    ids.push("\u{1F980}".repeat(63));
    ids
}

/// Each plan id is a plan of its own, whatever it is made of, and is read back to the byte.
pub fn hostile_plan_ids_are_plans_of_their_own<H: LedgerHarness>(harness: &H) {
    let ids = hostile();
    for text in &ids {
        let p = Probe::of(harness.handle(), PlanKey::new(harness.namespace(), plan_id(text)));
        p.run(&p.live(1));
        assert_eq!(p.claim(&p.live(1)), Claim::Ended(Ending::Succeeded));
        assert_eq!(p.history().slots.len(), 1, "{text:?}");
        assert_eq!(p.slot(&p.key(1)).map(|row| row.key), Some(p.key(1)), "{text:?}");
    }
    let query = Query::Plans { namespace: harness.namespace(), after: None, limit: 1_000 };
    let plans = value(harness.handle().read(&query)).plans;
    let found: Vec<_> = plans.iter().map(|(key, _)| key.plan_str().to_owned()).collect();
    let mut expected = ids;
    expected.sort();
    assert_eq!(found, expected);
}

/// Each request id is a run of its own, and is read back to the byte.
pub fn hostile_request_ids_are_runs_of_their_own<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let ids = hostile();
    for text in &ids {
        p.run(&p.run_now(1, text));
        assert_eq!(p.claim(&p.run_now(1, text)), Claim::Ended(Ending::Succeeded), "{text:?}");
    }
    p.run(&p.live(1));
    let rows = p.history().slots;
    let mut expected: Vec<_> = ids.iter().map(|text| Some(id(RequestId::new(text.as_str())))).collect();
    expected.push(None);
    expected.sort();
    let found: Vec<_> = rows.into_iter().map(|row| row.key.request).collect();
    assert_eq!(found, expected);
}

/// Labels and versions are kept as they are; they prove nothing.
pub fn hostile_labels_are_kept<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    for (n, text) in (1..).zip(hostile()) {
        let request = ClaimRequest {
            instance: id(InstanceId::new(text.as_str())),
            version: Some(text.as_str().into()),
            ..p.free(n)
        };
        p.grant(&request);
        let row = p.slot(&request.key);
        let shown = row.as_ref().map(|row| (row.instance.as_ref().map(InstanceId::as_str), row.version.as_deref()));
        assert_eq!(shown, Some((Some(text.as_str()), Some(text.as_str()))));
    }
}

/// Namespaces and ids don't run together: what one store key could be made of in two ways is two plans.
pub fn namespaces_and_ids_dont_run_together<H: LedgerHarness>(harness: &H) {
    let given = harness.namespace();
    let name = |text: &str| {
        let prefix = given.as_str();
        id(Namespace::new(if prefix.is_empty() { text.to_owned() } else { format!("{prefix}{text}") }))
    };
    let keys = [
        (given.clone(), "a.b"),
        (name("a"), "b"),
        (name("a"), ".b"),
        (name("a."), "b"),
        (name("a.b"), "b"),
        (name("A"), "b"),
        (name("a-b_c"), "a:b"),
        (name("00"), "0"),
        (name("0"), "00"),
    ];
    for (namespace, plan) in keys {
        let p = Probe::of(harness.handle(), PlanKey::new(namespace, plan_id(plan)));
        p.run(&p.live(1));
        p.run(&p.run_now(1, "a/b"));
        assert_eq!(p.history().slots.len(), 2);
    }
}

/// Numbers are kept to the last digit: nonces of 128 bits, trigger points of centuries to come, TTLs of a microsecond.
pub fn numbers_are_kept_exactly<H: LedgerHarness>(harness: &H) {
    let p = Probe::open(harness);
    let ttl = Duration::from_micros(3_600_000_001);
    // The year 9999.
    let far = 253_402_300_799 - p.base;
    for (n, bits) in [(3, 1 << 127), (4, u128::from(u64::MAX)), (5, 1 << 64), (far - 1, 1), (far, u128::MAX)] {
        let request = ClaimRequest { nonce: Nonce::from_bits(bits), ttl, prev: None, ..p.free(n) };
        let grant = p.grant(&request);
        let row = p.slot(&request.key);
        assert_eq!(row.map(|row| (row.nonce, row.ttl, row.lease_end)), Some((request.nonce, ttl, grant.lease_end)));
        assert_eq!(p.claim(&ClaimRequest { nonce: nonce(), ..request.clone() }), Claim::Held);
        assert_eq!(p.grant(&request).fence, grant.fence);
    }
    assert_eq!(p.claim(&ClaimRequest { kind: RunKind::Backfill, ..p.free(far) }), Claim::Held);
}
