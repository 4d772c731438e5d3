//! Redis (and Valkey, KeyDB): a client has a backend only while a reply is outstanding, or something of its own is in the backend: a transaction, a watch,
//! a mode. Many short-lived functions so share few connections.
//!
//! Where egress says so, values are kept ([`cache`]) and writes are answered before they are done ([`early_write`]); [`command_effect`] knows which commands read and
//! write what.
//!
//! [`frame`] finds where commands and replies end, [`session_effect`] knows what a command leaves on its connection, [`session`] is the state machine of one
//! client, [`settings`] what of a connection can be made again on another one, [`backend`] makes and cleans them, and [`handle_backend`] moves the bytes.

mod attach;
pub mod backend;
pub mod cache;
pub mod command_effect;
mod early_write;
pub mod frame;
mod input;
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

/// What is kept from one client to the next.
struct RedisState {
    idle_pool: Rc<IdlePool<RedisIdentity, RedisBackend>>,
    setting_replies: RefCell<SettingReplies>,
    /// Values; `NoConnection`: none are kept.
    cache: Option<RefCell<RedisCache>>,
    /// Reads that are issued ahead; empty: none are.
    prefetch: OnceCell<Rc<RedisPrefetch>>,
}

impl RedisState {
    /// Something was written, or may have been.
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

fn state_of(visit: &ClientContext) -> Rc<RedisState> {
    let house = visit
        .upstream
        .adapters
        .state_of::<RedisState>(&visit.upstream.destination);
    if !visit.upstream.destination.egress.prefetch.is_empty() {
        house.prefetch.get_or_init(|| {
            visit
                .upstream
                .adapters
                .usage_memory(&visit.upstream.destination)
        });
    }
    house
}

/// Serves one client until it leaves.
///
/// # Errors
/// When its connection breaks, or its backend's while it is in use: the client has lost its connection then, as it would have without the pool.
pub async fn serve(client: TcpStream, visit: ClientContext) -> io::Result<()> {
    let house = state_of(&visit);
    let mut relay = relay::RedisRelay::new(client, visit, house);
    let served = relay.run().await;
    relay.finish().await;
    served
}
