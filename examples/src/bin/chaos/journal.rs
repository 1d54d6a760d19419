//! What the jobs write down: a line for each entry, for each return, and for each end that their instance was told is
//! recorded. All processes write to one pipe, a line at a time, which the kernel keeps whole and in order; what was written
//! before a kill is there after it, and no full disk is in its way.

use std::fmt;
use std::io::{BufRead, BufReader, PipeReader, Write};
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;

use timertask::Run;
use timertask::clock::{Clock, SystemClock};

use crate::Result;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// When, by the host's own clock, in microseconds: whatever the instance's clock said.
    pub(crate) real: i64,
    pub(crate) node: usize,
    pub(crate) life: u32,
    pub(crate) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// All plans are active.
    Up,
    /// The job is entered.
    Entered(Start),
    /// It returns, well or not.
    Left(Start, Left),
    /// The instance was told that the end of its run is on record.
    Recorded(Start, Left),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Succeeded,
    Failed,
    Cancelled,
}

/// One start of a slot; with a budget, one of its tries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) plan: String,
    pub(crate) at: i64,
    pub(crate) fence: u64,
    pub(crate) attempt: u32,
    pub(crate) tries: u32,
}

impl Start {
    pub(crate) fn of(run: &Run) -> Self {
        Self {
            plan: run.plan().to_owned(),
            at: run.slot_key().at.as_secs(),
            fence: run.fence().as_u64(),
            attempt: run.attempt(),
            tries: run.tries(),
        }
    }
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {} {}", self.plan, self.at, self.fence, self.attempt, self.tries)
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        })
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} ", self.real, self.node, self.life)?;
        match &self.what {
            What::Up => write!(f, "up"),
            What::Entered(start) => write!(f, "entered {start}"),
            What::Left(start, left) => write!(f, "left {start} {left}"),
            What::Recorded(start, left) => write!(f, "recorded {start} {left}"),
        }
    }
}

impl FromStr for Line {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Self::read(text).ok_or_else(|| format!("not a line of the journal: {text:?}"))
    }
}

impl Line {
    fn read(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let (real, node, life) =
            (words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let kind = words.next()?;
        let mut start = || {
            Some(Start {
                plan: words.next()?.to_owned(),
                at: words.next()?.parse().ok()?,
                fence: words.next()?.parse().ok()?,
                attempt: words.next()?.parse().ok()?,
                tries: words.next()?.parse().ok()?,
            })
        };
        let what = match kind {
            "up" => What::Up,
            "entered" => What::Entered(start()?),
            "left" => What::Left(start()?, left(words.next()?)?),
            "recorded" => What::Recorded(start()?, left(words.next()?)?),
            _ => return None,
        };
        words.next().is_none().then_some(Self { real, node, life, what })
    }
}

fn left(word: &str) -> Option<Left> {
    [Left::Succeeded, Left::Failed, Left::Cancelled].into_iter().find(|left| left.to_string() == word)
}

/// Writes the lines of one process to its standard output.
#[derive(Clone, Copy)]
pub(crate) struct Pen {
    pub(crate) node: usize,
    pub(crate) life: u32,
}

impl Pen {
    /// Writes a line, in one call of the system. A process that cannot bear witness must not go on: it ends.
    pub(crate) fn write(self, what: What) {
        let line = Line { real: SystemClock.now().as_micros(), node: self.node, life: self.life, what };
        let mut out = std::io::stdout().lock();
        if out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).is_err() {
            std::process::exit(3);
        }
    }
}

/// Reads what all processes write, as long as one of them lives, and keeps it in a file, too.
pub(crate) struct Journal {
    lines: Arc<std::sync::Mutex<Vec<Line>>>,
    reader: Option<JoinHandle<std::io::Result<()>>>,
}

impl Journal {
    pub(crate) fn read(pipe: PipeReader, file: &Path) -> Result<Self> {
        let lines = Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut file = std::fs::File::create(file)?;
        let kept = Arc::clone(&lines);
        let reader = std::thread::Builder::new().name("journal".to_owned()).spawn(move || {
            for line in BufReader::new(pipe).lines() {
                let line = line?;
                writeln!(file, "{line}")?;
                let line = line.parse().map_err(std::io::Error::other)?;
                kept.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
            Ok(())
        })?;
        Ok(Self { lines, reader: Some(reader) })
    }

    /// The lines from number `from` on.
    pub(crate) fn since(&self, from: usize) -> Vec<Line> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.get(from..).unwrap_or_default().to_vec()
    }

    /// Waits for the last line of the last process, and gives all.
    pub(crate) fn finish(&mut self) -> Result<Vec<Line>> {
        if let Some(reader) = self.reader.take() {
            reader.join().map_err(|_| "the journal's reader panicked")??;
        }
        Ok(self.since(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_as_it_was_written() {
        let start = Start { plan: "quick".to_owned(), at: 7, fence: u64::MAX, attempt: 2, tries: 3 };
        for what in [
            What::Up,
            What::Entered(start.clone()),
            What::Left(start.clone(), Left::Cancelled),
            What::Recorded(start.clone(), Left::Succeeded),
        ] {
            let line = Line { real: -5, node: 3, life: 9, what };
            assert_eq!(line.to_string().parse(), Ok(line));
        }
        for text in ["", "1 2 3", "1 2 3 entered quick 7 1 1", "1 2 3 up more", "1 2 3 left quick 7 1 1 1 well"] {
            assert!(text.parse::<Line>().is_err(), "{text:?}");
        }
    }
}
