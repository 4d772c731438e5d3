//! The rendezvous' desk: who is here, who waits for whom, which sessions there are. No socket, no clock, no task: lines have
//! numbers, time is an argument, and what is to be said comes out as a list.
//!
//! A worker is a name in a job, whether it has a line or not: a session outlives a line that breaks, and what is told
//! meanwhile is kept, up to a bound. Nobody hears of another job. Everything that somebody can make grow has a limit, and
//! goes when nobody needs it: an empty desk is empty.

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

/// A line's number; never used twice.
pub type ControlConnectionId = u64;

/// When something happens, by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReading {
    /// For deadlines.
    pub at: Instant,
    /// Seconds since 1970, for what others read.
    pub unix: u64,
}

impl ClockReading {
    /// How long until then (seconds since 1970).
    fn time_left(&self, until: u64) -> Duration {
        Duration::from_secs(until.saturating_sub(self.unix)).min(MAX_DEADLINE)
    }
}

/// Nothing here lasts a hundred years; an [`Instant`] has an end, too.
const MAX_DEADLINE: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// What somebody may make the desk hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLimits {
    /// Lines in all.
    pub max_connections: usize,
    /// Lines of one job.
    pub max_job_connections: usize,
    /// Sessions of one worker that have neither been hung up nor ended.
    pub max_sessions: usize,
    /// Calls of one worker that wait for their peer.
    pub max_waiting_calls: usize,
    /// Calls that wait for one peer: jobs whose workers all call one that never comes.
    pub max_calls_to_peer: usize,
    /// Words of a session that are kept for a side that has no line.
    pub max_kept_messages: usize,
    /// The longest wait for a peer.
    pub max_call_wait: Duration,
    /// A session's life, if no ticket ends sooner.
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

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RendezvousAction {
    /// Tell a line this.
    Send(ControlConnectionId, RendezvousMessage),
    /// Pass a [`nearpath_p2p::message::Parcel`] on to a line, or drop it.
    Relay(ControlConnectionId, Bytes),
    /// Tell a line that it ends, and end it. It leaves no more.
    Close(ControlConnectionId, CloseReason),
}

/// Where ids and secrets come from.
pub trait SecretRng {
    /// Fills it with what nobody can guess.
    fn fill(&mut self, bytes: &mut [u8]);
}

/// What the desk has counted since it was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateCounts {
    /// Lines that came.
    pub connected: u64,
    /// Of these, those of a worker that had one already.
    pub displaced: u64,
    /// Calls.
    pub calls: u64,
    /// Sessions.
    pub granted: u64,
    /// Calls refused: the peer did not come.
    pub absent: u64,
    /// Calls refused for another reason.
    pub refused: u64,
    /// Words passed on.
    pub messages: u64,
    /// Parcels for somebody who has a line.
    pub frames: u64,
    /// Reports passed on.
    pub reports: u64,
    /// Reports for nobody who is here.
    pub undelivered: u64,
}

/// See the module.
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
    /// The last waiting call's number.
    last_call: u64,
    counts: StateCounts,
    actions: Vec<RendezvousAction>,
}

impl<C: SecretRng> RendezvousState<C> {
    /// An empty one.
    pub fn new(key: RendezvousKey, limits: StateLimits, rng: C) -> Self {
        Self {
            key,
            limits,
            rng: rng,
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

    /// A worker says something. A line that is not here says nothing.
    pub fn handle_message(
        &mut self,
        connection: ControlConnectionId,
        message: WorkerMessage,
        now: ClockReading,
    ) -> Vec<RendezvousAction> {
        if let Some(name) = self.connections.get(&connection).cloned() {
            match message {
                WorkerMessage::Call {
                    call,
                    peer,
                    about,
                    within,
                    hello,
                } => {
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
                WorkerMessage::Tell { session, word } => {
                    self.forward_message(connection, &name, session, word)
                }
                WorkerMessage::HangUp { session } => self.hang_up(&name, session),
                WorkerMessage::Report { to, report } => {
                    self.forward_report(connection, &name, to, report)
                }
            }
        }
        self.take_actions()
    }

    /// A worker sends a [`nearpath_p2p::message::Parcel`] of this session.
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

    /// What time alone brings about.
    pub fn run_due_timers(&mut self, now: ClockReading) -> Vec<RendezvousAction> {
        while let Some((_, timer)) = self.timers.first().filter(|(at, _)| *at <= now.at).copied() {
            self.timers.pop_first();
            match timer {
                StateTimer::Connection(line) => self.expire_connection(line),
                StateTimer::Call(number) => self.expire_call(number),
                StateTimer::Session(id) => self.expire_session(id),
            }
        }
        self.take_actions()
    }

    /// When [`Self::run_due_timers`] has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// What it has counted.
    pub fn counts(&self) -> StateCounts {
        self.counts
    }

    /// How many lines, sessions and waiting calls there are.
    pub fn sizes(&self) -> (usize, usize, usize) {
        (
            self.connections.len(),
            self.sessions.len(),
            self.waiting.len(),
        )
    }

    /// Passes a report on within the job. Reports are not kept: who reports to somebody who is away is told so.
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
            None => self.jobs.get(&name.job).and_then(|office| office.leader),
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

    /// Says it to a worker, if it has a line.
    fn send_to_worker(&mut self, name: &WorkerName, message: RendezvousMessage) {
        let connection = self.connection_of(name);
        self.actions
            .extend(connection.map(|line| RendezvousAction::Send(line, message)));
    }

    fn take_actions(&mut self) -> Vec<RendezvousAction> {
        std::mem::take(&mut self.actions)
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
