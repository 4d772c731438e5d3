//! Learned reads and prefetched responses of one destination.

use std::cell::RefCell;

use bytes::Bytes;
use http::{HeaderMap, Response};
use tokio::task::JoinHandle;

use crate::prefetch::PrefetchCache;

/// Learned and prefetched reads of one destination.
pub(super) type HttpPrefetch = RefCell<PrefetchCache<HeaderMap, PrefetchedResponse>>;

/// A read that is in flight or done.
#[derive(Debug)]
pub(super) struct PrefetchedResponse {
    pub(super) headers: HeaderMap,
    pub(super) answer: JoinHandle<Option<Response<Bytes>>>,
}
