//! The examples are short, known to cargo, and end by saying whether they saw what they show.

use crate::{files, none, read};

/// Lines of a file in `examples/`.
const LENGTH: std::ops::RangeInclusive<usize> = 40..=100;

fn check(path: &str, text: &str, manifest: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let lines = text.lines().count();
    if !LENGTH.contains(&lines) {
        complaints.push(format!("{path}: {lines} lines; {LENGTH:?} are meant"));
    }
    if !text.starts_with("//! ") {
        complaints.push(format!("{path}: does not open with what it shows"));
    }
    if !text.contains("println!(\"ok: ") {
        complaints.push(format!("{path}: never says 'ok: …', so scripts/test takes it for failed"));
    }
    let file = path.trim_start_matches("examples/");
    if !manifest.contains(&format!("path = \"{file}\"")) {
        complaints.push(format!("{path}: has no [[example]] in examples/Cargo.toml, so nobody builds it"));
    }
    complaints
}

#[test]
fn examples_are_short_and_run() {
    let manifest = read("examples/Cargo.toml");
    let is_example =
        |path: &str| path.strip_prefix("examples/").is_some_and(|f| f.ends_with(".rs") && !f.contains('/'));
    let complaints: Vec<_> = files()
        .iter()
        .filter(|(path, _)| is_example(path))
        .flat_map(|(path, text)| check(path, text, &manifest))
        .collect();
    none("An example is not as the others are:", &complaints);
}

#[test]
fn a_bad_example_is_seen() {
    let good = format!("//! Shows.\n{}println!(\"ok: {{}}\");\n", "\n".repeat(60));
    let manifest = "path = \"a.rs\"";
    assert_eq!(check("examples/a.rs", &good, manifest), Vec::<String>::new());
    assert_eq!(check("examples/b.rs", &good, manifest).len(), 1, "unknown to cargo");
    assert_eq!(check("examples/a.rs", &good.replace("ok: ", ""), manifest).len(), 1, "says nothing");
    assert_eq!(check("examples/a.rs", &good[4..], manifest).len(), 1, "opens with nothing");
    assert_eq!(check("examples/a.rs", &(good + &"\n".repeat(100)), manifest).len(), 1, "too long");
}
