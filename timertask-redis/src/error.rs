//! What the server and the client answer, as [`StoreError`]s. Refused is a value, broken is an error: nothing in here is
//! ever read as "somebody else has it".

use redis::{ErrorKind, RedisError, ServerErrorKind};
use timertask_core::seam::{StoreError, StoreErrorKind};

#[cfg(feature = "tls")]
use crate::tls::distrust;

/// The word with which our scripts begin what they refuse: rows that this library cannot have written.
const REFUSED_BY_SCRIPT: &str = "TTBAD";

/// A fault inside the store, before it is told to the caller together with what was being done.
#[derive(Debug)]
pub(crate) struct Fault {
    kind: StoreErrorKind,
    what: Option<String>,
    unknown: bool,
    cause: Option<RedisError>,
}

impl Fault {
    /// A fault that no other error caused.
    pub(crate) fn new(kind: StoreErrorKind, what: impl Into<String>) -> Self {
        Self { kind, what: Some(what.into()), unknown: false, cause: None }
    }

    /// A row that this library cannot have written.
    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Corrupt, what)
    }

    /// A value that the server answered as it stands there, and that is none. What was asked for may have been carried out.
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self::corrupt(what).unknown_outcome()
    }

    /// An answer that does not have the shape it must have. What was asked for has most likely been carried out.
    pub(crate) fn nonsense(what: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Internal, what).unknown_outcome()
    }

    /// What went wrong before anything was asked for: at connecting, or while the server let the client in.
    pub(crate) fn at_connect(cause: RedisError) -> Self {
        let kind = match cause.kind() {
            ErrorKind::Io => kind_of(&cause),
            // A database that is not there, a user that is not known: what the URL says doesn't fit the server.
            ErrorKind::Server(ServerErrorKind::ResponseError) if !is_crowded(&cause) => StoreErrorKind::Misconfigured,
            _ => kind_of(&cause),
        };
        Self { kind, what: None, unknown: false, cause: Some(cause) }
    }

    /// What a call came to. `group` is how many requests it carried: those before the one that failed stand.
    pub(crate) fn of_call(cause: RedisError, group: usize) -> Self {
        let kind = kind_of(&cause);
        let unknown = match cause.kind() {
            // It was sent, and no answer came.
            ErrorKind::Io => !cause.is_connection_refusal() && distrust(&cause).is_none(),
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => true,
            // The script was sent along: this belongs to another call.
            ErrorKind::Server(ServerErrorKind::NoScript) => true,
            _ if has_moved_away(&cause) || may_not(&cause) => true,
            // A script that fails half-way leaves what it has written.
            _ => {
                group > 1
                    && matches!(
                        kind,
                        StoreErrorKind::Corrupt | StoreErrorKind::Misconfigured | StoreErrorKind::Internal
                    )
            }
        };
        Self { kind, what: None, unknown, cause: Some(cause) }
    }

    /// Says of which of several servers it is one.
    pub(crate) fn about(mut self, server: &str) -> Self {
        self.what = Some(match self.what {
            Some(what) => format!("{server}: {what}"),
            None => server.to_owned(),
        });
        self
    }

    /// It came up while nothing was asked for but how things stand.
    pub(crate) fn asked_nothing(mut self) -> Self {
        self.unknown = false;
        self
    }

    #[cfg(feature = "cluster")]
    pub(crate) fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// The server's own word for it, where it answered with one.
    #[cfg(feature = "cluster")]
    pub(crate) fn answered(&self) -> Option<(&str, &str)> {
        let cause = self.cause.as_ref()?;
        Some((cause.code()?, cause.detail().unwrap_or("")))
    }

    /// Whether a node of a cluster could not decide because the slot is just on its way to another, or may be.
    pub(crate) fn is_of_a_moving_slot(&self) -> bool {
        self.cause
            .as_ref()
            .is_some_and(|cause| matches!(cause.code(), Some("ASK" | "TRYAGAIN")) || has_moved_away(cause))
    }

    /// It may have been carried out all the same.
    pub(crate) fn unknown_outcome(mut self) -> Self {
        self.unknown = true;
        self
    }

    /// For the caller; `doing` says what was being done, and where.
    pub(crate) fn into_store_error(self, doing: &str) -> StoreError {
        let what = match self.what {
            Some(what) => format!("{doing}: {what}"),
            None => doing.to_owned(),
        };
        let mut error = StoreError::new(self.kind, what);
        if self.unknown {
            error = error.unknown_outcome();
        }
        match self.cause {
            Some(cause) => error.with_source(cause),
            None => error,
        }
    }
}

/// Whether the connection that answered so is good for another call.
pub(crate) fn keeps_connection(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::NoScript) => false,
        // A replica: what is looked for is elsewhere by now.
        ErrorKind::Server(ServerErrorKind::ReadOnly) => false,
        ErrorKind::Server(_) | ErrorKind::Extension => !error.is_unrecoverable_error(),
        _ => false,
    }
}

/// Whether the server, or what lies in between, had hung up: what a connection meets that was idle over a restart.
pub(crate) fn was_hung_up(error: &RedisError) -> bool {
    error.is_io_error() && error.is_connection_dropped() && !error.is_timeout()
}

/// Whether the server said that it is a replica, and so had done nothing.
pub(crate) fn is_read_only(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
}

/// Whether a script on a node of a cluster met a key that had just left it, with its slot.
fn has_moved_away(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains("Script attempted to access a non local key"))
}

/// Whether a script came to a command, or a key, that its user has no right to.
fn may_not(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains("The user executing the script can't"))
}

