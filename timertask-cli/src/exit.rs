//! Exit codes, and how a command comes to one.

use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};

use crate::text;

/// Shown at the end of each help text.
pub(crate) const HELP: &str = "\
Exit codes:
  0  done; also where a schedule has no further instant, and for each row of --jsonl, good or bad
  1  the expression was refused; standard error says where and why
  2  wrong usage: unknown option or command, or a value that an option does not take
  3  standard input or output failed; a reader that went away counts as done";

/// How a command ended.
pub(crate) enum Outcome {
    Done,
    Refused,
    Usage,
    Io,
}

impl Outcome {
    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Done => 0,
            Self::Refused => 1,
            Self::Usage => 2,
            Self::Io => 3,
        })
    }

    /// After reading and writing; whoever reads our output may go away, as `head` does.
    pub(crate) fn of_io(result: io::Result<()>) -> Self {
        match result {
            Ok(()) => Self::Done,
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Self::Done,
            Err(error) => {
                complain(&error);
                Self::Io
            }
        }
    }
}

/// Writes to standard error, where there may be nobody.
pub(crate) fn complain(what: &dyn std::fmt::Display) {
    let _ = writeln!(io::stderr(), "timertask: {what}");
}

/// Help and version are no errors.
pub(crate) fn usage(mut error: clap::Error) -> Outcome {
    tame(&mut error);
    let _ = error.print();
    if error.use_stderr() { Outcome::Usage } else { Outcome::Done }
}

/// What was typed is shown as in all other errors: in part, and with everything but printable ASCII escaped.
fn tame(error: &mut clap::Error) {
    let typed = [ContextKind::InvalidArg, ContextKind::InvalidValue, ContextKind::InvalidSubcommand];
    for kind in typed {
        let Some(ContextValue::String(text)) = error.get(kind) else { continue };
        let shown = text::echo(text);
        if shown != *text {
            error.insert(kind, ContextValue::String(shown));
            // A tip would repeat all of it.
            error.remove(ContextKind::Suggested);
        }
    }
}
