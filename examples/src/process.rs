//! Other processes, for programs that make their life hard.

use std::io;
use std::process::{Child, Command, ExitStatus};

use rustix::process::{Pid, Resource, Rlimit, kill_process, prlimit};

pub use rustix::process::Signal;

/// Sends a signal to the process of this number.
///
/// # Errors
/// Where there is no such process.
pub fn signal(process: u32, signal: Signal) -> io::Result<()> {
    Ok(kill_process(pid(process)?, signal)?)
}

/// From now on no file that this process, a child of ours, writes may reach beyond so many bytes; `None`: as large as it
/// likes. A write that begins below and would end beyond is cut, which is what a full disk does to it; one that begins
/// beyond fails with `EFBIG`, or kills the process where it neither handles nor ignores `SIGXFSZ`.
///
/// # Errors
/// Where the system does not allow that; for one's own children Linux does.
pub fn limit_files(process: u32, bytes: Option<u64>) -> io::Result<()> {
    prlimit(Some(pid(process)?), Resource::Fsize, Rlimit { current: bytes, maximum: None })?;
    Ok(())
}

fn pid(process: u32) -> io::Result<Pid> {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other(format!("{process} is the number of no process")))
}

/// A child process, which is killed when this is dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts it.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(Self)
    }

    /// Kills it, as the kernel's out-of-memory killer does, and waits until it is gone.
    ///
    /// # Errors
    /// Where it cannot be killed or waited for.
    ///
    /// # Blocking
    /// Until the kernel has removed it.
    pub fn kill(mut self) -> io::Result<()> {
        self.0.kill()?;
        self.0.wait().map(drop)
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// Where the system does not say.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }

    /// Waits until it ends. Its standard input stays open so long.
    ///
    /// # Errors
    /// Where the system does not say.
    ///
    /// # Blocking
    /// As long as it lives.
    pub fn wait(mut self) -> io::Result<ExitStatus> {
        // `Child::wait` closes it first.
        let _open = self.0.stdin.take();
        self.0.wait()
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    /// No process stays behind, also after an error or a panic.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
