//! Byte rates of jobs: a token bucket each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::rate_limits::TokenBucket;
use nearpath_p2p::ticket::JobName;

/// Buckets of jobs that transfer bytes, or whose transfer is not paid yet: a returning job gets no
/// second burst.
#[derive(Debug, Default)]
pub(super) struct JobBuckets {
    buckets: Mutex<HashMap<JobName, Arc<Mutex<TokenBucket>>>>,
}

impl JobBuckets {
    pub(super) fn bucket_of(&self, job: &JobName) -> Arc<Mutex<TokenBucket>> {
        lock_or_recover(&self.buckets)
            .entry(job.clone())
            .or_default()
            .clone()
    }

    /// Removes paid buckets without a user; called when a user ends.
    pub(super) fn forget_paid(&self) {
        let now = Instant::now();
        // A count above one is another user's; this one drops its clone before it calls.
        let needed = |bucket: &Arc<Mutex<TokenBucket>>| {
            Arc::strong_count(bucket) > 1 || !lock_or_recover(bucket).is_paid(now)
        };
        lock_or_recover(&self.buckets).retain(|_, bucket| needed(bucket));
    }
}

pub(super) fn lock_or_recover<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic under the lock leaves counters that are still valid, so poisoning is ignored.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
