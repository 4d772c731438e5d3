//! State with the outboxes of its connections: its actions fill them, and each connection's task
//! empties its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::{Notify, mpsc};

use super::job_rates::JobBuckets;
use super::metrics::RendezvousMetrics;
use super::outbox::{ConnectionOutbox, OutboxFull, OutboxItem};
use super::settings::RendezvousLimits;
use super::state::{
    ClockReading, ControlConnectionId, RendezvousAction, RendezvousState, SecretRng, StateCounts,
};
use nearpath_p2p::message::{CloseReason, RendezvousMessage, SessionIdHex, WorkerMessage};
use nearpath_p2p::ticket::{RendezvousKey, WorkerTicket};

/// Shared state; see the module. The lock is held for microseconds, and nothing is awaited under
/// it.
#[derive(Debug)]
pub(super) struct SharedState {
    inner: Mutex<LockedState>,
    /// The next deadline of the state is earlier than before.
    deadline_changed: Notify,
    pub(super) metrics: Arc<RendezvousMetrics>,
    pub(super) jobs: JobBuckets,
    pub(super) limits: RendezvousLimits,
}

#[derive(Debug)]
struct LockedState {
    state: RendezvousState<SystemRng>,
    outboxes: HashMap<ControlConnectionId, ConnectionOutbox>,
    last_id: ControlConnectionId,
    closed: bool,
}

/// Random numbers of the kernel.
#[derive(Debug)]
pub(super) struct SystemRng(SystemRandom);

impl SecretRng for SystemRng {
    fn fill(&mut self, bytes: &mut [u8]) {
        self.0
            .fill(bytes)
            .expect("getrandom(2) does not fail once it has worked, and a process starts with it");
    }
}

impl SharedState {
    pub(super) fn new(key: RendezvousKey, limits: RendezvousLimits) -> Self {
        let state = RendezvousState::new(key, limits.state, SystemRng(SystemRandom::new()));
        let inner = LockedState {
            state,
            outboxes: HashMap::new(),
            last_id: 0,
            closed: false,
        };
        Self {
            inner: Mutex::new(inner),
            deadline_changed: Notify::new(),
            metrics: Arc::default(),
            jobs: JobBuckets::default(),
            limits,
        }
    }

    /// Adds a connection, and returns its outbox.
    pub(super) fn connect(
        &self,
        ticket: &WorkerTicket,
    ) -> (ControlConnectionId, mpsc::Receiver<OutboxItem>) {
        let (outbox, items) = ConnectionOutbox::new();
        let connection = self.with_state(|inner| {
            inner.last_id += 1;
            let connection = inner.last_id;
            // Accepting has stopped, but handshakes in progress still arrive.
            if inner.closed {
                // A new outbox has capacity.
                let _ = outbox.put(OutboxItem::Close(CloseReason::Draining));
                return connection;
            }
            inner.outboxes.insert(connection, outbox);
            let actions = inner.state.connect(connection, ticket, ClockReading::now());
            self.perform(inner, actions);
            connection
        });
        (connection, items)
    }

    pub(super) fn handle_message(&self, connection: ControlConnectionId, message: WorkerMessage) {
        self.with_state(|inner| {
            let actions = inner
                .state
                .handle_message(connection, message, ClockReading::now());
            self.perform(inner, actions);
        });
    }

    /// Relays a [`nearpath_p2p::message::RelayedFrame`].
    pub(super) fn relay_frame(
        &self,
        connection: ControlConnectionId,
        session: SessionIdHex,
        frame: Bytes,
    ) {
        self.with_state(|inner| {
            let actions = inner.state.relay_frame(connection, session, frame);
            self.perform(inner, actions);
        });
    }

    pub(super) fn disconnect(&self, connection: ControlConnectionId) {
        self.with_state(|inner| {
            inner.outboxes.remove(&connection);
            inner.state.disconnect(connection);
        });
    }

    /// Closes every connection; later ones are closed at once.
    pub(super) fn close_all(&self) {
        self.with_state(|inner| {
            inner.closed = true;
            let actions = inner.state.close_all();
            self.perform(inner, actions);
        });
    }

    /// Returns the counters and sizes.
    pub(super) fn counts_and_sizes(&self) -> (StateCounts, (usize, usize, usize)) {
        self.with_state(|inner| (inner.state.counts(), inner.state.sizes()))
    }

    /// Runs the state's timers forever.
    pub(super) async fn run_timers(&self) {
        loop {
            match self.with_state(|inner| inner.state.next_deadline()) {
                Some(at) if at > Instant::now() => {
                    tokio::select! {
                        () = tokio::time::sleep_until(at.into()) => {}
                        // A deadline that moves forward must end the sleep; `notify_one` keeps a
                        // permit if the task does not sleep yet.
                        () = self.deadline_changed.notified() => {}
                    }
                }
                Some(_) => self.run_due_timers(),
                None => self.deadline_changed.notified().await,
            }
        }
    }

    fn run_due_timers(&self) {
        self.with_state(|inner| {
            let actions = inner.state.run_due_timers(ClockReading::now());
            self.perform(inner, actions);
        });
    }

    fn perform(&self, inner: &mut LockedState, actions: Vec<RendezvousAction>) {
        for action in actions {
            match action {
                RendezvousAction::Send(connection, message) => {
                    inner.send_message(connection, message, &self.metrics)
                }
                RendezvousAction::Relay(connection, frame) => {
                    // The connection may have ended in the same step.
                    if let Some(outbox) = inner.outboxes.get(&connection) {
                        outbox.put_frame(frame, self.limits.queued_frame_bytes, &self.metrics);
                    }
                }
                RendezvousAction::Close(connection, reason) => {
                    if let Some(outbox) = inner.outboxes.remove(&connection) {
                        // A full outbox is closed all the same.
                        let _ = outbox.put(OutboxItem::Close(reason));
                    }
                }
            }
        }
    }

    fn with_state<T>(&self, f: impl FnOnce(&mut LockedState) -> T) -> T {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        // Compared under the lock, so that no earlier deadline is missed.
        let deadline_before = inner.state.next_deadline();
        let out = f(&mut inner);
        if inner
            .state
            .next_deadline()
            .is_some_and(|next| deadline_before.is_none_or(|before| next < before))
        {
            self.deadline_changed.notify_one();
        }
        out
    }
}

impl LockedState {
    fn send_message(
        &mut self,
        connection: ControlConnectionId,
        message: RendezvousMessage,
        metrics: &RendezvousMetrics,
    ) {
        let put = self
            .outboxes
            .get(&connection)
            .map(|outbox| outbox.put(OutboxItem::Message(Box::new(message))));
        if let Some(Err(OutboxFull)) = put {
            // A worker that does not read 4,096 messages is disconnected, not waited for.
            RendezvousMetrics::increment(&metrics.slow_connections);
            self.outboxes.remove(&connection);
            self.state.disconnect(connection);
        }
    }
}
