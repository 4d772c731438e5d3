//! Counters of one function, which every thread adds to without a lock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nearpath_types::Reason;

/// Upper bounds of the histogram buckets, in microseconds. One more bucket has no bound.
pub(crate) const BUCKET_BOUNDS_US: [u64; 16] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
];
const BUCKET_COUNT: usize = BUCKET_BOUNDS_US.len() + 1;
const MIN_STATUS: u16 = 100;
const STATUS_COUNT: usize = 500;

/// Latencies of requests that ended with one status.
#[derive(Debug, Default)]
pub(crate) struct LatencyHistogram {
    buckets: [AtomicU64; BUCKET_COUNT],
    sum_ns: AtomicU64,
}

impl LatencyHistogram {
    fn record_latency(&self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = BUCKET_BOUNDS_US.partition_point(|bound| *bound < us);
        // Relaxed in this file: counters are read by scrapes only and order nothing else.
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(
            u64::try_from(duration.as_nanos()).unwrap_or(0),
            Ordering::Relaxed,
        );
    }

    /// Returns the requests in each bucket, not cumulative.
    pub(crate) fn bucket_counts(&self) -> [u64; BUCKET_COUNT] {
        self.buckets
            .each_ref()
            .map(|bucket| bucket.load(Ordering::Relaxed))
    }

    /// Returns the sum of all latencies in seconds.
    pub(crate) fn sum_seconds(&self) -> f64 {
        Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)).as_secs_f64()
    }

    /// Returns the number of requests.
    pub(crate) fn total_count(&self) -> u64 {
        self.bucket_counts().iter().sum()
    }
}

/// Refused requests by reason.
#[derive(Debug)]
pub(crate) struct RefusalCounts([AtomicU64; Reason::ALL.len() + 1]);

impl Default for RefusalCounts {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; Reason::ALL.len() + 1])
    }
}

impl RefusalCounts {
    /// Counts a refusal.
    pub(crate) fn count_refusal(&self, reason: Reason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the reasons that occurred, with their counts.
    pub(crate) fn nonzero_counts(&self) -> impl Iterator<Item = (Reason, u64)> {
        let counts = Reason::ALL
            .iter()
            .map(|reason| (*reason, self.0[*reason as usize].load(Ordering::Relaxed)));
        counts.filter(|(_, count)| *count > 0)
    }
}

/// All counters of one function.
#[derive(Debug)]
pub(crate) struct FunctionTally {
    started_count: AtomicU64,
    // Created on first use: a function sees a handful of the 500 codes, and each histogram has
    // 144 bytes.
    by_status: Box<[OnceLock<Box<LatencyHistogram>>]>,
    /// Requests that the platform refused, cut or lost.
    pub refusals: RefusalCounts,
}

impl Default for FunctionTally {
    fn default() -> Self {
        let codes = (0..STATUS_COUNT).map(|_| OnceLock::new()).collect();
        Self {
            started_count: AtomicU64::new(0),
            by_status: codes,
            refusals: RefusalCounts::default(),
        }
    }
}

impl FunctionTally {
    /// Counts a received request.
    pub(crate) fn note_start(&self) {
        self.started_count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a completed request. Codes outside 100–599 count as the nearest valid one.
    pub(crate) fn note_end(&self, code: u16, duration: Duration) {
        let index = usize::from(code.saturating_sub(MIN_STATUS)).min(STATUS_COUNT - 1);
        self.by_status[index]
            .get_or_init(Box::default)
            .record_latency(duration);
    }

    /// Returns the received requests.
    pub(crate) fn started_count(&self) -> u64 {
        self.started_count.load(Ordering::Relaxed)
    }

    /// Returns the completed requests.
    pub(crate) fn ended_count(&self) -> u64 {
        self.by_status().map(|(_, times)| times.total_count()).sum()
    }

    /// Returns the requests that have started and not ended.
    pub(crate) fn open_count(&self) -> u32 {
        // Read first: a request that ends in between is counted as open, never as less than none.
        let ended = self.ended_count();
        u32::try_from(self.started_count().saturating_sub(ended)).unwrap_or(u32::MAX)
    }

    /// Returns the requests with a status below 400.
    pub(crate) fn answered_count(&self) -> u64 {
        let answered = self.by_status().take_while(|(status, _)| *status < 400);
        answered.map(|(_, times)| times.total_count()).sum()
    }

    /// Returns the status codes that occurred.
    pub(crate) fn by_status(&self) -> impl Iterator<Item = (u16, &LatencyHistogram)> {
        let by_code = self.by_status.iter().zip(MIN_STATUS..);
        by_code.filter_map(|(times, code)| times.get().map(|times| (code, &**times)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_is_counted_once_in_its_bucket() {
        let tally = FunctionTally::default();
        tally.note_start();
        tally.note_end(200, Duration::from_micros(500));
        tally.note_end(200, Duration::from_micros(501));
        tally.note_end(502, Duration::from_secs(61));
        let codes: Vec<_> = tally
            .by_status()
            .map(|(code, times)| (code, times.total_count()))
            .collect();
        assert_eq!(codes, [(200, 2), (502, 1)]);
        let (_, ok) = tally.by_status().next().unwrap();
        assert_eq!(ok.bucket_counts()[..2], [1, 1]);
        assert_eq!(
            tally.by_status().last().unwrap().1.bucket_counts()[BUCKET_COUNT - 1],
            1
        );
        assert_eq!((tally.started_count(), tally.ended_count()), (1, 3));
    }

    #[test]
    fn a_strange_code_does_no_harm() {
        let tally = FunctionTally::default();
        tally.note_end(0, Duration::ZERO);
        tally.note_end(u16::MAX, Duration::MAX);
        assert_eq!(
            tally.by_status().map(|(code, _)| code).collect::<Vec<_>>(),
            [100, 599]
        );
    }
}
