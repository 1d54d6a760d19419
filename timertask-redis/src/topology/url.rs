//! URLs: one server, or several and how they are one.

use redis::{ConnectionInfo, IntoConnectionInfo};
use timertask_core::seam::StoreErrorKind;

use super::Host;
use crate::access::Access;
use crate::error::Fault;
use crate::options::Options;

const REDIS: u16 = 6379;
const SENTINEL: u16 = 26379;

/// What a URL says.
pub(crate) struct Url {
    pub(crate) form: Form,
    /// Empty where it is a single server.
    pub(crate) hosts: Vec<Host>,
    /// How the servers are spoken to; the address is that of the first host.
    pub(crate) access: Access,
}

/// How the hosts of a URL belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Server,
    Sentinel { master: String },
    Cluster,
}

#[cfg(not(all(feature = "sentinel", feature = "cluster")))]
impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Server => "default",
            Self::Sentinel { .. } => "sentinel",
            Self::Cluster => "cluster",
        })
    }
}

/// Reads `url`. No error quotes it: it may hold a password.
pub(crate) fn parse(url: &str, options: &Options) -> Result<Url, Fault> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", ""));
    let encrypted = scheme.starts_with("rediss");
    if encrypted && cfg!(not(feature = "tls")) {
        return Err(bad("TLS needs the feature 'tls' of timertask-redis, 'redis-tls' of timertask"));
    }
    // It would be read as the end of a host, and shown as such.
    let behind = rest.find(['/', '?', '#']).map_or("", |at| &rest[at..]);
    if behind.contains('@') && !scheme.contains("unix") {
        return Err(bad(
            "what stands before the hosts' '@' holds '/', '?' or '#'; user and password are percent-encoded",
        ));
    }
    let several = match scheme {
        "redis+sentinel" | "rediss+sentinel" => Several::parse(rest, SENTINEL)?,
        "redis+cluster" | "rediss+cluster" => Several::parse(rest, REDIS)?,
        _ => {
            let form = "redis://[user[:password]@]host[:port][/database] or unix:///path";
            let access = Access::new(url, options).map_err(|_| bad(&format!("the URL can't be read; it is {form}")))?;
            return Ok(Url { form: Form::Server, hosts: Vec::new(), access });
        }
    };
    let is_sentinel = scheme.ends_with("sentinel");
    let (form, database) = if is_sentinel { several.master()? } else { (Form::Cluster, several.no_database()?) };
    let scheme = if encrypted { "rediss" } else { "redis" };
    let hosts = several.hosts.iter().map(|host| several.host(scheme, host)).collect::<Result<Vec<_>, _>>()?;
    let first = format!("{scheme}://{}{}/{database}", several.user, several.hosts[0]);
    let access = Access::new(first, options).map_err(|_| bad("the URL's user, host or database can't be read"))?;
    Ok(Url { form, hosts, access })
}

/// The parts of a URL with several hosts.
struct Several<'a> {
    /// User and password with the sign behind them, as they stand there.
    user: &'a str,
    hosts: Vec<String>,
    path: &'a str,
}

impl<'a> Several<'a> {
    fn parse(rest: &'a str, port: u16) -> Result<Self, Fault> {
        if rest.contains(['?', '#']) {
            return Err(bad("the URL has options, of which there are none"));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        let hosts =
            hosts.split(',').map(|host| if has_port(host) { host.to_owned() } else { format!("{host}:{port}") });
        Ok(Self { user, hosts: hosts.collect(), path })
    }

    fn host(&self, scheme: &str, host: &str) -> Result<Host, Fault> {
        let unread = || bad("a host of the URL can't be read; they are host[:port], separated by commas");
        let info: ConnectionInfo = format!("{scheme}://{host}/").into_connection_info().map_err(|_| unread())?;
        match info.addr() {
            redis::ConnectionAddr::Tcp(host, port) | redis::ConnectionAddr::TcpTls { host, port, .. } => {
                Ok((host.clone(), *port))
            }
            _ => Err(unread()),
        }
    }

    /// The master's name, and the database.
    fn master(&self) -> Result<(Form, &str), Fault> {
        let (master, database) = self.path.split_once('/').unwrap_or((self.path, ""));
        if master.is_empty() || database.contains('/') {
            return Err(bad(
                "the URL of sentinels is redis+sentinel://[user[:password]@]host[:port],…/master[/database]",
            ));
        }
        Ok((Form::Sentinel { master: master.to_owned() }, database))
    }

    fn no_database(&self) -> Result<&'static str, Fault> {
        match self.path {
            "" | "0" => Ok(""),
            _ => Err(bad(
                "the URL of a cluster is redis+cluster://[user[:password]@]host[:port],…; there are no databases",
            )),
        }
    }
}

fn has_port(host: &str) -> bool {
    host.rsplit_once(':').is_some_and(|(name, _)| !name.contains(':') || name.ends_with(']'))
}

fn bad(what: &str) -> Fault {
    Fault::new(StoreErrorKind::Misconfigured, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<(Form, String, String), String> {
        let url = parse(url, &Options::default()).map_err(|fault| fault.into_store_error("read").to_string())?;
        Ok((url.form, super::super::together(&url.hosts), url.access.address()))
    }

    #[test]
    fn several_hosts_are_read_with_their_ports() {
        let master = Form::Sentinel { master: "main".into() };
        for (url, form, hosts) in [
            ("redis+sentinel://a/main", master.clone(), "a:26379"),
            ("redis+sentinel://u:p%40ss@a,b:5/main/3", master.clone(), "a:26379,b:5"),
            ("redis+sentinel://:p@[::1],[::2]:7/main", master, "::1:26379,::2:7"),
            ("redis+cluster://10.0.0.1:1,10.0.0.2", Form::Cluster, "10.0.0.1:1,10.0.0.2:6379"),
            ("redis+cluster://u:p@a/", Form::Cluster, "a:6379"),
        ] {
            let read = read(url).unwrap();
            assert_eq!((read.0, read.1.as_str()), (form, hosts), "{url}");
            assert!(hosts.starts_with(&read.2), "{url}: {}", read.2);
        }
        assert_eq!(read("redis://h:1/2").unwrap(), (Form::Server, String::new(), "h:1".into()));
    }

    #[test]
    fn what_cannot_be_read_is_told_without_the_secret() {
        for url in [
            "redis+sentinel://u:sesame@a",
            "redis+sentinel://u:sesame@a/",
            "redis+sentinel://u:sesame@a/m/1/2",
            "redis+sentinel://u:sesame@a/m/x",
            "redis+sentinel://u:sesame@a:port/m",
            "redis+sentinel://u:sesame@,/m",
            "redis+sentinel://u:sesame@a/m?sesame",
            "redis+sentinel://u:1/sesame@a/m",
            "redis+cluster://u:1/sesame@a",
            "redis://u:1/sesame@a",
            "redis://u:1?sesame@a",
            "rediss://u:1#sesame@a",
            "redis+cluster://u:sesame@a/1",
            "redis+cluster://u:sesame@",
            "sesame",
            "http://sesame",
            "redis+nothing://sesame",
        ] {
            let told = read(url).unwrap_err();
            assert!(!told.contains("sesame") && told.len() > 20, "{url}: {told}");
        }
    }
}
