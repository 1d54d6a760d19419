//! Whether a server is fit to keep a ledger, and what it can promise.

use std::collections::HashMap;
use std::fmt;

use redis::{Connection, RedisResult, ServerErrorKind};
use timertask_core::seam::{Durability, StoreErrorKind};

use crate::error::Fault;
use crate::options::Options;

/// What a server says of itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Fitness {
    role: String,
    /// Whether it is still reading its data.
    loading: bool,
    /// Empty where the server doesn't say.
    eviction: String,
    appends: bool,
    /// Whether each write is on the disk before it is acknowledged.
    synced: bool,
    /// Replicas that follow, those that are still being copied to left out.
    replicas: u32,
    /// Whether it is a node of a cluster.
    pub(crate) clustered: bool,
}

/// Asks the server. Two questions, each with one answer.
pub(crate) fn ask(connection: &mut Connection) -> RedisResult<Fitness> {
    let info: String = redis::cmd("INFO").query(connection)?;
    let mut fitness = read_info(&info);
    if fitness.appends {
        // Services that rent out servers often forbid this one; then the weaker is assumed.
        let asked: RedisResult<HashMap<String, String>> =
            redis::cmd("CONFIG").arg("GET").arg("appendfsync").query(connection);
        match asked {
            Ok(found) => fitness.synced = found.get("appendfsync").is_some_and(|value| value == "always"),
            Err(error) if is_forbidden(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(fitness)
}

fn is_forbidden(error: &redis::RedisError) -> bool {
    use redis::ErrorKind::Server;
    matches!(error.kind(), Server(ServerErrorKind::NoPerm | ServerErrorKind::ResponseError))
}

fn read_info(info: &str) -> Fitness {
    let mut fitness = Fitness::default();
    for (name, value) in info.lines().filter_map(|line| line.split_once(':')) {
        match name {
            "loading" => fitness.loading = value != "0",
            "role" => value.clone_into(&mut fitness.role),
            "maxmemory_policy" => value.clone_into(&mut fitness.eviction),
            "aof_enabled" => fitness.appends = value != "0",
            "cluster_enabled" => fitness.clustered = value != "0",
            // `slave0:ip=…,port=…,state=online,…`
            _ if is_replica(name) && value.contains("state=online") => fitness.replicas += 1,
            _ => {}
        }
    }
    fitness
}

fn is_replica(name: &str) -> bool {
    name.strip_prefix("slave").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// For people: what keeps its data.
impl fmt::Display for Fitness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.appends, self.synced) {
            (false, _) => "no append-only file",
            (true, false) => "an append-only file, not synced at each write",
            (true, true) => "an append-only file, synced at each write",
        })?;
        match self.replicas {
            1 => f.write_str("; 1 replica"),
            n => write!(f, "; {n} replicas"),
        }
    }
}

impl Fitness {
    /// Whether it is a master, as far as it knows.
    #[cfg(feature = "cluster")]
    pub(crate) fn is_master(&self) -> bool {
        self.role == "master"
    }

    /// What a ledger here promises, where at least so many replicas are asked to have each write.
    ///
    /// # Errors
    /// A fault where this server must not keep one.
    pub(crate) fn durability(&self, accept_eviction: bool, least: u32) -> Result<Durability, Fault> {
        if self.loading {
            return Err(Fault::new(StoreErrorKind::Busy, "the server is still loading its data"));
        }
        if self.role != "master" {
            let what = format!("the server is no master (its role is {:?})", self.role);
            return Err(Fault::new(StoreErrorKind::ReadOnly, what));
        }
        if !accept_eviction && self.eviction != "noeviction" && !self.eviction.is_empty() {
            let what = format!(
                "the server's maxmemory-policy is {:?}: where memory runs short it would forget claims; set \
                 'noeviction', or accept it (Options::accept_eviction)",
                self.eviction
            );
            return Err(Fault::new(StoreErrorKind::Misconfigured, what));
        }
        if self.replicas < least {
            let what = format!("the server has {} replicas, and {least} are to have each write", self.replicas);
            return Err(Fault::new(StoreErrorKind::Full, what));
        }
        Ok(if self.replicas > 0 {
            Durability::Replicated { acknowledged_by: least }
        } else if self.appends {
            Durability::Durable { synced: self.synced }
        } else {
            // Snapshots alone keep what was acknowledged up to the last one.
            Durability::UntilRestart
        })
    }
}

