//! Processes of the tenant: start, exit, kill.
//!
//! The watchdog is PID 1 of its instance: it inherits every orphan and must reap it, or zombies
//! pile up. So one [`ChildReaper`] collects all children and hands the status of its own to their
//! starters. Starting, collecting and killing happen on one thread. So a pid is never killed after
//! it was collected and given to another process.

mod listening_ports;
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

pub(crate) use listening_ports::{ListeningPorts, is_connected_by_gateway};
pub(crate) use reaper::ChildReaper;

/// Folder in which the tenant's code runs, if it exists.
const FUNCTION_FOLDER: &str = "/home/app/function";

/// Exit of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TenantExit {
    Code(i32),
    Signal(i32),
}

impl TenantExit {
    pub(crate) fn is_success(self) -> bool {
        self == Self::Code(0)
    }

    /// Returns an exit code with the same meaning, as shells do; never 0, because a server that
    /// ends by itself has failed.
    pub(crate) fn failure_code(self) -> u8 {
        let code = match self {
            Self::Code(code) => code,
            // The convention of POSIX shells.
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

/// Command of the tenant's code, with the watchdog's environment except nearpath's own variables.
#[derive(Debug)]
pub(crate) struct CommandSpec {
    arguments: Vec<String>,
    environment: Vec<(OsString, OsString)>,
}

/// Socket of the function's domain, which the tenant's code may join itself; see
/// `contract/dispatch.md`.
const DISPATCH_VARIABLE: &str = "NEARPATH_DISPATCH";

/// Process just started, with the watchdog's ends of its pipes.
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
        // The tenant's code may join its domain itself, so it keeps that variable.
        let is_own = |name: &OsString| {
            name.as_encoded_bytes().starts_with(b"NEARPATH_") && name != DISPATCH_VARIABLE
        };
        Self {
            arguments,
            environment: std::env::vars_os()
                .filter(|(name, _)| !is_own(name))
                .collect(),
        }
    }

    /// Returns the program's name for messages.
    pub(crate) fn program(&self) -> &str {
        &self.arguments[0]
    }

    /// Checks that the program exists where a start would look: as a path if it holds a `/`, else
    /// along PATH.
    ///
    /// # Errors
    /// When there is no executable program.
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
            // Relative to the function's folder, where the process will run.
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

    /// Starts the process as the leader of its own group. Must be called inside the runtime.
    ///
    /// # Errors
    /// When the program does not exist, or the system refuses another process.
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
        // Cleared, because `Command` would inherit what was filtered out.
        command
            .args(&self.arguments[1..])
            .env_clear()
            .envs(self.environment.iter().map(|(k, v)| (k, v)));
        // A group of its own: a kill must reach everything that the process starts.
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

/// Process and what it started. Killed when dropped, unless detached.
#[derive(Debug)]
pub(crate) struct ProcessGroup {
    leader: Pid,
    serial: u64,
    reaper: Arc<ChildReaper>,
    is_detached: bool,
}

impl ProcessGroup {
    /// Sends a signal to the whole group.
    pub(crate) fn send_signal(&self, signal: Signal) {
        self.reaper.signal_group(self.leader, self.serial, signal);
    }

    /// Returns the TCP ports on which its processes listen.
    pub(crate) fn listening_ports(&self) -> ListeningPorts {
        listening_ports::read_ports(self.leader)
    }

    /// Detaches the group: processes that still run may go on.
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
