// The quickstarts of README.md are doctests, and some of them need a store.
#![cfg_attr(any(all(feature = "sqlite", feature = "redis"), not(doctest)), doc = include_str!("../README.md"))]
#![cfg_attr(
    not(any(all(feature = "sqlite", feature = "redis"), not(doctest))),
    doc = "Recurring jobs on several instances at once."
)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub use timertask_core::*;

#[cfg(feature = "redis")]
#[doc(inline)]
pub use timertask_redis as redis;
#[cfg(feature = "sqlite")]
#[doc(inline)]
pub use timertask_sqlite as sqlite;

#[doc = include_str!("../docs/guide.md")]
pub mod guide {}

#[doc = include_str!("../docs/guarantees.md")]
pub mod guarantees {}

#[doc = include_str!("../docs/policies.md")]
pub mod policies {}
