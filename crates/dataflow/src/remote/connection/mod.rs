//! A process's line to its job's rendezvous, on a thread of its own: for whoever has no runtime, or several.

mod event_fd;
mod shared;
mod task;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nearpath_p2p::control::{self, Settings};
use nearpath_p2p::ticket::{BadSeal, Job, Ticket};
use tokio::runtime::{Handle, Runtime};

use crate::remote::control_message::TooLong;
use crate::remote::worker_name::BadName;

pub(crate) use shared::Shared;

/// What is still to be said when a line is closed has so long.
const FAREWELL: Duration = Duration::from_secs(2);

/// See the module's text. Dropped, it closes.
pub struct Line {
    shared: Arc<Shared>,
    runtime: Handle,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Whose thread it is: a process that was forked has none.
    process: u32,
}

/// Why there is no line.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum OpenError {
    #[error("the ticket of this worker: {0}")]
    Ticket(#[from] BadSeal),
    #[error("no thread for the line to the rendezvous: {0}")]
    Thread(#[from] io::Error),
}

/// Why nothing is said.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum SayError {
    #[error(transparent)]
    Name(#[from] BadName),
    #[error(transparent)]
    Long(#[from] TooLong),
}

impl Line {
    /// Begins to open it.
    ///
    /// # Errors
    /// When the ticket is none, or there is no thread.
    pub fn open(settings: Settings) -> Result<Self, OpenError> {
        let Ticket { job, .. } = Ticket::claims(&settings.ticket.0)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (line, heard) = {
            let _inside = runtime.enter();
            control::Line::open(settings)
        };
        let shared = Arc::new(Shared::new(job, line)?);
        let (handle, talking) = (runtime.handle().clone(), task::talk(Arc::clone(&shared), heard));
        let thread = thread::Builder::new().name("line".to_owned()).spawn(move || run(runtime, talking))?;
        Ok(Self { shared, runtime: handle, thread: Mutex::new(Some(thread)), process: std::process::id() })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The job that the ticket is for.
    pub fn job(&self) -> &Job {
        &self.shared.job
    }

    /// Waits until the line is there: whether it is.
    ///
    /// # Errors
    /// When it will not come (again): why.
    pub fn wait(&self, patience: Duration) -> io::Result<bool> {
        self.shared.wait(patience)
    }

    /// Says something to a worker, or to the job's leader, instead of what was not said to it yet. It may be lost: whoever
    /// says what counts says it again.
    ///
    /// # Errors
    /// When nobody can have that name, and when it is too long.
    pub fn say(&self, to: Option<&str>, text: &str) -> Result<(), SayError> {
        self.shared.say(to, text)
    }

    /// What has come, by whom; waits for something for so long.
    ///
    /// # Errors
    /// When nothing more will come: why.
    pub fn hear(&self, patience: Duration) -> io::Result<Vec<(String, String)>> {
        let until = Instant::now() + patience;
        loop {
            let heard = self.shared.read()?;
            let left = until.saturating_duration_since(Instant::now());
            if !heard.is_empty() || left.is_zero() {
                return Ok(heard);
            }
            self.shared.bell.wait(left)?;
        }
    }

    /// Readable while something waits to be heard.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }

    /// Which kind of NAT stands before this machine, in the words that people use; takes a second.
    ///
    /// # Errors
    /// When the line is over, or the rendezvous has no observer for UDP.
    pub fn nat(&self) -> io::Result<&'static str> {
        let line = self.shared.line()?;
        let (tell, told) = mpsc::channel();
        self.runtime.spawn(async move { drop(tell.send(line.nat().await)) });
        let report = told.recv().unwrap_or_else(|_| Err(shared::closed()))?;
        Ok(match (report.udp, report.behaviour()) {
            (Some(false), _) => "no UDP",
            (_, Some(behaviour)) => behaviour.common_name(),
            (_, None) => "unknown",
        })
    }

    /// Says what is still to be said, for two seconds at most, and ends the line.
    pub fn close(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return };
        if self.process != std::process::id() {
            return std::mem::forget(thread); // it runs in the parent
        }
        self.shared.close();
        let _ = thread.join();
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.close();
    }
}

fn run(runtime: Runtime, talking: impl Future<Output = ()>) {
    runtime.block_on(talking);
    runtime.shutdown_background();
}
