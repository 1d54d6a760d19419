//! The command line.

use std::path::PathBuf;

/// What can be said.
pub(crate) const USAGE: &str = "\
usage: chaos [--minutes N | --seconds N] [--store sqlite | --store redis] [--instances N] [--seed N] [--careless]
  --minutes N        how long faults are injected: 1 to 10000 (5); after that it takes up to 90 s
                     until every slot has to be accounted for
  --seconds N        the same in seconds, from 15; below 120 s the end is not waited for, and slots
                     that are younger than the bound of the promise are left out of it
  --store sqlite     a file of its own, among the temporary files (the default)
  --store redis      a redis-server of its own, which is started, killed and started again
  --instances N      how many processes share it: 3 to 8 (5)
  --seed N           which faults, in which order, how long; printed at the start
  --careless         instances that take a slot of another for granted: to see it fail";

/// What was said.
pub(crate) enum Args {
    Conduct(Conduct),
    Instance(Instance),
    /// What clears up behind the program.
    Guard,
}

/// The program that people start.
pub(crate) struct Conduct {
    pub(crate) seconds: u64,
    pub(crate) on_redis: bool,
    pub(crate) instances: usize,
    pub(crate) seed: Option<u64>,
    pub(crate) careless: bool,
}

/// A process that it starts.
pub(crate) struct Instance {
    pub(crate) node: usize,
    /// The how-manieth process of this number it is.
    pub(crate) life: u32,
    /// Where everything lies.
    pub(crate) folder: PathBuf,
    /// The server's address; `None`: the ledger is a file in the folder.
    pub(crate) redis: Option<String>,
    /// Whether it takes what others run for granted.
    pub(crate) careless: bool,
}

impl Args {
    /// Reads the arguments.
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut conduct = Conduct { seconds: 300, on_redis: false, instances: 5, seed: None, careless: false };
        let (mut node, mut life, mut folder, mut redis) = (None, 1, None, None);
        let mut words = words;
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--minutes" => conduct.seconds = 60 * number(&value()?, 1, 10_000, "--minutes")?,
                "--seconds" => conduct.seconds = number(&value()?, 15, 600_000, "--seconds")?,
                "--instances" => conduct.instances = size(number(&value()?, 3, 8, "--instances")?)?,
                "--seed" => conduct.seed = Some(number(&value()?, 0, u64::MAX, "--seed")?),
                "--store" => {
                    conduct.on_redis = match value()?.as_str() {
                        "sqlite" => false,
                        "redis" => true,
                        other => return Err(format!("--store {other:?}: allowed are sqlite and redis")),
                    }
                }
                "--careless" => conduct.careless = true,
                // The last five are given to the processes that it starts.
                "--guard" => return Ok(Self::Guard),
                "--node" => node = Some(size(number(&value()?, 0, 7, "--node")?)?),
                "--life" => life = u32::try_from(number(&value()?, 1, u32::MAX.into(), "--life")?).unwrap_or(1),
                "--folder" => folder = Some(PathBuf::from(value()?)),
                "--server" => redis = Some(value()?),
                _ => return Err(format!("unknown argument {word:?}")),
            }
        }
        Ok(match (node, folder) {
            (Some(node), Some(folder)) => {
                Self::Instance(Instance { node, life, folder, redis, careless: conduct.careless })
            }
            _ => Self::Conduct(conduct),
        })
    }
}

fn number(text: &str, from: u64, to: u64, what: &str) -> Result<u64, String> {
    let n = text.parse().ok().filter(|n| (from..=to).contains(n));
    n.ok_or_else(|| format!("{what} {text:?}: allowed is a whole number from {from} to {to}"))
}

fn size(n: u64) -> Result<usize, String> {
    usize::try_from(n).map_err(|e| e.to_string())
}
