//! ARCHITECTURE.md names each source file, with a line of what it is for.

use std::collections::BTreeSet;

use crate::{files, none, read};

/// The paths that the map of a text names: lines of the form ``- `path/of/file.rs`: what it is for``, below a heading
/// that gives the folder in backquotes.
fn listed(architecture: &str) -> Vec<String> {
    let mut folder = "";
    let mut paths = Vec::new();
    for line in architecture.lines() {
        if line.starts_with('#') {
            folder = line.split('`').nth(1).unwrap_or_default();
        } else if let Some((path, what)) = line.strip_prefix("- `").and_then(|rest| rest.split_once("`: "))
            && path.ends_with(".rs")
            && !what.trim().is_empty()
        {
            paths.push(format!("{folder}{path}"));
        }
    }
    paths
}

/// Whether a file belongs on the map: the sources of each crate, tests and modules of tests apart.
fn belongs(path: &str) -> bool {
    let mut parts = path.split('/');
    let crate_of_ours = parts.next().is_some_and(|first| first.starts_with("timertask"));
    crate_of_ours && parts.next() == Some("src") && path.ends_with(".rs") && !is_test(path)
}

/// Whether a file holds tests alone.
pub(crate) fn is_test(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.ends_with("_tests.rs") || path.contains("/tests/")
}

/// Complaints about the map of `architecture`, given the repository's files.
fn check(architecture: &str, files: &BTreeSet<String>) -> Vec<String> {
    let listed = listed(architecture);
    let mut complaints = Vec::new();
    for path in files.iter().filter(|path| belongs(path) && !listed.contains(path)) {
        complaints.push(format!("not on the map: {path}"));
    }
    for path in listed.iter().filter(|path| !files.contains(*path)) {
        complaints.push(format!("on the map, but there is no such file: {path}"));
    }
    for (at, path) in listed.iter().enumerate().filter(|(at, path)| listed[..*at].contains(path)) {
        complaints.push(format!("twice on the map (entry {at}): {path}"));
    }
    complaints
}

#[test]
fn the_code_map_is_complete() {
    let files: BTreeSet<String> = files().into_iter().map(|(name, _)| name).collect();
    assert!(files.iter().any(|path| belongs(path)), "no source was found");
    none(
        "The code map of ARCHITECTURE.md and the files differ. Each file of a crate's src has a line there, below the \
         heading of its folder:  - `engine/timer.rs`: what it is for.",
        &check(&read("ARCHITECTURE.md"), &files),
    );
}

#[test]
fn a_gap_in_the_map_is_seen() {
    let files: BTreeSet<String> =
        ["timertask-core/src/lib.rs", "timertask-core/src/engine/timer.rs", "timertask-core/src/engine/tests.rs"]
            .map(str::to_owned)
            .into();
    let good = "### `timertask-core/src/`\n- `lib.rs`: the list.\n- `engine/timer.rs`: when.\n";
    assert_eq!(check(good, &files), Vec::<String>::new());
    assert_eq!(check("### `timertask-core/src/`\n- `lib.rs`: the list.\n", &files).len(), 1, "one is missing");
    assert_eq!(check(&format!("{good}- `gone.rs`: not there.\n"), &files).len(), 1, "one is gone");
    assert_eq!(check(&format!("{good}- `lib.rs`: again.\n"), &files).len(), 1, "one stands twice");
    assert_eq!(check(&good.replace(": when.", ": "), &files).len(), 1, "one says nothing");
}
