//! What `signal` is made of.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
pub(crate) use std::sync::{Arc, Condvar};

/// A lock with nothing under it.
pub(crate) type Gate = std::sync::Mutex<()>;
