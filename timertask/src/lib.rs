#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub use timertask_core::*;

/// The ledger and mutex on Redis: not there yet.
#[cfg(feature = "redis")]
#[doc(inline)]
pub use timertask_redis as redis;
/// The ledger and mutex on one SQLite file that the processes of a host share.
#[cfg(feature = "sqlite")]
#[doc(inline)]
pub use timertask_sqlite as sqlite;
