//! Lanes: a few connections for one kind of call, so that no kind waits for another. A claim that hangs delays no
//! renewal.
//!
//! A connection is never trusted further than its last call: whatever went wrong other than a plain refusal of the server
//! ends it. One that hung up while it was idle, as all do over a restart, is replaced once within the call, where asking
//! twice does no harm; one whose server is no longer the master likewise.

use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Connection, RedisResult};
use timertask_core::clock::{Clock, SystemClock};
use timertask_core::seam::StoreErrorKind;

use crate::access::Open;
use crate::error::{Fault, is_read_only, keeps_connection, was_hung_up};
use crate::options::Options;

/// After this long a connection is not used again: what lies in between may have forgotten it.
const IDLE: Duration = Duration::from_secs(30);
/// How long after a failed attempt the next one is made, at least; doubled up to [`BACKOFF_MOST`].
const BACKOFF_LEAST: Duration = Duration::from_millis(50);
const BACKOFF_MOST: Duration = Duration::from_secs(1);

/// Whether a call may be made a second time where its connection turned out to be dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// The second answer means what the first would have meant.
    Harmless,
    /// It might not: what was done already would look like a conflict.
    Never,
}

/// The connections for one kind of call.
pub(crate) struct Lane {
    opener: Arc<dyn Open>,
    /// How many connections there may be, and how long a call waits where all are in use.
    most: usize,
    pool_wait: Duration,
    state: std::sync::Mutex<State>,
    free: Condvar,
}

#[derive(Default)]
struct State {
    /// The last one given back is the first to be taken, with the instant at which it was.
    idle: Vec<(Connection, Duration)>,
    /// How many are in use or being opened.
    out: usize,
    /// How many attempts to connect have failed in a row.
    failures: u32,
    /// When the next attempt may be made.
    not_before: Duration,
}

impl Lane {
    pub(crate) fn new(opener: Arc<dyn Open>, options: &Options) -> Self {
        let (most, pool_wait) = (options.connections, options.pool_wait);
        Self { opener, most, pool_wait, state: std::sync::Mutex::default(), free: Condvar::new() }
    }

    /// One call of `group` requests.
    pub(crate) fn call<T>(
        &self,
        repeat: Repeat,
        group: usize,
        work: impl Fn(&mut Connection) -> RedisResult<T>,
    ) -> Result<T, Fault> {
        let mut permit = self.permit()?;
        let reused = permit.connection.is_some();
        let told = |failure| match failure {
            Failure::Connect(fault) => fault,
            Failure::Call(error) => Fault::of_call(error, group),
        };
        let done = permit.run(&work);
        let Err(Failure::Call(error)) = &done else { return done.map_err(told) };
        let hung_up = repeat == Repeat::Harmless && was_hung_up(error);
        // Where the master has become a replica, nothing was done; a new connection may lead to the master that is.
        if !reused || !(hung_up || is_read_only(error)) {
            return done.map_err(told);
        }
        // The others that are idle lead nowhere either.
        self.state().idle.clear();
        // The server may have hung up after it had carried it out, whatever comes of asking once more.
        permit.run(&work).map_err(|failure| if hung_up { told(failure).unknown_outcome() } else { told(failure) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leave to use one of the lane's connections, and an idle one where there is one.
    fn permit(&self) -> Result<Permit<'_>, Fault> {
        let deadline = SystemClock.monotonic().saturating_add(self.pool_wait);
        let mut state = self.state();
        loop {
            let now = SystemClock.monotonic();
            if state.out < self.most {
                state.out += 1;
                state.idle.retain(|(_, since)| now.saturating_sub(*since) < IDLE);
                let connection = state.idle.pop().map(|(connection, _)| connection);
                return Ok(Permit { lane: self, connection });
            }
            let left = deadline.saturating_sub(now);
            if left.is_zero() {
                return Err(Fault::new(StoreErrorKind::Busy, "all connections of this kind are in use"));
            }
            state = self.free.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Opens a connection, unless the last attempts failed and it is too early for another.
    fn connect(&self) -> Result<Connection, Fault> {
        let wait = self.state().not_before.saturating_sub(SystemClock.monotonic());
        if !wait.is_zero() {
            let what = format!("could not connect; the next attempt is made in {} ms", wait.as_millis());
            return Err(Fault::new(StoreErrorKind::Unreachable, what));
        }
        let opened = self.opener.open();
        let mut state = self.state();
        match opened {
            Ok(connection) => {
                state.failures = 0;
                Ok(connection)
            }
            Err(fault) => {
                state.not_before = SystemClock.monotonic().saturating_add(backoff(state.failures));
                state.failures = state.failures.saturating_add(1);
                Err(fault)
            }
        }
    }
}

/// Between half and all of the back-off, so that the clients of a server that comes back don't all come at once.
pub(crate) fn backoff(failures: u32) -> Duration {
    let most = BACKOFF_LEAST.saturating_mul(1 << failures.min(5)).min(BACKOFF_MOST);
    let half = most / 2;
    half + Duration::from_micros(SystemClock.entropy() % (half.as_micros() as u64).max(1))
}

enum Failure {
    Connect(Fault),
    Call(redis::RedisError),
}

/// Leave to use one of a lane's connections; given back when dropped.
struct Permit<'a> {
    lane: &'a Lane,
    /// `None`: to be opened.
    connection: Option<Connection>,
}

impl Permit<'_> {
    fn run<T>(&mut self, work: impl Fn(&mut Connection) -> RedisResult<T>) -> Result<T, Failure> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.lane.connect().map_err(Failure::Connect)?,
        };
        let done = work(&mut connection);
        if done.as_ref().err().is_none_or(keeps_connection) {
            self.connection = Some(connection);
        }
        done.map_err(Failure::Call)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.lane.state();
        state.out -= 1;
        if let Some(connection) = self.connection.take() {
            state.idle.push((connection, SystemClock.monotonic()));
        }
        drop(state);
        self.lane.free.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_back_off_grows_and_has_an_end() {
        for (failures, most) in [(0, 50), (1, 100), (4, 800), (5, 1_000), (u32::MAX, 1_000)] {
            let most = Duration::from_millis(most);
            for _ in 0..100 {
                let wait = backoff(failures);
                assert!(wait >= most / 2 && wait <= most, "{wait:?} after {failures} failures");
            }
        }
    }
}
