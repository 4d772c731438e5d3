//! Entries of the state.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use nearpath_types::SpiffeId;

use super::ControlConnectionId;
use nearpath_p2p::message::{Base64Bytes, SessionMessage};
use nearpath_p2p::ticket::JobName;

/// Name of a worker: identity and job. The same identity in another job is another worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct WorkerName {
    pub(super) job: JobName,
    pub(super) id: SpiffeId,
}

/// Entry of a worker.
#[derive(Debug, Default)]
pub(super) struct WorkerRecord {
    pub(super) connection: Option<ActiveConnection>,
    /// Its own waiting calls.
    pub(super) own_calls: BTreeSet<u64>,
    /// Calls of others that wait for it.
    pub(super) calls_to_it: BTreeSet<u64>,
    pub(super) sessions: BTreeSet<[u8; 16]>,
}

impl WorkerRecord {
    /// Returns whether nothing refers to it any longer.
    pub(super) fn is_unused(&self) -> bool {
        self.connection.is_none()
            && self.own_calls.is_empty()
            && self.calls_to_it.is_empty()
            && self.sessions.is_empty()
    }
}

/// Connection of a present worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct ActiveConnection {
    pub(super) id: ControlConnectionId,
    /// Expiry of the ticket, by both clocks.
    pub(super) until: Instant,
    pub(super) until_unix: u64,
}

/// Connections of a job.
#[derive(Debug, Default)]
pub(super) struct JobConnections {
    pub(super) connections: usize,
    /// Connection of the last leader.
    pub(super) leader: Option<ControlConnectionId>,
}

/// Call whose peer is absent.
#[derive(Debug)]
pub(super) struct WaitingCall {
    pub(super) call: u32,
    pub(super) caller: Arc<WorkerName>,
    pub(super) peer: Arc<WorkerName>,
    pub(super) about: String,
    pub(super) hello: Option<Base64Bytes>,
    /// Milliseconds.
    pub(super) within: u32,
    /// Set when the call starts to wait.
    pub(super) deadline: Option<Instant>,
}

/// Granted session.
#[derive(Debug)]
pub(super) struct GrantedSession {
    pub(super) sides: [Arc<WorkerName>; 2],
    pub(super) expires_at: Instant,
    /// Messages for the first or second side, which has no connection.
    pub(super) kept: VecDeque<(usize, SessionMessage)>,
}

/// Event of a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StateTimer {
    Connection(ControlConnectionId),
    Call(u64),
    Session([u8; 16]),
}
