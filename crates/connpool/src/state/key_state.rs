//! State of one key and of its connections.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use super::demand::KeyDemand;
use super::types::{KeyTerms, SocketId, WaitTicket};

/// Connections of one key, its waiting clients and its demand.
#[derive(Debug)]
pub(super) struct KeyState {
    pub(super) group: u64,
    pub(super) terms: KeyTerms,
    pub(super) demand: KeyDemand,
    /// Open and unused, the oldest first.
    pub(super) warm: VecDeque<SocketId>,
    pub(super) connecting: BTreeSet<SocketId>,
    /// Waiters for which a connect is running; never more than connects.
    pub(super) granted: BTreeSet<WaitTicket>,
    /// Connections in any phase.
    pub(super) open: u32,
    /// Waiting clients, granted or not.
    pub(super) waiting: u32,
    /// Time of its entry in the timer queue.
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

/// Phases of a key, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum KeyLifecycle {
    /// Connections are kept warm.
    Current,
    /// Replaced by a newer epoch: remaining instances get new connections.
    Retired,
    /// No instance is left, so every request is refused.
    Forgotten,
}

/// A connection.
#[derive(Debug)]
pub(super) struct SocketRecord {
    pub(super) key: super::KeyId,
    pub(super) phase: SocketPhase,
    /// Start of the current phase.
    pub(super) since: Instant,
}

/// Phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SocketPhase {
    Connecting,
    Warm,
    InUse,
    /// Being closed at the request of the state machine.
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

    /// Returns the connects that no waiter has been granted.
    pub(super) fn unassigned_connects(&self) -> usize {
        self.connecting.len().saturating_sub(self.granted.len())
    }

    /// Returns how many more connections should be opened ahead of use.
    pub(super) fn missing_warm(&mut self, now: Instant) -> usize {
        (self.demand.wanted_warm(now) as usize)
            .saturating_sub(self.warm.len() + self.unassigned_connects())
    }

    /// Returns when a warm connection that was opened at `since` expires.
    pub(super) fn expires_at(&self, since: Instant) -> Instant {
        since + self.terms.idle.min(self.terms.age)
    }
}
