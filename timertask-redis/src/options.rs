//! How a server is connected to: all defaults in one place.

use std::fmt;
use std::time::Duration;

use timertask_core::seam::StoreError;

use crate::server::Replicas;
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
    pub(crate) replicas: Option<Replicas>,
    #[cfg(feature = "sentinel")]
    pub(crate) sentinel_username: Option<String>,
    #[cfg(feature = "sentinel")]
    pub(crate) sentinel_password: Option<String>,
    #[cfg(feature = "tls")]
    pub(crate) certificates: crate::tls::Certificates,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_secs(1),
            pool_wait: Duration::from_secs(1),
            connections: 2,
            evicts: false,
            replicas: None,
            #[cfg(feature = "sentinel")]
            sentinel_username: None,
            #[cfg(feature = "sentinel")]
            sentinel_password: None,
            #[cfg(feature = "tls")]
            certificates: crate::tls::Certificates::default(),
        }
    }
}

impl Options {
    /// How long connecting may take (to each address in turn, where a host's name has several), and each answer while the server lets the client in (password, database);
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

    /// Lets no claim, no end, no change of a plan and no lock count before `least` replicas have it (`WAIT`), for which each
    /// such call waits up to `wait`; default: none. With fewer the call fails as `Full`, its outcome unknown, and so no run
    /// starts. `connect` and [`describe`](timertask_core::seam::Ledger::describe) fail alike where the server has fewer
    /// replicas.
    ///
    /// This makes a failover that loses a claim less likely, not impossible: a replica that had not got it may be the one
    /// that is promoted.
    pub fn min_replicas(mut self, least: u32, wait: Duration) -> Self {
        self.replicas = (least > 0).then(|| Replicas { least, wait: at_least_a_moment(wait) });
        self
    }

    /// The user as whom sentinels are asked; default: none. The user in the URL is that of the master.
    #[cfg(feature = "sentinel")]
    pub fn sentinel_username(mut self, name: impl Into<String>) -> Self {
        self.sentinel_username = Some(name.into());
        self
    }

    /// The password that sentinels ask for; default: none. The password in the URL is that of the master.
    #[cfg(feature = "sentinel")]
    pub fn sentinel_password(mut self, password: impl Into<String>) -> Self {
        self.sentinel_password = Some(password.into());
        self
    }

    /// Trusts the certificates in `pem` alone, in place of those that the system trusts; for `rediss` URLs.
    #[cfg(feature = "tls")]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.roots = Some(pem.into());
        self
    }

    /// Shows servers a certificate: `chain` with what it leads back to, and its `key`, both in PEM; for `rediss` URLs.
    #[cfg(feature = "tls")]
    pub fn client_certificate(mut self, chain: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.certificates.own = Some((chain.into(), key.into()));
        self
    }

    /// Connects to what `url` names; the forms are those of the [crate](crate#where-it-is). Looks at once whether it is fit
    /// to keep a ledger: a master (of a cluster each of them) that evicts nothing, with the replicas that
    /// [`min_replicas`](Self::min_replicas) asks for.
    ///
    /// # Errors
    /// [`StoreError`]; its kind says what to do:
    /// `Unreachable`: nobody listens there, or the name is not known. `TimedOut`: no answer in time. `Auth`: user or
    /// password are refused, or may not run scripts. `ReadOnly`: a replica. `Busy`: it is still loading its data, or has
    /// too many clients; a cluster that is not whole. `Full`: too few replicas. `Misconfigured`: a URL or certificate that
    /// can't be read, a certificate of the server that is not trusted, a server that evicts keys, a database that isn't
    /// there, sentinels that know no such master, a node of a cluster under a URL that does not say so, a feature that is
    /// off.
    ///
    /// # Blocking
    /// Connects, and asks two questions: at most the time in which [`Redis`] says that a connection is made, then twice the
    /// response time-out; of a cluster this for each master, and finding them before.
    /// Looking up a host's name comes on top, as long as the system takes for it; an address needs none.
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
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}
