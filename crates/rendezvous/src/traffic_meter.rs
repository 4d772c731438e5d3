//! Byte counts and rates of a relay or control connection.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::job_rates::lock_or_recover;
use super::metrics::RendezvousMetrics;
use super::rate_limits::TokenBucket;
use super::shared_state::SharedState;
use nearpath_p2p::ticket::JobName;

/// Meter of one relay or control connection.
pub(super) struct TrafficMeter {
    shared: Arc<SharedState>,
    own_bucket: Mutex<TokenBucket>,
    job_bucket: Option<Arc<Mutex<TokenBucket>>>,
    started_at: Instant,
    /// Milliseconds from the start to the last byte.
    last_millis: AtomicU64,
}

impl TrafficMeter {
    pub(super) fn new(shared: Arc<SharedState>, job: &JobName) -> Self {
        let job_bucket = Some(shared.jobs.bucket_of(job));
        Self {
            shared,
            own_bucket: Mutex::default(),
            job_bucket,
            started_at: Instant::now(),
            last_millis: AtomicU64::new(0),
        }
    }

    /// Records bytes. Returns how long to wait before reading more.
    pub(super) fn record(&self, bytes: usize) -> Duration {
        let (bytes, now) = (bytes as u64, Instant::now());
        self.shared
            .metrics
            .relayed_bytes
            .fetch_add(bytes, Ordering::Relaxed);
        let millis =
            u64::try_from(now.duration_since(self.started_at).as_millis()).unwrap_or(u64::MAX);
        // Relaxed: both directions run in one task; the atomic only allows `&self`.
        self.last_millis.store(millis, Ordering::Relaxed);
        let limits = &self.shared.limits;
        let spend =
            |bucket: &Mutex<TokenBucket>, rate| lock_or_recover(bucket).spend(bytes, rate, now);
        // Both buckets are charged, whichever is the stricter one.
        let own = limits.relay_rate.map(|rate| spend(&self.own_bucket, rate));
        let job = self
            .job_bucket
            .iter()
            .zip(limits.job_rate)
            .map(|(job, rate)| spend(job, rate))
            .next();
        let wait = own.max(job).unwrap_or_default();
        if !wait.is_zero() {
            RendezvousMetrics::increment(&self.shared.metrics.throttled_reads);
        }
        wait
    }

    /// Returns the idle timeout of a relay.
    pub(super) fn idle_timeout(&self) -> Duration {
        self.shared.limits.relay_idle_timeout
    }

    /// Returns whether the idle timeout has passed.
    pub(super) fn is_idle(&self) -> bool {
        let last =
            self.started_at + Duration::from_millis(self.last_millis.load(Ordering::Relaxed));
        last.elapsed() >= self.idle_timeout()
    }
}

impl Drop for TrafficMeter {
    fn drop(&mut self) {
        // Dropped first: `forget_paid` counts the remaining users.
        self.job_bucket = None;
        self.shared.jobs.forget_paid();
    }
}
