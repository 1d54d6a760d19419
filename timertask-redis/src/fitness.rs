//! Whether a server is fit to keep a ledger, and what it can promise.

use redis::{Connection, RedisResult, ServerErrorKind};
use timertask_core::seam::{Durability, StoreErrorKind};

use crate::error::Fault;

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
    replicas: u32,
}

/// Asks the server. Two questions, each with one answer.
pub(crate) fn ask(connection: &mut Connection) -> RedisResult<Fitness> {
    let info: String = redis::cmd("INFO").query(connection)?;
    let mut fitness = read_info(&info);
    if fitness.appends {
        // Services that rent out servers often forbid this one; then the weaker is assumed.
        let asked: RedisResult<Vec<String>> = redis::cmd("CONFIG").arg("GET").arg("appendfsync").query(connection);
        match asked {
            Ok(pair) => fitness.synced = pair.get(1).is_some_and(|value| value == "always"),
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
            "connected_slaves" => fitness.replicas = value.parse().unwrap_or(0),
            _ => {}
        }
    }
    fitness
}

impl Fitness {
    /// What a ledger here promises.
    ///
    /// # Errors
    /// A fault where this server must not keep one.
    pub(crate) fn durability(&self, accept_eviction: bool) -> Result<Durability, Fault> {
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
        Ok(if self.replicas > 0 {
            Durability::Replicated { acknowledged_by: 0 }
        } else if self.appends {
            Durability::Durable { synced: self.synced }
        } else {
            // Snapshots alone keep what was acknowledged up to the last one.
            Durability::UntilRestart
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(info: &str) -> Result<Durability, StoreErrorKind> {
        let fault = |fault: Fault| fault.into_store_error("look").kind();
        read_info(info).durability(false).map_err(fault)
    }

    #[test]
    fn what_a_server_says_decides_what_it_promises() {
        let master = "# Replication\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n";
        assert_eq!(of(master), Ok(Durability::UntilRestart));
        assert_eq!(of(&format!("{master}aof_enabled:1\r\n")), Ok(Durability::Durable { synced: false }));
        let replicated = Durability::Replicated { acknowledged_by: 0 };
        assert_eq!(of(&format!("{master}aof_enabled:1\r\nconnected_slaves:1\r\n")), Ok(replicated));
        assert_eq!(of(&format!("loading:1\r\n{master}")), Err(StoreErrorKind::Busy));
        assert_eq!(of("role:slave\r\nmaxmemory_policy:noeviction"), Err(StoreErrorKind::ReadOnly));
        assert_eq!(of("role:master\r\nmaxmemory_policy:allkeys-lru"), Err(StoreErrorKind::Misconfigured));
        assert_eq!(of(""), Err(StoreErrorKind::ReadOnly), "a server that says nothing is not trusted");
        let evicts = read_info("role:master\r\nmaxmemory_policy:volatile-ttl");
        assert_eq!(evicts.durability(true).ok(), Some(Durability::UntilRestart));
    }
}
