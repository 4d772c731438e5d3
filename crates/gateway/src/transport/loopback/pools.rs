//! Idle connections to functions' own servers, shared by all threads.
//!
//! A server may handle one connection at a time (Python's `HTTPServer`). An idle connection that
//! another thread cannot use would then block its requests. A connection stays registered with the
//! event loop of the thread that opened it; that thread takes it first, and ends after it
//! ([`EventLoop`]). For the same reason a busy connection ends at some age: the connections that
//! such a server has not accepted yet, the watchdog's among them, get their turn.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nearpath_types::FunctionServer;
use tokio::time::timeout;

use super::connection::ServerConnection;
use super::event_loop::EventLoop;
use super::unanswered::UnansweredConnections;
use crate::function::InstanceEndpoint;

/// Age at which an idle connection is closed, as in the watchdog. Servers close theirs after some
/// seconds, perhaps just when a request is sent, so this is far below.
const MAX_IDLE_AGE: Duration = Duration::from_millis(500);
/// Maximum idle connections of an instance.
const MAX_IDLE_CONNECTIONS: usize = 1024;
/// Maximum connections of an instance that are being opened. A simple server has a backlog of five,
/// and the kernel drops further ones.
const MAX_OPENING: u32 = 4;
/// Time limit of opening a connection. After it, the request goes to the watchdog, which waits
/// longer.
const OPEN_TIMEOUT: Duration = Duration::from_millis(50);
/// Number of locks. Instances are spread over them.
const SHARD_COUNT: usize = 16;

/// Idle connections of all instances.
#[derive(Default)]
pub(crate) struct LoopbackPools([Mutex<Shard>; SHARD_COUNT]);

/// Pools by the serial of their instance.
type Shard = HashMap<u64, ServerPool>;

struct ServerPool {
    endpoint: Arc<InstanceEndpoint>,
    /// In the order in which they became idle.
    idle: Vec<IdleConnection>,
    opening: u32,
    unanswered: UnansweredConnections,
    /// Kills for lack of memory that explain no later loss of a connection.
    oom_kills: Option<u64>,
}

/// Connection without a request, since this time.
struct IdleConnection(ServerConnection, Instant);

/// Connection that carries a request, with its pool.
pub(crate) struct PooledConnection {
    connection: ServerConnection,
    pools: Arc<LoopbackPools>,
    endpoint: Arc<InstanceEndpoint>,
    /// Until the first response.
    unanswered: Option<UnansweredMark>,
}

impl PooledConnection {
    /// Notes that the server has accepted the connection: it has answered.
    pub(super) fn note_response(&mut self) {
        self.unanswered = None;
    }

    /// Keeps the connection for another request, if nothing follows the response.
    pub(super) fn give_back(self) {
        // No request asked for further bytes: the next response would be taken from them.
        if self.connection.buffer.is_empty() {
            self.pools.put_idle(&self.endpoint, self.connection);
        }
    }
}

impl Deref for PooledConnection {
    type Target = ServerConnection;

    fn deref(&self) -> &ServerConnection {
        &self.connection
    }
}

impl DerefMut for PooledConnection {
    fn deref_mut(&mut self) -> &mut ServerConnection {
        &mut self.connection
    }
}

/// Permission to open a connection; ends when dropped.
struct OpeningPermit<'a> {
    pools: &'a LoopbackPools,
    serial: u64,
}

impl LoopbackPools {
    /// Takes an idle connection.
    pub(crate) fn take_connection(
        self: &Arc<Self>,
        endpoint: &Arc<InstanceEndpoint>,
        event_loop: &EventLoop,
    ) -> Option<PooledConnection> {
        let connection = self.take_idle(endpoint, event_loop)?;
        Some(self.lend(connection, endpoint, None))
    }

    /// Opens a connection. `None`: nothing could be sent, and the watchdog can tell why, or wait.
    pub(crate) async fn open_connection(
        self: &Arc<Self>,
        endpoint: &Arc<InstanceEndpoint>,
        server: &FunctionServer,
        event_loop: &EventLoop,
    ) -> Option<PooledConnection> {
        let _permit = self.begin_opening(endpoint, server)?;
        let opening = ServerConnection::open(server, event_loop);
        let opened = timeout(OPEN_TIMEOUT, opening).await.ok()?.ok()?;
        let unanswered = self.mark_unanswered(endpoint.serial);
        Some(self.lend(opened, endpoint, unanswered))
    }

