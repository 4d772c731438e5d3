//! Check list of a session (RFC 8445 section 6.1.2), and the progress of each pair.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::punch::candidate::{Candidate, MAX_CANDIDATES, PairKey, Transport};

/// Maximum of pairs; more than four local sockets are of no use.
const MAX_PAIRS: usize = 4 * MAX_CANDIDATES;
/// Maximum of unanswered requests per pair that may still be answered.
const MAX_OPEN_REQUESTS: usize = 16;

/// Progress of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PairProgress {
    /// Not proven to work.
    Trying,
    /// A request was answered.
    Valid,
    /// Nominated without agreement in time, or its connection ended.
    Failed,
}

/// State of a pair's TCP connection. Always [`TcpPairState::None`] for UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TcpPairState {
    None,
    Dialing,
    Open,
}

/// Pair of a local socket and a remote address.
#[derive(Debug)]
pub(super) struct CandidatePair {
    pub(super) key: PairKey,
    pub(super) priority: u64,
    /// True if the peer offered it, and it may be probed first.
    pub(super) offered: bool,
    pub(super) progress: PairProgress,
    pub(super) stream: TcpPairState,
    /// Number of first probes or dials.
    pub(super) tries: u32,
    /// Number of these that were to open the own NAT only (`opening`).
    pub(super) opening_tries: u32,
    pub(super) created: Instant,
    /// Time of the first try that may reach the peer.
    pub(super) first_tried: Option<Instant>,
    pub(super) last_tried: Option<Instant>,
    /// Time of the next try; for an open connection: by when it must have worked.
    pub(super) next_due: Instant,
    /// Unanswered requests: numbers, and times of sending.
    open_requests: Vec<(u64, Instant)>,
    pub(super) rtt: Option<Duration>,
}

impl CandidatePair {
    pub(super) fn record_request(&mut self, number: u64, now: Instant) {
        // The oldest request is the least likely to be answered.
        if self.open_requests.len() == MAX_OPEN_REQUESTS {
            self.open_requests.remove(0);
        }
        self.open_requests.push((number, now));
    }

    /// Takes the response to a request of this pair (RFC 8445 section 7.2.5.2.1: it must come from
    /// the same pair).
    pub(super) fn take_response(&mut self, number: u64, now: Instant) -> bool {
        let Some(at) = self
            .open_requests
            .iter()
            .position(|(requested, _)| *requested == number)
        else {
            return false;
        };
        let (_, sent) = self.open_requests.remove(at);
        // Each request has its own number, so a repeated one does not blur the measurement (Karn's
        // algorithm).
        self.rtt = Some(now.saturating_duration_since(sent));
        if self.progress == PairProgress::Trying {
            self.progress = PairProgress::Valid;
        }
        true
    }

    /// Returns whether a request of that number is open.
    pub(super) fn awaits_response(&self, number: u64) -> bool {
        self.open_requests
            .iter()
            .any(|(requested, _)| *requested == number)
    }

    /// Raises the priority: the best candidate of a socket counts.
    fn mark_offered(&mut self, priority: u64) {
        self.priority = if self.offered {
            self.priority.max(priority)
        } else {
            priority
        };
        self.offered = true;
    }

    /// Returns whether it may be probed or dialled first. `retry_valid`: also where it has worked,
    /// over UDP.
    pub(super) fn is_checkable(&self, tries: u32, retry_valid: bool) -> bool {
        let wanted = match self.progress {
            PairProgress::Trying => self.offered,
            PairProgress::Valid => retry_valid && self.key.transport == Transport::Udp,
            PairProgress::Failed => false,
        };
        wanted && self.stream == TcpPairState::None && self.tries < tries
    }
}

/// All pairs, the best first.
#[derive(Debug, Default)]
pub(super) struct CheckList {
    all: Vec<CandidatePair>,
}

impl CheckList {
    pub(super) fn iter(&self) -> impl Iterator<Item = &CandidatePair> {
        self.all.iter()
    }

    pub(super) fn get(&self, key: &PairKey) -> Option<&CandidatePair> {
        self.all.iter().find(|pair| pair.key == *key)
    }

    pub(super) fn get_mut(&mut self, key: &PairKey) -> Option<&mut CandidatePair> {
        self.all.iter_mut().find(|pair| pair.key == *key)
    }

    /// Returns the number of first probes and dials to an IP address, whatever the port.
    pub(super) fn tries_at(&self, ip: IpAddr) -> u32 {
        self.all
            .iter()
            .filter(|pair| pair.key.remote.ip() == ip)
            .map(|pair| pair.tries)
            .sum()
    }

    /// Removes a pair that was neither offered nor proven, to make capacity for others.
    pub(super) fn forget_unproven(&mut self, key: &PairKey) {
        self.all.retain(|pair| {
            pair.key != *key || pair.offered || pair.progress != PairProgress::Trying
        });
    }

    /// Returns the best valid pair.
    pub(super) fn best_valid(&self) -> Option<&CandidatePair> {
        self.all
            .iter()
            .find(|pair| pair.progress == PairProgress::Valid)
    }

    /// Adds a pair. A discovered pair that is offered later gets the offer's priority. `false`: too
    /// many pairs.
    pub(super) fn add_pair(
        &mut self,
        key: PairKey,
        priority: u64,
        offered: bool,
        now: Instant,
    ) -> bool {
        match self.all.iter().position(|pair| pair.key == key) {
            Some(at) if offered => self.all[at].mark_offered(priority),
            Some(_) => (),
            None if self.is_full(offered) => return false,
            None => self.all.push(new_pair(key, priority, offered, now)),
        }
        // Equal priorities need an order that does not depend on when a pair was found.
        self.all
            .sort_by(|a, b| b.priority.cmp(&a.priority).then(a.key.cmp(&b.key)));
        true
    }

    /// Returns whether the limit is reached. Discovered pairs have their own limit, so that a flood
    /// leaves capacity for offers.
    fn is_full(&self, offered: bool) -> bool {
        let limit = if offered { MAX_PAIRS } else { MAX_CANDIDATES };
        self.all
            .iter()
            .filter(|pair| pair.offered == offered)
            .count()
            >= limit
    }
}

fn new_pair(key: PairKey, priority: u64, offered: bool, now: Instant) -> CandidatePair {
    let (progress, stream) = (PairProgress::Trying, TcpPairState::None);
    CandidatePair {
        key,
        priority,
        offered,
        progress,
        stream,
        tries: 0,
        opening_tries: 0,
        created: now,
        first_tried: None,
        last_tried: None,
        next_due: now,
        open_requests: Vec::new(),
        rtt: None,
    }
}

/// Candidate of this side, and its socket.
#[derive(Debug, Clone, Copy)]
pub(super) struct LocalCandidate {
    pub(super) candidate: Candidate,
    pub(super) base: SocketAddr,
    pub(super) added: Instant,
}

/// Returns the best priority among a base's candidates.
pub(super) fn priority_of_base(
    locals: &[LocalCandidate],
    transport: Transport,
    base: SocketAddr,
) -> Option<u32> {
    let of_base =
        |local: &&LocalCandidate| local.base == base && local.candidate.transport == transport;
    locals
        .iter()
        .filter(of_base)
        .map(|local| local.candidate.priority)
        .max()
}
