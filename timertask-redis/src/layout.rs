//! Keys, and how numbers and texts are spelled in them: `docs/layout.md` in code. `lua/rows.lua` is its counterpart.

use std::time::Duration;

use timertask_core::key::{Namespace, PlanKey, RequestId, SlotKey};
use timertask_core::seam::{PostingKind, StoreErrorKind};
use timertask_core::time::{Timestamp, Trigger};

use crate::error::Fault;

/// What each key begins with; the number is that of the layout.
const PREFIX: &str = "timertask:1:";
/// What is added to a trigger point so that none is negative.
const SHIFT: i64 = 1 << 52;
/// The longest time that counts, 142 years: with it no instant that a script computes comes near 2^53 before the year
/// 2112.
const LONGEST: i64 = 1 << 52;

/// The low byte of FNV-1a over a plan's id; which of its namespace's 256 buckets it lies in.
fn bucket_number(plan: &str) -> u8 {
    let hash = plan.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    hash.to_le_bytes()[0]
}

/// The key of a plan's bucket, or of the row of a namespace. All that concerns the plan begins with it, the tag in braces
/// included, so that a cluster keeps it together.
pub(crate) fn bucket(plan: &PlanKey) -> String {
    match &plan.plan {
        None => whole(&plan.namespace),
        Some(id) => bucket_at(&plan.namespace, usize::from(bucket_number(id.as_str()))),
    }
}

/// The other keys that a script may touch for a plan: those of its bucket, and its own.
pub(crate) fn around(plan: &PlanKey) -> [String; 5] {
    let (bucket, id) = (bucket(plan), plan.plan_str());
    let [ids, ends, grants] = of_bucket(&bucket);
    [ids, ends, grants, format!("{bucket}:slots:{id}"), format!("{bucket}:index:{id}")]
}

/// The other keys of a bucket that are none of a plan's.
pub(crate) fn of_bucket(bucket: &str) -> [String; 3] {
    ["ids", "ends", "grants"].map(|name| format!("{bucket}:{name}"))
}

/// How far apart the keys of one call may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// One server has all keys.
    Server,
    /// Keys lie together only where they share their tag: on a cluster each bucket has a copy of its namespace's row.
    Tag,
}

/// The key of the row of a namespace, for a claim in one of its plans' buckets.
pub(crate) fn whole_for(plan: &PlanKey, scope: Scope) -> String {
    match scope {
        Scope::Server => whole(&plan.namespace),
        Scope::Tag => bucket(plan),
    }
}

/// Into how many buckets a namespace is divided.
pub(crate) const BUCKETS: usize = 256;

/// The key of a bucket by its number.
pub(crate) fn bucket_at(namespace: &Namespace, number: usize) -> String {
    format!("{PREFIX}{{{namespace}:{number:02x}}}")
}

/// The key of the row of a namespace.
pub(crate) fn whole(namespace: &Namespace) -> String {
    format!("{PREFIX}{{{namespace}:all}}")
}

/// The keys of a lock, and of the last fences beside it.
pub(crate) fn lock(key: &SlotKey) -> Result<(String, String), Fault> {
    let bucket = bucket(&key.plan);
    Ok((format!("{bucket}:lock:{}\n{}", key.plan.plan_str(), slot(key)?), format!("{bucket}:lock-fences")))
}

/// The keys of a notice board: bodies and ends.
pub(crate) fn board(namespace: &Namespace, kind: PostingKind) -> (String, String) {
    let board = format!("{PREFIX}{{{namespace}:board}}:{}", kind.as_str());
    let ends = format!("{board}:ends");
    (board, ends)
}

/// A slot within its plan: 16 digits, and the request where there is one. In order of time, byte by byte.
pub(crate) fn slot(key: &SlotKey) -> Result<String, Fault> {
    slot_at(key.at, key.request.as_ref())
}

pub(crate) fn slot_at(at: Trigger, request: Option<&RequestId>) -> Result<String, Fault> {
    let shifted = secs(at)? + SHIFT;
    Ok(format!("{shifted:016}{}", request.map_or("", RequestId::as_str)))
}

/// The trigger point and the request of a slot.
pub(crate) fn parse_slot(name: &str) -> Result<(Trigger, Option<RequestId>), Fault> {
    let parsed = name.split_at_checked(16).and_then(|(at, request)| Some((parse_at(at)?, request)));
    let Some((at, request)) = parsed else { return Err(Fault::corrupt(format!("{name:?} is not a slot"))) };
    let request = match request {
        "" => None,
        text => Some(RequestId::new(text).map_err(|e| Fault::corrupt(format!("a slot's request: {e}")))?),
    };
    Ok((at, request))
}

