//! Tests that name a row of scripts/faults.txt name one that exists.

use std::collections::BTreeSet;

use crate::{none, read, sources};

fn rows(list: &str) -> BTreeSet<u32> {
    list.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
}

/// The functions of a source that are called `fault_NN_…`, with the number.
fn named(text: &str) -> Vec<(String, Option<u32>)> {
    let start = concat!("fn fau", "lt_");
    text.split(start)
        .skip(1)
        .map(|rest| {
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let number = name.split_once('_').and_then(|(number, _)| number.parse().ok());
            (format!("fault_{name}"), number)
        })
        .collect()
}

fn check(path: &str, text: &str, rows: &BTreeSet<u32>) -> Vec<String> {
    let wrong = |(name, number): (String, Option<u32>)| match number {
        Some(number) if rows.contains(&number) => None,
        _ => Some(format!("{path}: {name}")),
    };
    named(text).into_iter().filter_map(wrong).collect()
}

#[test]
fn tests_name_faults_that_exist() {
    let rows = rows(&read("scripts/faults.txt"));
    assert!(rows.len() > 30, "scripts/faults.txt has {} rows", rows.len());
    let complaints: Vec<_> = sources().iter().flat_map(|(path, text)| check(path, text, &rows)).collect();
    none("A test names a row that scripts/faults.txt does not have:", &complaints);
}

#[test]
fn a_fault_that_does_not_exist_is_seen() {
    let rows = BTreeSet::from([12]);
    let test = |name: &str| format!("#[test]\n{}{name}() {{}}\n", concat!("fn fau", "lt_"));
    assert_eq!(check("a.rs", &test("12_lease_ends"), &rows), Vec::<String>::new());
    assert_eq!(check("a.rs", &test("13_unknown"), &rows).len(), 1);
    assert_eq!(check("a.rs", &test("without_number"), &rows).len(), 1);
}
