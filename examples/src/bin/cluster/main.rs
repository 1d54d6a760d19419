//! Several processes of one service share one SQLite file, or a Redis server, while their plans are edited, one of them is
//! frozen and another is killed; or, with `--outage`, while their Redis server is killed and started again. In the end every
//! slot is accounted for.
//!
//! ```text
//! cargo run --release -p timertask-examples --bin cluster -- [--instances 3] [--seconds 20] [--store redis:] [--outage]
//! ```
//!
//! * `instance.rs` is the service: about what a user would write. Read it first.
//! * `app.rs` is its database: the table of plans, and the table that its jobs write to.
//! * `score.rs` says what is played: the plans, and what is done to the instances and their server, and when.
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
mod score;
mod screen;
mod store;
mod watch;

use std::error::Error;
use std::process::ExitCode;

use args::Part;
use screen::Verdict;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    let outcome = match args::Args::parse(std::env::args().skip(1)) {
        Ok(args) => match args.part {
            Part::Instance(number) => instance::run(&args, number).map(|()| Verdict::Pass),
            Part::Guard => timertask_examples::guard::run().map(|()| Verdict::Pass),
            Part::Conductor => conductor::run(args),
        },
        Err(error) => {
            eprintln!("cluster: {error}\n{}", args::USAGE);
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(Verdict::Pass) => ExitCode::SUCCESS,
        Ok(Verdict::Fail) => ExitCode::FAILURE,
        // As of a process that SIGINT ended.
        Ok(Verdict::Interrupted) => ExitCode::from(130),
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
