//! A process's line to its job's rendezvous, on a thread of its own: for whoever has no runtime, or several.

mod event_fd;
mod shared;
mod task;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nearpath_p2p::control::{self, ControlSettings};
use nearpath_p2p::ticket::{JobName, TokenError, WorkerTicket};
use tokio::runtime::{Handle, Runtime};

use crate::remote::control_message::MessageTooLong;
use crate::remote::worker_name::InvalidWorkerName;

pub(crate) use shared::ConnectionShared;

/// What is still to be said when a line is closed has so long.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// See the module's text. Dropped, it closes.
pub struct RendezvousConnection {
    shared: Arc<ConnectionShared>,
    runtime: Handle,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Whose thread it is: a process that was forked has none.
    owner_process: u32,
}

/// Why there is no line.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum ConnectionOpenError {
    #[error("the ticket of this worker: {0}")]
    InvalidTicket(#[from] TokenError),
    #[error("no thread for the line to the rendezvous: {0}")]
    Thread(#[from] io::Error),
}

/// Why nothing is said.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum SendMessageError {
    #[error(transparent)]
    InvalidName(#[from] InvalidWorkerName),
    #[error(transparent)]
    TooLong(#[from] MessageTooLong),
}

impl RendezvousConnection {
    /// Begins to open it.
    ///
    /// # Errors
    /// When the ticket is none, or there is no thread.
    pub fn open(settings: ControlSettings) -> Result<Self, ConnectionOpenError> {
        let WorkerTicket { job, .. } = WorkerTicket::read_unverified(&settings.ticket.0)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (control, events) = {
            let _inside = runtime.enter();
            control::ControlConnection::open(settings)
        };
        let shared = Arc::new(ConnectionShared::new(job, control)?);
        let (handle, task) = (
            runtime.handle().clone(),
            task::run_task(Arc::clone(&shared), events),
        );
        let thread = thread::Builder::new()
            .name("line".to_owned())
            .spawn(move || run_thread(runtime, task))?;
        Ok(Self {
            shared,
            runtime: handle,
            thread: Mutex::new(Some(thread)),
            owner_process: std::process::id(),
        })
    }

    pub(crate) fn shared(&self) -> &Arc<ConnectionShared> {
        &self.shared
    }

    /// The job that the ticket is for.
    pub fn job(&self) -> &JobName {
        &self.shared.job
    }

    /// Waits until the line is there: whether it is.
    ///
    /// # Errors
    /// When it will not come (again): why.
    pub fn wait_connected(&self, time_limit: Duration) -> io::Result<bool> {
        self.shared.wait_connected(time_limit)
    }

    /// Says something to a worker, or to the job's leader, instead of what was not said to it yet. It may be lost: whoever
    /// says what counts says it again.
    ///
    /// # Errors
    /// When nobody can have that name, and when it is too long.
    pub fn send_message(&self, to: Option<&str>, text: &str) -> Result<(), SendMessageError> {
        self.shared.send_message(to, text)
    }

    /// What has come, by whom; waits for something for so long.
    ///
    /// # Errors
    /// When nothing more will come: why.
    pub fn receive_messages(&self, time_limit: Duration) -> io::Result<Vec<(String, String)>> {
        let deadline = Instant::now() + time_limit;
        loop {
            let messages = self.shared.take_messages()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if !messages.is_empty() || left.is_zero() {
                return Ok(messages);
            }
            self.shared.event_fd.wait_readable(left)?;
        }
    }

    /// Readable while something waits to be heard.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.shared.event_fd.as_fd()
    }

    /// Which kind of NAT stands before this machine, in the words that people use; takes a second.
    ///
    /// # Errors
    /// When the line is over, or the rendezvous has no observer for UDP.
    pub fn nat_kind(&self) -> io::Result<&'static str> {
        let control = self.shared.control()?;
        let (sender, receiver) = mpsc::channel();
        self.runtime
            .spawn(async move { drop(sender.send(control.detect_nat().await)) });
        let report = receiver
            .recv()
            .unwrap_or_else(|_| Err(shared::closed_error()))?;
        Ok(match (report.udp, report.behaviour()) {
            (Some(false), _) => "no UDP",
            (_, Some(behaviour)) => behaviour.common_name(),
            (_, None) => "unknown",
        })
    }

    /// Says what is still to be said, for two seconds at most, and ends the line.
    pub fn close(&self) {
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(thread) = thread else { return };
        if self.owner_process != std::process::id() {
            return std::mem::forget(thread); // it runs in the parent
        }
        self.shared.close();
        let _ = thread.join();
    }
}

impl Drop for RendezvousConnection {
    fn drop(&mut self) {
        self.close();
    }
}

fn run_thread(runtime: Runtime, task: impl Future<Output = ()>) {
    runtime.block_on(task);
    runtime.shutdown_background();
}