    fn lend(
        self: &Arc<Self>,
        connection: ServerConnection,
        endpoint: &Arc<InstanceEndpoint>,
        unanswered: Option<UnansweredMark>,
    ) -> PooledConnection {
        PooledConnection {
            connection,
            pools: self.clone(),
            endpoint: endpoint.clone(),
            unanswered,
        }
    }

    /// `None` without a pool: the instance was withdrawn.
    fn mark_unanswered(self: &Arc<Self>, serial: u64) -> Option<UnansweredMark> {
        self.shard(serial)
            .get_mut(&serial)?
            .unanswered
            .add(Instant::now());
        Some(UnansweredMark {
            pools: self.clone(),
            serial,
        })
    }

    fn take_idle(
        &self,
        endpoint: &InstanceEndpoint,
        event_loop: &EventLoop,
    ) -> Option<ServerConnection> {
        let now = Instant::now();
        let mut shard = self.shard(endpoint.serial);
        let idle = &mut shard.get_mut(&endpoint.serial)?.idle;
        loop {
            let own = idle.iter().rposition(|one| one.0.is_watched_by(event_loop));
            let IdleConnection(connection, since) = idle.remove(own.or(idle.len().checked_sub(1))?);
            let is_young = now.saturating_duration_since(since) < MAX_IDLE_AGE;
            if is_young && connection.is_quiet() {
                return Some(connection);
            }
        }
    }

    fn begin_opening(
        &self,
        endpoint: &Arc<InstanceEndpoint>,
        server: &FunctionServer,
    ) -> Option<OpeningPermit<'_>> {
        let serial = endpoint.serial;
        let mut shard = self.shard(serial);
        let pool = shard
            .entry(serial)
            .or_insert_with(|| ServerPool::new(endpoint, server));
        if pool.opening >= MAX_OPENING {
            return None;
        }
        pool.opening += 1;
        Some(OpeningPermit {
            pools: self,
            serial,
        })
    }

    fn put_idle(&self, endpoint: &InstanceEndpoint, connection: ServerConnection) {
        let now = Instant::now();
        let mut shard = self.shard(endpoint.serial);
        // Without a pool the instance was withdrawn.
        if let Some(pool) = shard.get_mut(&endpoint.serial)
            && pool.idle.len() < MAX_IDLE_CONNECTIONS
            && connection.age_at(now) < pool.unanswered.max_age_of_others(now)
        {
            pool.idle.push(IdleConnection(connection, now));
        }
    }

    /// Closes connections that were idle for too long, and all to withdrawn instances.
    pub(crate) fn sweep_idle(&self) {
        let now = Instant::now();
        for shard in &self.0 {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.retain(|_, pool| {
                pool.idle
                    .retain(|one| now.saturating_duration_since(one.1) < MAX_IDLE_AGE);
                pool.endpoint.request_count().is_some() || pool.opening > 0
            });
        }
    }

    /// Closes all idle connections: a stopping instance waits for their end.
    pub(crate) fn close_idle(&self) {
        for shard in &self.0 {
            shard.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// Returns whether the kernel has killed a process of the instance since the last loss, or
    /// since its first connection.
    pub(crate) fn note_loss(&self, endpoint: &InstanceEndpoint, server: &FunctionServer) -> bool {
        let kills = server.network.oom_kills();
        let mut shard = self.shard(endpoint.serial);
        shard.get_mut(&endpoint.serial).is_some_and(|pool| {
            let before = std::mem::replace(&mut pool.oom_kills, kills);
            before.is_some() && kills > before
        })
    }

    fn shard(&self, serial: u64) -> MutexGuard<'_, Shard> {
        let index = usize::try_from(serial).unwrap_or_default() % SHARD_COUNT;
        self.0[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServerPool {
    fn new(endpoint: &Arc<InstanceEndpoint>, server: &FunctionServer) -> Self {
        Self {
            endpoint: endpoint.clone(),
            idle: Vec::new(),
            opening: 0,
            unanswered: UnansweredConnections::default(),
            oom_kills: server.network.oom_kills(),
        }
    }
}

/// A connection without a response yet, which its pool counts until this is dropped.
struct UnansweredMark {
    pools: Arc<LoopbackPools>,
    serial: u64,
}

impl Drop for UnansweredMark {
    fn drop(&mut self) {
        if let Some(pool) = self.pools.shard(self.serial).get_mut(&self.serial) {
            pool.unanswered.remove();
        }
    }
}

impl Drop for OpeningPermit<'_> {
    fn drop(&mut self) {
        if let Some(pool) = self.pools.shard(self.serial).get_mut(&self.serial) {
            // The pool may be a later one: the drain removes them all.
            pool.opening = pool.opening.saturating_sub(1);
        }
    }
}
