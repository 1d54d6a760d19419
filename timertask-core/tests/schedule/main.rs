//! Schedules from outside: the gathered cases, brute force, other crates, and bad input.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests")]

mod cases;
mod differential;
mod hostile;
mod oracle;
mod random;
mod surface;
