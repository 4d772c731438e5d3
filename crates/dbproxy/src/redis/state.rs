//! State of one destination, shared by all its clients.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use nearpath_connpool::adapter_state::{AdapterState, IdleConnections};
use nearpath_connpool::destination::EgressDestination;
use nearpath_connpool::idle::IdlePool;
use nearpath_types::egress::CacheLimit;

use super::backend::RedisBackend;
use super::cache::RedisCache;
use super::command_effect::CommandEffect;
use super::prefetched::RedisPrefetch;
use super::settings::{RedisIdentity, SettingReplies};
use crate::ClientContext;

/// The adapter's state of one destination.
pub(super) struct RedisState {
    pub(super) idle_pool: Rc<IdlePool<RedisIdentity, RedisBackend>>,
    pub(super) setting_replies: RefCell<SettingReplies>,
    /// Cached values. `None`: caching is off.
    pub(super) cache: Option<RefCell<RedisCache>>,
    /// Prefetched values. Empty: the egress declares no prefetch.
    pub(super) prefetch: OnceCell<Rc<RedisPrefetch>>,
}

impl RedisState {
    /// Discards what a command may have changed.
    pub(super) fn invalidate(&self, effect: &CommandEffect, db: Option<u32>) {
        if let Some(answers) = &self.cache {
            answers.borrow_mut().invalidate(effect, db);
        }
        if let Some(reads) = self.prefetch.get() {
            reads.invalidate(effect);
        }
    }
}

impl AdapterState for RedisState {
    fn for_destination(to: &EgressDestination) -> Self {
        let answers = match to.egress.cache {
            Some(CacheLimit::For(time)) => Some(RefCell::new(RedisCache::new(time))),
            _ => None,
        };
        Self {
            idle_pool: IdlePool::new(to),
            setting_replies: RefCell::default(),
            cache: answers,
            prefetch: OnceCell::new(),
        }
    }

    fn idle_connections(&self) -> Option<&dyn IdleConnections> {
        Some(&*self.idle_pool)
    }
}

/// Returns the adapter's state of the client's destination.
pub(super) fn state_of(context: &ClientContext) -> Rc<RedisState> {
    let upstream = &context.upstream;
    let state: Rc<RedisState> = upstream.adapters.state_of(&upstream.destination);
    if !upstream.destination.egress.prefetch.is_empty() {
        // Learned reads outlive the instances of a function, so that a function scaled to zero can
        // prefetch at its first call.
        state
            .prefetch
            .get_or_init(|| upstream.adapters.usage_memory(&upstream.destination));
    }
    state
}
