//! State of the rendezvous: present workers, waiting calls, sessions.
//!
//! No socket, clock or task: connections have numbers, time is an argument, and actions are
//! returned as a list. A worker is a name in a job, with or without a connection: a session
//! outlives a broken connection, and messages meanwhile are kept up to a limit. Nothing of another
//! job is visible. All that clients can make grow is limited and removed when it is unused: an idle
//! state is empty.

mod calls;
mod connections;
mod sessions;
mod types;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nearpath_types::SpiffeId;

use nearpath_p2p::message::{
    CloseReason, JobReport, RendezvousMessage, SessionIdHex, WorkerMessage,
};
use nearpath_p2p::ticket::{JobName, RendezvousKey};

use types::{GrantedSession, JobConnections, StateTimer, WaitingCall, WorkerName, WorkerRecord};

/// Number of a connection; never used twice.
pub type ControlConnectionId = u64;

/// Reading of both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReading {
    /// Monotonic time, for deadlines.
    pub at: Instant,
    /// Seconds since 1970, for values that others read.
    pub unix: u64,
}

impl ClockReading {
    /// Returns the time left until then (seconds since 1970).
    fn time_left(&self, until: u64) -> Duration {
        Duration::from_secs(until.saturating_sub(self.unix)).min(MAX_TICKET_AGE)
    }
}

/// Longest deadline, a hundred years: a ticket may have no end, and adding it would overflow
/// [`Instant`].
const MAX_TICKET_AGE: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// Limits of what clients can make the state hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLimits {
    /// Connections in total.
    pub max_connections: usize,
    /// Connections of one job.
    pub max_job_connections: usize,
    /// Sessions of one worker that are neither hung up nor expired.
    pub max_sessions: usize,
    /// Calls of one worker that wait for their peer.
    pub max_waiting_calls: usize,
    /// Calls that wait for one peer: all workers of a job may call one that never connects.
    pub max_calls_to_peer: usize,
    /// Messages of a session that are kept for a side without a connection.
    pub max_kept_messages: usize,
    /// Longest wait for a peer.
    pub max_call_wait: Duration,
    /// Life of a session, if no ticket expires sooner.
    pub session_life: Duration,
}

impl Default for StateLimits {
    fn default() -> Self {
        Self {
            max_connections: 50_000,
            max_job_connections: 20_000,
            max_sessions: 1024,
            max_waiting_calls: 1024,
            max_calls_to_peer: 20_000,
            max_kept_messages: 16,
            max_call_wait: Duration::from_secs(300),
            session_life: Duration::from_secs(600),
        }
    }
}

/// Action for the connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RendezvousAction {
    /// Send a message.
    Send(ControlConnectionId, RendezvousMessage),
    /// Relay a [`nearpath_p2p::message::RelayedFrame`], or drop it.
    Relay(ControlConnectionId, Bytes),
    /// Close a connection with a reason. The state has removed it already.
    Close(ControlConnectionId, CloseReason),
}

/// Source of ids and secrets.
pub trait SecretRng {
    /// Fills the bytes with unpredictable ones.
    fn fill(&mut self, bytes: &mut [u8]);
}

/// Counters since the start of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateCounts {
    /// Connections.
    pub connected: u64,
    /// Connections of a worker that had one already.
    pub displaced: u64,
    /// Calls.
    pub calls: u64,
    /// Granted sessions.
    pub granted: u64,
    /// Calls whose peer did not connect.
    pub absent: u64,
    /// Calls refused for another reason.
    pub refused: u64,
    /// Forwarded messages.
    pub messages: u64,
    /// Relayed frames.
    pub frames: u64,
    /// Forwarded reports.
    pub reports: u64,
    /// Reports without a present recipient.
    pub undelivered: u64,
}

/// State of the rendezvous; see the module.
#[derive(Debug)]
pub struct RendezvousState<C> {
    key: RendezvousKey,
    limits: StateLimits,
    rng: C,
    workers: HashMap<Arc<WorkerName>, WorkerRecord>,
    jobs: HashMap<JobName, JobConnections>,
    connections: HashMap<ControlConnectionId, Arc<WorkerName>>,
    waiting: HashMap<u64, WaitingCall>,
    sessions: HashMap<[u8; 16], GrantedSession>,
    timers: BTreeSet<(Instant, StateTimer)>,
    /// Number of the last waiting call.
    last_call: u64,
    counts: StateCounts,
    actions: Vec<RendezvousAction>,
}

