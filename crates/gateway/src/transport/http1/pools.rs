//! Pools of all instances whose own servers are called.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nearpath_types::FunctionServer;

use super::pooled_connection::PooledConnection;
use super::server_pool::ServerPool;
use crate::event_loop::Poller;
use crate::function::FunctionEndpoint;

/// Number of locks. Instances are spread over them.
const SHARD_COUNT: usize = 16;

/// Connections to functions' own servers.
#[derive(Default)]
pub(crate) struct LoopbackPools([Mutex<Shard>; SHARD_COUNT]);

/// Pools by [`FunctionEndpoint::serial`], which is never used again, unlike an instance's id.
type Shard = BTreeMap<u64, Arc<ServerPool>>;

impl LoopbackPools {
    /// Takes an idle connection. `None`: there is none that can carry a request now.
    pub(crate) fn take_idle(
        &self,
        endpoint: &Arc<FunctionEndpoint>,
        server: &Arc<FunctionServer>,
        poller: &Poller,
        now: Instant,
    ) -> Option<PooledConnection> {
        let pool = self.pool_of(endpoint, server);
        let (idle, idle_before) = pool.take_idle(poller, now)?;
        Some(PooledConnection::reused(idle, pool, idle_before))
    }

    /// Opens a connection. `None`: nothing could be sent, and the watchdog can tell why, or wait.
    pub(crate) async fn open(
        &self,
        endpoint: &Arc<FunctionEndpoint>,
        server: &Arc<FunctionServer>,
        poller: &Poller,
    ) -> Option<PooledConnection> {
        let pool = self.pool_of(endpoint, server);
        let (opened, unanswered) = pool.open(poller).await?;
        Some(PooledConnection::opened(opened, pool, unanswered))
    }

    /// Returns whether a kill for lack of memory may have ended a call that began then.
    pub(crate) fn was_killed_for_memory(
        &self,
        endpoint: &Arc<FunctionEndpoint>,
        server: &Arc<FunctionServer>,
        call_began: Instant,
    ) -> bool {
        let pool = self.pool_of(endpoint, server);
        pool.was_killed_for_memory(call_began)
    }

    /// Closes connections that were idle for too long, and all to withdrawn instances.
    pub(crate) fn sweep_idle(&self) {
        let now = Instant::now();
        for shard in &self.0 {
            let pools: Vec<_> = lock(shard).values().cloned().collect();
            if pools.into_iter().any(|pool| !pool.sweep_idle(now)) {
                lock(shard).retain(|_, pool| pool.sweep_idle(now));
            }
        }
    }

    /// Closes all idle connections, and keeps none from now on: a stopping instance waits for
    /// their end.
    pub(crate) fn close_idle(&self) {
        for shard in &self.0 {
            lock(shard).values().for_each(|pool| pool.close());
        }
    }

    fn pool_of(
        &self,
        endpoint: &Arc<FunctionEndpoint>,
        server: &Arc<FunctionServer>,
    ) -> Arc<ServerPool> {
        let index = usize::try_from(endpoint.target.serial).unwrap_or_default() % SHARD_COUNT;
        let mut shard = lock(&self.0[index]);
        let new = || Arc::new(ServerPool::new(endpoint, server));
        shard
            .entry(endpoint.target.serial)
            .or_insert_with(new)
            .clone()
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
