//! Schedules from outside: the gathered cases, brute force, other crates, and bad input.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "tests, and what helps them")]

mod cases;
mod differential;
mod hostile;
mod oracle;
mod random;
mod surface;
