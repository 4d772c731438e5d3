//! Redis, Valkey and KeyDB: many short-lived functions share few connections.
//!
//! A client has a backend only while a reply is outstanding, or while the backend holds state of
//! the client: a transaction, a watch, a mode.
//!
//! Values are cached ([`cache`]) where the egress allows it, and writes are acknowledged early
//! ([`early_write`], [`pending_replies`]). [`command_effect`] lists which commands read and write
//! which keys.
//!
//! [`frame`] finds the ends of commands and replies, and [`session_effect`] lists what a command
//! changes on its connection. [`session`] is the state machine of one client. [`settings`] are the
//! parts of a connection that another one can repeat. [`backend`] sets up and cleans connections,
//! and [`relay`] moves the bytes.

mod attach;
pub mod backend;
pub mod cache;
pub mod command_effect;
mod early_write;
pub mod frame;
mod input;
mod pending_replies;
mod prefetch;
mod relay;
pub mod session;
pub mod session_effect;
pub mod settings;

use std::cell::{OnceCell, RefCell};
use std::io;
use std::rc::Rc;

use nearpath_types::egress::CacheLimit;
use tokio::net::TcpStream;

use crate::ClientContext;
use backend::RedisBackend;
use cache::RedisCache;
use command_effect::CommandEffect;
use nearpath_connpool::adapter_state::{AdapterState, IdleConnections};
use nearpath_connpool::destination::EgressDestination;
use nearpath_connpool::idle::IdlePool;
use prefetch::RedisPrefetch;
pub use prefetch::prefetch_reads;
use settings::{RedisIdentity, SettingReplies};

/// State of one destination, shared by all its clients.
struct RedisState {
    idle_pool: Rc<IdlePool<RedisIdentity, RedisBackend>>,
    setting_replies: RefCell<SettingReplies>,
    /// Cached values. `None`: caching is off.
    cache: Option<RefCell<RedisCache>>,
    /// Prefetched values. Empty: the egress declares no prefetch.
    prefetch: OnceCell<Rc<RedisPrefetch>>,
}

impl RedisState {
    /// Discards what a command may have changed.
    fn invalidate(&self, effect: &CommandEffect, db: Option<u32>) {
        if let Some(answers) = &self.cache {
            answers.borrow_mut().invalidate(effect, db);
        }
        if let Some(reads) = self.prefetch.get() {
            prefetch::invalidate(reads, effect);
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

fn state_of(context: &ClientContext) -> Rc<RedisState> {
    let state = context
        .upstream
        .adapters
        .state_of::<RedisState>(&context.upstream.destination);
    if !context.upstream.destination.egress.prefetch.is_empty() {
        // Learned reads outlive the instances of a function, so that a function scaled to zero can
        // prefetch at its first call.
        state.prefetch.get_or_init(|| {
            context
                .upstream
                .adapters
                .usage_memory(&context.upstream.destination)
        });
    }
    state
}

/// Serves one client until it closes.
///
/// # Errors
/// Fails when the client's connection breaks, or its backend's during use. Without a pool the
/// client would lose its connection, too.
pub async fn serve(client: TcpStream, context: ClientContext) -> io::Result<()> {
    let state = state_of(&context);
    let mut relay = relay::RedisRelay::new(client, context, state);
    let served = relay.run().await;
    // Runs after errors as well: a backend that is in order is cleaned and returned even when the
    // client failed.
    relay.finish().await;
    served
}
