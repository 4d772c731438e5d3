//! The connections of one key.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use super::demand::Demand;
use super::types::{SocketId, Terms, Ticket};

/// What is open for one key, who waits for one of its connections, and how many are worth keeping.
#[derive(Debug)]
pub(super) struct Rack {
    pub(super) place: u64,
    pub(super) terms: Terms,
    pub(super) demand: Demand,
    /// Open for nobody yet, the oldest first.
    pub(super) warm: VecDeque<SocketId>,
    pub(super) connecting: BTreeSet<SocketId>,
    /// For whom connections are being opened, never more than those.
    pub(super) granted: BTreeSet<Ticket>,
    /// Connections in whatever state.
    pub(super) open: u32,
    /// Clients that wait, granted or not.
    pub(super) waiting: u32,
    /// When it is on the agenda.
    pub(super) due: Option<Instant>,
    pub(super) life: Life,
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
pub(super) enum Life {
    /// It is kept warm.
    Current,
    /// A newer one took its place: instances that still have it get new connections.
    Retired,
    /// Nobody may ask any more.
    Forgotten,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) key: super::KeyId,
    pub(super) state: State,
    /// Since when it is in this state.
    pub(super) since: Instant,
}

/// What a connection is to the stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Connecting,
    Warm,
    Out,
    /// Being closed, by order of the stock.
    Closing,
}

impl Rack {
    pub(super) fn new(now: Instant, place: u64, terms: Terms) -> Self {
        let demand = Demand::new(now, terms.warm, terms.idle);
        let (warm, connecting, granted) = (VecDeque::new(), BTreeSet::new(), BTreeSet::new());
        let (open, waiting, due, life) = (0, 0, None, Life::Current);
        let (hits, misses, waits, refused, failed, stale, wasted) = (0, 0, 0, 0, 0, 0, 0);
        Self {
            place,
            terms,
            demand,
            warm,
            connecting,
            granted,
            open,
            waiting,
            due,
            life,
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
    pub(super) fn spare(&self) -> usize {
        self.connecting.len().saturating_sub(self.granted.len())
    }

    /// How many more should be opened for nobody.
    pub(super) fn lacks(&mut self, now: Instant) -> usize {
        (self.demand.wanted(now) as usize).saturating_sub(self.warm.len() + self.spare())
    }

    /// When a warm one that was opened at `since` has been kept for long enough.
    pub(super) fn expiry(&self, since: Instant) -> Instant {
        since + self.terms.idle.min(self.terms.age)
    }
}
