//! What the jobs have sent through the rendezvous: a bucket each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::rate_limits::Bucket;
use nearpath_p2p::ticket::Job;

/// The buckets of jobs that pass bytes, or have and are not paid for yet: who comes anew has no second burst.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    all: Mutex<HashMap<Job, Arc<Mutex<Bucket>>>>,
}

impl Jobs {
    pub(super) fn bucket_of(&self, job: &Job) -> Arc<Mutex<Bucket>> {
        lock(&self.all).entry(job.clone()).or_default().clone()
    }

    /// One user of a bucket is gone.
    pub(super) fn forget_paid(&self) {
        let now = Instant::now();
        let needed = |bucket: &Arc<Mutex<Bucket>>| Arc::strong_count(bucket) > 1 || !lock(bucket).is_full(now);
        lock(&self.all).retain(|_, bucket| needed(bucket));
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
