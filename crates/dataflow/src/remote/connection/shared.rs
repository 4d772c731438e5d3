//! State shared by the connection's thread and its users.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nearpath_p2p::control::{self, PeerSession};
use nearpath_p2p::ticket::JobName;
use nearpath_types::SpiffeId;
use tokio::sync::{Notify, Semaphore};

use super::SendMessageError;
use super::event_fd::EventFd;
use crate::remote::call_queue::CallQueue;
use crate::remote::control_message::MessagePart;
use crate::remote::inbox::MessageInbox;
use crate::remote::outbox::{MessageOutbox, OutboxStep};
use crate::remote::worker_name;

/// Descriptors of the process per concurrent search for a direct path: a search has up to a dozen
/// sockets.
const DESCRIPTORS_PER_SEARCH: u64 = 32;

/// Calls answered at the same time: short edges finish one after the other instead of all at the
/// end.
const MAX_CONCURRENT_ANSWERS: usize = 8;

pub(crate) struct ConnectionShared {
    pub(crate) job: JobName,
    pub(super) event_fd: EventFd,
    /// Permits to search for a direct path.
    pub(crate) search_permits: Arc<Semaphore>,
    /// Permits to answer a call.
    pub(crate) answer_permits: Arc<Semaphore>,
    control: Mutex<Option<control::ControlConnection>>,
    state: Mutex<MessageState>,
    /// The status changed.
    status_changed: Condvar,
    /// A call arrived, or the connection is closed.
    pub(super) call_arrived: Notify,
    /// A message waits to be sent, or the connection is back.
    pub(super) outbox_ready: Notify,
    pub(super) closing: Notify,
}

struct MessageState {
    status: RendezvousStatus,
    inbox: MessageInbox,
    outbox: MessageOutbox<Option<SpiffeId>>,
    call_queue: CallQueue<PeerSession>,
}

/// Status of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RendezvousStatus {
    /// With the reason.
    Disconnected(String),
    /// `loopback`: the rendezvous is on this machine, so peers may be too.
    Connected { loopback: bool },
    /// With the reason why it will not come back.
    Closed(String),
}

pub(super) fn closed_error() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotConnected,
        "the connection to the rendezvous is closed",
    )
}

fn ended_error(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, why)
}

/// Number of concurrent searches that the descriptor limit allows.
fn max_searches() -> usize {
    let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let allowed = descriptors.map_or(usize::MAX, |limit| {
        usize::try_from(limit / DESCRIPTORS_PER_SEARCH).unwrap_or(usize::MAX)
    });
    // At least 16, so that a low limit does not make the searches wait for each other; at most
    // 512, the default fan-in.
    allowed.clamp(16, 512)
}

