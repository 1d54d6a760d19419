//! The guard: a process that outlives the conductor, whatever ends that one, and clears up behind it. It is told which
//! processes and files there are, and acts when nobody can tell it any more.

use std::collections::BTreeSet;
use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::Result;

/// The conductor's line to its guard, which clears up once this is dropped, or the conductor is killed.
pub(crate) struct Guard {
    child: Child,
    line: Option<ChildStdin>,
}

impl Guard {
    pub(crate) fn start() -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        // Out of reach of Ctrl-C, which goes to the conductor's group.
        command.arg("--guard").process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn()?;
        let line = child.stdin.take();
        Ok(Self { child, line })
    }

    /// Kills that process, should the conductor not come to it.
    pub(crate) fn watch(&mut self, process: u32) -> Result<()> {
        self.say(&format!("watch {process}"))
    }

    /// The process has ended: its number may soon be another's.
    pub(crate) fn forget(&mut self, process: u32) -> Result<()> {
        self.say(&format!("forget {process}"))
    }

    /// Removes that file or folder in the end.
    pub(crate) fn remove(&mut self, path: &Path) -> Result<()> {
        self.say(&format!("remove {}", path.display()))
    }

    fn say(&mut self, what: &str) -> Result<()> {
        let line = self.line.as_mut().ok_or("the guard's input is piped")?;
        Ok(writeln!(line, "{what}")?)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.line.take());
        let _ = self.child.wait();
    }
}

/// What the guard does: listens until the conductor is gone, then clears up.
pub(crate) fn run() -> Result<()> {
    let (mut processes, mut paths) = (BTreeSet::new(), Vec::new());
    for line in std::io::stdin().lock().lines() {
        match line?.split_once(' ') {
            Some(("watch", process)) => _ = processes.insert(process.parse::<i32>()?),
            Some(("forget", process)) => _ = processes.remove(&process.parse()?),
            Some(("remove", path)) => paths.push(PathBuf::from(path)),
            other => return Err(format!("the guard does not understand {other:?}").into()),
        }
    }
    for process in processes.into_iter().filter_map(Pid::from_raw) {
        // Also where it is frozen.
        let _ = kill_process(process, Signal::KILL);
    }
    for path in paths {
        let _ = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
    }
    Ok(())
}
