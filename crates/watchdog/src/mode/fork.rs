//! What the forking modes share: one process a call, the request on its stdin and in its variables, the answer from its stdout.

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

use crate::errors::watchdog_error;
use crate::logs::OutputStream;
use crate::process::output::TenantOutput;
use crate::process::{ChildReaper, CommandSpec, ProcessGroup, TenantExit};

/// Bytes that are read at once; a pipe holds 64 KiB.
const CHUNK_BYTES: usize = 64 * 1024;

/// Starts one process a call.
#[derive(Debug)]
pub(crate) struct ProcessSpawner {
    command: CommandSpec,
    reaper: Arc<ChildReaper>,
    output: Arc<TenantOutput>,
}

/// A call's process. When dropped before its end, it is killed with all that it started.
#[derive(Debug)]
pub(super) struct CallProcess {
    /// Dropped, and with it killed, before the rest: no process may see its stdin end because its call was given up.
    group: ProcessGroup,
    exit: oneshot::Receiver<TenantExit>,
    stdout: pipe::Receiver,
    buffer: BytesMut,
    feeder: Option<StdinFeeder>,
}

/// The task that writes a process's stdin. Aborted when dropped.
#[derive(Debug)]
pub(super) struct StdinFeeder(JoinHandle<Result<(), AbortedStdin>>);

/// A request that broke off. Its process's stdin stays open until the process is killed: an end would look like the
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
    ) -> Self {
        Self {
            command: command,
            reaper,
            output,
        }
    }

    /// Starts the process with the call's variables; `feed` gets its stdin.
    pub(super) fn start_process(
        &self,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
        feed: impl FnOnce(pipe::Sender) -> StdinFeeder,
    ) -> Result<CallProcess, PlatformError> {
        let started = self
            .command
            .start_process(&self.reaper, variables, true)
            .map_err(|fault| self.start_error(&fault))?;
        let output = Arc::clone(&self.output);
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
        })
    }

    fn start_error(&self, fault: &io::Error) -> PlatformError {
        let text = format!("cannot start {:?}: {fault}", self.command.program());
        watchdog_error(Reason::FunctionFailed, text).governed_by("function_process")
    }
}

impl CallProcess {
    /// The next bytes of its stdout; nothing at the end.
    ///
    /// # Errors
    /// When the request did not arrive whole: the process must not take what it has got for all of it.
    pub(super) async fn next_chunk(&mut self) -> Result<Bytes, PlatformError> {
        self.buffer.reserve(CHUNK_BYTES);
        let Self {
            group,
            stdout,
            buffer,
            feeder,
            ..
        } = self;
        loop {
            tokio::select! {
                biased;
                fed = async { (&mut feeder.as_mut().expect("guarded").0).await }, if feeder.is_some() => {
                    *feeder = None;
                    if let Ok(Err(half)) = fed {
                        group.send_signal(Signal::KILL);
                        return Err(half.fault);
                    }
                }
                read = stdout.read_buf(buffer) => {
                    read.map_err(|fault| watchdog_error(Reason::Internal, format!("cannot read the process's stdout: {fault}")))?;
                    return Ok(buffer.split().freeze());
                }
            }
        }
    }

    /// Waits for its end, after the end of its stdout. What else it has started may go on.
    ///
    /// # Errors
    /// When it ended with another code than 0.
    pub(super) async fn wait_exit(mut self) -> Result<(), PlatformError> {
        let exit = (&mut self.exit).await.unwrap_or(TenantExit::Signal(0));
        self.group.detach();
        if exit.is_success() {
            return Ok(());
        }
        Err(watchdog_error(
            Reason::FunctionFailed,
            format!("the process ended with {exit}"),
        )
        .governed_by("function_process"))
    }
}
