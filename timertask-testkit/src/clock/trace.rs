//! What was done in which order: a running hash of everything, and the last steps in words.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use timertask_core::time::Timestamp;

use crate::random::mix;

/// How many steps are kept in words.
const KEPT: usize = 1024;

/// What a clock's rooms did, in order. Two runs did the same exactly where `steps` and `hash` are equal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trace {
    /// How many turns, resumed waits and notes there were.
    pub steps: u64,
    /// A hash over all of them, in order.
    pub hash: u64,
    /// The last of them in words, old to new.
    pub recent: Vec<String>,
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} steps, hash {:016x}", self.steps, self.hash)?;
        self.recent.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// What a step was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A room had a turn; its signal was set.
    Notified,
    /// A room had a turn; its time had come.
    Timed,
    /// A wait within a turn ended.
    Resumed,
    /// A wait within a turn ended because its instance was killed.
    Killed,
}

enum Line {
    Step(Timestamp, Arc<str>, Step),
    Note(Timestamp, Box<str>),
}

#[derive(Default)]
pub(super) struct Log {
    steps: u64,
    hash: u64,
    recent: VecDeque<Line>,
}

impl Log {
    /// `who` stands for `name`, and is the same in a repeated run.
    pub(super) fn step(&mut self, at: Timestamp, who: u64, name: &Arc<str>, step: Step) {
        self.mix(at.as_micros().cast_unsigned());
        self.mix(who << 2 | step as u64);
        self.push(Line::Step(at, Arc::clone(name), step));
    }

    pub(super) fn note(&mut self, at: Timestamp, text: &str) {
        self.mix(at.as_micros().cast_unsigned());
        text.bytes().for_each(|b| self.mix(u64::from(b)));
        self.push(Line::Note(at, text.into()));
    }

    pub(super) fn show(&self) -> Trace {
        let words = |line: &Line| match line {
            Line::Step(at, name, step) => {
                let how = match step {
                    Step::Notified => "notified",
                    Step::Timed => "its time",
                    Step::Resumed => "goes on",
                    Step::Killed => "is killed",
                };
                format!("{} {name}: {how}", at)
            }
            Line::Note(at, text) => format!("{} - {text}", at),
        };
        Trace { steps: self.steps, hash: self.hash, recent: self.recent.iter().map(words).collect() }
    }

    fn mix(&mut self, x: u64) {
        self.hash = mix(self.hash.rotate_left(5) ^ x);
    }

    fn push(&mut self, line: Line) {
        self.steps += 1;
        if self.recent.len() == KEPT {
            self.recent.pop_front();
        }
        self.recent.push_back(line);
    }
}