impl ConnectionShared {
    pub(super) fn new(job: JobName, control: control::ControlConnection) -> io::Result<Self> {
        let status = RendezvousStatus::Disconnected("not connected yet".to_owned());
        let (inbox, outbox, calls) = (
            MessageInbox::default(),
            MessageOutbox::default(),
            CallQueue::default(),
        );
        Ok(Self {
            job,
            event_fd: EventFd::new()?,
            search_permits: Arc::new(Semaphore::new(max_searches())),
            answer_permits: Arc::new(Semaphore::new(MAX_CONCURRENT_ANSWERS)),
            control: Mutex::new(Some(control)),
            state: Mutex::new(MessageState {
                status,
                inbox,
                outbox,
                call_queue: calls,
            }),
            status_changed: Condvar::new(),
            call_arrived: Notify::new(),
            outbox_ready: Notify::new(),
            closing: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, MessageState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // Called by users of the connection.

    /// Connection to the rendezvous.
    pub(crate) fn control(&self) -> io::Result<control::ControlConnection> {
        self.control
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
            .ok_or_else(closed_error)
    }

    pub(super) fn wait_connected(&self, time_limit: Duration) -> io::Result<bool> {
        let is_disconnected =
            |state: &mut MessageState| matches!(state.status, RendezvousStatus::Disconnected(_));
        let state =
            self.status_changed
                .wait_timeout_while(self.lock(), time_limit, is_disconnected);
        let (state, _) = state.unwrap_or_else(PoisonError::into_inner);
        match &state.status {
            RendezvousStatus::Connected { .. } => Ok(true),
            RendezvousStatus::Disconnected(_) => Ok(false),
            RendezvousStatus::Closed(why) => Err(ended_error(why)),
        }
    }

    pub(super) fn send_message(
        &self,
        to: Option<&str>,
        text: &str,
    ) -> Result<(), SendMessageError> {
        let to = to
            .map(|name| worker_name::to_spiffe_id(&self.job, name))
            .transpose()?;
        self.lock().outbox.put_message(to, text)?;
        self.outbox_ready.notify_one();
        Ok(())
    }

    pub(super) fn take_messages(&self) -> io::Result<Vec<(String, String)>> {
        let mut state = self.lock();
        let messages = state.inbox.take_messages();
        match &state.status {
            RendezvousStatus::Closed(why) if messages.is_empty() => Err(ended_error(why)),
            // Stays readable: a poller must notice that no more will come.
            RendezvousStatus::Closed(_) => Ok(messages),
            _ => {
                // Under the lock: a message that arrives after the read signals again.
                self.event_fd.clear();
                Ok(messages)
            }
        }
    }

    pub(super) fn close(&self) {
        self.closing.notify_one();
    }

    /// True when peers may be on this machine and reachable nowhere else.
    pub(crate) fn is_on_loopback(&self) -> bool {
        matches!(
            self.lock().status,
            RendezvousStatus::Connected { loopback: true }
        )
    }

    // Called by edges.

    pub(crate) fn begin_attempt(&self, attempt: u32, producers: Vec<String>) {
        self.lock().call_queue.begin_attempt(attempt, producers);
    }

    /// Waits for the next call of that producer.
    pub(crate) async fn next_call(&self, from: &str, attempt: u32) -> io::Result<PeerSession> {
        self.wait_until(|state| state.call_queue.take_call(from, attempt))
            .await
    }

    /// Waits until that producer calls (again).
    pub(crate) async fn wait_for_call(&self, from: &str, attempt: u32) -> io::Result<()> {
        self.wait_until(|state| state.call_queue.has_call(from, attempt).then_some(()))
            .await
    }

    async fn wait_until<T>(&self, query: impl Fn(&mut MessageState) -> Option<T>) -> io::Result<T> {
        loop {
            let changed = self.call_arrived.notified();
            tokio::pin!(changed);
            // Registered before the state is read: a call between the check and the wait would else
            // be missed.
            changed.as_mut().enable();
            {
                let mut state = self.lock();
                match (query(&mut state), &state.status) {
                    (Some(found), _) => return Ok(found),
                    (None, RendezvousStatus::Closed(why)) => {
                        return Err(io::Error::new(io::ErrorKind::NotConnected, why.clone()));
                    }
                    (None, _) => (),
                }
            }
            changed.await;
        }
    }

    // Called by the connection's thread.

    pub(super) fn set_status(&self, status: RendezvousStatus) {
        let is_closed = matches!(status, RendezvousStatus::Closed(_));
        self.lock().status = status;
        self.status_changed.notify_all();
        self.outbox_ready.notify_one();
        if is_closed {
            self.call_arrived.notify_waiters();
            self.event_fd.signal();
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.lock().status, RendezvousStatus::Closed(_))
    }

    pub(super) fn add_call(&self, from: String, attempt: u32, meeting: PeerSession) {
        let refused = self.lock().call_queue.add_call(from, attempt, meeting);
        drop(refused); // dropping a call rejects it
        self.call_arrived.notify_waiters();
    }

    pub(super) fn receive_part(&self, from: &str, part: MessagePart) {
        let mut state = self.lock();
        state.inbox.add_part(from, part);
        if !state.inbox.is_empty() {
            self.event_fd.signal();
        }
    }

    /// Next report to send. Nothing while disconnected: later messages are newer.
    pub(super) fn next_report(&self, now: Instant) -> OutboxStep<Option<SpiffeId>> {
        let mut state = self.lock();
        match state.status {
            RendezvousStatus::Connected { .. } => state.outbox.next_report(now),
            _ => OutboxStep::Idle,
        }
    }

    pub(super) fn is_flushed(&self) -> bool {
        let state = self.lock();
        state.outbox.is_empty() || !matches!(state.status, RendezvousStatus::Connected { .. })
    }

    /// Drops the handle. The connection ends once all links that have begun are connected.
    pub(super) fn drop_control(&self) {
        self.control
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }
}
