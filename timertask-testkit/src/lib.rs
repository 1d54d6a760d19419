//! What tests of timertask, and of services that use it, are made of.
//!
//! * [`FakeClock`]: a clock that stands still until a test advances it, and drives the engine's rooms one at a time.
//! * [`Cluster`]: several schedulers, one store, one clock; kill, freeze, skew, cut off, restart; a check of every promise.
//! * [`simulation`]: random runs of whole clusters under everything that can befall them, by seed, on any store.
//! * [`Faulty`]: a store whose calls fail, get lost, come late or twice.
//! * [`conformance`]: what every store must do, as named cases that prove a store of your own.
//! * [`MemLedger`] and [`LocalMutex`], the built-in stores, which schedulers of one process may share.
//!
//! **To test your jobs**, give a [`Cluster`] your plans and your job, let time pass, let something befall an instance by one
//! call ([`kill`](Cluster::kill), [`freeze`](Cluster::freeze), [`cut_off`](Cluster::cut_off), …), and say what you expect:
//! every entry into a job is recorded by itself ([`Cluster::starts`]), the `expect_…` helpers name slot and instance where
//! they fail, and [`Cluster::check`] verifies every promise. None of it sleeps.
//!
//! **To prove a store of your own**, write a harness of a few lines, and take in the [`conformance`] macros that fit it; then
//! [`conformance::traces`], random requests that your answers have to survive; then [`simulation::run_on`], whole schedulers
//! on it under everything that can befall them. The kit proves itself by stores that each have one fault built in.

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
