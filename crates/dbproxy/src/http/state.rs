//! State of one destination, shared by all its clients.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use nearpath_connpool::adapter_state::{AdapterState, IdleConnections};
use nearpath_connpool::destination::EgressDestination;
use nearpath_connpool::idle::IdlePool;
use nearpath_types::egress::CacheLimit;

use super::backend::HttpBackend;
use super::cache::HttpCache;
use super::prefetched::HttpPrefetch;
use crate::ClientContext;

/// The adapter's state of one destination.
pub(super) struct HttpState {
    pub(super) idle_pool: Rc<IdlePool<(), HttpBackend>>,
    /// Stored responses. `None`: caching is off.
    pub(super) cache: Option<Rc<RefCell<HttpCache>>>,
    /// Prefetched responses. Empty: the egress declares no prefetch.
    pub(super) prefetch: OnceCell<Rc<HttpPrefetch>>,
}

impl AdapterState for HttpState {
    fn for_destination(to: &EgressDestination) -> Self {
        let cache = match to.egress.cache {
            Some(CacheLimit::Bytes(bound)) => Some(Rc::new(RefCell::new(HttpCache::new(bound)))),
            _ => None,
        };
        Self {
            idle_pool: IdlePool::new(to),
            cache,
            prefetch: OnceCell::new(),
        }
    }

    fn idle_connections(&self) -> Option<&dyn IdleConnections> {
        Some(&*self.idle_pool)
    }
}

/// Returns the adapter's state of the client's destination.
pub(super) fn state_of(context: &ClientContext) -> Rc<HttpState> {
    let upstream = &context.upstream;
    let state: Rc<HttpState> = upstream.adapters.state_of(&upstream.destination);
    if !upstream.destination.egress.prefetch.is_empty() {
        // Learned reads outlive the instances of a function, so that a function scaled to zero can
        // prefetch at its first call.
        state
            .prefetch
            .get_or_init(|| upstream.adapters.usage_memory(&upstream.destination));
    }
    state
}
