//! What tests of timertask, and of services that use it, are made of.
//!
//! * [`FakeClock`]: a clock that stands still until a test advances it, and drives the engine's rooms one at a time.
//! * [`Cluster`]: several schedulers, one store, one clock; kill, freeze, skew, cut off, restart; a check of every promise.
//! * [`simulation`]: random runs of whole clusters under everything that can befall them, by seed, on any store.
//! * [`Faulty`]: a store whose calls fail, get lost, come late or twice.
//! * [`conformance`]: what every store must do, as named cases that prove a store of your own.
//! * [`MemLedger`] and [`LocalMutex`], the built-in stores, which schedulers of one process may share.

pub mod clock;
pub mod cluster;
pub mod conformance;
pub mod faulty;
mod random;
pub mod simulation;

pub use clock::{ClockView, FakeClock, Trace};
pub use cluster::{Cluster, ClusterBuilder, Left, Promise, Rewind, SavedStore, Start, Summary, Violation};
pub use faulty::{Call, Fault, Faulty};

#[doc(no_inline)]
pub use timertask_core::memory::{LocalMutex, MemLedger};
