//! The quickstarts of README.md are as short as it says, and counted honestly.

use crate::{none, read};

/// The heading of each quickstart, and how many lines of code it may have.
const QUICKSTARTS: &[(&str, usize)] = &[
    ("One process", 6),
    ("Two processes on SQLite", 9),
    ("Several hosts, on Redis", 13),
    ("A unit test with two instances", 11),
];

/// The first Rust block below the heading that begins with `heading`, and above the next heading.
fn block<'a>(readme: &'a str, heading: &str) -> Option<Vec<&'a str>> {
    let (mut inside, mut fenced, mut block) = (false, false, None);
    for line in readme.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
            match &block {
                None if inside && line.starts_with("```rust") => block = Some(Vec::new()),
                None => {}
                Some(_) => return block,
            }
        } else if let Some(block) = &mut block {
            block.push(line);
        } else if !fenced && line.starts_with('#') {
            inside = line.trim_start_matches('#').trim_start().starts_with(heading);
        }
    }
    None
}

/// Lines that are neither blank, comment nor `use`. What rustdoc hides (`# …`) counts as well, but for the
/// function that a doctest is wrapped in.
fn code_lines(block: &[&str]) -> usize {
    block
        .iter()
        .map(|line| line.trim())
        .filter(|line| !["# fn main() -> Result<(), Box<dyn std::error::Error>> {", "# Ok(())", "# }"].contains(line))
        .map(|line| line.strip_prefix("# ").unwrap_or(line).trim())
        .filter(|line| !line.is_empty() && *line != "#" && !line.starts_with("//") && !line.starts_with("use "))
        .count()
}

fn check(readme: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    for (heading, most) in QUICKSTARTS {
        match block(readme, heading) {
            None => complaints.push(format!("'{heading}': no Rust block below such a heading")),
            Some(block) if block.iter().any(|line| line.contains("CREATE TABLE")) => {
                complaints.push(format!("'{heading}': tables to copy"));
            }
            Some(block) if code_lines(&block) > *most => {
                complaints.push(format!("'{heading}': {} lines of code, at most {most}", code_lines(&block)));
            }
            Some(_) => {}
        }
    }
    complaints
}

#[test]
fn quickstarts_are_short() {
    none("README.md promises short quickstarts:", &check(&read("README.md")));
}

#[test]
fn a_long_quickstart_is_seen() {
    let page = |first: &str| {
        let others = QUICKSTARTS.iter().skip(1).map(|(heading, _)| format!("### {heading}\n```rust\nf();\n```\n"));
        format!("# x\n### One process\n```rust\n{first}```\n{}", others.collect::<String>())
    };
    let six = "use a::b;\n\n// why\nf();\n".to_owned() + &"g();\n".repeat(5);
    assert_eq!(check(&page(&six)), Vec::<String>::new());
    assert_eq!(check(&page(&(six.clone() + "g();\n"))).len(), 1, "seven lines");
    assert_eq!(check(&page(&(six.clone() + "# g();\n"))).len(), 1, "a hidden line counts");
    assert_eq!(check(&page("f(\"CREATE TABLE\");\n")).len(), 1, "tables to copy");
    assert_eq!(check("").len(), QUICKSTARTS.len());
}
