//! The desk with its lines' letter boxes: what the desk wants said is put there, each line's task takes it out.

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

/// See the module. The lock is held for as long as it takes to decide; nothing is awaited under it.
#[derive(Debug)]
pub(super) struct SharedState {
    inner: Mutex<LockedState>,
    /// The desk's next deadline is another one.
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

/// The machine's random numbers.
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

    /// A worker comes; what it is told is in the box.
    pub(super) fn connect(
        &self,
        ticket: &WorkerTicket,
    ) -> (ControlConnectionId, mpsc::Receiver<OutboxItem>) {
        let (outbox, items) = ConnectionOutbox::new();
        let connection = self.with_state(|inner| {
            inner.last_id += 1;
            let connection = inner.last_id;
            if inner.closed {
                let _ = outbox.put(OutboxItem::Close(CloseReason::Draining)); // it is new: there is room
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

    /// A worker sends a [`nearpath_p2p::message::Parcel`].
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

    /// Tells every line that it is over; who comes later is told at once.
    pub(super) fn close_all(&self) {
        self.with_state(|inner| {
            inner.closed = true;
            let actions = inner.state.close_all();
            self.perform(inner, actions);
        });
    }

    /// What was counted, and how much there is.
    pub(super) fn counts_and_sizes(&self) -> (StateCounts, (usize, usize, usize)) {
        self.with_state(|inner| (inner.state.counts(), inner.state.sizes()))
    }

    /// Does what time brings about, for ever.
    pub(super) async fn run_timers(&self) {
        loop {
            match self.with_state(|inner| inner.state.next_deadline()) {
                Some(at) if at > Instant::now() => {
                    tokio::select! {
                        () = tokio::time::sleep_until(at.into()) => {}
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
                RendezvousAction::Send(line, told) => inner.send_message(line, told, &self.metrics),
                RendezvousAction::Relay(line, frame) => {
                    if let Some(outbox) = inner.outboxes.get(&line) {
                        outbox.put_frame(frame, self.limits.queued_frame_bytes, &self.metrics);
                    }
                }
                RendezvousAction::Close(line, why) => {
                    if let Some(outbox) = inner.outboxes.remove(&line) {
                        let _ = outbox.put(OutboxItem::Close(why)); // a full box is closed all the same
                    }
                }
            }
        }
    }

    fn with_state<T>(&self, f: impl FnOnce(&mut LockedState) -> T) -> T {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
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
            RendezvousMetrics::increment(&metrics.slow_connections);
            self.outboxes.remove(&connection);
            self.state.disconnect(connection);
        }
    }
}
