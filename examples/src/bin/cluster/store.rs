//! What the processes share: the SQLite file itself, or a Redis server beside it.

use std::sync::Arc;

use timertask::key::Namespace;
use timertask::redis::{Redis, redis};
use timertask::sqlite::Sqlite;
use timertask::{Builder, Ledger};

use crate::Result;
use crate::args::Args;

/// The ledger, and the part of it that is this demonstration's.
pub(crate) struct Store {
    pub(crate) ledger: Arc<dyn Ledger>,
    pub(crate) namespace: Namespace,
    /// For people; without a password.
    pub(crate) what: String,
}

impl Store {
    /// Opens what the arguments name.
    pub(crate) fn open(args: &Args) -> Result<Self> {
        let Some(redis) = &args.redis else {
            let ledger = Arc::new(Sqlite::options().in_application_file().open(&args.path)?);
            return Ok(Self { ledger, namespace: Namespace::default(), what: args.path.display().to_string() });
        };
        let store = Redis::connect(&redis.url)?;
        let what = format!("{store:?}");
        Ok(Self { ledger: Arc::new(store), namespace: Namespace::new(redis.namespace.as_str())?, what })
    }

    /// Tells the scheduler.
    pub(crate) fn share(&self, builder: Builder) -> Builder {
        let builder = builder.ledger(Arc::clone(&self.ledger));
        if self.namespace == Namespace::default() { builder } else { builder.namespace(self.namespace.as_str()) }
    }
}

/// Deletes what the demonstration has left on the server.
pub(crate) fn tidy(args: &Args) -> Result<()> {
    let Some(asked) = &args.redis else { return Ok(()) };
    let mut connection = redis::Client::open(asked.url.as_str())?.get_connection()?;
    let pattern = format!("timertask:1:{{{}:*", asked.namespace);
    let keys: Vec<String> = redis::cmd("SCAN")
        .cursor_arg(0)
        .arg("MATCH")
        .arg(pattern)
        .clone()
        .iter(&mut connection)?
        .collect::<redis::RedisResult<_>>()?;
    for key in keys {
        let _: i64 = redis::cmd("DEL").arg(key).query(&mut connection)?;
    }
    Ok(())
}
