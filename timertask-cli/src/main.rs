//! The program `timertask`. Each command is a file below `commands/`.

mod commands;
mod exit;
mod text;

use std::process::ExitCode;

use clap::Parser;

/// Recurring jobs on several instances at once: next trigger points, and the operator's side.
#[derive(Parser)]
#[command(name = "timertask", version, after_help = exit::HELP)]
struct Arguments {
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    let outcome = match Arguments::try_parse() {
        Ok(arguments) => arguments.command.run(),
        Err(error) => exit::usage(error),
    };
    outcome.code()
}
