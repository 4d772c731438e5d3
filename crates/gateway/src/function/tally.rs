//! Counters of one function, which every thread adds to without a lock.
//!
//! A call to another node passes two gateways. The one that the caller has called counts it as
//! received, the other one as a call from a node. So counters of received calls add up over all
//! nodes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nearpath_types::Reason;
use tokio::sync::Notify;

/// Upper bounds of the histogram buckets, in microseconds. One more bucket has no bound.
pub(crate) const BUCKET_BOUNDS_US: [u64; 16] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
];
const BUCKET_COUNT: usize = BUCKET_BOUNDS_US.len() + 1;
const MIN_STATUS: u16 = 100;
const STATUS_COUNT: usize = 500;
/// Codes of a class (RFC 9110 section 15).
const CLASS_CODES: usize = 100;

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

/// Notification of a function's next request. Without a listener, a request costs one read.
#[derive(Debug, Default)]
struct RequestAlarm {
    is_armed: AtomicBool,
    listener: OnceLock<Arc<Notify>>,
}

impl RequestAlarm {
    /// Arms the alarm. All calls must have the same listener.
    fn arm(&self, listener: &Arc<Notify>) {
        self.listener.get_or_init(|| listener.clone());
        self.is_armed.store(true, Ordering::SeqCst);
    }

    fn note_request(&self) {
        // Pairs with `arm`, see `RequestTally::note_start`. The read alone keeps the cache line shared.
        if self.is_armed.load(Ordering::SeqCst) && self.is_armed.swap(false, Ordering::SeqCst) {
            self.listener
                .get()
                .into_iter()
                .for_each(|one| one.notify_one());
        }
    }
}

/// Origin of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallOrigin {
    /// Client, or instance of this node.
    Caller,
    /// Another node, which a caller has called.
    Node,
}

/// Completed calls by status, without their times.
#[derive(Debug)]
pub(crate) struct StatusCounts(Box<[AtomicU64]>);

impl Default for StatusCounts {
    fn default() -> Self {
        Self((0..STATUS_COUNT).map(|_| AtomicU64::new(0)).collect())
    }
}

