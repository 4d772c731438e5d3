//! How many bytes pass over a relay, or over a line.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::job_rates::lock;
use super::metrics::Ledger;
use super::rate_limits::Bucket;
use super::shared_state::Hall;
use nearpath_p2p::ticket::Job;

/// Measures them, and says when more may pass.
pub(super) struct Meter {
    hall: Arc<Hall>,
    own: Mutex<Bucket>,
    job: Option<Arc<Mutex<Bucket>>>,
    begun: Instant,
    /// Milliseconds from then to the last of them.
    last: AtomicU64,
}

impl Meter {
    pub(super) fn new(hall: Arc<Hall>, job: &Job) -> Self {
        let job = Some(hall.jobs.bucket_of(job));
        Self { hall, own: Mutex::default(), job, begun: Instant::now(), last: AtomicU64::new(0) }
    }

    /// So many bytes pass. How long to wait before more are read.
    pub(super) fn pass(&self, bytes: usize) -> Duration {
        let (bytes, now) = (bytes as u64, Instant::now());
        self.hall.ledger.relayed.fetch_add(bytes, Ordering::Relaxed);
        let millis = u64::try_from(now.duration_since(self.begun).as_millis()).unwrap_or(u64::MAX);
        self.last.store(millis, Ordering::Relaxed);
        let limits = &self.hall.limits;
        let spend = |bucket: &Mutex<Bucket>, rate| lock(bucket).spend(bytes, rate, now);
        let own = limits.relay_rate.map(|rate| spend(&self.own, rate));
        let job = self.job.iter().zip(limits.job_rate).map(|(job, rate)| spend(job, rate)).next();
        let wait = own.max(job).unwrap_or_default();
        if !wait.is_zero() {
            Ledger::count(&self.hall.ledger.throttled);
        }
        wait
    }

    /// So long a relay may be idle.
    pub(super) fn idle(&self) -> Duration {
        self.hall.limits.relay_idle
    }

    /// Whether it was.
    pub(super) fn is_idle(&self) -> bool {
        let last = self.begun + Duration::from_millis(self.last.load(Ordering::Relaxed));
        last.elapsed() >= self.idle()
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.job = None;
        self.hall.jobs.forget_paid();
    }
}
