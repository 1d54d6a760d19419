//! Which crate may depend on which.

use serde_json::{Value, json};

use crate::{list, metadata, none, root, text};

/// A crate's row: its name, what of this workspace it may build on, and what else, where that is a closed list.
type Row = (&'static str, &'static [&'static str], Option<&'static [&'static str]>);

/// The whole list. The crates that users take along name each of their dependencies here: a new one is a decision.
const ALLOWED: &[Row] = &[
    (
        "timertask-core",
        &[],
        Some(&["chrono", "chrono-tz", "cron", "crossbeam-channel", "hashbrown", "log", "thiserror"]),
    ),
    ("timertask-sqlite", &["timertask-core"], Some(&["log", "rusqlite", "thiserror"])),
    ("timertask-redis", &["timertask-core"], Some(&["log", "redis", "rustls", "thiserror"])),
    ("timertask", &["timertask-core", "timertask-sqlite", "timertask-redis"], Some(&[])),
    ("timertask-testkit", &["timertask-core"], None),
    ("timertask-cli", &["timertask"], None),
    ("timertask-examples", &["timertask"], None),
    ("timertask-bench", &["timertask"], None),
    ("timertask-core-fuzz", &["timertask-core"], None),
];

/// Complaints about `packages`, as `cargo metadata` lists them.
fn check(packages: &[Value]) -> Vec<String> {
    let mut complaints = Vec::new();
    for package in packages {
        let name = text(package, "name");
        let Some((_, ours, others)) = ALLOWED.iter().find(|row| row.0 == name) else {
            complaints.push(format!("{name}: a crate without a row"));
            continue;
        };
        for dependency in list(package, "dependencies") {
            let target = text(dependency, "name");
            let dev = text(dependency, "kind") == "dev";
            let allowed = if target.starts_with("timertask") {
                ours.contains(&target) || (dev && target == "timertask-testkit")
            } else {
                dev || others.is_none_or(|others| others.contains(&target))
            };
            if !allowed {
                let kind = if dev { "dev-dependency" } else { "dependency" };
                complaints.push(format!("{name} -> {target} ({kind})"));
            }
        }
    }
    complaints
}

#[test]
fn edges_between_crates_are_those_of_the_list() {
    let mut packages = Vec::new();
    for manifest in ["Cargo.toml", "bench/Cargo.toml", "timertask-core/fuzz/Cargo.toml"] {
        if root().join(manifest).exists() {
            packages.extend_from_slice(list(&metadata(manifest, &["--no-deps"]), "packages"));
        }
    }
    assert!(packages.len() >= 7, "cargo metadata shows {} crates", packages.len());
    none(
        "A crate depends on what it must not. Stores and testkit build on timertask-core, the facade on core and \
         stores, programs on the facade; timertask-testkit is a dev-dependency only. If the edge is meant, add it to \
         ALLOWED in examples/tests/tidy/edges.rs and say why in ARCHITECTURE.md.",
        &check(&packages),
    );
}

#[test]
fn a_forbidden_edge_is_seen() {
    let package = |name: &str, target: &str, kind: Value| json!({ "name": name, "dependencies": [{ "name": target, "kind": kind }] });
    let wrong = [
        package("timertask-core", "timertask-sqlite", Value::Null),
        package("timertask-core", "timertask-testkit", Value::Null),
        package("timertask-core", "timertask-testkit", json!("build")),
        package("timertask-core", "timertask", json!("dev")),
        package("timertask-core", "serde", Value::Null),
        package("timertask-sqlite", "timertask-redis", Value::Null),
        package("timertask-cli", "timertask-core", Value::Null),
        package("timertask-new", "log", Value::Null),
    ];
    assert_eq!(check(&wrong).len(), wrong.len(), "{:#?}", check(&wrong));
    let right = [
        package("timertask-core", "timertask-testkit", json!("dev")),
        package("timertask-core", "proptest", json!("dev")),
        package("timertask-cli", "clap", Value::Null),
    ];
    assert_eq!(check(&right), Vec::<String>::new());
}
