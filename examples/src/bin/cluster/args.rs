//! The command line.

use std::path::PathBuf;

/// What can be said.
pub(crate) const USAGE: &str = "\
usage: cluster [--instances N] [--seconds N] [--store STORE] [--outage]
  --instances N        how many processes share the store: 2 to 9 (3)
  --seconds N          how long slots are judged: 10 to 3600 (20); after that it takes up to
                       75 s more until the lease of the killed process has lapsed
  --store sqlite:PATH  the file; it must not exist yet (a new one in the folder for temporary files)
  --store redis:       the ledger on a Redis server that is started for it, if the program
                       redis-server is there, and stopped at the end
  --store redis://…    the ledger on that Redis server, in a namespace of its own, which is deleted
                       at the end
  --outage             the server is killed in the middle and started again later; with redis: only
On Redis the application's tables stay in a file.";

/// What was said.
pub(crate) struct Args {
    /// How many processes.
    pub(crate) instances: usize,
    /// How long slots are judged, seconds.
    pub(crate) seconds: u64,
    /// The ledger's server; `None`: it lies in the file, or on a server that is still to be started.
    pub(crate) redis: Option<OnRedis>,
    /// A server is started for the demonstration.
    pub(crate) own_server: bool,
    /// That server is killed in the middle.
    pub(crate) outage: bool,
    /// The file.
    pub(crate) path: PathBuf,
    /// Whether the file was made up, and goes at the end.
    pub(crate) temporary: bool,
    /// What this process is.
    pub(crate) part: Part,
}

/// The parts that processes play.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Conductor,
    /// The instance of this number.
    Instance(usize),
    Guard,
}

/// Where on Redis.
pub(crate) struct OnRedis {
    pub(crate) url: String,
    pub(crate) namespace: String,
}

impl Args {
    /// Reads the arguments.
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut instances, mut seconds, mut store, mut instance) = (3, 20, None, None);
        let (mut file, mut namespace, mut outage, mut guard) = (None, None, false, false);
        let mut words = words;
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--instances" => instances = number(&value()?, 2, 9, "--instances")?,
                "--seconds" => seconds = number(&value()?, 10, 3600, "--seconds")?,
                "--store" => store = Some(value()?),
                "--outage" => outage = true,
                // The last four are given by the conductor to the processes that it starts.
                "--guard" => guard = true,
                "--file" => file = Some(PathBuf::from(value()?)),
                "--namespace" => namespace = Some(value()?),
                "--instance" => instance = Some(number(&value()?, 1, 99, "--instance")?),
                _ => return Err(format!("unknown argument {word:?}")),
            }
        }
        let own = format!("cluster-{}", std::process::id());
        let made_up = || std::env::temp_dir().join(format!("timertask-{own}.db"));
        let own_server = store.as_deref() == Some("redis:") || (outage && store.is_none());
        if outage && !own_server {
            return Err("--outage kills the server, so it takes one of its own: --store redis:".to_owned());
        }
        let (path, temporary, redis) = match store {
            _ if own_server => (made_up(), true, None),
            None => (made_up(), true, None),
            Some(url) if url.starts_with("redis://") => {
                let temporary = file.is_none();
                let namespace = namespace.unwrap_or_else(|| own.clone());
                (file.unwrap_or_else(made_up), temporary, Some(OnRedis { url, namespace }))
            }
            Some(store) => match store.strip_prefix("sqlite:").filter(|path| !path.is_empty()) {
                Some(path) => (PathBuf::from(path), false, None),
                // The words may hold a password that was meant for Redis.
                None => return Err("--store: allowed are sqlite:PATH, redis: and redis://HOST[:PORT]/".to_owned()),
            },
        };
        let instances = usize::try_from(instances).map_err(|e| e.to_string())?;
        let part = match instance {
            Some(number) => {
                Part::Instance(usize::try_from(number).map_err(|e: std::num::TryFromIntError| e.to_string())?)
            }
            None if guard => Part::Guard,
            None => Part::Conductor,
        };
        if part == Part::Conductor && path.exists() {
            return Err(format!("{} exists already; the demonstration starts with a file of its own", path.display()));
        }
        Ok(Self { instances, seconds, redis, own_server, outage, path, temporary, part })
    }
}

fn number(text: &str, from: u64, to: u64, what: &str) -> Result<u64, String> {
    let n = text.parse().ok().filter(|n| (from..=to).contains(n));
    n.ok_or_else(|| format!("{what} {text:?}: allowed is a number from {from} to {to}"))
}
