//! Which server is asked: the one at the address, the master that sentinels name, or the node of a cluster that has the
//! key's slot.

#[cfg(feature = "cluster")]
mod cluster;
#[cfg(feature = "sentinel")]
mod sentinel;
#[cfg(feature = "cluster")]
mod slots;
mod url;

use std::fmt;
use std::sync::Arc;

use redis::Value;
use timertask_core::seam::{Durability, StoreErrorKind};

use crate::access::Open;
use crate::error::Fault;
use crate::fitness::{Fitness, weakest};
use crate::layout::Scope;
use crate::options::Options;
use crate::script::Asking;
use crate::server::{Asked, Server};
use url::{Form, Url};

pub(crate) enum Topology {
    /// One server at a time.
    One { address: String, server: Server },
    #[cfg(feature = "cluster")]
    Cluster(cluster::Cluster),
}

impl Topology {
    /// The servers at `url`, after a first look at them.
    pub(crate) fn connect(url: &str, options: &Options) -> Result<(Self, Durability), (String, Fault)> {
        let Url { form, hosts, access } = url::parse(url, options).map_err(|fault| ("connect".to_owned(), fault))?;
        let topology = match form {
            Form::Server => Self::one(access.address(), &(Arc::new(access) as Arc<dyn Open>), options),
            #[cfg(feature = "sentinel")]
            Form::Sentinel { master } => {
                let address = format!("master {master} of sentinels {}", together(&hosts));
                let sentinels = sentinel::Sentinels::new(access, &hosts, master, options);
                let sentinels =
                    sentinels.map_err(|error| (format!("connect to {address}"), Fault::at_connect(error)))?;
                Self::one(address, &(Arc::new(sentinels) as Arc<dyn Open>), options)
            }
            #[cfg(feature = "cluster")]
            Form::Cluster => Self::Cluster(cluster::Cluster::new(access, hosts, options)),
            #[cfg(not(all(feature = "sentinel", feature = "cluster")))]
            form => {
                let what = format!(
                    "{} needs the feature '{form}' of timertask-redis, 'redis-{form}' of timertask",
                    together(&hosts)
                );
                return Err(("connect".to_owned(), Fault::new(StoreErrorKind::Misconfigured, what)));
            }
        };
        let looked = topology.look().and_then(|found| Ok((weakest(&found, options)?, found)));
        let (durability, found) = looked.map_err(|fault| (format!("connect to {topology}"), fault.asked_nothing()))?;
        for (server, fitness) in found {
            log::info!(target: "timertask::store", "redis at {server}: {fitness}");
        }
        Ok((topology, durability))
    }

    fn one(address: String, opener: &Arc<dyn Open>, options: &Options) -> Self {
        Self::One { address, server: Server::new(opener, options) }
    }

    /// How far apart the keys of one call may lie.
    pub(crate) fn scope(&self) -> Scope {
        match self {
            Self::One { .. } => Scope::Server,
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => Scope::Tag,
        }
    }

    pub(crate) fn ask(&self, asked: &Asked<'_>) -> Result<Vec<Value>, Fault> {
        match self {
            Self::One { server, .. } => server.ask(asked, Asking::No),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.ask(asked),
        }
    }

    /// What a ledger here promises.
    ///
    /// # Errors
    /// A fault where a server must not keep one.
    pub(crate) fn durability(&self, options: &Options) -> Result<Durability, Fault> {
        weakest(&self.look()?, options)
    }

    /// What the servers that keep it say of themselves, each with its address.
    fn look(&self) -> Result<Vec<(String, Fitness)>, Fault> {
        match self {
            Self::One { address, server } => {
                let fitness = server.fitness()?;
                if fitness.clustered {
                    let what = "the server is a node of a cluster; its URL begins with redis+cluster://";
                    return Err(Fault::new(StoreErrorKind::Misconfigured, what));
                }
                Ok(vec![(address.clone(), fitness)])
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.look(),
        }
    }
}

/// Where it is, for people.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One { address, .. } => f.write_str(address),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => write!(f, "cluster {cluster}"),
        }
    }
}

/// A host and its port.
pub(crate) type Host = (String, u16);

fn together(hosts: &[Host]) -> String {
    hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a URL needs that this build has not is named.
    #[test]
    fn a_feature_that_is_off_is_named() {
        for (url, feature, is_on) in [
            ("redis+sentinel://:sesame@127.0.0.1:1/main", "sentinel", cfg!(feature = "sentinel")),
            ("redis+cluster://:sesame@127.0.0.1:1", "cluster", cfg!(feature = "cluster")),
            ("rediss://:sesame@127.0.0.1:1", "tls", cfg!(feature = "tls")),
        ] {
            let (doing, fault) = Topology::connect(url, &Options::default()).err().unwrap();
            let error = fault.into_store_error(&doing);
            let (kind, told) = (error.kind(), error.to_string());
            if is_on {
                assert_eq!(kind, StoreErrorKind::Unreachable, "{told}");
            } else {
                assert_eq!(kind, StoreErrorKind::Misconfigured, "{told}");
                let named = format!("feature '{feature}' of timertask-redis, 'redis-{feature}' of timertask");
                assert!(told.contains(&named), "{told}");
            }
            assert!(!told.contains("sesame"), "{told}");
        }
    }
}
