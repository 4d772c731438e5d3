//! The pairs of a session, and how far each has come.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::punch::candidate::{Candidate, MAX_CANDIDATES, PairKey, Transport};

/// The most pairs; more bases than four are of no use.
const MAX_PAIRS: usize = 4 * MAX_CANDIDATES;
/// Asks of a pair that may still be answered.
const MAX_OPEN_REQUESTS: usize = 16;

/// How far a pair has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PairProgress {
    /// It has not been shown to work.
    Trying,
    /// An ask was answered.
    Valid,
    /// It was to be taken, and the peer did not agree in time; or its connection ended.
    Failed,
}

/// Where a pair's TCP connection is. Of UDP always [`Stream::NoConnection`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TcpPairState {
    None,
    Dialing,
    Open,
}

/// One pair.
#[derive(Debug)]
pub(super) struct CandidatePair {
    pub(super) key: PairKey,
    pub(super) priority: u64,
    /// The peer offered it: it may be probed unasked.
    pub(super) offered: bool,
    pub(super) progress: PairProgress,
    pub(super) stream: TcpPairState,
    /// First probes or dials.
    pub(super) tries: u32,
    /// When the first of them went.
    pub(super) first_tried: Option<Instant>,
    /// When the next of them is due; of a connection: when it must have worked.
    pub(super) next_due: Instant,
    /// Asks without an answer: their numbers, and when they went.
    open_requests: Vec<(u64, Instant)>,
    pub(super) rtt: Option<Duration>,
}

impl CandidatePair {
    pub(super) fn record_request(&mut self, number: u64, now: Instant) {
        if self.open_requests.len() == MAX_OPEN_REQUESTS {
            self.open_requests.remove(0);
        }
        self.open_requests.push((number, now));
    }

    /// Whether this answers an ask of this very pair (RFC 8445 section 7.2.5.2.1: an answer from elsewhere is none).
    pub(super) fn take_response(&mut self, number: u64, now: Instant) -> bool {
        let Some(at) = self
            .open_requests
            .iter()
            .position(|(requested, _)| *requested == number)
        else {
            return false;
        };
        let (_, sent) = self.open_requests.remove(at);
        self.rtt = Some(now.saturating_duration_since(sent));
        if self.progress == PairProgress::Trying {
            self.progress = PairProgress::Valid;
        }
        true
    }

    /// Whether an ask of that number is open.
    pub(super) fn awaits_response(&self, number: u64) -> bool {
        self.open_requests
            .iter()
            .any(|(requested, _)| *requested == number)
    }

    /// One socket may have several candidates: the best counts.
    fn mark_offered(&mut self, priority: u64) {
        self.priority = if self.offered {
            self.priority.max(priority)
        } else {
            priority
        };
        self.offered = true;
    }

    /// Whether it may still be probed or dialled unasked. `again`: also where it has worked, over UDP.
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

    /// First probes and dials to an IP address, whatever the port.
    pub(super) fn tries_at(&self, ip: IpAddr) -> u32 {
        self.all
            .iter()
            .filter(|pair| pair.key.remote.ip() == ip)
            .map(|pair| pair.tries)
            .sum()
    }

    /// Forgets a pair that the peer has not offered and that has not been shown to work: room for others.
    pub(super) fn forget_unproven(&mut self, key: &PairKey) {
        self.all.retain(|pair| {
            pair.key != *key || pair.offered || pair.progress != PairProgress::Trying
        });
    }

    /// The best that works.
    pub(super) fn best_valid(&self) -> Option<&CandidatePair> {
        self.all
            .iter()
            .find(|pair| pair.progress == PairProgress::Valid)
    }

    /// Notes a pair; one that was found out before it was offered is worth what the offer says. `false`: there are too many.
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
        self.all
            .sort_by(|a, b| b.priority.cmp(&a.priority).then(a.key.cmp(&b.key)));
        true
    }

    /// Pairs that were found out have a limit of their own, so that a flood of them leaves room for offers.
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
        first_tried: None,
        next_due: now,
        open_requests: Vec::new(),
        rtt: None,
    }
}

/// A candidate of one's own, and the socket behind it.
#[derive(Debug, Clone, Copy)]
pub(super) struct LocalCandidate {
    pub(super) candidate: Candidate,
    pub(super) base: SocketAddr,
}

/// The best priority among a base's candidates.
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
