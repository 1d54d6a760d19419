//! What people see: a table that lives, on a terminal; plain lines, where the output goes elsewhere.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use timertask::Timestamp;

use crate::audit::{Audit, Tally};
use crate::conductor::seconds_to;

/// How many of the last events stay on the terminal.
const EVENTS: usize = 8;

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
        let mut picture = table(audit);
        let _ = writeln!(picture);
        for event in self.events.iter().rev().take(EVENTS).rev() {
            let _ = writeln!(picture, "  * {event}");
        }
        let _ = writeln!(picture, "\n  {what}{}", if left > 0 { format!(", {left} s to go") } else { String::new() });
        self.draw(&picture);
    }

    /// Puts a picture in the place of the one before.
    fn draw(&mut self, picture: &str) {
        let mut out = std::io::stdout().lock();
        let up = if self.lines > 0 { format!("\x1b[{}A", self.lines) } else { String::new() };
        let _ = write!(out, "{up}\x1b[J{picture}");
        let _ = out.flush();
        self.lines = picture.lines().count();
    }

    /// The last picture, and the last line; whether it passes.
    pub(crate) fn verdict(&mut self, audit: &Audit, processes: &[String], interrupted: bool) -> bool {
        let total = audit.total();
        let mut text = table(audit);
        let _ =
            writeln!(text, "\n  runs by instance: {}", list(total.by_instance.iter().map(|(k, n)| (k.as_str(), *n))));
        let _ = writeln!(text, "  not started, by reason: {}", list(total.not_started.iter().map(|(k, n)| (*k, *n))));
        for wrong in total.wrong.iter().chain(processes) {
            let _ = writeln!(text, "  WRONG: {wrong}");
        }
        if self.live {
            for event in &self.events {
                let _ = writeln!(text, "  * {event}");
            }
            self.draw(&text);
        } else {
            print!("{text}");
        }
        let pass = total.passes() && processes.is_empty() && total.once > 0 && !interrupted;
        let (word, colour) = if pass { ("PASS", "32") } else { ("FAIL", "31") };
        let word = if self.colour { format!("\x1b[1;{colour}m{word}\x1b[0m") } else { word.to_owned() };
        println!(
            "\n{word} {}{} slots: {} started once, {} twice, {} missing, {} not started for a reason",
            if interrupted { "interrupted; " } else { "" },
            total.expected,
            total.once,
            total.twice,
            total.missing,
            total.not_started.values().sum::<usize>()
        );
        pass
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = std::io::stdout().flush();
    }
}

/// A line for each plan, and one for all.
fn table(audit: &Audit) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "  {:<18}{:>9}{:>7}{:>7}{:>9}{:>8}{:>8}{:>10}{:>10}{:>10}{:>12}",
        "plan",
        "expected",
        "once",
        "twice",
        "missing",
        "failed",
        "orphan",
        "caught up",
        "not start",
        "late p50",
        "late p99"
    );
    for (id, tally) in &audit.plans {
        line(&mut text, id, tally);
    }
    line(&mut text, "all", &audit.total());
    text
}

fn line(text: &mut String, name: &str, tally: &Tally) {
    let _ = writeln!(
        text,
        "  {:<18}{:>9}{:>7}{:>7}{:>9}{:>8}{:>8}{:>10}{:>10}{:>10}{:>12}",
        name,
        tally.expected,
        tally.once,
        tally.twice,
        tally.missing,
        tally.failed,
        tally.orphaned,
        tally.caught_up,
        tally.not_started.values().sum::<usize>(),
        millis(tally.percentile(50)),
        millis(tally.percentile(99)),
    );
}

fn millis(d: Option<Duration>) -> String {
    d.map_or_else(|| "-".to_owned(), |d| format!("{:.1} ms", d.as_secs_f64() * 1000.0))
}

fn list<'a>(items: impl Iterator<Item = (&'a str, usize)>) -> String {
    let items: Vec<_> = items.map(|(name, n)| format!("{name} {n}")).collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}
