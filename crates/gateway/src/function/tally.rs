//! What one function did, in numbers that any thread adds to without a lock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nearpath_types::Reason;

/// Upper bounds of the histogram's buckets, in microseconds; one more bucket has no bound.
pub(crate) const BOUNDS_US: [u64; 16] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000, 30_000_000, 60_000_000,
];
const BUCKETS: usize = BOUNDS_US.len() + 1;
const LOWEST: u16 = 100;
const CODES: usize = 500;

/// How long requests took that ended with one status code.
#[derive(Debug, Default)]
pub(crate) struct Times {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Times {
    fn add(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.partition_point(|bound| *bound < us);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(0), Ordering::Relaxed);
    }

    /// Requests in each bucket, not summed up.
    pub(crate) fn buckets(&self) -> [u64; BUCKETS] {
        self.buckets.each_ref().map(|bucket| bucket.load(Ordering::Relaxed))
    }

    /// All of them together, in seconds.
    pub(crate) fn sum_seconds(&self) -> f64 {
        Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)).as_secs_f64()
    }

    /// How many.
    pub(crate) fn count(&self) -> u64 {
        self.buckets().iter().sum()
    }
}

/// Requests by reason of refusal.
#[derive(Debug, Default)]
pub(crate) struct Refusals([AtomicU64; Reason::ALL.len() + 1]);

impl Refusals {
    /// Counts one.
    pub(crate) fn add(&self, reason: Reason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Those that happened, with how often.
    pub(crate) fn seen(&self) -> impl Iterator<Item = (Reason, u64)> {
        let counts = Reason::ALL.iter().map(|reason| (*reason, self.0[*reason as usize].load(Ordering::Relaxed)));
        counts.filter(|(_, count)| *count > 0)
    }
}

/// Everything that is counted of one function.
#[derive(Debug)]
pub(crate) struct Tally {
    started: AtomicU64,
    codes: Box<[OnceLock<Box<Times>>]>,
    /// Requests that the platform refused, cut or lost.
    pub refused: Refusals,
}

impl Default for Tally {
    fn default() -> Self {
        let codes = (0..CODES).map(|_| OnceLock::new()).collect();
        Self { started: AtomicU64::new(0), codes, refused: Refusals::default() }
    }
}

impl Tally {
    /// A request came.
    pub(crate) fn start(&self) {
        self.started.fetch_add(1, Ordering::Relaxed);
    }

    /// A request ended. Codes outside 100–599 count as the nearest inside.
    pub(crate) fn end(&self, code: u16, took: Duration) {
        let index = usize::from(code.saturating_sub(LOWEST)).min(CODES - 1);
        self.codes[index].get_or_init(Box::default).add(took);
    }

    /// Requests that came.
    pub(crate) fn started(&self) -> u64 {
        self.started.load(Ordering::Relaxed)
    }

    /// Requests that ended.
    pub(crate) fn ended(&self) -> u64 {
        self.codes().map(|(_, times)| times.count()).sum()
    }

    /// The status codes that happened.
    pub(crate) fn codes(&self) -> impl Iterator<Item = (u16, &Times)> {
        let seen = self.codes.iter().zip(LOWEST..);
        seen.filter_map(|(times, code)| times.get().map(|times| (code, &**times)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_is_counted_once_in_its_bucket() {
        let tally = Tally::default();
        tally.start();
        tally.end(200, Duration::from_micros(500));
        tally.end(200, Duration::from_micros(501));
        tally.end(502, Duration::from_secs(61));
        let codes: Vec<_> = tally.codes().map(|(code, times)| (code, times.count())).collect();
        assert_eq!(codes, [(200, 2), (502, 1)]);
        let (_, ok) = tally.codes().next().unwrap();
        assert_eq!(ok.buckets()[..2], [1, 1]);
        assert_eq!(tally.codes().last().unwrap().1.buckets()[BUCKETS - 1], 1);
        assert_eq!((tally.started(), tally.ended()), (1, 3));
    }

    #[test]
    fn a_strange_code_does_no_harm() {
        let tally = Tally::default();
        tally.end(0, Duration::ZERO);
        tally.end(u16::MAX, Duration::MAX);
        assert_eq!(tally.codes().map(|(code, _)| code).collect::<Vec<_>>(), [100, 599]);
    }
}
