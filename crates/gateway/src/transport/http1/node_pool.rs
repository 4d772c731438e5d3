//! Connections of one thread to one other node: idle ones, and the sockets of all.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};

use super::connection::ServerConnection;
use crate::function::DialTarget;

/// Maximum idle time. Shorter than the default of the other node's `--idle-timeout` (75 s), so that it does
/// not close a connection while a request is on its way.
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
    /// Sockets of all connections, to end those to a node that is gone.
    sockets: BTreeMap<u64, OwnedFd>,
    next_socket: u64,
}

struct IdleConnection {
    connection: ServerConnection,
    counted: CountedConnection,
    since: Instant,
}

/// Connection in the count of its target, until this is dropped.
pub(super) struct CountedConnection {
    pool: Weak<NodePool>,
    target: Arc<DialTarget>,
    generation: u32,
    /// Key of its socket in the pool, once it is open.
    socket: Option<u64>,
    /// End of the other node's certificate.
    ends_at: Instant,
}

/// Attempt to open a connection. Dropping it without [`Self::complete`] starts the backoff.
pub(super) struct OpenAttempt {
    pool: Arc<NodePool>,
    counted: Option<CountedConnection>,
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
    pub(super) fn take_idle(&self, now: Instant) -> Option<(ServerConnection, CountedConnection)> {
        loop {
            let idle = self.lock_state().idle.pop()?;
            let age = now.saturating_duration_since(idle.since);
            let (mut connection, counted) = (idle.connection, idle.counted);
            let is_usable = age < MAX_IDLE_AGE && now < counted.ends_at;
            if is_usable && connection.is_open_and_silent(age) {
                return Some((connection, counted));
            }
        }
    }

    /// Begins to open a connection. `None`: there are enough, or the last attempt has just failed.
    pub(super) fn begin_opening(self: &Arc<Self>, now: Instant) -> Option<OpenAttempt> {
        let mut state = self.lock_state();
        let is_backing_off = state.opens_from.is_some_and(|from| now < from);
        if is_backing_off || state.opening >= MAX_OPENING {
            return None;
        }
        if !self.target.add_kept_connection(self.max_connections) {
            return None;
        }
        state.opening += 1;
        let counted = CountedConnection {
            pool: Arc::downgrade(self),
            target: self.target.clone(),
            generation: state.generation,
            socket: None,
            ends_at: now,
        };
        Some(OpenAttempt {
            pool: self.clone(),
            counted: Some(counted),
        })
    }

    /// Keeps a connection for another request.
    pub(super) fn put_idle(&self, connection: ServerConnection, counted: CountedConnection) {
        let mut state = self.lock_state();
        if counted.generation == state.generation && !self.target.is_withdrawn() {
            state.idle.push(IdleConnection {
                connection,
                counted,
                since: Instant::now(),
            });
        }
    }

    /// Closes connections that were idle for too long; all, if the node is withdrawn. Ends calls to a node that
    /// is gone, although its kernel may still answer. Returns whether the pool is still needed.
    pub(super) fn sweep_idle(&self, now: Instant) -> bool {
        let is_withdrawn = self.target.is_withdrawn();
        if self.target.is_gone() {
            let state = self.lock_state();
            for socket in state.sockets.values() {
                let _ = shutdown(socket, Shutdown::Both); // fails only if it has ended
            }
        }
        let is_old = |idle: &mut IdleConnection| {
            is_withdrawn || now.saturating_duration_since(idle.since) >= MAX_IDLE_AGE
        };
        let old: Vec<_> = self.lock_state().idle.extract_if(.., is_old).collect();
        drop(old); // without the lock
        !is_withdrawn || !self.lock_state().sockets.is_empty()
    }

    /// Closes idle connections, because this node has another certificate. Those in use are not kept later.
    pub(super) fn renew(&self) {
        let mut state = self.lock_state();
        state.generation = state.generation.wrapping_add(1);
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        drop(idle); // without the lock
    }

    fn add_socket(&self, socket: OwnedFd) -> u64 {
        let mut state = self.lock_state();
        let key = state.next_socket;
        state.next_socket += 1;
        state.sockets.insert(key, socket);
        key
    }

    fn lock_state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenAttempt {
    /// Adds the connection to the pool. It takes no requests after `ends_at`.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub(super) fn complete(
        mut self,
        connection: ServerConnection,
        ends_at: Instant,
    ) -> io::Result<()> {
        let socket = connection.socket().as_fd().try_clone_to_owned()?;
        if let Some(mut counted) = self.counted.take() {
            counted.ends_at = ends_at;
            counted.socket = Some(self.pool.add_socket(socket));
            self.pool.put_idle(connection, counted);
        }
        Ok(())
    }
}

impl Drop for OpenAttempt {
    fn drop(&mut self) {
        let has_failed = self.counted.is_some();
        let mut state = self.pool.lock_state();
        state.opening -= 1;
        state.opens_from = has_failed.then(|| Instant::now() + OPEN_BACKOFF);
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.target.remove_kept_connection();
        if let (Some(pool), Some(key)) = (self.pool.upgrade(), self.socket) {
            pool.lock_state().sockets.remove(&key);
        }
    }
}
