//! What this repository has agreed on and no compiler checks. Each rule is a function from text to a list of
//! complaints, run over the repository, and once over text that breaks it, so that no rule is silently toothless.

#![expect(clippy::expect_used, reason = "tests, and what helps them")]

mod code;
mod code_map;
mod edges;
mod examples;
mod faults;
mod guarantees;
mod licences;
mod readme;
mod text;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The top of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the examples lie in a folder of the repository").to_owned()
}

/// A file of the repository; empty where there is none.
fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_default()
}

/// Every file under version control, and those that are new and not ignored: path from the top, and text.
/// What is not UTF-8 is left out.
fn files() -> Vec<(String, String)> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git is needed: the rules hold for what is under version control");
    assert!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).expect("file names are UTF-8");
    let files: Vec<_> = names
        .split_terminator('\0')
        .filter_map(|name| Some((name.to_owned(), std::fs::read_to_string(root().join(name)).ok()?)))
        .collect();
    assert!(files.len() > 20, "git shows only {} files: is this a clone?", files.len());
    files
}

/// The Rust sources among [`files`].
fn sources() -> Vec<(String, String)> {
    files().into_iter().filter(|(name, _)| name.ends_with(".rs")).collect()
}

/// What `cargo metadata` says of the workspace whose manifest this is, without asking the network.
fn metadata(manifest: &str, more: &[&str]) -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--offline", "--manifest-path"])
        .arg(root().join(manifest))
        .args(more)
        .output()
        .expect("cargo runs, since it runs this test");
    assert!(
        output.status.success(),
        "cargo metadata failed; `cargo fetch --locked` brings what it misses. It said:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("cargo metadata answers JSON")
}

/// The text of a field; empty where it is none.
fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// The elements of a field; none where it is no list.
fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

/// Fails with all complaints at once, below what to do about them.
#[track_caller]
fn none(rule: &str, complaints: &[String]) {
    assert!(complaints.is_empty(), "{rule}\n  {}\n", complaints.join("\n  "));
}
