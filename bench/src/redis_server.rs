//! A `redis-server` for a measurement.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Ends when it is dropped.
pub struct RedisServer {
    child: Child,
    folder: PathBuf,
    pub port: u16,
}

impl RedisServer {
    /// One with these further arguments, on a free port.
    ///
    /// # Panics
    /// Where there is no `redis-server`, or it does not start.
    #[must_use]
    pub fn start(arguments: &[&str]) -> Self {
        let folder = std::env::temp_dir().join(format!("timertask-bench-redis-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--dir"]).arg(&folder);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program redis-server (on Debian the package redis-server)");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let ready = output.lines().map_while(Result::ok).any(|line| line.contains("Ready to accept connections"));
        assert!(ready, "redis-server does not start");
        Self { child, folder, port }
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
