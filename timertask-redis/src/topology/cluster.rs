//! Redis Cluster: each key lies on the master that has its slot. Who that is is asked once, and again where an answer or
//! a fault shows that it has changed. The client library's own router asks 16 times over; here a call is redirected
//! twice at most.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;
use timertask_core::clock::{Clock, SystemClock};
use timertask_core::seam::StoreErrorKind;

use super::slots::{self, Owned};
use super::{Host, together};
use crate::access::{Access, Open};
use crate::error::Fault;
use crate::fitness::Fitness;
use crate::lane::backoff;
use crate::options::Options;
use crate::script::Asking;
use crate::server::{Asked, Server};

/// How often a call follows where it is sent.
const REDIRECTS: usize = 2;

pub(crate) struct Cluster {
    /// How each node is spoken to.
    access: Access,
    /// The hosts of the URL.
    seeds: Vec<Host>,
    options: Options,
    map: std::sync::Mutex<Map>,
    /// Held by whoever asks for the map anew. Others go on with the one that there is.
    asking: std::sync::Mutex<Attempts>,
}

/// Who has what, as far as is known.
#[derive(Default)]
struct Map {
    owned: Vec<Owned<Arc<Node>>>,
    nodes: HashMap<Host, Arc<Node>>,
    is_stale: bool,
}

#[derive(Default)]
struct Attempts {
    failures: u32,
    /// No further attempt before this monotonic time.
    not_before: Duration,
    /// Where the next one begins.
    first: usize,
}

struct Node {
    host: Host,
    server: Server,
}

