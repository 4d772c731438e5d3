//! Counters of one side of an edge, read by the node without a system call or lock. Each side has
//! one writer.

use std::time::Duration;

use crate::shared::SharedRef;
use crate::sync::{AtomicU64, Ordering};

/// Bytes of the counters of one side.
pub const COUNTERS_BYTES: usize = 128;
/// Latency buckets: bucket k counts calls below 4^(k+1) µs; the last bucket takes the rest.
pub const LATENCY_BUCKETS: usize = 10;
// Layout of `contract/memory.md`: messages, bytes, answered, failed, in flight, buckets,
// microseconds.
const COUNTER_CELLS: usize = COUNTERS_BYTES / 8;
const FIRST_LATENCY_CELL: usize = 5;
const TOTAL_MICROS_CELL: usize = FIRST_LATENCY_CELL + LATENCY_BUCKETS;

/// Writer of one side. It keeps private copies, so that no other process can set the values back.
#[derive(Debug)]
pub struct SideCounters {
    cells: SharedRef<[AtomicU64]>,
    values: [u64; COUNTER_CELLS],
}

impl SideCounters {
    /// Wraps the 16 atomic words of this side.
    pub fn new(cells: SharedRef<[AtomicU64]>) -> Self {
        Self {
            cells,
            values: [0; COUNTER_CELLS],
        }
    }

    /// Counts a sent message.
    pub fn record_sent(&mut self, bytes: u32) {
        self.add_to(0, 1);
        self.add_to(1, u64::from(bytes));
    }

    /// Counts a call that was made (caller) or received (callee).
    pub fn record_opened(&mut self) {
        self.add_to(4, 1);
    }

    /// Counts the end of an open call after `took`.
    pub fn record_closed(&mut self, took: Duration, failed: bool) {
        self.add_to(2, 1);
        self.add_to(3, u64::from(failed));
        // Never below 0: the end of a call that was not counted must not show 2^64 − 1 open calls.
        self.add_to(4, 0u64.wrapping_sub(u64::from(self.values[4] > 0)));
        self.add_to(FIRST_LATENCY_CELL + latency_bucket(took), 1);
        self.add_to(TOTAL_MICROS_CELL, saturating_micros(took));
    }

    /// Returns the number of open calls.
    pub fn in_flight(&self) -> u64 {
        self.values[4]
    }

    fn add_to(&mut self, cell: usize, by: u64) {
        self.values[cell] = self.values[cell].wrapping_add(by);
        if let Some(shared) = self.cells.get(cell) {
            // A relaxed store suffices: this side is the only writer, and readers need no order
            // between counters.
            shared.store(self.values[cell], Ordering::Relaxed);
        }
    }
}

/// Snapshot of the counters of one side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CounterReading {
    /// Messages sent.
    pub messages: u64,
    /// Bytes of these messages, envelopes included.
    pub bytes: u64,
    /// Calls that ended.
    pub answered: u64,
    /// Calls that ended with a failure.
    pub failed: u64,
    /// Calls that are open.
    pub in_flight: u64,
    /// Latency histogram; see [`LATENCY_BUCKETS`].
    pub latency: [u64; LATENCY_BUCKETS],
    /// Total latency in microseconds.
    pub total_micros: u64,
}

impl CounterReading {
    /// Reads the 16 atomic words of one side.
    pub fn from_cells(cells: &[AtomicU64]) -> Self {
        let at = |cell: usize| {
            cells
                .get(cell)
                .map_or(0, |cell| cell.load(Ordering::Relaxed))
        };
        Self {
            messages: at(0),
            bytes: at(1),
            answered: at(2),
            failed: at(3),
            in_flight: at(4),
            latency: std::array::from_fn(|k| at(FIRST_LATENCY_CELL + k)),
            total_micros: at(TOTAL_MICROS_CELL),
        }
    }
}

/// Returns the bucket of a latency.
pub fn latency_bucket(took: Duration) -> usize {
    // Bucket limits are powers of 4, so two bits of the logarithm are one bucket: no loop on the
    // path of a call.
    ((u64::BITS - saturating_micros(took).leading_zeros()).saturating_sub(1) as usize / 2)
        .min(LATENCY_BUCKETS - 1)
}

fn saturating_micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_follow_sent_opened_and_closed_calls() {
        let cells = SharedRef::from_vec((0..COUNTER_CELLS).map(|_| AtomicU64::new(0)).collect());
        let mut counters = SideCounters::new(cells.clone());
        counters.record_sent(100);
        counters.record_opened();
        assert_eq!(CounterReading::from_cells(&cells).in_flight, 1);
        counters.record_closed(Duration::from_micros(16), true);
        let reading = CounterReading::from_cells(&cells);
        assert_eq!((reading.answered, reading.total_micros), (1, 16));
        counters.record_closed(Duration::MAX, false);
        let reading = CounterReading::from_cells(&cells);
        assert_eq!(
            (
                reading.messages,
                reading.bytes,
                reading.answered,
                reading.failed
            ),
            (1, 100, 2, 1)
        );
        assert_eq!(reading.in_flight, 0, "never below none");
        assert_eq!((reading.latency[2], reading.latency[9]), (1, 1));
    }

    #[test]
    fn a_latency_bucket_ends_at_a_power_of_four() {
        for k in 0..LATENCY_BUCKETS - 1 {
            let end = Duration::from_micros(4u64.pow(k as u32 + 1));
            assert_eq!(
                (
                    latency_bucket(end - Duration::from_nanos(1)),
                    latency_bucket(end)
                ),
                (k, k + 1)
            );
        }
    }
}
