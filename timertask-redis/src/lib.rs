//! The ledger, mutex and board of timertask on Redis.
pub use redis;

mod board;
mod codec;
mod error;
mod fitness;
mod lane;
mod layout;
mod mutex;
mod options;
mod query;
mod request;
mod script;
mod store;

pub use options::Options;
pub use store::Redis;
