//! How a server is connected to: all defaults in one place.

use std::fmt;
use std::time::Duration;

use timertask_core::seam::StoreError;

use crate::store::Redis;

/// How to connect; made by [`Redis::options`].
///
/// ```no_run
/// # use std::time::Duration;
/// use timertask_redis::Redis;
/// let store = Redis::options().response_timeout(Duration::from_millis(500)).connect("redis://redis.internal/")?;
/// # Ok::<(), timertask_core::seam::StoreError>(())
/// ```
#[derive(Clone)]
#[must_use = "nothing is connected before `connect`"]
pub struct Options {
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) pool_wait: Duration,
    pub(crate) connections: usize,
    pub(crate) evicts: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_secs(1),
            pool_wait: Duration::from_secs(1),
            connections: 2,
            evicts: false,
        }
    }
}

impl Options {
    /// How long connecting may take, and each answer while the server lets the client in (password, database);
    /// default: 1 s; at least 1 ms.
    pub fn connect_timeout(mut self, wait: Duration) -> Self {
        self.connect_timeout = at_least_a_moment(wait);
        self
    }

    /// How long writing a request and waiting for its answer may take, each; default: 1 s; at least 1 ms. A call that
    /// times out may have been carried out all the same.
    pub fn response_timeout(mut self, wait: Duration) -> Self {
        self.response_timeout = at_least_a_moment(wait);
        self
    }

    /// How long a call waits where all connections of its kind are in use; default: 1 s.
    pub fn pool_wait(mut self, wait: Duration) -> Self {
        self.pool_wait = wait;
        self
    }

    /// How many connections there may be of each of the four kinds (claims, ends and plans, renewals, reading), opened as
    /// needed; default: 2; at least 1. One is enough near the server; at a distance claims per second are connections
    /// divided by the round trip, unless many come in one call.
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = most.max(1);
        self
    }

    /// Accepts a server whose `maxmemory-policy` is another than `noeviction`. Such a server throws keys away where memory
    /// runs short, **acknowledged claims among them, without any error**: their slots may be started again, and plans are
    /// forgotten. Only do this where you know that memory never runs short.
    pub fn accept_eviction(mut self) -> Self {
        self.evicts = true;
        self
    }

    /// Connects to the server at `url`: `redis://[user[:password]@]host[:port][/database]`, or `unix:///path`. Looks at
    /// once whether the server is fit to keep a ledger: a master that evicts nothing.
    ///
    /// # Errors
    /// [`StoreError`]; its kind says what to do:
    /// `Unreachable`: nobody listens there, or the name is not known. `TimedOut`: no answer in time. `Auth`: user or
    /// password are refused, or may not run scripts. `ReadOnly`: a replica. `Busy`: it is still loading its data, or has
    /// too many clients. `Misconfigured`: a URL that can't be read, a server that evicts keys, a database that isn't there.
    ///
    /// # Blocking
    /// Connects, and asks two questions: at most the connect time-out for connecting and for each of password and
    /// database, then twice the response time-out. Looking up a host's name comes on top, as long as the system takes
    /// for it; an address needs none.
    pub fn connect(self, url: &str) -> Result<Redis, StoreError> {
        Redis::connect_with(url, self)
    }
}

/// Zero would mean "for ever" to a socket.
fn at_least_a_moment(wait: Duration) -> Duration {
    wait.max(Duration::from_millis(1))
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .field("pool_wait", &self.pool_wait)
            .field("connections", &self.connections)
            .field("accept_eviction", &self.evicts)
            .finish()
    }
}
