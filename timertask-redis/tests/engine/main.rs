//! The whole engine on a real server that fails: nothing is entered while it does, no slot twice, runs whose lease is in
//! doubt are told, and all goes on once it is back.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic fails the test")]

#[path = "../common/mod.rs"]
mod common;
#[cfg(all(feature = "sentinel", feature = "cluster"))]
mod failover;
mod fault_49;
mod healthy;
mod network;
mod operators;
mod outages;
mod policies;
mod service;