/// A trigger point from its 16 digits.
pub(crate) fn parse_at(digits: &str) -> Option<Trigger> {
    digits.parse::<i64>().ok().map(|shifted| Trigger::from_secs(shifted - SHIFT))
}

/// The seconds of a trigger point. Lua's numbers hold those within 142 million years of 1970.
pub(crate) fn secs(at: Trigger) -> Result<i64, Fault> {
    let secs = at.as_secs();
    if (-SHIFT..SHIFT - 1).contains(&secs) {
        return Ok(secs);
    }
    Err(Fault::new(StoreErrorKind::Internal, format!("a trigger point {secs} s from 1970 is out of range")))
}

/// The seconds of a bound of a query, cut to what can have a row.
pub(crate) fn bound(at: Trigger) -> i64 {
    at.as_secs().clamp(-SHIFT, SHIFT - 2)
}

/// A time in microseconds, at most 142 years.
pub(crate) fn micros(d: Duration) -> i64 {
    i64::try_from(d.as_micros()).unwrap_or(i64::MAX).min(LONGEST)
}

/// A time in milliseconds, rounded up, at least one and at most 142 years: the server refuses others.
pub(crate) fn millis(d: Duration) -> i64 {
    (micros(d) + 999).div_euclid(1_000).max(1)
}

/// An instant that may be missing.
pub(crate) fn maybe(at: Option<Timestamp>) -> String {
    at.map_or_else(String::new, |at| at.as_micros().to_string())
}

/// Free text, so that it holds no line feed.
pub(crate) fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

pub(crate) fn unescape(text: &str) -> Result<String, Fault> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        plain.push(match c {
            '\\' => match rest.next() {
                Some('\\') => '\\',
                Some('n') => '\n',
                _ => return Err(Fault::corrupt("a text is escaped wrongly")),
            },
            c => c,
        });
    }
    Ok(plain)
}

/// Free text that may be missing: an empty text is something else than none.
pub(crate) fn maybe_text(text: Option<&str>) -> String {
    text.map_or_else(String::new, |text| format!("+{}", escape(text)))
}

pub(crate) fn parse_maybe_text(text: &str) -> Result<Option<String>, Fault> {
    match text.strip_prefix('+') {
        Some(text) => unescape(text).map(Some),
        None if text.is_empty() => Ok(None),
        None => Err(Fault::corrupt("a text without its sign")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_in_order_of_time_byte_by_byte() {
        let ats = [-SHIFT, -1_000_000, -1, 0, 1, 9, 10, 1_700_000_000, 253_402_300_799, SHIFT - 2];
        let names: Vec<_> = ats.iter().map(|at| slot_at(Trigger::from_secs(*at), None).unwrap()).collect();
        assert!(names.is_sorted() && names.iter().all(|name| name.len() == 16), "{names:?}");
        for (at, name) in ats.iter().zip(&names) {
            assert_eq!(parse_slot(name).unwrap(), (Trigger::from_secs(*at), None));
        }
        assert!(slot_at(Trigger::from_secs(SHIFT), None).is_err());
        assert!(slot_at(Trigger::from_secs(i64::MIN), None).is_err());
    }

    #[test]
    fn any_text_comes_back() {
        for text in ["", "a", "\n", "\\", "\\n", "a\\\nb\n\n", "é\0\u{1F980}"] {
            assert!(!escape(text).contains('\n'));
            assert_eq!(unescape(&escape(text)).unwrap(), text);
            assert_eq!(parse_maybe_text(&maybe_text(Some(text))).unwrap().as_deref(), Some(text));
        }
        assert_eq!(parse_maybe_text(&maybe_text(None)).unwrap(), None);
        assert!(unescape("\\x").is_err() && unescape("\\").is_err() && parse_maybe_text("x").is_err());
    }

    #[test]
    fn the_tag_is_the_buckets_whatever_the_id() {
        for id in ["}", "{", "{x}", "a}b{c"] {
            let plan = timertask_core::key::PlanId::new(id).unwrap();
            let key = bucket(&PlanKey::new(Namespace::new("ns").unwrap(), plan));
            let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).unwrap().0;
            assert_eq!(tag, format!("ns:{:02x}", bucket_number(id)));
        }
    }

    #[test]
    fn a_lock_lasts_a_moment_at_least() {
        assert_eq!(millis(Duration::ZERO), 1);
        assert_eq!(millis(Duration::from_micros(1_001)), 2);
        assert_eq!(millis(Duration::MAX), (LONGEST + 999) / 1_000);
    }
}
