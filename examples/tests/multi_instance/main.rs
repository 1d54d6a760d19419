//! How a service tests its jobs on several instances at once: three tests as users would write them, each in a file of its
//! own. None of them sleeps, and none is long.

#![allow(clippy::unwrap_used, reason = "tests, and what helps them")]

mod fenced_writes;
mod nightly_report;
mod rolling_deploy;

#[test]
fn each_of_them_is_short_and_does_not_sleep() {
    for (name, text) in [
        ("fenced_writes", include_str!("fenced_writes.rs")),
        ("nightly_report", include_str!("nightly_report.rs")),
        ("rolling_deploy", include_str!("rolling_deploy.rs")),
    ] {
        let lines = text.lines().count();
        assert!(lines < 40, "{name}: {lines} lines");
        assert!(!text.contains("sleep"), "{name} sleeps");
        assert!(text.contains("#[test]") && text.contains("cluster.check()"), "{name} tests nothing");
    }
}
