//! Sentinels: who the master is, asked whenever a connection is opened. The client library asks them without any
//! time-out; here each question has one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::{Connection, RedisResult};
use timertask_core::clock::{Clock, SystemClock};
use timertask_core::seam::StoreErrorKind;

use super::Host;
use crate::access::{Access, Open};
use crate::error::Fault;
use crate::options::Options;

pub(crate) struct Sentinels {
    sentinels: Vec<Access>,
    /// How the master is spoken to; its address is another's.
    master: Access,
    name: String,
    /// The sentinel that is asked first: the one that was right the last time.
    first: AtomicUsize,
    /// After this long no further sentinel is asked.
    patience: Duration,
}

impl Sentinels {
    pub(crate) fn new(master: Access, hosts: &[Host], name: String, options: &Options) -> RedisResult<Self> {
        let as_client =
            master.logged_in_as(options.sentinel_username.as_deref(), options.sentinel_password.as_deref())?;
        let sentinels = hosts.iter().map(|(host, port)| as_client.at(host, *port)).collect::<RedisResult<_>>()?;
        let patience = options.connect_timeout.saturating_add(options.response_timeout);
        Ok(Self { sentinels, master, name, first: AtomicUsize::new(0), patience })
    }

    /// Where this sentinel says that the master is.
    fn ask(&self, sentinel: &Access) -> Result<Access, Fault> {
        let asked = |error| Fault::at_connect(error).about(&format!("sentinel {}", sentinel.address()));
        let mut connection = sentinel.connect().map_err(asked)?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let answer: Option<(String, u16)> = command.query(&mut connection).map_err(asked)?;
        let Some((host, port)) = answer else {
            let what = format!("sentinel {} knows no master called {:?}", sentinel.address(), self.name);
            return Err(Fault::new(StoreErrorKind::Misconfigured, what));
        };
        self.master.at(&host, port).map_err(asked)
    }

    /// A connection to the server that this sentinel names, if it says itself that it is the master: a sentinel that was
    /// cut off names the old one.
    fn follow(&self, sentinel: &Access) -> Result<Connection, Fault> {
        let master = self.ask(sentinel)?;
        let asked = |error| Fault::at_connect(error).about(&format!("server {}", master.address()));
        let mut connection = master.connect().map_err(asked)?;
        let role: Vec<redis::Value> = redis::cmd("ROLE").query(&mut connection).map_err(asked)?;
        match role.first() {
            Some(redis::Value::BulkString(role)) if role == b"master" => Ok(connection),
            _ => {
                let what = format!("server {}, which a sentinel named, is no master (yet)", master.address());
                Err(Fault::new(StoreErrorKind::ReadOnly, what))
            }
        }
    }
}

impl Open for Sentinels {
    fn open(&self) -> Result<Connection, Fault> {
        let started = SystemClock.monotonic();
        let (first, n) = (self.first.load(Ordering::Relaxed), self.sentinels.len());
        let mut last = Fault::new(StoreErrorKind::Misconfigured, "there are no sentinels");
        for place in (first..first + n).map(|place| place % n) {
            // Where the next attempt begins, unless a later one of these succeeds.
            match self.follow(&self.sentinels[place]) {
                Ok(connection) => {
                    self.first.store(place, Ordering::Relaxed);
                    return Ok(connection);
                }
                Err(fault) => last = fault,
            }
            self.first.store((place + 1) % n, Ordering::Relaxed);
            if SystemClock.monotonic().saturating_sub(started) >= self.patience {
                break;
            }
        }
        Err(last)
    }
}
