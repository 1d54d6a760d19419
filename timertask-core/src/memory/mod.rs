//! The built-in stores, in this process's memory: a volatile [`MemLedger`] with the whole contract, and a
//! [`LocalMutex`].
//!
//! Schedulers of one process may share either by cloning its handle. Nothing of it survives the process; for that
//! there are the stores of other crates.

mod board;
mod chunked;
mod ledger;
mod mutex;
mod plans;
mod records;
mod state;

pub use ledger::MemLedger;
pub use mutex::LocalMutex;

#[cfg(test)]
mod tests;
