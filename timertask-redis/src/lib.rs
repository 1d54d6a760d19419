//! The ledger, mutex and board of timertask on Redis, shared by services on many hosts.
//!
//! ```no_run
//! use timertask_redis::Redis;
//!
//! let store = Redis::connect("redis://redis.internal/")?;
//! # Ok::<(), timertask_core::seam::StoreError>(())
//! ```
//!
//! Each process connects for itself and hands the handle to its scheduler; clones are cheap and share its connections. The
//! client is a blocking one: no async runtime comes along. The tests run on Redis 7.0.
//!
//! Every decision is one Lua script, one answer. The scripts decide as the pure functions of
//! [`rules`](timertask_core::rules) do, by the server's own clock; random traces compare the two on a real server.
//!
//! # Where it is
//!
//! | URL | what is there | feature |
//! |---|---|---|
//! | `redis://[user[:password]@]host[:port][/database]` | a server | |
//! | `unix:///path` | a server on this host | |
//! | `redis+sentinel://[user[:password]@]host[:port],…/master[/database]` | sentinels, and the master that they name | `sentinel` |
//! | `redis+cluster://[user[:password]@]host[:port],…` | a Redis Cluster, by some of its nodes | `cluster` |
//! | `rediss://…`, `rediss+sentinel://…`, `rediss+cluster://…` | the same over TLS | `tls` |
//!
//! User, password and database are percent-encoded, and are those of the servers that keep the data. Ports are 6379, of
//! sentinels 26379, where none is given.
//!
//! # Set the server up
//!
//! * `maxmemory-policy noeviction` (the default of Redis, not of all who rent it out). Another is refused.
//! * `appendonly yes`, and `appendfsync always` where no slot may ever be started twice. Without an append-only file a server
//!   that restarts has forgotten what ran.
//! * A user with few rights, below.
//!
#![doc = include_str!("../docs/promises.md")]
//!
#![doc = include_str!("../docs/failures.md")]
//!
#![doc = include_str!("../docs/several.md")]
//!
#![doc = include_str!("../docs/access.md")]
//!
#![doc = include_str!("../docs/layout.md")]

pub use redis;

mod access;
mod board;
mod codec;
mod error;
mod fitness;
mod lane;
mod layout;
mod mutex;
mod namespace;
mod options;
mod query;
mod request;
mod script;
mod server;
mod store;
#[cfg(feature = "tls")]
mod tls;
mod topology;

pub use options::Options;
pub use store::Redis;