/// Without TLS there are no certificates to distrust.
#[cfg(not(feature = "tls"))]
fn distrust(_: &RedisError) -> Option<StoreErrorKind> {
    None
}

fn is_crowded(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains("max number of clients"))
}

fn kind_of(error: &RedisError) -> StoreErrorKind {
    match error.kind() {
        ErrorKind::Io if error.is_timeout() => StoreErrorKind::TimedOut,
        ErrorKind::Io => distrust(error).unwrap_or(StoreErrorKind::Unreachable),
        ErrorKind::AuthenticationFailed => StoreErrorKind::Auth,
        ErrorKind::InvalidClientConfig => StoreErrorKind::Misconfigured,
        ErrorKind::Server(_) | ErrorKind::Extension => kind_of_code(error),
        _ => StoreErrorKind::Internal,
    }
}

/// By the first word of the server's answer.
fn kind_of_code(error: &RedisError) -> StoreErrorKind {
    let detail = error.detail().unwrap_or("");
    match error.code().unwrap_or("") {
        REFUSED_BY_SCRIPT => StoreErrorKind::Corrupt,
        "ERR" if detail.contains(REFUSED_BY_SCRIPT) => StoreErrorKind::Corrupt,
        "ERR" if is_crowded(error) || has_moved_away(error) => StoreErrorKind::Busy,
        "ERR" if may_not(error) => StoreErrorKind::Auth,
        "ERR" if detail.contains("unknown command") => StoreErrorKind::Misconfigured,
        "OOM" | "NOREPLICAS" => StoreErrorKind::Full,
        // A replica; a server that stopped taking writes because it could not save; one that became a replica while it
        // waited for its own (`WAIT`).
        "READONLY" | "MISCONF" | "UNBLOCKED" => StoreErrorKind::ReadOnly,
        "LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "ASK" => StoreErrorKind::Busy,
        "NOAUTH" | "WRONGPASS" | "NOPERM" => StoreErrorKind::Auth,
        // A key of another's; a node of a cluster that is spoken to as if it were alone.
        "WRONGTYPE" | "CROSSSLOT" | "MOVED" => StoreErrorKind::Misconfigured,
        _ => StoreErrorKind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server's answer `-CODE detail`.
    fn answered(code: &str, detail: &str) -> RedisError {
        let line = format!("-{code} {detail}\r\n");
        match redis::parse_redis_value(line.as_bytes()).unwrap() {
            redis::Value::ServerError(error) => error.into(),
            other => panic!("{other:?} is no error"),
        }
    }

    #[test]
    fn each_answer_has_its_kind() {
        use StoreErrorKind::*;
        for (code, detail, kind) in [
            ("OOM", "command not allowed when used memory > 'maxmemory'", Full),
            ("NOREPLICAS", "Not enough good replicas to write.", Full),
            ("READONLY", "You can't write against a read only replica.", ReadOnly),
            (
                "UNBLOCKED",
                "force unblock from blocking operation, instance state changed (master -> replica?)",
                ReadOnly,
            ),
            ("MISCONF", "Redis is configured to save RDB snapshots", ReadOnly),
            ("LOADING", "Redis is loading the dataset in memory", Busy),
            ("BUSY", "Redis is busy running a script", Busy),
            ("MASTERDOWN", "Link with MASTER is down", Busy),
            ("CLUSTERDOWN", "The cluster is down", Busy),
            ("TRYAGAIN", "Multiple keys request during rehashing of slot", Busy),
            ("ASK", "3999 127.0.0.1:6381", Busy),
            ("ERR", "max number of clients reached", Busy),
            ("NOAUTH", "Authentication required.", Auth),
            ("WRONGPASS", "invalid username-password pair", Auth),
            ("NOPERM", "this user has no permissions", Auth),
            ("WRONGTYPE", "Operation against a key holding the wrong kind of value", Misconfigured),
            ("CROSSSLOT", "Keys in request don't hash to the same slot", Misconfigured),
            ("MOVED", "3999 127.0.0.1:6381", Misconfigured),
            ("ERR", "unknown command 'EVALSHA'", Misconfigured),
            ("ERR", "TTBAD a slot has 3 fields, on @user_script:1.", Corrupt),
            ("TTBAD", "a slot has 3 fields", Corrupt),
            ("ERR", "whatever comes", Internal),
            ("NEVERHEARD", "of it", Internal),
        ] {
            let error = Fault::of_call(answered(code, detail), 1).into_store_error("claim");
            assert_eq!((error.kind(), error.outcome_unknown()), (kind, false), "{code} {detail}");
        }
    }

    /// What stops a script at any of its lines.
    #[test]
    fn a_script_that_was_stopped_may_have_written() {
        for (detail, kind) in [
            ("Script attempted to access a non local key in a cluster node script: 1f", StoreErrorKind::Busy),
            ("The user executing the script can't run this command or subcommand", StoreErrorKind::Auth),
            ("The user executing the script can't access at least one of the keys", StoreErrorKind::Auth),
        ] {
            let error = Fault::of_call(answered("ERR", detail), 1).into_store_error("claim");
            assert_eq!((error.kind(), error.outcome_unknown()), (kind, true), "{detail}");
        }
    }

    #[test]
    fn what_a_group_had_written_stands() {
        let fails = |code| Fault::of_call(answered(code, "x"), 2).into_store_error("claim").outcome_unknown();
        assert!(fails("WRONGTYPE"), "another request of the group may have been carried out");
        assert!(!fails("OOM"), "refused before the first write");
    }
}
