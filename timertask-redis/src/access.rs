//! How servers are spoken to: as whom, encrypted or not, and with the time-outs that the client library leaves out by
//! itself.

use std::fmt;
use std::time::Duration;

use redis::{Client, Connection, ConnectionInfo, IntoConnectionInfo, RedisResult};

use crate::error::Fault;
use crate::options::Options;

/// Opens connections to one server; which one that is may change from one to the next.
pub(crate) trait Open: Send + Sync {
    fn open(&self) -> Result<Connection, Fault>;
}

/// One server, and how it is spoken to.
#[derive(Clone)]
pub(crate) struct Access {
    client: Client,
    connect_timeout: Duration,
    response_timeout: Duration,
}

impl Access {
    pub(crate) fn new(info: impl IntoConnectionInfo, options: &Options) -> RedisResult<Self> {
        let info = info.into_connection_info()?;
        // It would cost the handshake two answers more.
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        let info = info.set_redis_settings(settings);
        #[cfg(feature = "tls")]
        let client = crate::tls::client(info, options)?;
        #[cfg(not(feature = "tls"))]
        let client = Client::open(info)?;
        let (connect_timeout, response_timeout) = (options.connect_timeout, options.response_timeout);
        Ok(Self { client, connect_timeout, response_timeout })
    }

    /// Where it is, for people; without user and password.
    pub(crate) fn address(&self) -> String {
        self.info().addr().to_string()
    }

    fn info(&self) -> &ConnectionInfo {
        self.client.get_connection_info()
    }

    /// The same way of speaking, to another server.
    #[cfg(any(feature = "sentinel", feature = "cluster"))]
    pub(crate) fn at(&self, host: &str, port: u16) -> RedisResult<Self> {
        use redis::ConnectionAddr;
        let addr = match self.info().addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host: host.to_owned(),
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host.to_owned(), port),
        };
        Ok(Self { client: Client::open(self.info().clone().set_addr(addr))?, ..self.clone() })
    }

    /// The same server, spoken to as somebody else.
    #[cfg(feature = "sentinel")]
    pub(crate) fn logged_in_as(&self, user: Option<&str>, password: Option<&str>) -> RedisResult<Self> {
        let mut settings = redis::RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some(user) = user {
            settings = settings.set_username(user);
        }
        if let Some(password) = password {
            settings = settings.set_password(password);
        }
        Ok(Self { client: Client::open(self.info().clone().set_redis_settings(settings))?, ..self.clone() })
    }

    pub(crate) fn connect(&self) -> RedisResult<Connection> {
        let connection = self.client.get_connection_with_timeout(self.connect_timeout)?;
        // Setting up has reset both to none.
        connection.set_read_timeout(Some(self.response_timeout))?;
        connection.set_write_timeout(Some(self.response_timeout))?;
        Ok(connection)
    }
}

impl Open for Access {
    fn open(&self) -> Result<Connection, Fault> {
        self.connect().map_err(Fault::at_connect)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Access").field(&self.address()).finish()
    }
}
