//! What the examples and programs share, which is not much: a folder that goes away, a server that does, other processes and
//! who clears up behind them, and a ledger's rows.

pub mod guard;
pub mod process;
mod redis_server;
pub mod rows;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub use redis_server::RedisServer;

/// A new, empty folder among the system's temporary files; it is removed with what is in it when this is dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes one.
    ///
    /// # Errors
    /// Where the system's temporary folder cannot be written to.
    pub fn new() -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("timertask-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Lets it stay when this is dropped, for somebody who wants to look.
    pub fn keep(mut self) {
        self.0 = PathBuf::new();
    }

    /// The path of a file in it.
    #[must_use]
    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.0.as_os_str().is_empty() {
            return;
        }
        // What is left over is in a place that the system clears.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
