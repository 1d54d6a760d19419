//! A Redis server of one's own: on a free port of the loopback interface, with a folder of its own, stopped when dropped.

use std::io::{self, BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::Scratch;
use crate::process::{Signal, signal};

/// A server that has each write on the disk before it acknowledges it (`appendfsync always`). It ends when this is dropped,
/// and its folder with it.
#[derive(Debug)]
pub struct RedisServer {
    folder: Scratch,
    port: u16,
    running: Option<Child>,
}

impl RedisServer {
    /// Starts one, and waits until it answers.
    ///
    /// # Errors
    /// Where the program `redis-server` is not there (the error says how to get it), or ends instead of serving.
    ///
    /// # Blocking
    /// Until the server is ready: some tens of milliseconds.
    pub fn start() -> io::Result<Self> {
        // Somebody else may take the port between our look and the server's.
        for _ in 0..10 {
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let mut server = Self { folder: Scratch::new()?, port, running: None };
            match server.start_again() {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                done => return done.map(|()| server),
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "redis-server found no free port"))
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Its folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its process; `None` where it is killed.
    #[must_use]
    pub fn process(&self) -> Option<u32> {
        self.running.as_ref().map(Child::id)
    }

    /// Kills it (SIGKILL). What it has acknowledged is in its folder.
    ///
    /// # Errors
    /// Where the system does not let it.
    ///
    /// # Blocking
    /// Until the process is gone.
    pub fn kill(&mut self) -> io::Result<()> {
        if let Some(mut child) = self.running.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Asks it to end (SIGTERM), as an operator does, and waits.
    ///
    /// # Errors
    /// Where the system does not let it.
    ///
    /// # Blocking
    /// Until the process is gone.
    pub fn stop(&mut self) -> io::Result<()> {
        if let Some(mut child) = self.running.take() {
            signal(child.id(), Signal::TERM)?;
            child.wait()?;
        }
        Ok(())
    }

    /// Whether it has ended by itself, as it does where it cannot write its file any more, or is down anyway.
    ///
    /// # Errors
    /// Where the system does not say.
    pub fn has_ended(&mut self) -> io::Result<bool> {
        if let Some(child) = &mut self.running
            && child.try_wait()?.is_some()
        {
            self.running = None;
        }
        Ok(self.running.is_none())
    }

    /// Kills it, and leaves its folder for somebody who wants to look; where that is.
    #[must_use]
    pub fn keep(mut self) -> PathBuf {
        let _ = self.kill();
        let folder = self.folder.path().to_owned();
        if let Ok(other) = Scratch::new() {
            std::mem::replace(&mut self.folder, other).keep();
        }
        folder
    }

    /// Starts it again after [`kill`](Self::kill), on the same port and folder.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    ///
    /// # Blocking
    /// As [`start`](Self::start).
    pub fn start_again(&mut self) -> io::Result<()> {
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &self.port.to_string(), "--dir"]).arg(self.folder.path());
        command.args(["--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
        // Ctrl-C on a terminal reaches the foreground's group; the services have to find their server while they close.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => io::Error::new(error.kind(), MISSING),
            _ => error,
        })?;
        let output = child.stdout.take().ok_or_else(|| io::Error::other("the server's output is piped"))?;
        let (mut last, mut taken) = (String::new(), false);
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if line.contains("Ready to accept connections") {
                self.running = Some(child);
                return Ok(());
            }
            taken |= line.contains("already in use");
            last = line;
        }
        child.wait()?;
        let kind = if taken { io::ErrorKind::AddrInUse } else { io::ErrorKind::Other };
        Err(io::Error::new(kind, format!("redis-server ended instead of serving; its last line is {last:?}")))
    }
}

/// What to do where there is none.
const MISSING: &str = "the program redis-server is not there. Install it (Debian and Ubuntu: apt-get install redis-server; \
                       Fedora: dnf install redis; macOS: brew install redis), or name a server that runs already";

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
