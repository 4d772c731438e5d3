//! What the jobs have sent through the rendezvous: a bucket each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::rate_limits::TokenBucket;
use nearpath_p2p::ticket::JobName;

/// The buckets of jobs that pass bytes, or have and are not paid for yet: who comes anew has no second burst.
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

    /// One user of a bucket is gone.
    pub(super) fn forget_paid(&self) {
        let now = Instant::now();
        let needed = |bucket: &Arc<Mutex<TokenBucket>>| {
            Arc::strong_count(bucket) > 1 || !lock_or_recover(bucket).is_paid(now)
        };
        lock_or_recover(&self.buckets).retain(|_, bucket| needed(bucket));
    }
}

pub(super) fn lock_or_recover<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
