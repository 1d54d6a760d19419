//! Calls: one script, one answer. An answer is a flat list of texts: the number of its call, the server's now, and what
//! was asked for.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::{Cmd, Connection, ErrorKind, RedisError, RedisResult, Script, ServerErrorKind, Value};
use timertask_core::key::PlanKey;
use timertask_core::time::Timestamp;

use crate::error::Fault;
use crate::layout::{Scope, around, bucket};

/// A script as the server knows it.
pub(crate) struct Code {
    text: &'static str,
    hash: String,
}

/// A script of ours, behind what all of them begin with.
macro_rules! script {
    ($name:ident, $file:literal) => {
        pub(crate) static $name: LazyLock<Code> = LazyLock::new(|| {
            let text = concat!(include_str!("lua/rows.lua"), "\n", include_str!($file));
            Code { text, hash: Script::new(text).get_hash().to_owned() }
        });
    };
}

script!(CLAIM, "lua/claim.lua");
script!(RENEW, "lua/renew.lua");
script!(END, "lua/end.lua");
script!(PLAN, "lua/plan.lua");
script!(PURGE, "lua/purge.lua");
script!(READ, "lua/read.lua");
script!(LOCK, "lua/lock.lua");
script!(BOARD, "lua/board.lua");
script!(COPY, "lua/copy.lua");

/// Whether a server is told that it is asked for a key on its way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asking {
    No,
    #[cfg(feature = "cluster")]
    Yes,
}

/// Keys and arguments of a call, as they are gathered.
pub(crate) struct Call {
    scope: Scope,
    keys: Vec<String>,
    /// The place of each, for those that are named again.
    places: HashMap<String, usize>,
    /// Further keys that the script touches. The nodes of a cluster are told of all of them: one that has only some, while
    /// a slot moves, refuses the script as a whole, instead of taking what it lacks for what there never was.
    touched: Vec<String>,
    /// Whether it touches keys that it finds on the way.
    finds_keys: bool,
    args: Vec<Vec<u8>>,
}

impl Call {
    pub(crate) fn new(scope: Scope) -> Self {
        Self {
            scope,
            keys: Vec::new(),
            places: HashMap::new(),
            touched: Vec::new(),
            finds_keys: false,
            args: Vec::new(),
        }
    }

    /// The first key, with which all others share their tag.
    #[cfg(feature = "cluster")]
    pub(crate) fn first_key(&self) -> Option<&str> {
        self.keys.first().map(String::as_str)
    }

    /// The script touches keys that it finds on the way, and cannot name.
    pub(crate) fn finds_keys(&mut self) -> &mut Self {
        self.finds_keys = true;
        self
    }

    /// Whether a node that has all keys of the call has all that it needs.
    #[cfg(feature = "cluster")]
    pub(crate) fn names_all_keys(&self) -> bool {
        !self.finds_keys
    }

    /// Where the keys of this call may lie.
    pub(crate) fn scope(&self) -> Scope {
        self.scope
    }

    /// An argument.
    pub(crate) fn arg(&mut self, text: impl Into<Vec<u8>>) -> &mut Self {
        self.args.push(text.into());
        self
    }

    pub(crate) fn number(&mut self, n: impl ToString) -> &mut Self {
        self.arg(n.to_string())
    }

    /// A key that the script takes by its place.
    pub(crate) fn fixed_key(&mut self, key: String) -> &mut Self {
        self.keys.push(key);
        self
    }

    /// A key, and its place as an argument. Keys that are named again share a place.
    pub(crate) fn key(&mut self, key: String) -> &mut Self {
        let place = self.places.get(&key).copied().unwrap_or_else(|| {
            self.keys.push(key.clone());
            self.places.insert(key, self.keys.len());
            self.keys.len()
        });
        self.number(place)
    }

    /// The key and id of a plan, or of a namespace.
    pub(crate) fn plan(&mut self, plan: &PlanKey) -> &mut Self {
        self.touch(plan);
        self.key(bucket(plan)).arg(plan.plan_str())
    }

    /// As [`plan`](Self::plan), with the key of the row that holds for all plans before the id.
    pub(crate) fn claimed_plan(&mut self, plan: &PlanKey, row_of_all: String) -> &mut Self {
        self.touch(plan);
        self.key(bucket(plan)).key(row_of_all).arg(plan.plan_str())
    }

    /// A plan's key, which the script takes by its place, and its id.
    pub(crate) fn fixed_plan(&mut self, plan: &PlanKey) -> &mut Self {
        self.touch(plan);
        self.fixed_key(bucket(plan)).arg(plan.plan_str())
    }

    /// The script touches all that concerns the plan.
    fn touch(&mut self, plan: &PlanKey) {
        if self.scope == Scope::Tag && plan.plan.is_some() {
            for key in around(plan) {
                self.touched(key);
            }
        }
    }

    /// The script touches that key too.
    pub(crate) fn touched(&mut self, key: String) {
        if self.scope == Scope::Tag && !self.touched.contains(&key) {
            self.touched.push(key);
        }
    }

    /// Runs `code` with what was gathered. A server that doesn't know it yet, after a restart or a `SCRIPT FLUSH`, is
    /// given it.
    ///
    /// The call's number comes back with its answer. A connection on which an answer was left over would otherwise give
    /// each call the answer of the one before it, and a claim another slot's grant.
    pub(crate) fn run(&self, code: &Code, connection: &mut Connection, asking: Asking) -> RedisResult<Vec<Value>> {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        let number = CALLS.fetch_add(1, Ordering::Relaxed).to_string();
        let mut ask = |name, text| {
            if asking != Asking::No {
                redis::cmd("ASKING").exec(connection)?;
            }
            self.command(name, text, &number).query(connection)
        };
        let value = match ask("EVALSHA", &code.hash) {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => ask("EVAL", code.text)?,
            done => done?,
        };
        match value {
            Value::Array(values) if is_text(values.first(), &number) => Ok(values),
            _ => Err(RedisError::from((ErrorKind::UnexpectedReturnType, "the answer is not that of this call"))),
        }
    }

    fn command(&self, name: &str, code: &str, number: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(code).arg(self.keys.len() + self.touched.len()).arg(&self.keys).arg(&self.touched);
        command.arg(number).arg(&self.args);
        command
    }
}

fn is_text(value: Option<&Value>, text: &str) -> bool {
    matches!(value, Some(Value::BulkString(bytes)) if bytes == text.as_bytes())
}

/// What a script answered, text by text.
pub(crate) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    /// The server's now, and what follows it.
    pub(crate) fn new(values: Vec<Value>) -> Result<(Timestamp, Self), Fault> {
        let mut reply = Self(values.into_iter());
        // The call's number has been looked at.
        reply.text()?;
        let now = Timestamp::from_micros(reply.number()?);
        Ok((now, reply))
    }

    pub(crate) fn text(&mut self) -> Result<String, Fault> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => {
                String::from_utf8(bytes).map_err(|_| Fault::damaged("a text is not UTF-8"))
            }
            Some(_) => Err(Fault::nonsense("the answer holds something else than texts")),
            None => Err(Fault::nonsense("the answer is cut short")),
        }
    }

    pub(crate) fn number<T: std::str::FromStr>(&mut self) -> Result<T, Fault> {
        let text = self.text()?;
        text.parse().map_err(|_| Fault::damaged(format!("{text:?} is not a number of the answer")))
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.0.as_slice().is_empty()
    }

    /// Nothing may be left.
    pub(crate) fn finish(self) -> Result<(), Fault> {
        if self.is_at_end() { Ok(()) } else { Err(Fault::nonsense("the answer is too long")) }
    }
}
