//! The cases of a ledger. Each function shows one sentence of the contract and panics where it does not hold.

pub mod batch;
pub mod claim;
pub mod contention;
pub mod cursor;
pub mod durable;
pub mod end;
pub mod gate;
pub mod generation;
pub mod ids;
pub mod lease;
pub mod pause;
pub mod purge;
pub mod read;
pub mod step;
