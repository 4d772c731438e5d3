//! What the pool writes down of each destination: for `nearpath pool ls`, and for metrics.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use crate::state::KeyFigures;

/// Of one [`Key`](crate::destination_of::Key).
#[derive(Debug, Default)]
pub struct DestinationCounters {
    /// Connections given that were open already.
    pub hits: Cell<u64>,
    /// Connections given that had to be opened.
    pub misses: Cell<u64>,
    /// Clients that waited for a place below the ceiling.
    pub waits: Cell<u64>,
    /// Clients that got no connection.
    pub refused: Cell<u64>,
    /// Connections that the destination did not take.
    pub failed: Cell<u64>,
    /// Warm connections found dead when they were to be handed out.
    pub stale: Cell<u64>,
    /// Connections cleaned for their next client.
    pub resets: Cell<u64>,
    /// Bytes to the destination.
    pub sent_bytes: Cell<u64>,
    /// Bytes from it.
    pub received_bytes: Cell<u64>,
    /// Calls for which no warm socket took the place of the function's own, by the reason: the way out carried them.
    pub pass_through: RefCell<BTreeMap<&'static str, u64>>,
    /// Of the connections given, those that took the place of a function's own.
    pub handed_over: Cell<u64>,
    /// Requests answered with what was kept of an earlier answer.
    pub cache_hits: Cell<u64>,
    /// Of those that the destination had to confirm first, answers that were still good.
    pub revalidated: Cell<u64>,
    /// Writes that were answered before they were done, and connections whose writes were taken so.
    pub early_writes: Cell<u64>,
    /// Of those, writes that failed.
    pub failed_writes: Cell<u64>,
    /// Failures that the function was told of.
    pub reported_failures: Cell<u64>,
    /// Reads that were issued when a call of the function arrived, and used.
    pub prefetch_used: Cell<u64>,
    /// Such reads that nobody asked for in time.
    pub prefetch_unused: Cell<u64>,
    /// Connections given that began with a window which their path had borne.
    pub windows_opened: Cell<u64>,
    /// Clients that had to keep a connection, by the reason.
    pub pins: RefCell<BTreeMap<&'static str, u64>>,
}

impl DestinationCounters {
    /// One more.
    pub fn increase(counter: &Cell<u64>, more: u64) {
        counter.set(counter.get() + more);
    }

    /// A warm socket took the place of a function's own.
    pub fn count_handed_over(&self) {
        Self::increase(&self.handed_over, 1); // what it hit the stock has counted
    }

    /// None did.
    pub fn count_pass_through(&self, why: &'static str) {
        *self.pass_through.borrow_mut().entry(why).or_default() += 1;
    }

    /// What the stock counted of a key that it forgets.
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

    /// A client keeps its connection until it leaves.
    pub fn count_pin(&self, why: &'static str) {
        *self.pins.borrow_mut().entry(why).or_default() += 1;
    }
}
