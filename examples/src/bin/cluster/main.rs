//! Several processes of one service share one SQLite file, or a Redis server, while their plans are edited, one of them is frozen and
//! another is killed. In the end every slot is accounted for.
//!
//! ```text
//! cargo run --release -p timertask-examples --bin cluster -- [--instances 3] [--seconds 20] [--store sqlite:PATH | --store redis://HOST/]
//! ```
//!
//! * `instance.rs` is the service: about what a user would write. Read it first.
//! * `app.rs` is its database: the table of plans, and the table that its jobs write to.
//! * `conductor.rs` starts the instances and makes their life hard.
//! * `watch.rs` notes which version of a plan counted from when on.
//! * `audit.rs` reads ledger and application table and judges.
//! * `screen.rs` shows it.
//! * `store.rs` opens what they share: the file, or a Redis server.

mod app;
mod args;
mod audit;
mod conductor;
mod instance;
mod screen;
mod store;
mod watch;

use std::error::Error;
use std::process::ExitCode;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    let outcome = match args::Args::parse(std::env::args().skip(1)) {
        Ok(args) => match args.instance {
            Some(number) => instance::run(&args, number).map(|()| true),
            None => conductor::run(&args),
        },
        Err(error) => {
            eprintln!("cluster: {error}\n{}", args::USAGE);
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cluster: {error}");
            let mut source = error.source();
            while let Some(cause) = source {
                eprintln!("  because: {cause}");
                source = cause.source();
            }
            println!("FAIL the demonstration could not be carried out");
            ExitCode::FAILURE
        }
    }
}
