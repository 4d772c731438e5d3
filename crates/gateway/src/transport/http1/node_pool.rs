//! Idle connections of one thread to one other node. Without a socket: connections come and go.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::connection::ServerConnection;
use crate::function::DialTarget;

/// Maximum idle time. Shorter than that of the other node, which must not close a connection while a
/// request is on its way.
const MAX_IDLE_AGE: Duration = Duration::from_secs(30);
/// Maximum connections that are being opened.
const MAX_OPENING: usize = 8;
/// Time without further attempts after one that failed.
const OPEN_BACKOFF: Duration = Duration::from_secs(1);

/// Connections of one thread to one node.
pub(super) struct NodePool {
    pub(super) target: Arc<DialTarget>,
    /// Maximum connections of all threads.
    max_connections: usize,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    /// In the order in which they became idle.
    idle: Vec<IdleConnection>,
    opening: usize,
    /// End of the backoff after a failed attempt.
    opens_from: Option<Instant>,
    /// Number of this node's certificate. Connections of an earlier one are not kept.
    generation: u32,
}

struct IdleConnection {
    connection: ServerConnection,
    place: NodePlace,
    since: Instant,
}

/// Place of a connection in its pool, until this is dropped.
pub(super) struct NodePlace {
    target: Arc<DialTarget>,
    generation: u32,
}

/// Permission to open a connection. Without a connection, the attempt has failed.
pub(super) struct NodeOpening {
    pool: Arc<NodePool>,
    place: Option<NodePlace>,
}

impl NodePool {
    pub(super) fn new(target: &Arc<DialTarget>, max_connections: usize) -> Self {
        Self {
            target: target.clone(),
            max_connections,
            state: Mutex::default(),
        }
    }

    /// Takes the connection that was used last, if one can carry a request now.
    pub(super) fn take_idle(&self, now: Instant) -> Option<(ServerConnection, NodePlace)> {
        loop {
            let idle = self.lock_state().idle.pop()?;
            let age = now.saturating_duration_since(idle.since);
            let (mut connection, place) = (idle.connection, idle.place);
            if age < MAX_IDLE_AGE && connection.is_open_and_silent(age) {
                return Some((connection, place));
            }
        }
    }

    /// Begins to open a connection. `None`: there are enough, or the last attempt has just failed.
    pub(super) fn begin_opening(self: &Arc<Self>, now: Instant) -> Option<NodeOpening> {
        let mut state = self.lock_state();
        let is_backing_off = state.opens_from.is_some_and(|from| now < from);
        if is_backing_off || state.opening >= MAX_OPENING {
            return None;
        }
        if !self.target.add_kept_connection(self.max_connections) {
            return None;
        }
        state.opening += 1;
        let place = NodePlace {
            target: self.target.clone(),
            generation: state.generation,
        };
        Some(NodeOpening {
            pool: self.clone(),
            place: Some(place),
        })
    }

    /// Keeps a connection for another request.
    pub(super) fn put_idle(&self, connection: ServerConnection, place: NodePlace) {
        let mut state = self.lock_state();
        if place.generation == state.generation && !self.target.is_withdrawn() {
            state.idle.push(IdleConnection {
                connection,
                place,
                since: Instant::now(),
            });
        }
    }

    /// Closes connections that were idle for too long. Returns whether the pool is still needed.
    pub(super) fn sweep_idle(&self, now: Instant) -> bool {
        let is_withdrawn = self.target.is_withdrawn();
        let is_old = |idle: &mut IdleConnection| {
            is_withdrawn || now.saturating_duration_since(idle.since) >= MAX_IDLE_AGE
        };
        let old: Vec<_> = self.lock_state().idle.extract_if(.., is_old).collect();
        drop(old); // without the lock
        !is_withdrawn
    }

    /// Closes idle connections of this node's earlier certificate, and keeps none of it.
    pub(super) fn renew(&self) {
        let mut state = self.lock_state();
        state.generation = state.generation.wrapping_add(1);
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        drop(idle); // without the lock
    }

    fn lock_state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NodeOpening {
    /// Adds the connection to the pool.
    pub(super) fn complete(mut self, connection: ServerConnection) {
        if let Some(place) = self.place.take() {
            self.pool.put_idle(connection, place);
        }
    }
}

impl Drop for NodeOpening {
    fn drop(&mut self) {
        let has_failed = self.place.is_some();
        let mut state = self.pool.lock_state();
        state.opening -= 1;
        state.opens_from = has_failed.then(|| Instant::now() + OPEN_BACKOFF);
    }
}

impl Drop for NodePlace {
    fn drop(&mut self) {
        self.target.remove_kept_connection();
    }
}
