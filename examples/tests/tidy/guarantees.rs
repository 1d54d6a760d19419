//! docs/guarantees.md rests its sentences on tests, and each of these exists.

use std::collections::BTreeSet;

use crate::{none, read, sources};

/// The names of tests in a page: what stands in backquotes and is spelled as a test is, in three words or more.
fn cited(page: &str) -> BTreeSet<&str> {
    let quoted = page.split('`').skip(1).step_by(2);
    quoted.filter(|name| name.split('_').count() >= 3 && name.chars().all(is_of_a_name)).collect()
}

fn is_of_a_name(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'
}

/// The functions of a source.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    text.split("fn ").skip(1).filter_map(|rest| rest.split(|c| !is_of_a_name(c)).next())
}

/// Complaints about the page, given the names of all functions.
fn check(page: &str, functions: &BTreeSet<&str>) -> Vec<String> {
    let mut complaints: Vec<String> =
        cited(page).difference(functions).map(|name| format!("no such test: {name}")).collect();
    for number in 1..=6 {
        let section = page.split("\n## ").find(|section| section.starts_with(&format!("{number}. ")));
        match section.map(|section| cited(section).len()) {
            None => complaints.push(format!("sentence {number} has no section")),
            Some(count) if count < 3 => complaints.push(format!("sentence {number} rests on {count} tests")),
            Some(_) => {}
        }
    }
    complaints
}

#[test]
fn each_guarantee_rests_on_tests_that_exist() {
    let sources = sources();
    let functions = sources.iter().flat_map(|(_, text)| functions(text)).collect();
    none("docs/guarantees.md cites what is not there:", &check(&read("docs/guarantees.md"), &functions));
}

#[test]
fn a_test_that_is_not_there_is_seen() {
    let sections: String =
        (1..=6).map(|n| format!("\n## {n}. It is so\n`it_is_so_a`, `it_is_so_b`, `it_is_so_c`\n")).collect();
    let source = "fn it_is_so_a() {}\nfn it_is_so_b() {}\nfn it_is_so_c<H>() {}";
    let functions: BTreeSet<&str> = functions(source).collect();
    assert_eq!(check(&sections, &functions), Vec::<String>::new());
    assert_eq!(check(&format!("{sections} `it_is_so_d`"), &functions), ["no such test: it_is_so_d"]);
    assert_eq!(check(&sections.replace("## 4.", "## 7."), &functions), ["sentence 4 has no section"]);
    assert_eq!(check(&sections.replacen("`it_is_so_a`, ", "", 1), &functions), ["sentence 1 rests on 2 tests"]);
    // Words that no test is called by are left alone.
    assert_eq!(check(&format!("{sections} `lock_ttl` `scripts/soak` `a_b::c_d`"), &functions), Vec::<String>::new());
}
