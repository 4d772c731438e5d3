//! Counters of a declared edge: the calls that its caller's instances made by way of this gateway.
//!
//! Each serving thread counts in memory of its own, and holds a handle on it while a call is open. So a call
//! writes no cache line of another thread, not even a reference count.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nearpath_types::chain_status::{EdgeStatus, LatencyBucket};
use nearpath_types::frames::{CallTally, LATENCY_BUCKETS};

/// Parts of a tally. More serving threads share them, which costs time and no counts.
const MAX_PARTS: usize = 16;

/// Counters of one edge, a part for each serving thread that has served it.
#[derive(Debug, Default)]
pub(crate) struct EdgeTally {
    // Created on first use: most edges are served by few threads, or by none.
    parts: [OnceLock<Arc<EdgeCounters>>; MAX_PARTS],
}

/// Counters of one edge on one serving thread.
///
/// Aligned to two cache lines of 64 bytes, because processors prefetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct EdgeCounters {
    started: AtomicU64,
    failed: AtomicU64,
    micros: AtomicU64,
    request_bytes: AtomicU64,
    response_bytes: AtomicU64,
    /// Ended calls by latency, in the buckets of calls through shared memory.
    latency: [AtomicU64; LATENCY_BUCKETS],
}

/// A call that has ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndedCall {
    /// The callee failed, or there was no complete response.
    pub has_failed: bool,
    /// Time from the arrival of the request to the end of its response.
    pub took: Duration,
    /// Bytes of the request's body.
    pub request_bytes: u64,
    /// Bytes of the response's body.
    pub response_bytes: u64,
}

impl EdgeTally {
    /// Returns the counters for the calls of one serving thread.
    pub(crate) fn counters_of(&self, thread_number: usize) -> Arc<EdgeCounters> {
        let part = &self.parts[thread_number % MAX_PARTS];
        part.get_or_init(Arc::default).clone()
    }

    /// Returns the totals over all threads as a row without names; `None`: no call has used the edge yet.
    pub(crate) fn read_totals(&self) -> Option<EdgeStatus> {
        let parts = || self.parts.iter().filter_map(OnceLock::get);
        // Relaxed in this file: counters are read by reports only and order nothing else.
        let total = |counter: fn(&EdgeCounters) -> &AtomicU64| {
            let values = parts().map(|part| counter(part).load(Ordering::Relaxed));
            values.fold(0, u64::saturating_add)
        };
        // Ends before starts: a call that ends in between is in flight, never less than none.
        let latency = latency_totals(parts());
        let requests = latency.iter().map(|bucket| bucket.count).sum();
        let started = total(|part| &part.started);
        (started > 0).then(|| EdgeStatus {
            requests,
            // A failure is counted before its end, so a reader between the two would see one too many.
            failed: total(|part| &part.failed).min(requests),
            in_flight: started.saturating_sub(requests),
            call_bytes: total(|part| &part.request_bytes),
            answer_bytes: total(|part| &part.response_bytes),
            seconds: total(|part| &part.micros) as f64 / 1e6,
            latency,
            ..EdgeStatus::default()
        })
    }
}

fn latency_totals<'a>(parts: impl Iterator<Item = &'a Arc<EdgeCounters>>) -> Vec<LatencyBucket> {
    let mut counts = [0_u64; LATENCY_BUCKETS];
    for part in parts {
        for (sum, count) in counts.iter_mut().zip(&part.latency) {
            *sum += count.load(Ordering::Relaxed);
        }
    }
    let bucket = |(k, count)| LatencyBucket {
        below: CallTally::bucket_bound(k),
        count,
    };
    counts.into_iter().enumerate().map(bucket).collect()
}

impl EdgeCounters {
    /// Counts a call that has arrived.
    pub(crate) fn note_start(&self) {
        self.started.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts its end.
    pub(crate) fn note_end(&self, call: EndedCall) {
        let add = |counter: &AtomicU64, more| counter.fetch_add(more, Ordering::Relaxed);
        let micros = u64::try_from(call.took.as_micros()).unwrap_or(0);
        add(&self.micros, micros);
        add(&self.request_bytes, call.request_bytes);
        add(&self.response_bytes, call.response_bytes);
        if call.has_failed {
            add(&self.failed, 1);
        }
        // Last: the buckets are the number of ended calls, so a report has each one complete.
        add(&self.latency[CallTally::bucket_index(call.took)], 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(millis: u64, has_failed: bool) -> EndedCall {
        EndedCall {
            has_failed,
            took: Duration::from_millis(millis),
            request_bytes: 3,
            response_bytes: 5,
        }
    }

    #[test]
    fn an_edge_without_calls_has_no_row() {
        let tally = EdgeTally::default();
        assert!(tally.read_totals().is_none());
    }

    #[test]
    fn calls_of_all_threads_add_up() {
        let tally = EdgeTally::default();
        // The last one shares the part of thread 1.
        for thread in [0, 1, 1 + MAX_PARTS] {
            let counters = tally.counters_of(thread);
            counters.note_start();
            counters.note_start();
            counters.note_end(ended(2, thread == 1));
        }
        let row = tally.read_totals().unwrap();
        assert_eq!((row.requests, row.failed, row.in_flight), (3, 1, 3));
        assert_eq!((row.call_bytes, row.answer_bytes), (9, 15));
        assert_eq!((row.seconds * 1e3).round(), 6.0);
        let buckets = row.latency.iter().map(|bucket| bucket.count);
        assert_eq!(buckets.collect::<Vec<_>>(), [0, 0, 0, 0, 0, 3, 0, 0, 0, 0]);
        assert_eq!(row.latency[5].below, Some(0.004_096));
        assert_eq!(row.latency.last().unwrap().below, None);
    }

    #[test]
    fn threads_share_no_counters() {
        let tally = EdgeTally::default();
        let of = |thread| tally.counters_of(thread);
        assert!(Arc::ptr_eq(&of(3), &of(3)));
        assert!(!Arc::ptr_eq(&of(3), &of(4)));
    }
}
