//! What no file under version control may say: where it was written, and whence a machine takes its packages.

use crate::{files, none};

/// Pieces of the forbidden words, so that this file does not hold them.
const FORBIDDEN: &[(&[&str], &str)] = &[
    (&["/wo", "rk/"], "a path of the machine it was written on"),
    (&["../sha", "red"], "a folder that a clone does not have"),
    (&[".lib", "rary"], "a folder that a clone does not have"),
    (&["/ho", "me/"], "a path of somebody's machine"),
    (&["/ro", "ot/"], "a path of somebody's machine"),
    (&["crates", ".io"], "the host of a registry; say 'the registry'"),
    (&["pypi", ".org"], "the host of a registry"),
    (&["npmjs", ".org"], "the host of a registry"),
    (&["deb.deb", "ian.org"], "the host of a registry"),
    (&["replace-", "with"], "where one machine takes its crates from"),
    (&["spar", "se+"], "where one machine takes its crates from"),
    (&["index-", "url"], "where one machine takes its packages from"),
];

fn check(path: &str, text: &str) -> Vec<String> {
    // The lock file's fixed name for the public registry is cargo's word, not ours; tidy's licences look at it.
    let own = path == "Cargo.lock" || path.ends_with("/Cargo.lock");
    let mut complaints = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if own && line.starts_with("source = \"registry+") {
            continue;
        }
        for (pieces, what) in FORBIDDEN {
            let word = pieces.concat();
            if line.contains(&word) {
                complaints.push(format!("{path}:{}: '{word}': {what}", number + 1));
            }
        }
    }
    complaints
}

#[test]
fn no_file_tells_where_it_was_made() {
    let complaints: Vec<_> = files().iter().flat_map(|(path, text)| check(path, text)).collect();
    none("A file names what exists only on some machines, or a registry's host:", &complaints);
}

#[test]
fn a_forbidden_word_is_seen() {
    for (pieces, _) in FORBIDDEN {
        assert_eq!(check("a.md", &format!("see {}x", pieces.concat())).len(), 1, "{pieces:?}");
    }
    let lock = format!("source = \"registry+https://github.com/rust-lang/{}-index\"", ["crates", ".io"].concat());
    assert_eq!(check("Cargo.lock", &lock), Vec::<String>::new());
    assert_eq!(check("a.md", &lock).len(), 1);
}
