//! What the programs of this folder share: counted bytes, CPU time, percentiles, verdicts.

mod counting;
mod measure;
mod plans;
mod redis_server;

pub use counting::{Allocated, Counting};
pub use measure::{Took, Verdict, cpu, measured, ms, percentile};
pub use plans::{await_active, every_second, spread_over_the_day};
pub use redis_server::RedisServer;
