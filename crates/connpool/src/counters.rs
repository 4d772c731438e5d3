//! Counters of each destination, for `nearpath pool ls` and for metrics.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::state::KeyFigures;

/// Counters of one [`PoolKey`](crate::destination::PoolKey).
#[derive(Debug, Default)]
pub struct DestinationCounters {
    /// Connections handed out that were open already.
    pub hits: Cell<u64>,
    /// Connections handed out that had to be opened.
    pub misses: Cell<u64>,
    /// Clients that waited for a slot below the limit.
    pub waits: Cell<u64>,
    /// Clients that got no connection.
    pub refused: Cell<u64>,
    /// Connections that the destination refused.
    pub failed: Cell<u64>,
    /// Warm connections found dead when they were to be handed out.
    pub stale: Cell<u64>,
    /// Connections reset for their next client.
    pub resets: Cell<u64>,
    /// Bytes sent to the destination.
    pub sent_bytes: Cell<u64>,
    /// Bytes received from the destination.
    pub received_bytes: Cell<u64>,
    /// Connects without a warm socket, by reason; the egress proxy carried these.
    pub pass_through: RefCell<BTreeMap<&'static str, u64>>,
    /// Connections handed out that replaced a function's own socket.
    pub handed_over: Cell<u64>,
    /// Requests answered from the cache.
    pub cache_hits: Cell<u64>,
    /// Cached answers that the destination confirmed as still valid.
    pub revalidated: Cell<u64>,
    /// Writes that were acknowledged before they were delivered, and connections with such writes.
    pub early_writes: Cell<u64>,
    /// Early writes that failed.
    pub failed_writes: Cell<u64>,
    /// Failed writes that were reported to the function.
    pub reported_failures: Cell<u64>,
    /// Prefetched reads that the function used.
    pub prefetch_used: Cell<u64>,
    /// Prefetched reads that expired unused.
    pub prefetch_unused: Cell<u64>,
    /// Connections handed out with an initial window learned from their path.
    pub windows_opened: Cell<u64>,
    /// Time of the last connect; `None` if its socket could not replace a function's own.
    pub connect_time: Cell<Option<Duration>>,
    /// Clients that had to keep one connection, by reason.
    pub pins: RefCell<BTreeMap<&'static str, u64>>,
}

impl DestinationCounters {
    /// Adds to a counter.
    pub fn increase(counter: &Cell<u64>, more: u64) {
        counter.set(counter.get() + more);
    }

    /// Counts a warm socket that replaced a function's own.
    pub fn count_handed_over(&self) {
        Self::increase(&self.handed_over, 1); // PoolState counts the hit itself
    }

    /// Counts a connect that was passed through to the egress proxy.
    pub fn count_pass_through(&self, why: &'static str) {
        *self.pass_through.borrow_mut().entry(why).or_default() += 1;
    }

    /// Adds the figures of a key that the pool state forgets.
    pub fn add_key_figures(&self, figures: &KeyFigures) {
        let KeyFigures {
            hits,
            misses,
            waits,
            refused,
            failed,
            stale,
            ..
        } = *figures;
        let cells = [
            &self.hits,
            &self.misses,
            &self.waits,
            &self.refused,
            &self.failed,
            &self.stale,
        ];
        cells
            .into_iter()
            .zip([hits, misses, waits, refused, failed, stale])
            .for_each(|(cell, more)| Self::increase(cell, more));
    }

    /// Counts a client that keeps its connection until it closes.
    pub fn count_pin(&self, why: &'static str) {
        *self.pins.borrow_mut().entry(why).or_default() += 1;
    }
}
