//! What one side of an edge counts, for the node to read: no system call, no lock, one writer.

use std::time::Duration;

use crate::shared::Shared;
use crate::sync::{AtomicU64, Ordering};

/// Bytes of one side's counters.
pub const SIZE: usize = 128;
/// Buckets of the histogram: bucket k counts what took less than 4^(k+1) µs, the last one takes the rest.
pub const BUCKETS: usize = 10;
const CELLS: usize = SIZE / 8;
const LATENCY: usize = 5;
const MICROS: usize = LATENCY + BUCKETS;

/// The writer's side. It keeps the values privately, so that nobody else can set them back.
#[derive(Debug)]
pub struct Counters {
    cells: Shared<[AtomicU64]>,
    now: [u64; CELLS],
}

impl Counters {
    /// `cells` are the 16 words of this side.
    pub fn new(cells: Shared<[AtomicU64]>) -> Self {
        Self { cells, now: [0; CELLS] }
    }

    /// A message was sent.
    pub fn sent(&mut self, bytes: u32) {
        self.add(0, 1);
        self.add(1, u64::from(bytes));
    }

    /// A call was made (caller), or taken (callee), and is open now.
    pub fn opened(&mut self) {
        self.add(4, 1);
    }

    /// An open call came to its end after `took`.
    pub fn closed(&mut self, took: Duration, failed: bool) {
        self.add(2, 1);
        self.add(3, u64::from(failed));
        self.add(4, 0u64.wrapping_sub(u64::from(self.now[4] > 0)));
        self.add(LATENCY + bucket(took), 1);
        self.add(MICROS, micros(took));
    }

    /// Calls that are open.
    pub fn in_flight(&self) -> u64 {
        self.now[4]
    }

    fn add(&mut self, cell: usize, by: u64) {
        self.now[cell] = self.now[cell].wrapping_add(by);
        if let Some(shared) = self.cells.get(cell) {
            shared.store(self.now[cell], Ordering::Relaxed);
        }
    }
}

/// One side's counters as they are at this moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reading {
    /// Messages sent.
    pub messages: u64,
    /// Bytes of these messages, envelopes included.
    pub bytes: u64,
    /// Calls that came to an end.
    pub answered: u64,
    /// Of these, the failed ones.
    pub failed: u64,
    /// Calls that are open.
    pub in_flight: u64,
    /// How long calls took, see [`BUCKETS`].
    pub latency: [u64; BUCKETS],
    /// How long they took together, in microseconds.
    pub micros: u64,
}

impl Reading {
    /// Of the 16 words of one side.
    pub fn of(cells: &[AtomicU64]) -> Self {
        let at = |cell: usize| cells.get(cell).map_or(0, |cell| cell.load(Ordering::Relaxed));
        Self {
            messages: at(0),
            bytes: at(1),
            answered: at(2),
            failed: at(3),
            in_flight: at(4),
            latency: std::array::from_fn(|k| at(LATENCY + k)),
            micros: at(MICROS),
        }
    }
}

/// Which bucket a latency belongs to.
pub fn bucket(took: Duration) -> usize {
    ((u64::BITS - micros(took).leading_zeros()).saturating_sub(1) as usize / 2).min(BUCKETS - 1)
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        let cells = Shared::own((0..CELLS).map(|_| AtomicU64::new(0)).collect());
        let mut counters = Counters::new(cells.clone());
        counters.sent(100);
        counters.opened();
        assert_eq!(Reading::of(&cells).in_flight, 1);
        counters.closed(Duration::from_micros(16), true);
        let reading = Reading::of(&cells);
        assert_eq!((reading.answered, reading.micros), (1, 16));
        counters.closed(Duration::MAX, false);
        let reading = Reading::of(&cells);
        assert_eq!((reading.messages, reading.bytes, reading.answered, reading.failed), (1, 100, 2, 1));
        assert_eq!(reading.in_flight, 0, "never below none");
        assert_eq!((reading.latency[2], reading.latency[9]), (1, 1));
    }

    #[test]
    fn a_bucket_ends_at_a_power_of_four() {
        for k in 0..BUCKETS - 1 {
            let end = Duration::from_micros(4u64.pow(k as u32 + 1));
            assert_eq!((bucket(end - Duration::from_nanos(1)), bucket(end)), (k, k + 1));
        }
    }
}
