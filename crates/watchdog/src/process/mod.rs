//! The tenant's processes: how they are started, how their end is learnt, how they are killed.
//!
//! The watchdog is PID 1 of its instance: it inherits every orphan and must collect them, or they pile up as zombies.
//! Therefore one [`ChildReaper`] collects all children, its own and adopted ones, and hands the status of its own to whoever
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

pub(crate) use reaper::ChildReaper;

/// Folder in which the tenant's code runs, if it exists.
const FUNCTION_FOLDER: &str = "/home/app/function";

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TenantExit {
    Code(i32),
    Signal(i32),
}

impl TenantExit {
    pub(crate) fn is_success(self) -> bool {
        self == Self::Code(0)
    }

    /// An exit code that says the same, as shells do it; never 0, because ending by itself is a failure for a server.
    pub(crate) fn failure_code(self) -> u8 {
        let code = match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        };
        u8::try_from(code)
            .ok()
            .filter(|code| *code != 0)
            .unwrap_or(1)
    }
}

impl From<WaitStatus> for TenantExit {
    fn from(status: WaitStatus) -> Self {
        match status.exit_status() {
            Some(code) => Self::Code(code),
            None => Self::Signal(status.terminating_signal().unwrap_or_default()),
        }
    }
}

impl fmt::Display for TenantExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// How to start the tenant's code: the watchdog's environment without nearpath's own variables.
#[derive(Debug)]
pub(crate) struct CommandSpec {
    arguments: Vec<String>,
    environment: Vec<(OsString, OsString)>,
}

/// A process just started, with our ends of its pipes.
/// The door to the function's domain, for the tenant's code; see `contract/dispatch.md`.
const DISPATCH_VARIABLE: &str = "NEARPATH_DISPATCH";

#[derive(Debug)]
pub(crate) struct StartedProcess {
    pub(crate) group: ProcessGroup,
    pub(crate) exit: oneshot::Receiver<TenantExit>,
    pub(crate) stdin: Option<pipe::Sender>,
    pub(crate) stdout: pipe::Receiver,
    pub(crate) stderr: pipe::Receiver,
}

impl CommandSpec {
    pub(crate) fn new(arguments: Vec<String>) -> Self {
        let is_own = |name: &OsString| {
            name.as_encoded_bytes().starts_with(b"NEARPATH_") && name != DISPATCH_VARIABLE
        };
        Self {
            arguments: arguments,
            environment: std::env::vars_os()
                .filter(|(name, _)| !is_own(name))
                .collect(),
        }
    }

    /// The command as shown in messages.
    pub(crate) fn program(&self) -> &str {
        &self.arguments[0]
    }

    /// Looks for the program where a start would: as it stands when it holds a `/`, else along PATH.
    ///
    /// # Errors
    /// When there is none that can be run.
    pub(crate) fn check_program(&self) -> io::Result<()> {
        let runs = |path: &Path| {
            rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok() && path.is_file()
        };
        let name = Path::new(self.program());
        let path = self
            .environment
            .iter()
            .find(|(key, _)| key == "PATH")
            .map(|(_, path)| path.as_os_str());
        let found = match self.program().contains('/') {
            true => runs(&Path::new(FUNCTION_FOLDER).join(name)) || runs(name),
            false => std::env::split_paths(path.unwrap_or_default())
                .any(|folder| runs(&folder.join(name))),
        };
        if found {
            Ok(())
        } else {
            Err(io::Error::new(
                io::ErrorKind::NotFound,
                "no such program in PATH, or it may not be run",
            ))
        }
    }

    /// Starts it as the leader of a process group of its own. Must be called inside the runtime.
    ///
    /// # Errors
    /// When there is no such program, or the system has no room for another process.
    pub(crate) fn start_process(
        &self,
        reaper: &Arc<ChildReaper>,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
        stdin: bool,
    ) -> io::Result<StartedProcess> {
        let mut command = self.build_command();
        command
            .envs(variables)
            .stdin(if stdin { Stdio::piped() } else { Stdio::null() });
        let (group, exit, mut child) = reaper.spawn_child(&mut command)?;
        let (stdout, stderr) = child
            .stdout
            .take()
            .zip(child.stderr.take())
            .expect("both are pipes");
        Ok(StartedProcess {
            group,
            exit,
            stdin: child
                .stdin
                .take()
                .map(|pipe| pipe::Sender::from_owned_fd(pipe.into()))
                .transpose()?,
            stdout: pipe::Receiver::from_owned_fd(stdout.into())?,
            stderr: pipe::Receiver::from_owned_fd(stderr.into())?,
        })
    }

    fn build_command(&self) -> Command {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(&self.arguments[0]);
        command
            .args(&self.arguments[1..])
            .env_clear()
            .envs(self.environment.iter().map(|(k, v)| (k, v)));
        command
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if Path::new(FUNCTION_FOLDER).is_dir() {
            command.current_dir(FUNCTION_FOLDER);
        }
        command
    }
}

/// A process and what it started. Killed when dropped, unless it was released.
#[derive(Debug)]
pub(crate) struct ProcessGroup {
    leader: Pid,
    serial: u64,
    reaper: Arc<ChildReaper>,
    is_detached: bool,
}

impl ProcessGroup {
    /// Sends a signal to all of them.
    pub(crate) fn send_signal(&self, signal: Signal) {
        self.reaper.signal_group(self.leader, self.serial, signal);
    }

    /// Its work is done: whatever of it still runs may go on.
    pub(crate) fn detach(&mut self) {
        self.is_detached = true;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if !self.is_detached {
            self.send_signal(Signal::KILL);
        }
    }
}
