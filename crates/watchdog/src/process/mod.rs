//! The tenant's processes: how they are started, how their end is learnt, how they are killed.
//!
//! The watchdog is PID 1 of its instance: it inherits every orphan and must collect them, or they pile up as zombies.
//! Therefore one [`Reaper`] collects all children, its own and adopted ones, and hands the status of its own to whoever
//! started them. Starting, collecting and killing happen on one thread, so a number is never killed after it was collected
//! and given to somebody else.

pub(crate) mod output;
mod reaper;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, WaitStatus};
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

pub(crate) use reaper::Reaper;

/// Folder in which the tenant's code runs, if it exists.
const HOME: &str = "/home/app/function";

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
}

impl Exit {
    pub(crate) fn ok(self) -> bool {
        self == Self::Code(0)
    }

    /// An exit code that says the same, as shells do it; never 0, because ending by itself is a failure for a server.
    pub(crate) fn as_failure(self) -> u8 {
        let code = match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        };
        u8::try_from(code).ok().filter(|code| *code != 0).unwrap_or(1)
    }
}

impl From<WaitStatus> for Exit {
    fn from(status: WaitStatus) -> Self {
        match status.exit_status() {
            Some(code) => Self::Code(code),
            None => Self::Signal(status.terminating_signal().unwrap_or_default()),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// How to start the tenant's code: the watchdog's environment without nearpath's own variables.
#[derive(Debug)]
pub(crate) struct Recipe {
    words: Vec<String>,
    environment: Vec<(OsString, OsString)>,
}

/// A process just started, with our ends of its pipes.
/// The door to the function's domain, for the tenant's code; see `contract/dispatch.md`.
const DISPATCH: &str = "NEARPATH_DISPATCH";

#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) group: Group,
    pub(crate) exit: oneshot::Receiver<Exit>,
    pub(crate) stdin: Option<pipe::Sender>,
    pub(crate) stdout: pipe::Receiver,
    pub(crate) stderr: pipe::Receiver,
}

impl Recipe {
    pub(crate) fn new(words: Vec<String>) -> Self {
        let ours = |name: &OsString| name.as_encoded_bytes().starts_with(b"NEARPATH_") && name != DISPATCH;
        Self { words, environment: std::env::vars_os().filter(|(name, _)| !ours(name)).collect() }
    }

    /// The command as shown in messages.
    pub(crate) fn name(&self) -> &str {
        &self.words[0]
    }

    /// Looks for the program where a start would: as it stands when it holds a `/`, else along PATH.
    ///
    /// # Errors
    /// When there is none that can be run.
    pub(crate) fn find(&self) -> io::Result<()> {
        let runs = |path: &Path| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok() && path.is_file();
        let name = Path::new(self.name());
        let path = self.environment.iter().find(|(key, _)| key == "PATH").map(|(_, path)| path.as_os_str());
        let found = match self.name().contains('/') {
            true => runs(&Path::new(HOME).join(name)) || runs(name),
            false => std::env::split_paths(path.unwrap_or_default()).any(|folder| runs(&folder.join(name))),
        };
        if found {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::NotFound, "no such program in PATH, or it may not be run"))
        }
    }

    /// Starts it as the leader of a process group of its own. Must be called inside the runtime.
    ///
    /// # Errors
    /// When there is no such program, or the system has no room for another process.
    pub(crate) fn start(
        &self,
        reaper: &Arc<Reaper>,
        more: impl IntoIterator<Item = (OsString, OsString)>,
        stdin: bool,
    ) -> io::Result<Started> {
        let mut command = self.command();
        command.envs(more).stdin(if stdin { Stdio::piped() } else { Stdio::null() });
        let (group, exit, mut child) = reaper.start(&mut command)?;
        let (stdout, stderr) = child.stdout.take().zip(child.stderr.take()).expect("both are pipes");
        Ok(Started {
            group,
            exit,
            stdin: child.stdin.take().map(|pipe| pipe::Sender::from_owned_fd(pipe.into())).transpose()?,
            stdout: pipe::Receiver::from_owned_fd(stdout.into())?,
            stderr: pipe::Receiver::from_owned_fd(stderr.into())?,
        })
    }

    fn command(&self) -> Command {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).env_clear().envs(self.environment.iter().map(|(k, v)| (k, v)));
        command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
        if Path::new(HOME).is_dir() {
            command.current_dir(HOME);
        }
        command
    }
}

/// A process and what it started. Killed when dropped, unless it was released.
#[derive(Debug)]
pub(crate) struct Group {
    leader: Pid,
    serial: u64,
    reaper: Arc<Reaper>,
    released: bool,
}

impl Group {
    /// Sends a signal to all of them.
    pub(crate) fn signal(&self, signal: Signal) {
        self.reaper.signal(self.leader, self.serial, signal);
    }

    /// Its work is done: whatever of it still runs may go on.
    pub(crate) fn release(&mut self) {
        self.released = true;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.released {
            self.signal(Signal::KILL);
        }
    }
}
