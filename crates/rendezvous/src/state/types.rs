//! What the desk holds.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use nearpath_types::SpiffeId;

use super::LineNo;
use nearpath_p2p::message::{Base64, Word};
use nearpath_p2p::ticket::Job;

/// A worker's name: who, in which job. The same identity in another job is another worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Name {
    pub(super) job: Job,
    pub(super) id: SpiffeId,
}

/// What is known of a name.
#[derive(Debug, Default)]
pub(super) struct Worker {
    pub(super) line: Option<Present>,
    /// Its own calls that wait.
    pub(super) calls: BTreeSet<u64>,
    /// Others' calls that wait for it.
    pub(super) awaited: BTreeSet<u64>,
    pub(super) sessions: BTreeSet<[u8; 16]>,
}

impl Worker {
    /// Nobody needs to know of it any longer.
    pub(super) fn is_forgotten(&self) -> bool {
        self.line.is_none() && self.calls.is_empty() && self.awaited.is_empty() && self.sessions.is_empty()
    }
}

/// The line of a worker that is here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Present {
    pub(super) line: LineNo,
    /// The ticket's end, by both clocks.
    pub(super) until: Instant,
    pub(super) until_unix: u64,
}

/// What is known of a job.
#[derive(Debug, Default)]
pub(super) struct Office {
    pub(super) lines: usize,
    /// The line of the last leader that came.
    pub(super) leader: Option<LineNo>,
}

/// A call whose peer is not here yet.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) call: u32,
    pub(super) caller: Arc<Name>,
    pub(super) peer: Arc<Name>,
    pub(super) about: String,
    pub(super) hello: Option<Base64>,
    /// Milliseconds.
    pub(super) within: u32,
    /// Set when it begins to wait.
    pub(super) until: Option<Instant>,
}

/// A session that was granted.
#[derive(Debug)]
pub(super) struct Meeting {
    pub(super) sides: [Arc<Name>; 2],
    pub(super) until: Instant,
    /// Words for the first or second side, which has no line.
    pub(super) kept: VecDeque<(usize, Word)>,
}

/// What happens at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    Line(LineNo),
    Wait(u64),
    Session([u8; 16]),
}