impl<C: SecretRng> RendezvousState<C> {
    /// Creates an empty state.
    pub fn new(key: RendezvousKey, limits: StateLimits, rng: C) -> Self {
        Self {
            key,
            limits,
            rng,
            workers: HashMap::new(),
            jobs: HashMap::new(),
            connections: HashMap::new(),
            waiting: HashMap::new(),
            sessions: HashMap::new(),
            timers: BTreeSet::new(),
            last_call: 0,
            counts: StateCounts::default(),
            actions: Vec::new(),
        }
    }

    /// Handles a message. A connection that is gone has none.
    pub fn handle_message(
        &mut self,
        connection: ControlConnectionId,
        message: WorkerMessage,
        now: ClockReading,
    ) -> Vec<RendezvousAction> {
        // A message may arrive after its connection was displaced: it is dropped.
        if let Some(name) = self.connections.get(&connection).cloned() {
            match message {
                WorkerMessage::Call {
                    call,
                    peer,
                    about,
                    within,
                    hello,
                } => {
                    // The caller's job, whatever the identity: jobs cannot reach each other.
                    let peer = Arc::new(WorkerName {
                        job: name.job.clone(),
                        id: peer,
                    });
                    let call = WaitingCall {
                        call,
                        caller: name.clone(),
                        peer,
                        about,
                        hello,
                        within,
                        deadline: None,
                    };
                    self.handle_call(connection, &name, call, now);
                }
                WorkerMessage::SessionMessage { session, message } => {
                    self.forward_message(connection, &name, session, message)
                }
                WorkerMessage::CloseSession { session } => self.hang_up(&name, session),
                WorkerMessage::Report { to, report } => {
                    self.forward_report(connection, &name, to, report)
                }
            }
        }
        self.take_actions()
    }

    /// Relays a [`nearpath_p2p::message::RelayedFrame`] of this session.
    pub fn relay_frame(
        &mut self,
        connection: ControlConnectionId,
        session: SessionIdHex,
        frame: Bytes,
    ) -> Vec<RendezvousAction> {
        if let Some(name) = self.connections.get(&connection).cloned() {
            self.forward_frame(connection, &name, session, frame);
        }
        self.take_actions()
    }

    /// Handles all deadlines up to now.
    pub fn run_due_timers(&mut self, now: ClockReading) -> Vec<RendezvousAction> {
        // Deadlines are taken one by one: handling one may remove later ones.
        while let Some((_, timer)) = self.timers.first().filter(|(at, _)| *at <= now.at).copied() {
            self.timers.pop_first();
            match timer {
                StateTimer::Connection(connection) => self.expire_connection(connection),
                StateTimer::Call(number) => self.expire_call(number),
                StateTimer::Session(id) => self.expire_session(id),
            }
        }
        self.take_actions()
    }

    /// Returns the next deadline, for [`Self::run_due_timers`].
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Returns the counters.
    pub fn counts(&self) -> StateCounts {
        self.counts
    }

    /// Returns the numbers of connections, sessions and waiting calls.
    pub fn sizes(&self) -> (usize, usize, usize) {
        (
            self.connections.len(),
            self.sessions.len(),
            self.waiting.len(),
        )
    }

    /// Forwards a report within the job. Reports are not kept: the sender learns of an absent
    /// recipient.
    fn forward_report(
        &mut self,
        connection: ControlConnectionId,
        name: &WorkerName,
        to: Option<SpiffeId>,
        report: JobReport,
    ) {
        let target = match &to {
            Some(id) => self.connection_of(&WorkerName {
                job: name.job.clone(),
                id: id.clone(),
            }),
            None => self.jobs.get(&name.job).and_then(|job| job.leader),
        };
        let counter = if target.is_some() {
            &mut self.counts.reports
        } else {
            &mut self.counts.undelivered
        };
        *counter += 1;
        self.actions.push(match target {
            Some(target) => RendezvousAction::Send(
                target,
                RendezvousMessage::Report {
                    from: name.id.clone(),
                    report,
                },
            ),
            None => RendezvousAction::Send(connection, RendezvousMessage::Undelivered { to }),
        });
    }

    fn connection_of(&self, name: &WorkerName) -> Option<ControlConnectionId> {
        Some(self.workers.get(name)?.connection?.id)
    }

    /// Sends a message to a worker that has a connection.
    fn send_to_worker(&mut self, name: &WorkerName, message: RendezvousMessage) {
        let connection = self.connection_of(name);
        self.actions
            .extend(connection.map(|connection| RendezvousAction::Send(connection, message)));
    }

    fn take_actions(&mut self) -> Vec<RendezvousAction> {
        std::mem::take(&mut self.actions)
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