impl Cluster {
    pub(crate) fn new(access: Access, seeds: Vec<Host>, options: &Options) -> Self {
        let map = std::sync::Mutex::new(Map { is_stale: true, ..Map::default() });
        Self { access, seeds, options: options.clone(), map, asking: std::sync::Mutex::default() }
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn ask(&self, asked: &Asked<'_>) -> Result<Vec<Value>, Fault> {
        let known = self.refresh_if_stale();
        let slot = asked.call.first_key().map_or(0, slots::slot);
        let Some(mut node) = slots::owner(&self.map().owned, slot).cloned() else {
            self.map().is_stale = true;
            known?;
            return Err(Fault::new(StoreErrorKind::Busy, format!("no node of the cluster has slot {slot}")));
        };
        let (mut asking, mut redirects) = (Asking::No, 0);
        loop {
            let fault = match node.server.ask(asked, asking) {
                Ok(values) => return Ok(values),
                Err(fault) => fault.about(&node.to_string()),
            };
            let to = |detail| slots::redirected(detail, &node.host.0);
            let next = match fault.answered() {
                Some(("MOVED", detail)) => to(detail).map(|host| (host, Asking::No)),
                Some(("ASK", detail)) if asked.call.names_all_keys() => to(detail).map(|host| (host, Asking::Yes)),
                _ => None,
            };
            if !fault.is_of_a_moving_slot() && may_have_moved(&fault) {
                self.map().is_stale = true;
            }
            match next {
                Some((host, how)) if redirects < REDIRECTS => {
                    node = self.node(&mut self.map(), host)?;
                    asking = how;
                    redirects += 1;
                }
                _ => return Err(fault),
            }
        }
    }

    /// The node at `host`, known or new.
    fn node(&self, map: &mut Map, host: Host) -> Result<Arc<Node>, Fault> {
        if let Some(node) = map.nodes.get(&host) {
            return Ok(Arc::clone(node));
        }
        let access = self.access.at(&host.0, host.1).map_err(Fault::at_connect)?;
        let opener: Arc<dyn Open> = Arc::new(access);
        let node = Arc::new(Node { host: host.clone(), server: Server::new(&opener, &self.options) });
        map.nodes.insert(host, Arc::clone(&node));
        Ok(node)
    }

    /// Asks who has what, where that is in doubt, nobody else is asking, and the last attempt is not too near. An error
    /// leaves what is known as it is.
    fn refresh_if_stale(&self) -> Result<(), Fault> {
        if !self.map().is_stale {
            return Ok(());
        }
        let Ok(mut attempts) = self.asking.try_lock() else { return Ok(()) };
        let started = SystemClock.monotonic();
        if started < attempts.not_before {
            return Ok(());
        }
        let hosts = self.hosts();
        let patience = self.options.connect_timeout.saturating_add(self.options.response_timeout);
        let mut last = Fault::new(StoreErrorKind::Misconfigured, "there are no hosts");
        // A node that was cut off from the others may know of some slots only: then another is asked.
        let mut found = None;
        for _ in 0..hosts.len() {
            let host = &hosts[attempts.first % hosts.len()];
            // The next look begins at another: this one may never hear of what has changed.
            attempts.first = attempts.first.wrapping_add(1);
            match self.look_from(host) {
                Ok(owned) if slots::is_whole(&owned) => {
                    found = Some(owned);
                    break;
                }
                Ok(owned) => found = Some(owned),
                Err(fault) => last = fault,
            }
            if SystemClock.monotonic().saturating_sub(started) >= patience {
                break;
            }
        }
        if let Some(owned) = found {
            attempts.failures = 0;
            // While a master is lost each of its faults asks for a look; a few each second are enough.
            attempts.not_before = SystemClock.monotonic().saturating_add(backoff(2));
            return self.learn(owned);
        }
        attempts.not_before = SystemClock.monotonic().saturating_add(backoff(attempts.failures));
        attempts.failures = attempts.failures.saturating_add(1);
        Err(last)
    }

    /// All that may be asked: the nodes that are known, then the hosts of the URL.
    fn hosts(&self) -> Vec<Host> {
        let map = self.map();
        let mut hosts: Vec<Host> = map.nodes.keys().cloned().collect();
        hosts.sort_unstable();
        for seed in &self.seeds {
            if !hosts.contains(seed) {
                hosts.push(seed.clone());
            }
        }
        hosts
    }

    /// Who has what, as the node at `host` sees it.
    fn look_from(&self, host: &Host) -> Result<Vec<Owned<Host>>, Fault> {
        let asked = |error| Fault::at_connect(error).about(&format!("node {}:{}", host.0, host.1));
        let mut connection = self.access.at(&host.0, host.1).and_then(|access| access.connect()).map_err(asked)?;
        let answer: Value = redis::cmd("CLUSTER").arg("SLOTS").query(&mut connection).map_err(asked)?;
        match slots::read(&answer, &host.0) {
            Some(owned) if !owned.is_empty() => Ok(owned),
            Some(_) => Err(Fault::new(StoreErrorKind::Busy, format!("node {}:{} knows no slots", host.0, host.1))),
            None => Err(Fault::new(StoreErrorKind::Internal, "the answer does not say who has which slots")),
        }
    }

    /// From now on `owned` is how it is. Nodes that are not in it any more are forgotten, with their connections.
    fn learn(&self, owned: Vec<Owned<Host>>) -> Result<(), Fault> {
        let mut map = self.map();
        let mut known = Vec::with_capacity(owned.len());
        for Owned { first, last, node } in owned {
            known.push(Owned { first, last, node: self.node(&mut map, node)? });
        }
        map.nodes.retain(|host, _| known.iter().any(|owned| owned.node.host == *host));
        map.owned = known;
        map.is_stale = false;
        Ok(())
    }

    /// What each master says of itself.
    pub(crate) fn look(&self) -> Result<Vec<(String, Fitness)>, Fault> {
        let known = self.refresh_if_stale();
        let (masters, is_whole) = {
            let map = self.map();
            let mut masters: Vec<_> = map.owned.iter().map(|owned| Arc::clone(&owned.node)).collect();
            masters.sort_by(|a, b| a.host.cmp(&b.host));
            masters.dedup_by(|a, b| a.host == b.host);
            (masters, slots::is_whole(&map.owned))
        };
        if masters.is_empty() {
            known?;
        }
        if !is_whole {
            self.map().is_stale = true;
            return Err(Fault::new(StoreErrorKind::Busy, "some slots of the cluster have no node"));
        }
        let look = |node: Arc<Node>| {
            let fitness = node.server.fitness();
            // A master that has lost its place may say so, or nothing.
            if !fitness.as_ref().is_ok_and(Fitness::is_master) {
                self.map().is_stale = true;
            }
            let address = node.to_string();
            match fitness {
                Ok(fitness) => Ok((address, fitness)),
                Err(fault) => Err(fault.about(&address)),
            }
        };
        masters.into_iter().map(look).collect()
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}:{}", self.host.0, self.host.1)
    }
}

/// Whether a fault is what a call meets whose node no longer has the slot, or is no longer there.
fn may_have_moved(fault: &Fault) -> bool {
    use StoreErrorKind::{Busy, ReadOnly, TimedOut, Unreachable};
    matches!(fault.kind(), Unreachable | TimedOut | ReadOnly | Busy)
        || matches!(fault.answered(), Some(("MOVED" | "CLUSTERDOWN", _)))
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&together(&self.seeds))
    }
}
