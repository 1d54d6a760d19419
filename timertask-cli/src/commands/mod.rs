//! The commands. A new one is a file here, a line in [`Command`] and one in [`Command::run`].

mod next;

use clap::Subcommand;

use crate::exit::Outcome;

/// What can be done.
#[derive(Subcommand)]
pub(crate) enum Command {
    Next(next::Next),
}

impl Command {
    pub(crate) fn run(self) -> Outcome {
        match self {
            Self::Next(next) => next.run(),
        }
    }
}
