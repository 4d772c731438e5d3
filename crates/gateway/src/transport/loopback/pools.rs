//! Idle connections to functions' own servers, shared by all threads.
//!
//! A server may handle one connection at a time (Python's `HTTPServer`). An idle connection that
//! another thread cannot use would then block its requests. A connection stays registered with the
//! event loop of the thread that opened it; that thread takes it first, and ends after it
//! ([`EventLoop`]).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use nearpath_types::FunctionServer;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::connection::{ServerConnection, is_quiet};
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
/// Interval at which a thread that ends looks for connections that need it.
const UNUSED_POLL_INTERVAL: Duration = Duration::from_millis(10);
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
    /// Kills for lack of memory that explain no later loss of a connection.
    oom_kills: Option<u64>,
}

/// Event loop of a serving thread. Connections that it watches hold a clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct EventLoop(Arc<()>);

impl EventLoop {
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Waits until no connection needs this event loop any more.
    pub(crate) async fn wait_unused(&self) {
        while Arc::strong_count(&self.0) > 1 {
            tokio::time::sleep(UNUSED_POLL_INTERVAL).await;
        }
    }
}

/// Connection without a request.
pub(super) struct IdleConnection {
    pub(super) stream: TcpStream,
    /// Empty; kept for its memory.
    pub(super) buffer: BytesMut,
    pub(super) opened_by: EventLoop,
    pub(super) since: Instant,
}

/// Permission to open a connection; ends when dropped.
pub(super) struct OpeningPermit<'a> {
    pools: &'a LoopbackPools,
    serial: u64,
}

impl LoopbackPools {
    /// Takes an idle connection.
    pub(crate) fn take_connection(
        self: &Arc<Self>,
        endpoint: &Arc<InstanceEndpoint>,
        event_loop: &EventLoop,
    ) -> Option<ServerConnection> {
        let idle = self.take_idle(endpoint, event_loop)?;
        Some(ServerConnection::from_idle(idle, self, endpoint))
    }

    /// Opens a connection. `None`: nothing could be sent, and the watchdog can tell why, or wait.
    pub(crate) async fn open_connection(
        self: &Arc<Self>,
        endpoint: &Arc<InstanceEndpoint>,
        server: &FunctionServer,
        event_loop: &EventLoop,
    ) -> Option<ServerConnection> {
        let _permit = self.begin_opening(endpoint, server)?;
        let opening = ServerConnection::open(server, self, endpoint, event_loop);
        timeout(OPEN_TIMEOUT, opening).await.ok()?.ok()
    }

    fn take_idle(
        &self,
        endpoint: &InstanceEndpoint,
        event_loop: &EventLoop,
    ) -> Option<IdleConnection> {
        let now = Instant::now();
        let mut shard = self.shard(endpoint.serial);
        let idle = &mut shard.get_mut(&endpoint.serial)?.idle;
        loop {
            let own = idle.iter().rposition(|one| one.opened_by.is(event_loop));
            let connection = idle.remove(own.or(idle.len().checked_sub(1))?);
            let is_young = now.saturating_duration_since(connection.since) < MAX_IDLE_AGE;
            if is_young && is_quiet(&connection.stream) {
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

    pub(super) fn put_idle(&self, endpoint: &InstanceEndpoint, connection: IdleConnection) {
        let mut shard = self.shard(endpoint.serial);
        // Without a pool the instance was withdrawn.
        if let Some(pool) = shard.get_mut(&endpoint.serial)
            && pool.idle.len() < MAX_IDLE_CONNECTIONS
        {
            pool.idle.push(connection);
        }
    }

    /// Closes connections that were idle for too long, and all to withdrawn instances.
    pub(crate) fn sweep_idle(&self) {
        let now = Instant::now();
        for shard in &self.0 {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.retain(|_, pool| {
                pool.idle
                    .retain(|one| now.saturating_duration_since(one.since) < MAX_IDLE_AGE);
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
            oom_kills: server.network.oom_kills(),
        }
    }
}

impl Drop for OpeningPermit<'_> {
    fn drop(&mut self) {
        if let Some(pool) = self.pools.shard(self.serial).get_mut(&self.serial) {
            pool.opening -= 1;
        }
    }
}
