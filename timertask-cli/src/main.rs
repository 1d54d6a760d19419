//! The program `timertask`.
fn main() {}
