//! What this instance counted of its direct calls to one function, until the node is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use nearpath_types::FunctionId;
use nearpath_types::frames::{BUCKETS, Tally};
use tokio::sync::Notify;

/// Shared with the calls, whose answers may end on any thread.
#[derive(Debug)]
pub(super) struct Counters {
    callee: FunctionId,
    open: AtomicU32,
    ended: AtomicU32,
    failed: AtomicU32,
    micros: AtomicU64,
    latency: [AtomicU32; BUCKETS],
    news: Arc<News>,
}

/// Who waits for calls.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Rung when a call begins or ends.
    pub(super) changed: Notify,
    /// Rung when one ends.
    pub(super) ended: Notify,
}

/// One call: open until this is dropped, which is when its answer's body is.
#[derive(Debug)]
pub(crate) struct Counted {
    of: Arc<Counters>,
    began: Instant,
    outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Failed,
    Good,
    /// Somebody else counts it.
    Elsewhere,
}

impl Counters {
    pub(super) fn new(callee: FunctionId, news: Arc<News>) -> Self {
        let latency = Default::default();
        let (open, ended, failed, micros) = Default::default();
        Self { callee, open, ended, failed, micros, latency, news }
    }

    /// A call begins; it has failed unless it is said that it has not.
    pub(super) fn begin(self: &Arc<Self>) -> Counted {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.news.changed.notify_one();
        Counted { of: Arc::clone(self), began: Instant::now(), outcome: Outcome::Failed }
    }

    /// What is new since the last time.
    pub(super) fn take(&self) -> Tally {
        let take = |number: &AtomicU32| number.swap(0, Ordering::Relaxed);
        Tally {
            callee: self.callee.clone(),
            open: self.open.load(Ordering::Relaxed),
            ended: take(&self.ended),
            failed: take(&self.failed),
            micros: self.micros.swap(0, Ordering::Relaxed),
            latency: std::array::from_fn(|k| take(&self.latency[k])),
        }
    }

    /// Nothing is open, and all was told.
    pub(super) fn is_settled(&self) -> bool {
        self.is_idle() && self.ended.load(Ordering::Relaxed) == 0
    }

    pub(super) fn is_idle(&self) -> bool {
        self.open.load(Ordering::Relaxed) == 0
    }
}

impl Counted {
    /// It was answered with this status.
    pub(crate) fn answered(&mut self, status: u16) {
        self.outcome = if status < 500 { Outcome::Good } else { Outcome::Failed };
    }

    /// It went another way, and is counted there.
    pub(crate) fn elsewhere(mut self) {
        self.outcome = Outcome::Elsewhere;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let (of, took) = (&self.of, self.began.elapsed());
        if self.outcome != Outcome::Elsewhere {
            let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            of.micros.fetch_add(micros, Ordering::Relaxed);
            of.latency[Tally::bucket(took)].fetch_add(1, Ordering::Relaxed);
            of.failed.fetch_add((self.outcome == Outcome::Failed).into(), Ordering::Relaxed);
            of.ended.fetch_add(1, Ordering::Relaxed);
        }
        of.open.fetch_sub(1, Ordering::Relaxed);
        of.news.changed.notify_one();
        of.news.ended.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_is_told_once_and_by_one() {
        let counters = Arc::new(Counters::new("b".parse().unwrap(), Arc::default()));
        let [mut good, mut bad, lost, other] = [(); 4].map(|()| counters.begin());
        let tally = counters.take();
        assert_eq!((tally.open, tally.ended, tally.failed), (4, 0, 0));
        good.answered(404);
        bad.answered(502);
        other.elsewhere();
        drop((good, bad, lost));
        assert!(!counters.is_settled());
        let tally = counters.take();
        assert_eq!((tally.open, tally.ended, tally.failed, tally.latency.iter().sum::<u32>()), (0, 3, 2, 3));
        assert!(counters.is_settled());
        assert_eq!(counters.take(), Tally::of("b".parse().unwrap()));
    }
}
