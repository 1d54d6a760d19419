//! Rules about sources that clippy has no lint for.

use crate::code_map::is_test;
use crate::{none, sources};

/// Lines that a file may have before it is asked for its seam.
const BUDGET: usize = 600;

/// Files beyond the budget, each with the reason why it stays whole.
const BEYOND: &[(&str, &str)] = &[];

/// Files that may read the system's clocks or sleep, each with its reason; clippy forbids it to all that don't say so.
const CLOCKS: &[(&str, &str)] = &[
    ("timertask-core/src/clock.rs", "the door"),
    ("timertask-testkit/src/clock/drive.rs", "how long the fake clock waits for a rest that does not come"),
];

/// Parts of core that compute and nothing else.
const PURE: &[&str] =
    &["schedule/", "schedule.rs", "plan.rs", "budget.rs", "reconcile.rs", "rules.rs", "rules/", "time.rs"];

/// What does not belong in them.
const IMPURE: &[&str] = &[
    "std::thread",
    "std::sync::Mutex",
    "std::sync::RwLock",
    "Condvar",
    "crossbeam",
    "clock::",
    "Instant::now",
    "time::Instant",
    "SystemTime::",
];

fn too_long(path: &str, text: &str) -> Option<String> {
    let lines = text.lines().count();
    let excused = BEYOND.iter().any(|(file, _)| *file == path);
    match (lines > BUDGET, excused) {
        (true, false) => Some(format!("{path}: {lines} lines")),
        (false, true) => Some(format!("{path}: {lines} lines, and no longer needs its exception")),
        _ => None,
    }
}

/// `Mutex` is the name of a seam here, so that of std is always written `std::sync::Mutex`.
fn short_mutex(path: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    // A statement may go over lines: what counts is what stands between `use` and its semicolon.
    for statement in text.split(concat!("use ", "std::")).skip(1) {
        let path_and_names = statement.split(';').next().unwrap_or_default();
        let words: Vec<_> = path_and_names.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        if words.contains(&"sync") && (words.contains(&"Mutex") || words.last() == Some(&"sync")) {
            complaints.push(format!("{path}: use std::{}", path_and_names.split_whitespace().collect::<String>()));
        }
    }
    complaints
}

fn clock_elsewhere(path: &str, text: &str) -> Option<String> {
    let lint = concat!("clippy::disallowed", "_methods");
    (text.contains(lint) && !CLOCKS.iter().any(|(file, _)| *file == path)).then(|| format!("{path}: sets {lint} aside"))
}

fn impure(path: &str, text: &str) -> Vec<String> {
    let Some(inside) = path.strip_prefix("timertask-core/src/") else { return Vec::new() };
    if is_test(path) || !PURE.iter().any(|pure| inside == *pure || (pure.ends_with('/') && inside.starts_with(pure))) {
        return Vec::new();
    }
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    IMPURE.iter().filter(|word| code.contains(**word)).map(|word| format!("{path}: {word}")).collect()
}

#[test]
fn files_are_within_their_budget() {
    let complaints: Vec<_> = sources().iter().filter_map(|(path, text)| too_long(path, text)).collect();
    none(
        &format!(
            "A file has more than {BUDGET} lines. There is a seam in it; or say why not, in BEYOND of examples/tests/tidy/code.rs."
        ),
        &complaints,
    );
}

#[test]
fn the_mutex_of_std_is_written_in_full() {
    let complaints: Vec<_> = sources().iter().flat_map(|(path, text)| short_mutex(path, text)).collect();
    none("`Mutex` alone is the seam's name; write `std::sync::Mutex` in full, without importing it:", &complaints);
}

#[test]
fn only_the_clock_takes_the_time() {
    let complaints: Vec<_> = sources().iter().filter_map(|(path, text)| clock_elsewhere(path, text)).collect();
    none(
        "Time comes from a `Clock`. A file that must not use one is named in CLOCKS of examples/tests/tidy/code.rs:",
        &complaints,
    );
}

#[test]
fn what_is_pure_knows_no_thread_lock_or_clock() {
    let complaints: Vec<_> = sources().iter().flat_map(|(path, text)| impure(path, text)).collect();
    none(
        "Schedules, plans, budgets, reconciling and rules only compute; threads, locks and clocks stay out:",
        &complaints,
    );
}

#[test]
fn each_of_these_rules_can_fail() {
    assert!(too_long("a.rs", &"\n".repeat(BUDGET + 1)).is_some());
    assert!(too_long("a.rs", &"\n".repeat(BUDGET)).is_none());

    assert_eq!(short_mutex("a.rs", concat!("us", "e std::", "sync::Mutex;")).len(), 1);
    assert_eq!(short_mutex("a.rs", concat!("us", "e std::", "sync::{\n    Arc,\n    Mutex,\n};")).len(), 1);
    assert_eq!(short_mutex("a.rs", concat!("us", "e std::", "sync;")).len(), 1);
    assert_eq!(short_mutex("a.rs", concat!("us", "e std::", "{fmt, sync::{Arc, Mutex}};")).len(), 1);
    assert_eq!(short_mutex("a.rs", concat!("us", "e std::", "sync::{Arc, MutexGuard};")).len(), 0);
    assert_eq!(short_mutex("a.rs", concat!("let m = std::", "sync::Mutex::new(0);")).len(), 0);

    let aside = concat!("#[allow(clippy::disallowed", "_methods)]");
    assert!(clock_elsewhere("timertask-core/src/engine/timer.rs", aside).is_some());
    assert!(clock_elsewhere("timertask-core/src/clock.rs", aside).is_none());

    let thread = "fn f() { std::thread::yield_now() }";
    assert_eq!(impure("timertask-core/src/rules.rs", thread).len(), 1);
    assert_eq!(impure("timertask-core/src/schedule/parse.rs", thread).len(), 1);
    assert_eq!(impure("timertask-core/src/engine/timer.rs", thread).len(), 0);
    assert_eq!(impure("timertask-core/src/rules.rs", "// std::thread is not needed here").len(), 0);
}
