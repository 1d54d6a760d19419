//! Schedules: what fires when. Pure: no thread, lock or clock.