/// The least that any of the servers promises: each of them keeps some of the plans.
///
/// # Errors
/// A fault where one of them must not keep a ledger.
pub(crate) fn weakest(servers: &[(String, Fitness)], options: &Options) -> Result<Durability, Fault> {
    let least = options.replicas.map_or(0, |replicas| replicas.least);
    let judge = |(address, fitness): &(String, Fitness)| {
        fitness.durability(options.evicts, least).map_err(|fault| {
            // Of a single server the caller knows which it is.
            if servers.len() > 1 { fault.about(address) } else { fault }
        })
    };
    let all = servers.iter().map(judge).collect::<Result<Vec<_>, _>>()?;
    let weakest = all.into_iter().reduce(weaker);
    weakest.ok_or_else(|| Fault::new(StoreErrorKind::Busy, "there is no server"))
}

fn weaker(a: Durability, b: Durability) -> Durability {
    use Durability::{Durable, Replicated, UntilRestart};
    match (a, b) {
        (UntilRestart, _) | (_, UntilRestart) => UntilRestart,
        (Durable { synced: a }, Durable { synced: b }) => Durable { synced: a && b },
        (Replicated { acknowledged_by: a }, Replicated { acknowledged_by: b }) => {
            Replicated { acknowledged_by: a.min(b) }
        }
        // Of one of them a failover loses what was not replicated yet.
        (replicated @ Replicated { .. }, _) | (_, replicated) => replicated,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(info: &str) -> Result<Durability, StoreErrorKind> {
        let fault = |fault: Fault| fault.into_store_error("look").kind();
        read_info(info).durability(false, 0).map_err(fault)
    }

    #[test]
    fn what_a_server_says_decides_what_it_promises() {
        let master = "# Replication\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n";
        assert_eq!(of(master), Ok(Durability::UntilRestart));
        assert_eq!(of(&format!("{master}aof_enabled:1\r\n")), Ok(Durability::Durable { synced: false }));
        let replicated = Durability::Replicated { acknowledged_by: 0 };
        assert_eq!(
            of(&format!(
                "{master}aof_enabled:1\r\nconnected_slaves:1\r\nslave0:ip=::1,port=1,state=online,offset=1\r\n"
            )),
            Ok(replicated)
        );
        assert_eq!(of(&format!("loading:1\r\n{master}")), Err(StoreErrorKind::Busy));
        assert_eq!(of("role:slave\r\nmaxmemory_policy:noeviction"), Err(StoreErrorKind::ReadOnly));
        assert_eq!(of("role:master\r\nmaxmemory_policy:allkeys-lru"), Err(StoreErrorKind::Misconfigured));
        assert_eq!(of(""), Err(StoreErrorKind::ReadOnly), "a server that says nothing is not trusted");
        let copied_to = format!("{master}connected_slaves:1\r\nslave0:ip=::1,port=1,state=wait_bgsave,offset=1");
        assert_eq!(of(&copied_to), Ok(Durability::UntilRestart), "a replica that is not there yet has nothing");
        let evicts = read_info("role:master\r\nmaxmemory_policy:volatile-ttl");
        assert_eq!(evicts.durability(true, 0).ok(), Some(Durability::UntilRestart));
    }

    #[test]
    fn a_server_with_too_few_replicas_is_refused() {
        let one = read_info("role:master\r\nslave0:state=online\r\nmaxmemory_policy:noeviction");
        assert_eq!(one.durability(false, 1).ok(), Some(Durability::Replicated { acknowledged_by: 1 }));
        let refused = one.durability(false, 2).unwrap_err().into_store_error("look");
        assert_eq!(refused.kind(), StoreErrorKind::Full);
        assert_eq!(one.to_string(), "no append-only file; 1 replica");
    }

    #[test]
    fn several_servers_promise_what_the_weakest_does() {
        use Durability::{Durable, Replicated, UntilRestart};
        let (synced, unsynced) = (Durable { synced: true }, Durable { synced: false });
        let (none, one) = (Replicated { acknowledged_by: 0 }, Replicated { acknowledged_by: 1 });
        for (all, least) in [
            (vec![synced.clone(), unsynced.clone()], &unsynced),
            (vec![synced.clone(), one.clone(), none.clone()], &none),
            (vec![one.clone(), synced.clone()], &one),
            (vec![one.clone(), UntilRestart, synced.clone()], &UntilRestart),
        ] {
            assert_eq!(all.into_iter().reduce(weaker).as_ref(), Some(least));
        }
        let evicts = read_info("role:master\r\nmaxmemory_policy:allkeys-lru");
        let fit = read_info("role:master\r\nmaxmemory_policy:noeviction\r\naof_enabled:1");
        let both = [("a".to_owned(), fit), ("b".to_owned(), evicts)];
        let told = weakest(&both, &Options::default()).unwrap_err().into_store_error("look").to_string();
        assert!(told.contains("look: b: "), "it says which: {told}");
        assert_eq!(weakest(&both[..1], &Options::default()).ok(), Some(unsynced));
    }
}
