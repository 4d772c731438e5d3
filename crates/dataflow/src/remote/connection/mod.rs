//! Connection of a process to its job's rendezvous, on its own thread: for callers without a
//! runtime, or with several.

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

/// Time to send waiting messages when a connection closes.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// Connection, as in the module's text. Dropping it closes it.
pub struct RendezvousConnection {
    shared: Arc<ConnectionShared>,
    runtime: Handle,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Process that owns the thread: a forked process has none.
    owner_process: u32,
}

/// Reasons why a connection cannot be opened.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum ConnectionOpenError {
    #[error("invalid ticket of this worker: {0}")]
    InvalidTicket(#[from] TokenError),
    #[error("cannot start the thread of the rendezvous connection: {0}")]
    Thread(#[from] io::Error),
}

/// Reasons why a message cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum SendMessageError {
    #[error(transparent)]
    InvalidName(#[from] InvalidWorkerName),
    #[error(transparent)]
    TooLong(#[from] MessageTooLong),
}

impl RendezvousConnection {
    /// Starts to connect.
    ///
    /// # Errors
    /// When the ticket is invalid, or no thread can be started.
    pub fn open(settings: ControlSettings) -> Result<Self, ConnectionOpenError> {
        let WorkerTicket { job, .. } = WorkerTicket::read_unverified(&settings.ticket.0)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (control, events) = {
            // Opening spawns tasks, which must run on the connection's own runtime and not on the
            // caller's.
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

    /// Job of the ticket.
    pub fn job(&self) -> &JobName {
        &self.shared.job
    }

    /// Waits for the connection. Returns true when it is connected.
    ///
    /// # Errors
    /// The reason, when it will not connect (again).
    pub fn wait_connected(&self, time_limit: Duration) -> io::Result<bool> {
        self.shared.wait_connected(time_limit)
    }

    /// Sends a message to a worker, or to the job's leader. It replaces an unsent one to the same
    /// recipient. It may get lost: senders repeat what matters.
    ///
    /// # Errors
    /// When no worker can have that name, or the message is too long.
    pub fn send_message(&self, to: Option<&str>, text: &str) -> Result<(), SendMessageError> {
        self.shared.send_message(to, text)
    }

    /// Returns received messages with their senders; waits for at most `time_limit` if there are
    /// none.
    ///
    /// # Errors
    /// The reason, when no more messages will arrive.
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

    /// Readable while messages wait.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.shared.event_fd.as_fd()
    }

    /// Common name of the NAT in front of this machine; takes a second.
    ///
    /// # Errors
    /// When the connection is closed, or the rendezvous has no observer for UDP.
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

    /// Sends waiting messages, for at most two seconds, and closes the connection.
    pub fn close(&self) {
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(thread) = thread else { return };
        // fork(2) copies only the calling thread: the handle refers to a thread of the parent, and
        // joining it never returns.
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
    // Not waited for: a blocking task, such as a name lookup, may take long, and the process is
    // about to end.
    runtime.shutdown_background();
}