impl StatusCounts {
    /// Counts a call. Codes outside 100–599 count as the nearest valid one.
    pub(crate) fn count_status(&self, code: u16) {
        self.0[status_index(code)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the status codes that occurred, with their counts.
    pub(crate) fn nonzero_counts(&self) -> impl Iterator<Item = (u16, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        (MIN_STATUS..).zip(counts).filter(|(_, count)| *count > 0)
    }
}

/// Returns the index of a status, or of the nearest valid one.
fn status_index(code: u16) -> usize {
    usize::from(code.saturating_sub(MIN_STATUS)).min(STATUS_COUNT - 1)
}

/// All counters of one function.
#[derive(Debug, Default)]
pub(crate) struct FunctionTally {
    received: RequestTally,
    from_nodes: RequestTally,
    // Created on first use: nearly all functions have no refusals, and a node knows thousands.
    refusals: OnceLock<Box<RefusalCounts>>,
    alarm: RequestAlarm,
}

impl FunctionTally {
    /// Counts a request that has arrived.
    pub(crate) fn note_start(&self, origin: CallOrigin) {
        self.of_origin(origin).note_start();
        self.alarm.note_request();
    }

    /// Notifies `listener` of the next request, once. A request that is counted before this call
    /// returns may notify it, too.
    pub(crate) fn notify_next_request(&self, listener: &Arc<Notify>) {
        self.alarm.arm(listener);
    }

    /// Counts a completed request. Codes outside 100–599 count as the nearest valid one.
    pub(crate) fn note_end(&self, origin: CallOrigin, code: u16, duration: Duration) {
        self.of_origin(origin).note_end(code, duration);
    }

    /// Counts a request that the platform refused, cut or lost.
    pub(crate) fn count_refusal(&self, reason: Reason) {
        let refusals = self.refusals.get_or_init(Box::default);
        refusals.count_refusal(reason);
    }

    fn of_origin(&self, origin: CallOrigin) -> &RequestTally {
        match origin {
            CallOrigin::Caller => &self.received,
            CallOrigin::Node => &self.from_nodes,
        }
    }

    /// Returns the counters of requests that callers have sent to this node.
    pub(crate) fn received(&self) -> &RequestTally {
        &self.received
    }

    /// Returns the counters of requests from other nodes, if there were any.
    pub(crate) fn node_requests(&self) -> Option<&RequestTally> {
        let tally = &self.from_nodes;
        (tally.started_count() > 0).then_some(tally)
    }

    /// Returns the requests that the platform refused, cut or lost, if there were any.
    pub(crate) fn refusals(&self) -> Option<&RefusalCounts> {
        self.refusals.get().map(|counts| &**counts)
    }

    /// Returns the requests of all origins that have arrived.
    pub(crate) fn started_count(&self) -> u64 {
        self.sum(RequestTally::started_count)
    }

    /// Returns the requests of all origins that have started and not ended.
    pub(crate) fn open_count(&self) -> u32 {
        let open = self.sum(|tally| u64::from(tally.open_count()));
        u32::try_from(open).unwrap_or(u32::MAX)
    }

    /// Returns the requests of all origins with a status below 400.
    pub(crate) fn answered_count(&self) -> u64 {
        self.sum(RequestTally::answered_count)
    }

    fn sum(&self, count: impl Fn(&RequestTally) -> u64) -> u64 {
        count(&self.received).saturating_add(count(&self.from_nodes))
    }
}

/// Histograms of the codes of one class: 100 of them, such as 200 to 299.
type ClassHistograms = [OnceLock<Box<LatencyHistogram>>; CLASS_CODES];

/// Counters of requests of one origin.
///
/// Classes and histograms are created on first use. A node knows thousands of functions and serves few
/// of them, a function sees a handful of codes, and a class has 1.6 KB.
#[derive(Debug, Default)]
pub(crate) struct RequestTally {
    started_count: AtomicU64,
    by_class: [OnceLock<Box<ClassHistograms>>; STATUS_COUNT / CLASS_CODES],
}

impl RequestTally {
    fn note_start(&self) {
        // Sequentially consistent with `RequestAlarm::arm`: a request either sees the alarm, or its
        // count is seen after the alarm was armed. On x86-64 it is the same instruction.
        self.started_count.fetch_add(1, Ordering::SeqCst);
    }

    fn note_end(&self, code: u16, duration: Duration) {
        let index = status_index(code);
        let class = self.by_class[index / CLASS_CODES]
            .get_or_init(|| Box::new([const { OnceLock::new() }; CLASS_CODES]));
        class[index % CLASS_CODES]
            .get_or_init(Box::default)
            .record_latency(duration);
    }

    /// Returns the requests that have arrived.
    pub(crate) fn started_count(&self) -> u64 {
        self.started_count.load(Ordering::SeqCst) // pairs with `note_start`
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

    fn answered_count(&self) -> u64 {
        let answered = self.by_status().take_while(|(status, _)| *status < 400);
        answered.map(|(_, times)| times.total_count()).sum()
    }

    /// Returns the status codes that occurred.
    pub(crate) fn by_status(&self) -> impl Iterator<Item = (u16, &LatencyHistogram)> {
        let classes = self
            .by_class
            .iter()
            .zip((MIN_STATUS..).step_by(CLASS_CODES));
        let known = classes.filter_map(|(class, first)| Some((class.get()?, first)));
        known.flat_map(|(class, first)| {
            let by_code = class.iter().zip(first..);
            by_code.filter_map(|(times, code)| Some((code, &**times.get()?)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_is_counted_once_in_its_bucket() {
        let tally = FunctionTally::default();
        tally.note_start(CallOrigin::Caller);
        tally.note_end(CallOrigin::Caller, 200, Duration::from_micros(500));
        tally.note_end(CallOrigin::Caller, 200, Duration::from_micros(501));
        tally.note_end(CallOrigin::Caller, 502, Duration::from_secs(61));
        let received = tally.received();
        let codes: Vec<_> = received
            .by_status()
            .map(|(code, times)| (code, times.total_count()))
            .collect();
        assert_eq!(codes, [(200, 2), (502, 1)]);
        let (_, ok) = received.by_status().next().unwrap();
        assert_eq!(ok.bucket_counts()[..2], [1, 1]);
        assert_eq!(
            received.by_status().last().unwrap().1.bucket_counts()[BUCKET_COUNT - 1],
            1
        );
        assert_eq!((received.started_count(), received.ended_count()), (1, 3));
    }

    #[test]
    fn calls_from_nodes_are_counted_apart_and_in_the_sums_of_this_machine() {
        let tally = FunctionTally::default();
        assert!(tally.node_requests().is_none());
        for origin in [CallOrigin::Caller, CallOrigin::Node, CallOrigin::Node] {
            tally.note_start(origin);
        }
        tally.note_end(CallOrigin::Node, 200, Duration::from_millis(1));
        assert_eq!((tally.started_count(), tally.open_count()), (3, 2));
        let from_nodes = tally.node_requests().unwrap();
        assert_eq!(
            (from_nodes.started_count(), from_nodes.ended_count()),
            (2, 1)
        );
        assert_eq!(tally.received().ended_count(), 0);
        tally.note_end(CallOrigin::Caller, 200, Duration::from_millis(1));
        assert_eq!((tally.answered_count(), tally.open_count()), (2, 1));
    }

    #[tokio::test]
    async fn an_armed_alarm_tells_of_one_request() {
        let (tally, listener) = (FunctionTally::default(), Arc::new(Notify::new()));
        let has_permit = || {
            let mut notified = std::pin::pin!(listener.notified());
            notified.as_mut().enable()
        };
        tally.note_start(CallOrigin::Caller);
        assert!(!has_permit(), "it was not armed");
        tally.notify_next_request(&listener);
        for origin in [CallOrigin::Node, CallOrigin::Caller] {
            tally.note_start(origin);
        }
        assert!(has_permit());
        tally.note_start(CallOrigin::Caller);
        assert!(!has_permit(), "it is armed for one request");
        assert_eq!(tally.started_count(), 4);
    }

    #[test]
    fn statuses_are_counted() {
        let counts = StatusCounts::default();
        for code in [200, 200, 0, 999] {
            counts.count_status(code);
        }
        let found: Vec<_> = counts.nonzero_counts().collect();
        assert_eq!(found, [(100, 1), (200, 2), (599, 1)]);
    }

    #[test]
    fn a_strange_code_does_no_harm() {
        let tally = FunctionTally::default();
        tally.note_end(CallOrigin::Caller, 0, Duration::ZERO);
        tally.note_end(CallOrigin::Caller, u16::MAX, Duration::MAX);
        assert_eq!(
            tally
                .received()
                .by_status()
                .map(|(code, _)| code)
                .collect::<Vec<_>>(),
            [100, 599]
        );
    }
}
