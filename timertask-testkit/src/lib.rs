//! What tests of timertask, and of services that use it, are made of.
//!
//! * [`FakeClock`]: a clock that stands still until a test advances it, and drives the engine's rooms one at a time.

pub mod clock;
mod random;

pub use clock::{ClockView, FakeClock, Trace};
