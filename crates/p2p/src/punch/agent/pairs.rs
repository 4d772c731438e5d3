//! The pairs of a session, and how far each has come.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::punch::candidate::{Candidate, Key, MOST, Transport};

/// The most pairs; more bases than four are of no use.
const MOST_PAIRS: usize = 4 * MOST;
/// Asks of a pair that may still be answered.
const OPEN_ASKS: usize = 16;

/// How far a pair has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// It has not been shown to work.
    Trying,
    /// An ask was answered.
    Valid,
    /// It was to be taken, and the peer did not agree in time; or its connection ended.
    Failed,
}

/// Where a pair's TCP connection is. Of UDP always [`Stream::None`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    None,
    Dialling,
    Open,
}

/// One pair.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) key: Key,
    pub(super) priority: u64,
    /// The peer offered it: it may be probed unasked.
    pub(super) offered: bool,
    pub(super) progress: Progress,
    pub(super) stream: Stream,
    /// First probes or dials.
    pub(super) tries: u32,
    /// When the first of them went.
    pub(super) tried: Option<Instant>,
    /// When the next of them is due; of a connection: when it must have worked.
    pub(super) next: Instant,
    /// Asks without an answer: their numbers, and when they went.
    asks: Vec<(u64, Instant)>,
    pub(super) rtt: Option<Duration>,
}

impl Pair {
    pub(super) fn asked(&mut self, number: u64, now: Instant) {
        if self.asks.len() == OPEN_ASKS {
            self.asks.remove(0);
        }
        self.asks.push((number, now));
    }

    /// Whether this answers an ask of this very pair (RFC 8445 section 7.2.5.2.1: an answer from elsewhere is none).
    pub(super) fn answered(&mut self, number: u64, now: Instant) -> bool {
        let Some(at) = self.asks.iter().position(|(asked, _)| *asked == number) else { return false };
        let (_, sent) = self.asks.remove(at);
        self.rtt = Some(now.saturating_duration_since(sent));
        if self.progress == Progress::Trying {
            self.progress = Progress::Valid;
        }
        true
    }

    /// Whether an ask of that number is open.
    pub(super) fn awaits(&self, number: u64) -> bool {
        self.asks.iter().any(|(asked, _)| *asked == number)
    }

    /// One socket may have several candidates: the best counts.
    fn offer(&mut self, priority: u64) {
        self.priority = if self.offered { self.priority.max(priority) } else { priority };
        self.offered = true;
    }

    /// Whether it may still be probed or dialled unasked. `again`: also where it has worked, over UDP.
    pub(super) fn is_open(&self, tries: u32, again: bool) -> bool {
        let wanted = match self.progress {
            Progress::Trying => self.offered,
            Progress::Valid => again && self.key.transport == Transport::Udp,
            Progress::Failed => false,
        };
        wanted && self.stream == Stream::None && self.tries < tries
    }
}

/// All pairs, the best first.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    all: Vec<Pair>,
}

impl Pairs {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Pair> {
        self.all.iter()
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Pair> {
        self.all.iter().find(|pair| pair.key == *key)
    }

    pub(super) fn get_mut(&mut self, key: &Key) -> Option<&mut Pair> {
        self.all.iter_mut().find(|pair| pair.key == *key)
    }

    /// First probes and dials to an IP address, whatever the port.
    pub(super) fn tries_at(&self, ip: IpAddr) -> u32 {
        self.all.iter().filter(|pair| pair.key.remote.ip() == ip).map(|pair| pair.tries).sum()
    }

    /// Forgets a pair that the peer has not offered and that has not been shown to work: room for others.
    pub(super) fn forget_stranger(&mut self, key: &Key) {
        self.all.retain(|pair| pair.key != *key || pair.offered || pair.progress != Progress::Trying);
    }

    /// The best that works.
    pub(super) fn best_valid(&self) -> Option<&Pair> {
        self.all.iter().find(|pair| pair.progress == Progress::Valid)
    }

    /// Notes a pair; one that was found out before it was offered is worth what the offer says. `false`: there are too many.
    pub(super) fn note(&mut self, key: Key, priority: u64, offered: bool, now: Instant) -> bool {
        match self.all.iter().position(|pair| pair.key == key) {
            Some(at) if offered => self.all[at].offer(priority),
            Some(_) => (),
            None if self.is_full(offered) => return false,
            None => self.all.push(new(key, priority, offered, now)),
        }
        self.all.sort_by(|a, b| b.priority.cmp(&a.priority).then(a.key.cmp(&b.key)));
        true
    }

    /// Pairs that were found out have a limit of their own, so that a flood of them leaves room for offers.
    fn is_full(&self, offered: bool) -> bool {
        let limit = if offered { MOST_PAIRS } else { MOST };
        self.all.iter().filter(|pair| pair.offered == offered).count() >= limit
    }
}

fn new(key: Key, priority: u64, offered: bool, now: Instant) -> Pair {
    let (progress, stream) = (Progress::Trying, Stream::None);
    Pair { key, priority, offered, progress, stream, tries: 0, tried: None, next: now, asks: Vec::new(), rtt: None }
}

/// A candidate of one's own, and the socket behind it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Local {
    pub(super) candidate: Candidate,
    pub(super) base: SocketAddr,
}

/// The best priority among a base's candidates.
pub(super) fn priority_of_base(locals: &[Local], transport: Transport, base: SocketAddr) -> Option<u32> {
    let of_base = |local: &&Local| local.base == base && local.candidate.transport == transport;
    locals.iter().filter(of_base).map(|local| local.candidate.priority).max()
}
