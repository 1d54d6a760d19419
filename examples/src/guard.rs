//! The guard: a process that outlives the program that started it, whatever ends that one, and clears up behind it. It is
//! told which processes and files there are, and acts when nobody can tell it any more.

use std::collections::BTreeSet;
use std::error::Error;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::process::{Signal, signal};

/// A program's line to its guard, which clears up once this is dropped, or the program is killed.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    line: Option<ChildStdin>,
}

impl Guard {
    /// Starts it: this program once more, with the argument `--guard`, at which it has to call [`run`].
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn start() -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        // Out of reach of Ctrl-C, which goes to the conductor's group.
        command.arg("--guard").process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn()?;
        let line = child.stdin.take();
        Ok(Self { child, line })
    }

    /// Kills that process, should the program not come to it.
    ///
    /// # Errors
    /// Where the guard is gone.
    pub fn watch(&mut self, process: u32) -> io::Result<()> {
        self.say(&format!("watch {process}"))
    }

    /// The process has ended: its number may soon be another's.
    ///
    /// # Errors
    /// Where the guard is gone.
    pub fn forget(&mut self, process: u32) -> io::Result<()> {
        self.say(&format!("forget {process}"))
    }

    /// Removes that file or folder in the end.
    ///
    /// # Errors
    /// Where the guard is gone.
    pub fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.say(&format!("remove {}", path.display()))
    }

    fn say(&mut self, what: &str) -> io::Result<()> {
        let line = self.line.as_mut().ok_or_else(|| io::Error::other("the guard's input is piped"))?;
        writeln!(line, "{what}")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.line.take());
        let _ = self.child.wait();
    }
}

/// What the guard does: listens until the program is gone, then clears up.
///
/// # Errors
/// Where it is told what it does not understand.
///
/// # Blocking
/// As long as the program lives.
pub fn run() -> Result<(), Box<dyn Error + Send + Sync>> {
    let (mut processes, mut paths) = (BTreeSet::new(), Vec::new());
    for line in std::io::stdin().lock().lines() {
        match line?.split_once(' ') {
            Some(("watch", process)) => _ = processes.insert(process.parse::<u32>()?),
            Some(("forget", process)) => _ = processes.remove(&process.parse()?),
            Some(("remove", path)) => paths.push(PathBuf::from(path)),
            other => return Err(format!("the guard does not understand {other:?}").into()),
        }
    }
    for process in processes {
        // Also where it is frozen.
        let _ = signal(process, Signal::KILL);
    }
    for path in paths {
        let _ = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
    }
    Ok(())
}
