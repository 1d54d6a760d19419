//! What may stand in the lock file: licences, and crates that we do without.

use serde_json::{Value, json};

use crate::{list, metadata, none, read, text};

/// Permissive licences that ask for no more than a notice.
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Exceptions that only grant more.
const EXCEPTIONS: &[&str] = &["LLVM-exception"];

/// Crates by name, and why not. A name that ends in `*` stands for all that begin so.
const BANNED: &[(&str, &str)] = &[
    ("tokio*", "an async runtime; this library is for those who have none"),
    ("async-std", "an async runtime; this library is for those who have none"),
    ("async-executor", "an async runtime; this library is for those who have none"),
    ("async-global-executor", "an async runtime; this library is for those who have none"),
    ("smol", "an async runtime; this library is for those who have none"),
    ("glommio", "an async runtime; this library is for those who have none"),
    ("monoio", "an async runtime; this library is for those who have none"),
    ("futures", "brings an executor along; threads and channels are enough here"),
    ("futures-executor", "an executor of futures; threads and channels are enough here"),
    ("openssl", "a C library that a host may lack; TLS, where a store needs it, is rustls"),
    ("openssl-s*", "a C library that a host may lack; TLS, where a store needs it, is rustls"),
    ("native-tls", "leads to OpenSSL; TLS, where a store needs it, is rustls"),
    ("r2d2*", "the pools here are a few lines, with time-outs"),
];

/// Whether an SPDX expression (also of the old form `MIT/Apache-2.0`) can be met with [`LICENCES`] alone.
fn acceptable(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = any(&words, &mut at);
    met && at == words.len()
}

fn any(words: &[&str], at: &mut usize) -> bool {
    let mut met = all(words, at);
    while words.get(*at).is_some_and(|w| w.eq_ignore_ascii_case("or")) {
        *at += 1;
        met |= all(words, at);
    }
    met
}

fn all(words: &[&str], at: &mut usize) -> bool {
    let mut met = one(words, at);
    while words.get(*at).is_some_and(|w| w.eq_ignore_ascii_case("and")) {
        *at += 1;
        met &= one(words, at);
    }
    met
}

fn one(words: &[&str], at: &mut usize) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let met = any(words, at);
        let closed = words.get(*at) == Some(&")");
        *at += 1;
        return met && closed;
    }
    let mut met = LICENCES.contains(word);
    if words.get(*at).is_some_and(|w| w.eq_ignore_ascii_case("with")) {
        met &= words.get(*at + 1).is_some_and(|exception| EXCEPTIONS.contains(exception));
        *at += 2;
    }
    met
}

/// Complaints about the licences of `packages`.
fn check_licences(packages: &[Value]) -> Vec<String> {
    let complaint = |package: &&Value| !acceptable(text(package, "license"));
    let show = |package: &Value| {
        format!("{} {}: '{}'", text(package, "name"), text(package, "version"), text(package, "license"))
    };
    packages.iter().filter(complaint).map(show).collect()
}

/// Complaints about the names in a lock file, and about sources other than the public registry.
fn check_lock(lock: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    for line in lock.lines() {
        if let Some(name) = line.strip_prefix("name = ").map(|name| name.trim_matches('"')) {
            for (banned, why) in BANNED {
                let hit = match banned.strip_suffix('*') {
                    Some(start) => name.starts_with(start),
                    None => name == *banned,
                };
                if hit {
                    complaints.push(format!("{name}: {why} (`cargo tree --workspace -i {name}` shows who asks)"));
                }
            }
        }
        // The lock file's fixed name for the public registry, wherever a machine gets it from.
        let public = concat!("\"registry+https://github.com/rust-lang/", "crates", ".io-index\"");
        if let Some(source) = line.strip_prefix("source = ").filter(|source| *source != public) {
            complaints.push(format!("{source}: a source other than the public registry"));
        }
    }
    complaints
}

#[test]
fn licences_of_all_dependencies_are_permissive() {
    let metadata = metadata("Cargo.toml", &["--all-features", "--locked"]);
    let packages = list(&metadata, "packages");
    assert!(packages.len() > 20, "cargo metadata shows {} packages", packages.len());
    none(
        "A dependency's licence is not on the list in examples/tests/tidy/licences.rs. Copyleft stays out; a \
         permissive licence that is new here may be added.",
        &check_licences(packages),
    );
}

#[test]
fn banned_crates_stay_out_of_the_lock_file() {
    let lock = read("Cargo.lock");
    assert!(lock.contains("name = \"timertask-core\""), "this is no lock file of ours");
    none("Cargo.lock names what this library does without:", &check_lock(&lock));
}

#[test]
fn a_licence_that_is_not_on_the_list_is_seen() {
    for good in [
        "MIT",
        "MIT OR Apache-2.0",
        "MIT/Apache-2.0",
        "MIT OR LGPL-2.1-or-later",
        "(MIT OR Apache-2.0) AND Unicode-3.0",
        "Apache-2.0 WITH LLVM-exception OR GPL-3.0-only",
    ] {
        assert!(acceptable(good), "{good}");
    }
    for bad in [
        "",
        "GPL-3.0-only",
        "MIT AND LGPL-2.1-or-later",
        "(MIT OR Apache-2.0) AND MPL-2.0",
        "(MIT OR Apache-2.0",
        "MIT Apache-2.0",
        "Apache-2.0 WITH Classpath-exception-2.0",
        "MIT OR",
        "Proprietary",
    ] {
        let package = json!({ "name": "x", "version": "1.0.0", "license": bad });
        // `MIT OR` cannot be read, but is no reason to be afraid of: MIT alone meets it.
        assert_eq!(check_licences(&[package]).is_empty(), bad == "MIT OR", "{bad}");
    }
    assert_eq!(check_licences(&[json!({ "name": "x", "version": "1.0.0", "license": null })]).len(), 1);
}

#[test]
fn a_banned_crate_is_seen() {
    let lock = "name = \"tokio-util\"\nname = \"log\"\nname = \"openssl-sys\"\nname = \"smol\"\n\
                source = \"git+https://example.com/x\"\n";
    assert_eq!(check_lock(lock).len(), 4, "{:#?}", check_lock(lock));
}
