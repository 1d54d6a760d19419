//! What people see: a table that lives, on a terminal; plain lines, where the output goes elsewhere. The table fits a
//! terminal of 80 columns and 24 lines; on a smaller one it is cut, not garbled.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use rustix::termios::tcgetwinsize;
use timertask::Timestamp;

use crate::audit::{Audit, Tally};
use crate::conductor::seconds_to;

/// How many of the last events stay on the terminal.
const EVENTS: usize = 6;

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    Fail,
    /// Nothing was wrong as far as it went.
    Interrupted,
}

pub(crate) struct Screen {
    live: bool,
    colour: bool,
    events: Vec<String>,
    shown: Option<Timestamp>,
    /// Lines on the terminal that the next picture takes the place of.
    lines: usize,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let live = std::io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let colour = live && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { live, colour, events: Vec::new(), shown: None, lines: 0 }
    }

    /// Something was done to the instances.
    pub(crate) fn event(&mut self, text: String) {
        if self.live {
            self.events.push(text);
        } else {
            println!("* {text}");
        }
    }

    /// Whether it is time for a new picture.
    pub(crate) fn wants(&self, now: Timestamp) -> bool {
        let every = if self.live { Duration::from_millis(500) } else { Duration::from_secs(5) };
        self.shown.is_none_or(|shown| now.since(shown) >= every)
    }

    pub(crate) fn show(&mut self, audit: &Audit, what: &str, now: Timestamp, end: Timestamp) {
        self.shown = Some(now);
        let total = audit.total();
        let left = seconds_to(now, end);
        if !self.live {
            let what = if left > 0 { format!("{left} s to go") } else { what.to_owned() };
            println!(
                "  {} slots started once, {} twice, {} not started, {} running; {what}",
                total.once,
                total.twice,
                total.not_started.values().sum::<usize>(),
                total.running
            );
            return;
        }
        let mut picture = counts(audit);
        let _ = writeln!(
            picture,
            "\nlate p50 {}, p99 {}; runs by instance: {}\n",
            millis(total.percentile(50)),
            millis(total.percentile(99)),
            list(total.by_instance.iter().map(|(k, n)| (k.as_str(), *n)))
        );
        for event in self.events.iter().rev().take(EVENTS).rev() {
            let _ = writeln!(picture, "* {event}");
        }
        let _ = writeln!(picture, "{what}{}", if left > 0 { format!(", {left} s to go") } else { String::new() });
        let size = tcgetwinsize(std::io::stdout()).map_or((24, 80), |size| (size.ws_row.into(), size.ws_col.into()));
        self.draw(&cut(&picture, size));
    }

    /// Puts a picture in the place of the one before. What was typed meanwhile may stand in the cursor's line.
    fn draw(&mut self, picture: &str) {
        let mut out = std::io::stdout().lock();
        let up = if self.lines > 0 { format!("\x1b[{}A", self.lines) } else { String::new() };
        let _ = write!(out, "\r{up}\x1b[J{picture}");
        let _ = out.flush();
        self.lines = picture.lines().count();
    }

    /// The last picture, and the last line. `wrong` is what went wrong besides the slots; `interrupted` says after how many
    /// seconds somebody lost patience.
    pub(crate) fn verdict(&mut self, audit: &Audit, wrong: &[String], interrupted: Option<u64>) -> Verdict {
        let total = audit.total();
        let mut text = format!("{}\n{}", counts(audit), starts(audit));
        let _ = writeln!(text, "\nnot run, by reason: {}", list(total.not_started.iter().map(|(k, n)| (*k, *n))));
        for wrong in total.wrong.iter().chain(wrong) {
            let _ = writeln!(text, "WRONG: {wrong}");
        }
        if self.live {
            for event in &self.events {
                let _ = writeln!(text, "* {event}");
            }
            self.draw("");
        }
        print!("{text}");
        let verdict = if !wrong.is_empty() || !total.wrong.is_empty() || total.twice > 0 {
            Verdict::Fail
        } else if interrupted.is_some() {
            // What was still to come can't be judged.
            Verdict::Interrupted
        } else if total.passes() && total.once > 0 {
            Verdict::Pass
        } else {
            Verdict::Fail
        };
        let (word, colour) = match verdict {
            Verdict::Pass => ("PASS", "32"),
            Verdict::Fail => ("FAIL", "31"),
            Verdict::Interrupted => ("INTERRUPTED", "33"),
        };
        let word = if self.colour { format!("\x1b[1;{colour}m{word}\x1b[0m") } else { word.to_owned() };
        println!(
            "\n{word} {}{} slots: {} started once, {} twice, {} missing, {} not started for a reason",
            interrupted.map_or_else(String::new, |secs| format!("after {secs} s; until then ")),
            total.expected,
            total.once,
            total.twice,
            total.missing,
            total.not_started.values().sum::<usize>()
        );
        verdict
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = std::io::stdout().flush();
    }
}

