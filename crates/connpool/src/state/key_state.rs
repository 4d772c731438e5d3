//! The connections of one key.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use super::demand::KeyDemand;
use super::types::{KeyTerms, SocketId, WaitTicket};

/// What is open for one key, who waits for one of its connections, and how many are worth keeping.
#[derive(Debug)]
pub(super) struct KeyState {
    pub(super) group: u64,
    pub(super) terms: KeyTerms,
    pub(super) demand: KeyDemand,
    /// Open for nobody yet, the oldest first.
    pub(super) warm: VecDeque<SocketId>,
    pub(super) connecting: BTreeSet<SocketId>,
    /// For whom connections are being opened, never more than those.
    pub(super) granted: BTreeSet<WaitTicket>,
    /// Connections in whatever state.
    pub(super) open: u32,
    /// Clients that wait, granted or not.
    pub(super) waiting: u32,
    /// When it is on the agenda.
    pub(super) review_at: Option<Instant>,
    pub(super) lifecycle: KeyLifecycle,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) waits: u64,
    pub(super) refused: u64,
    pub(super) failed: u64,
    pub(super) stale: u64,
    pub(super) wasted: u64,
}

/// How much longer a key is of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum KeyLifecycle {
    /// It is kept warm.
    Current,
    /// A newer one took its place: instances that still have it get new connections.
    Retired,
    /// Nobody may ask any more.
    Forgotten,
}

/// One connection.
#[derive(Debug)]
pub(super) struct SocketRecord {
    pub(super) key: super::KeyId,
    pub(super) phase: SocketPhase,
    /// Since when it is in this state.
    pub(super) since: Instant,
}

/// What a connection is to the stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SocketPhase {
    Connecting,
    Warm,
    InUse,
    /// Being closed, by order of the stock.
    Closing,
}

impl KeyState {
    pub(super) fn new(now: Instant, group: u64, terms: KeyTerms) -> Self {
        let demand = KeyDemand::new(now, terms.warm, terms.idle);
        let (warm, connecting, granted) = (VecDeque::new(), BTreeSet::new(), BTreeSet::new());
        let (open, waiting, review_at, lifecycle) = (0, 0, None, KeyLifecycle::Current);
        let (hits, misses, waits, refused, failed, stale, wasted) = (0, 0, 0, 0, 0, 0, 0);
        Self {
            group,
            terms,
            demand,
            warm,
            connecting,
            granted,
            open,
            waiting,
            review_at,
            lifecycle,
            hits,
            misses,
            waits,
            refused,
            failed,
            stale,
            wasted,
        }
    }

    /// Connections being opened for nobody.
    pub(super) fn unassigned_connects(&self) -> usize {
        self.connecting.len().saturating_sub(self.granted.len())
    }

    /// How many more should be opened for nobody.
    pub(super) fn missing_warm(&mut self, now: Instant) -> usize {
        (self.demand.wanted_warm(now) as usize)
            .saturating_sub(self.warm.len() + self.unassigned_connects())
    }

    /// When a warm one that was opened at `since` has been kept for long enough.
    pub(super) fn expires_at(&self, since: Instant) -> Instant {
        since + self.terms.idle.min(self.terms.age)
    }
}
