//! One server: the connections to it, by kind of call, and how a call is carried out on one of them.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use timertask_core::seam::StoreErrorKind;

use crate::access::Open;
use crate::error::Fault;
use crate::fitness::{self, Fitness};
use crate::lane::{Lane, Repeat};
use crate::layout::millis;
use crate::options::Options;
use crate::script::{Asking, Call, Code};

/// For which a server keeps connections apart: none waits for another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Claims,
    /// What ends runs and changes plans.
    Ends,
    Renewals,
    /// What reads, and what may wait.
    Reads,
}

/// A call, and how it may be made.
pub(crate) struct Asked<'a> {
    pub(crate) kind: Kind,
    pub(crate) repeat: Repeat,
    /// How many requests it carries.
    pub(crate) group: usize,
    pub(crate) code: &'a Code,
    pub(crate) call: &'a Call,
}

/// How many replicas must have a write before it counts, and how long they are waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicas {
    pub(crate) least: u32,
    pub(crate) wait: Duration,
}

pub(crate) struct Server {
    lanes: [Lane; 4],
    replicas: Option<Replicas>,
    response_timeout: Duration,
}

impl Server {
    pub(crate) fn new(opener: &Arc<dyn Open>, options: &Options) -> Self {
        let lanes = [(); 4].map(|()| Lane::new(Arc::clone(opener), options));
        Self { lanes, replicas: options.replicas, response_timeout: options.response_timeout }
    }

    fn lane(&self, kind: Kind) -> &Lane {
        &self.lanes[kind as usize]
    }

    /// The texts that the script answers.
    pub(crate) fn ask(&self, asked: &Asked<'_>, asking: Asking) -> Result<Vec<Value>, Fault> {
        let waits = self.replicas.filter(|_| matches!(asked.kind, Kind::Claims | Kind::Ends));
        // Whatever the server says to `WAIT`, the script has been carried out by then.
        let carried_out = Cell::new(false);
        let done = self.lane(asked.kind).call(asked.repeat, asked.group, |connection| {
            let Some(replicas) = waits else {
                return Ok((asked.call.run(asked.code, connection, asking)?, u32::MAX));
            };
            connection.set_read_timeout(Some(self.response_timeout))?;
            let values = asked.call.run(asked.code, connection, asking)?;
            carried_out.set(true);
            connection.set_read_timeout(Some(self.response_timeout.saturating_add(replicas.wait)))?;
            let wait = millis(replicas.wait);
            Ok((values, redis::cmd("WAIT").arg(replicas.least).arg(wait).query(connection)?))
        });
        let (values, have_it) =
            done.map_err(|fault| if carried_out.get() { fault.unknown_outcome() } else { fault })?;
        match waits {
            Some(Replicas { least, wait }) if have_it < least => {
                let what = format!("{have_it} of the {least} replicas asked for had it after {} ms", wait.as_millis());
                Err(Fault::new(StoreErrorKind::Full, what).unknown_outcome())
            }
            _ => Ok(values),
        }
    }

    /// What the server says of itself.
    pub(crate) fn fitness(&self) -> Result<Fitness, Fault> {
        self.lane(Kind::Reads).call(Repeat::Harmless, 1, fitness::ask)
    }
}