/// The tallies of the plans by name, and in the end that of all.
fn named(audit: &Audit) -> Vec<(&str, Tally)> {
    let plans = audit.plans.iter().map(|(id, tally)| (id.as_str(), tally.clone()));
    plans.chain([("all", audit.total())]).collect()
}

/// What became of the slots of each plan, and of all.
fn counts(audit: &Audit) -> String {
    let mut text = format!(
        "{:<16}{:>9}{:>6}{:>6}{:>8}{:>7}{:>7}{:>10}{:>8}\n",
        "plan", "expected", "once", "twice", "missing", "failed", "orphan", "caught up", "not run"
    );
    for (name, tally) in named(audit) {
        let _ = writeln!(
            text,
            "{:<16}{:>9}{:>6}{:>6}{:>8}{:>7}{:>7}{:>10}{:>8}",
            name,
            tally.expected,
            tally.once,
            tally.twice,
            tally.missing,
            tally.failed,
            tally.orphaned,
            tally.caught_up,
            tally.not_started.values().sum::<usize>(),
        );
    }
    text
}

/// How late the runs of each plan, and of all, began, and on which instance.
fn starts(audit: &Audit) -> String {
    let all = audit.total().by_instance;
    let mut text = format!("{:<16}{:>11}{:>11}", "plan", "late p50", "late p99");
    all.keys().for_each(|instance| text.push_str(&format!("{instance:>9}")));
    text.push('\n');
    for (name, tally) in named(audit) {
        let _ = write!(text, "{name:<16}{:>11}{:>11}", millis(tally.percentile(50)), millis(tally.percentile(99)));
        for instance in all.keys() {
            let _ = write!(text, "{:>9}", tally.by_instance.get(instance).copied().unwrap_or(0));
        }
        text.push('\n');
    }
    text
}

/// As much of a picture as fits a terminal of so many rows and columns, the cursor below it. A line that wrapped, or one
/// that scrolled away, would never be overwritten.
fn cut(picture: &str, (rows, columns): (usize, usize)) -> String {
    let lines = picture.lines().take(rows.saturating_sub(1));
    lines.map(|line| line.chars().take(columns).collect::<String>() + "\n").collect()
}

fn millis(d: Option<Duration>) -> String {
    d.map_or_else(|| "-".to_owned(), |d| format!("{:.1} ms", d.as_secs_f64() * 1000.0))
}

fn list<'a>(items: impl Iterator<Item = (&'a str, usize)>) -> String {
    let items: Vec<_> = items.map(|(name, n)| format!("{name} {n}")).collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn audit() -> Audit {
        let tally = |n: usize, instance: &str| Tally {
            once: n,
            by_instance: [(instance.to_owned(), n)].into(),
            lateness: vec![Duration::from_millis(2)],
            ..Tally::default()
        };
        Audit {
            plans: [("slow-in-parallel".to_owned(), tally(3600, "node-1")), ("b".to_owned(), tally(2, "node-2"))]
                .into(),
        }
    }

    #[test]
    fn each_plan_and_all_are_told_by_instance() {
        let text = starts(&audit());
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[0], ["plan", "late", "p50", "late", "p99", "node-1", "node-2"]);
        assert_eq!(words[1], ["b", "2.0", "ms", "2.0", "ms", "0", "2"]);
        assert_eq!(words[3], ["all", "2.0", "ms", "2.0", "ms", "3600", "2"]);
    }

    #[test]
    fn the_picture_fits_a_terminal_of_eighty_columns() {
        assert!(counts(&audit()).lines().all(|line| line.len() < 80));
    }

    #[test]
    fn a_small_terminal_cuts_the_picture() {
        assert_eq!(cut("abc\nd\ne\n", (3, 2)), "ab\nd\n");
        assert_eq!(cut("é\n", (9, 9)), "é\n");
    }
}
