//! Real processes on one real store, killed, frozen, with full disks, wrong clocks and stores that go away, and in the end
//! each sentence of the guarantees held against what the jobs wrote down and what the ledger says.
//!
//! ```text
//! cargo run --release -p timertask-examples --bin chaos -- --minutes 5 [--store sqlite | --store redis] [--instances 5] [--seed N]
//! ```
//!
//! * `plans.rs`: what the processes run, and what each plan allows.
//! * `instance.rs`: one process, on a clock that `clock.rs` can set wrong; its jobs tell `journal.rs` what they do.
//! * `careless.rs`: what it has to find, where one asks for it.
//! * `store.rs`: the store that they share, and what can befall it.
//! * `conductor.rs`: starts the processes and lets things happen to them; `faults.rs` is the list of these things.
//! * `timeline.rs`: what happened when, and which instance was fit meanwhile.
//! * `witness.rs`: looks at the ledger now and then, as it runs.
//! * `verdict.rs`: the promises, checked; `counts.rs` is what was seen, for the last lines.

mod args;
mod careless;
mod clock;
mod conductor;
mod counts;
mod faults;
mod instance;
mod journal;
mod plans;
mod random;
mod store;
mod timeline;
mod verdict;
mod witness;

use std::error::Error;
use std::process::ExitCode;

use args::Args;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    let outcome = match Args::parse(std::env::args().skip(1)) {
        Ok(Args::Conduct(args)) => conductor::run(&args),
        Ok(Args::Instance(args)) => instance::run(&args).map(|()| true),
        Ok(Args::Guard) => timertask_examples::guard::run().map(|()| true),
        Err(error) => {
            eprintln!("chaos: {error}\n{}", args::USAGE);
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("chaos: {error}");
            let mut source = error.source();
            while let Some(cause) = source {
                eprintln!("  because: {cause}");
                source = cause.source();
            }
            ExitCode::FAILURE
        }
    }
}
