//! The command line.

use std::path::PathBuf;

/// What can be said.
pub(crate) const USAGE: &str = "\
usage: cluster [--instances N] [--seconds N] [--store sqlite:PATH | --store redis://HOST[:PORT]/]
  --instances N        how many processes share the store: 2 to 9 (3)
  --seconds N          how long slots are judged: 10 to 3600 (20); after that it takes up to
                       75 s more until the lease of the killed process has lapsed
  --store sqlite:PATH  the file; it must not exist yet (a new one in the folder for temporary files)
  --store redis://…    the ledger on a Redis server, in a namespace of its own, which is deleted at
                       the end; the application's tables stay in a file";

/// What was said.
pub(crate) struct Args {
    /// How many processes.
    pub(crate) instances: usize,
    /// How long slots are judged, seconds.
    pub(crate) seconds: u64,
    /// The ledger's server; `None`: it lies in the file.
    pub(crate) redis: Option<OnRedis>,
    /// The file.
    pub(crate) path: PathBuf,
    /// Whether the file was made up, and goes at the end.
    pub(crate) temporary: bool,
    /// This process is an instance, of this number.
    pub(crate) instance: Option<usize>,
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
        let (mut file, mut namespace) = (None, None);
        let mut words = words;
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--instances" => instances = number(&value()?, 2, 9, "--instances")?,
                "--seconds" => seconds = number(&value()?, 10, 3600, "--seconds")?,
                "--store" => store = Some(value()?),
                // The last three are given by the conductor to the processes that it starts.
                "--file" => file = Some(PathBuf::from(value()?)),
                "--namespace" => namespace = Some(value()?),
                "--instance" => instance = Some(number(&value()?, 1, 99, "--instance")?),
                _ => return Err(format!("unknown argument {word:?}")),
            }
        }
        let own = format!("cluster-{}", std::process::id());
        let made_up = || std::env::temp_dir().join(format!("timertask-{own}.db"));
        let (path, temporary, redis) = match store {
            None => (made_up(), true, None),
            Some(url) if url.starts_with("redis://") => {
                let temporary = file.is_none();
                let namespace = namespace.unwrap_or_else(|| own.clone());
                (file.unwrap_or_else(made_up), temporary, Some(OnRedis { url, namespace }))
            }
            Some(store) => match store.strip_prefix("sqlite:").filter(|path| !path.is_empty()) {
                Some(path) => (PathBuf::from(path), false, None),
                // The words may hold a password that was meant for Redis.
                None => return Err("--store: allowed are sqlite:PATH and redis://HOST[:PORT]/".to_owned()),
            },
        };
        let instances = usize::try_from(instances).map_err(|e| e.to_string())?;
        let instance = instance.map(usize::try_from).transpose().map_err(|e| e.to_string())?;
        if instance.is_none() && path.exists() {
            return Err(format!("{} exists already; the demonstration starts with a file of its own", path.display()));
        }
        Ok(Self { instances, seconds, redis, path, temporary, instance })
    }
}

fn number(text: &str, from: u64, to: u64, what: &str) -> Result<u64, String> {
    let n = text.parse().ok().filter(|n| (from..=to).contains(n));
    n.ok_or_else(|| format!("{what} {text:?}: allowed is a number from {from} to {to}"))
}
