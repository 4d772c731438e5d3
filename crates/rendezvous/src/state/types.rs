//! What the desk holds.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use nearpath_types::SpiffeId;

use super::ControlConnectionId;
use nearpath_p2p::message::{Base64Bytes, SessionMessage};
use nearpath_p2p::ticket::JobName;

/// A worker's name: who, in which job. The same identity in another job is another worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct WorkerName {
    pub(super) job: JobName,
    pub(super) id: SpiffeId,
}

/// What is known of a name.
#[derive(Debug, Default)]
pub(super) struct WorkerRecord {
    pub(super) connection: Option<ActiveConnection>,
    /// Its own calls that wait.
    pub(super) own_calls: BTreeSet<u64>,
    /// Others' calls that wait for it.
    pub(super) calls_to_it: BTreeSet<u64>,
    pub(super) sessions: BTreeSet<[u8; 16]>,
}

impl WorkerRecord {
    /// Nobody needs to know of it any longer.
    pub(super) fn is_unused(&self) -> bool {
        self.connection.is_none()
            && self.own_calls.is_empty()
            && self.calls_to_it.is_empty()
            && self.sessions.is_empty()
    }
}

/// The line of a worker that is here.
#[derive(Debug, Clone, Copy)]
pub(super) struct ActiveConnection {
    pub(super) id: ControlConnectionId,
    /// The ticket's end, by both clocks.
    pub(super) until: Instant,
    pub(super) until_unix: u64,
}

/// What is known of a job.
#[derive(Debug, Default)]
pub(super) struct JobConnections {
    pub(super) connections: usize,
    /// The line of the last leader that came.
    pub(super) leader: Option<ControlConnectionId>,
}

/// A call whose peer is not here yet.
#[derive(Debug)]
pub(super) struct WaitingCall {
    pub(super) call: u32,
    pub(super) caller: Arc<WorkerName>,
    pub(super) peer: Arc<WorkerName>,
    pub(super) about: String,
    pub(super) hello: Option<Base64Bytes>,
    /// Milliseconds.
    pub(super) within: u32,
    /// Set when it begins to wait.
    pub(super) deadline: Option<Instant>,
}

/// A session that was granted.
#[derive(Debug)]
pub(super) struct GrantedSession {
    pub(super) sides: [Arc<WorkerName>; 2],
    pub(super) expires_at: Instant,
    /// Words for the first or second side, which has no line.
    pub(super) kept: VecDeque<(usize, SessionMessage)>,
}

/// What happens at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StateTimer {
    Connection(ControlConnectionId),
    Call(u64),
    Session([u8; 16]),
}
