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

use crate::logs::Stream;
use crate::process::output::Output;
use crate::process::{Exit, Group, Reaper, Recipe};
use crate::refusal::error;

/// Bytes that are read at once; a pipe holds 64 KiB.
const CHUNK: usize = 64 * 1024;

/// Starts one process a call.
#[derive(Debug)]
pub(crate) struct Forks {
    recipe: Recipe,
    reaper: Arc<Reaper>,
    output: Arc<Output>,
}

/// A call's process. When dropped before its end, it is killed with all that it started.
#[derive(Debug)]
pub(super) struct Forked {
    /// Dropped, and with it killed, before the rest: no process may see its stdin end because its call was given up.
    group: Group,
    exit: oneshot::Receiver<Exit>,
    stdout: pipe::Receiver,
    buffer: BytesMut,
    feeder: Option<Feeder>,
}

/// The task that writes a process's stdin. Aborted when dropped.
#[derive(Debug)]
pub(super) struct Feeder(JoinHandle<Result<(), HalfFed>>);

/// A request that broke off. Its process's stdin stays open until the process is killed: an end would look like the
/// request's own.
#[derive(Debug)]
pub(super) struct HalfFed {
    pub(super) fault: PlatformError,
    pub(super) _stdin: pipe::Sender,
}

impl Feeder {
    pub(super) fn run(work: impl Future<Output = Result<(), HalfFed>> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Forks {
    pub(crate) fn new(recipe: Recipe, reaper: Arc<Reaper>, output: Arc<Output>) -> Self {
        Self { recipe, reaper, output }
    }

    /// Starts the process with the call's variables; `feed` gets its stdin.
    pub(super) fn start(
        &self,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
        feed: impl FnOnce(pipe::Sender) -> Feeder,
    ) -> Result<Forked, PlatformError> {
        let started = self.recipe.start(&self.reaper, variables, true).map_err(|fault| self.cannot_start(&fault))?;
        let output = Arc::clone(&self.output);
        tokio::spawn(async move { output.pump(started.stderr, Stream::Stderr, None).await });
        Ok(Forked {
            group: started.group,
            exit: started.exit,
            stdout: started.stdout,
            buffer: BytesMut::new(),
            feeder: started.stdin.map(feed),
        })
    }

    fn cannot_start(&self, fault: &io::Error) -> PlatformError {
        let text = format!("cannot start {:?}: {fault}", self.recipe.name());
        error(Reason::FunctionFailed, text).governed_by("function_process")
    }
}

impl Forked {
    /// The next bytes of its stdout; nothing at the end.
    ///
    /// # Errors
    /// When the request did not arrive whole: the process must not take what it has got for all of it.
    pub(super) async fn chunk(&mut self) -> Result<Bytes, PlatformError> {
        self.buffer.reserve(CHUNK);
        let Self { group, stdout, buffer, feeder, .. } = self;
        loop {
            tokio::select! {
                biased;
                fed = async { (&mut feeder.as_mut().expect("guarded").0).await }, if feeder.is_some() => {
                    *feeder = None;
                    if let Ok(Err(half)) = fed {
                        group.signal(Signal::KILL);
                        return Err(half.fault);
                    }
                }
                read = stdout.read_buf(buffer) => {
                    read.map_err(|fault| error(Reason::Internal, format!("cannot read the process's stdout: {fault}")))?;
                    return Ok(buffer.split().freeze());
                }
            }
        }
    }

    /// Waits for its end, after the end of its stdout. What else it has started may go on.
    ///
    /// # Errors
    /// When it ended with another code than 0.
    pub(super) async fn ended(mut self) -> Result<(), PlatformError> {
        let exit = (&mut self.exit).await.unwrap_or(Exit::Signal(0));
        self.group.release();
        if exit.ok() {
            return Ok(());
        }
        Err(error(Reason::FunctionFailed, format!("the process ended with {exit}")).governed_by("function_process"))
    }
}
