//! Shared part of the forking modes: one process per call, the request on its stdin and in its
//! variables, the response from its stdout.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use nearpath_types::{PlatformError, Reason};
use rustix::process::Signal;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::server_check::{FoundServer, ServerCheck};
use crate::errors::watchdog_error;
use crate::logs::OutputStream;
use crate::process::output::TenantOutput;
use crate::process::{ChildReaper, CommandSpec, ProcessGroup, TenantExit};
use crate::process_reports::ProcessReports;

/// Bytes per read; a pipe holds 64 KiB (pipe(7)).
const CHUNK_BYTES: usize = 64 * 1024;

/// Starts one process per call.
#[derive(Debug)]
pub(crate) struct ProcessSpawner {
    command: CommandSpec,
    reaper: Arc<ChildReaper>,
    output: Arc<TenantOutput>,
    reports: ProcessReports,
}

/// Process of a call. When dropped before its end, it is killed with all that it started.
#[derive(Debug)]
pub(super) struct CallProcess {
    /// First field, so that it is dropped, and the process killed, before stdin closes: an aborted
    /// call must not look like the end of its input.
    group: ProcessGroup,
    exit: oneshot::Receiver<TenantExit>,
    stdout: pipe::Receiver,
    buffer: BytesMut,
    feeder: Option<StdinFeeder>,
    server_check: ServerCheck,
    reports: ProcessReports,
    /// Counter of [`ProcessReports::oom_kills`] before the start.
    oom_kills_before: Option<u64>,
}

/// Task that writes a process's stdin. Aborted when dropped.
#[derive(Debug)]
pub(super) struct StdinFeeder(JoinHandle<Result<(), AbortedStdin>>);

/// Request that broke off. Holds stdin open until the process is killed: an end would look like the
/// request's own.
#[derive(Debug)]
pub(super) struct AbortedStdin {
    pub(super) fault: PlatformError,
    pub(super) _stdin: pipe::Sender,
}

impl StdinFeeder {
    pub(super) fn spawn(
        work: impl Future<Output = Result<(), AbortedStdin>> + Send + 'static,
    ) -> Self {
        Self(tokio::spawn(work))
    }
}

impl Drop for StdinFeeder {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ProcessSpawner {
    pub(crate) fn new(
        command: CommandSpec,
        reaper: Arc<ChildReaper>,
        output: Arc<TenantOutput>,
        reports: ProcessReports,
    ) -> Self {
        Self {
            command,
            reaper,
            output,
            reports,
        }
    }

    /// Starts the process with the call's variables; `feed` gets its stdin.
    pub(super) fn start_process(
        &self,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
        feed: impl FnOnce(pipe::Sender) -> StdinFeeder,
    ) -> Result<CallProcess, PlatformError> {
        let oom_kills_before = self.reports.oom_kills();
        let started = self
            .command
            .start_process(&self.reaper, variables, true)
            .map_err(|fault| self.start_error(&fault))?;
        let output = Arc::clone(&self.output);
        // A task of its own: a process that fills stderr would stop before the end of its stdout.
        tokio::spawn(async move {
            output
                .copy_lines(started.stderr, OutputStream::Stderr, None)
                .await
        });
        Ok(CallProcess {
            group: started.group,
            exit: started.exit,
            stdout: started.stdout,
            buffer: BytesMut::new(),
            feeder: started.stdin.map(feed),
            server_check: ServerCheck::new(Instant::now()),
            reports: self.reports.clone(),
            oom_kills_before,
        })
    }

    /// Returns whether a process of a call listened on a port without connections.
    pub(super) fn may_be_server(&self) -> bool {
        self.reports.may_be_server()
    }

    fn start_error(&self, fault: &io::Error) -> PlatformError {
        let text = format!("cannot start {:?}: {fault}", self.command.program());
        watchdog_error(Reason::FunctionFailed, text).governed_by("function_process")
    }
}

impl CallProcess {
    /// Returns the next bytes of stdout; empty at the end.
    ///
    /// # Errors
    /// When the request did not arrive whole: the process must not take a part for all of it.
    pub(super) async fn next_chunk(&mut self) -> Result<Bytes, PlatformError> {
        self.buffer.reserve(CHUNK_BYTES);
        let Self {
            group,
            stdout,
            buffer,
            feeder,
            server_check,
            reports,
            ..
        } = self;
        loop {
            tokio::select! {
                // The feeder first: output of a process with half a request must not be sent.
                biased;
                fed = async { (&mut feeder.as_mut().expect("guarded").0).await }, if feeder.is_some() => {
                    *feeder = None;
                    if let Ok(Err(half)) = fed {
                        // Killed before the error drops stdin, so that the process never sees its
                        // end.
                        group.send_signal(Signal::KILL);
                        return Err(half.fault);
                    }
                }
                read = stdout.read_buf(buffer) => {
                    server_check.note_output(Instant::now());
                    read.map_err(|fault| watchdog_error(Reason::Internal, format!("cannot read the process's stdout: {fault}")))?;
                    return Ok(buffer.split().freeze());
                }
                () = sleep_until(server_check.next_look()) => {
                    match server_check.look(Instant::now(), &group.listening_ports()) {
                        Some(FoundServer::Leader(port)) => {
                            group.send_signal(Signal::KILL);
                            return Err(reports.server_error(port));
                        }
                        Some(FoundServer::Member(port)) => reports.note_possible_server(port),
                        None => {}
                    }
                }
            }
        }
    }

    /// Waits for the exit, after the end of stdout. Processes that it has started may go on.
    ///
    /// # Errors
    /// When it ended with another code than 0.
    pub(super) async fn wait_exit(mut self) -> Result<(), PlatformError> {
        let exit = (&mut self.exit).await.unwrap_or(TenantExit::Signal(0));
        // Background processes may outlive the call, as with of-watchdog.
        self.group.detach();
        if exit.is_success() {
            return Ok(());
        }
        Err(self.reports.failed_exit(exit, self.oom_kills_before))
    }
}
