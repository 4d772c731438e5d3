//! A connection that carries a request, with the pool to which it returns.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use super::connection::ServerConnection;
use super::node_pool::{CountedConnection, NodePool};
use super::server_pool::{ServerPool, UnansweredMark};

/// Connection that carries a request. Dropping it closes it.
pub(crate) struct PooledConnection {
    connection: ServerConnection,
    pool: Pool,
    /// Kept until the first response of a function's own server; `None` for another node.
    unanswered: Option<UnansweredMark>,
    /// Time for which it was idle before this request; `None`: it is new, or goes to another node.
    idle_before: Option<Duration>,
}

/// Pool of a connection.
enum Pool {
    Server(Arc<ServerPool>),
    Node(Arc<NodePool>, CountedConnection),
}

impl PooledConnection {
    pub(super) fn opened(
        connection: ServerConnection,
        pool: Arc<ServerPool>,
        unanswered: UnansweredMark,
    ) -> Self {
        Self {
            connection,
            pool: Pool::Server(pool),
            unanswered: Some(unanswered),
            idle_before: None,
        }
    }

    pub(super) fn reused(
        connection: ServerConnection,
        pool: Arc<ServerPool>,
        idle_before: Duration,
    ) -> Self {
        Self {
            connection,
            pool: Pool::Server(pool),
            unanswered: None,
            idle_before: Some(idle_before),
        }
    }

    pub(super) fn to_node(
        connection: ServerConnection,
        pool: Arc<NodePool>,
        counted: CountedConnection,
    ) -> Self {
        Self {
            connection,
            pool: Pool::Node(pool, counted),
            unanswered: None,
            idle_before: None,
        }
    }

    /// Notes that the server closed the connection without a response. It may have done so before
    /// the request arrived.
    pub(super) fn note_loss(&self) {
        if let (Pool::Server(pool), Some(idle_before)) = (&self.pool, self.idle_before) {
            pool.note_closed(idle_before);
        }
    }

    /// Notes that the server has accepted the connection: it has answered.
    pub(super) fn note_response(&mut self) {
        if let Some(mark) = self.unanswered.take() {
            mark.note_answer();
        }
    }

    /// Keeps the connection for another request, if nothing follows the response.
    pub(super) fn put_back(mut self) {
        // No request asked for further bytes: the next response would be taken from them.
        if self.connection.buffer.is_empty() {
            self.connection.note_response_end();
            match self.pool {
                Pool::Server(pool) => pool.put_idle(self.connection),
                Pool::Node(pool, counted) => pool.put_idle(self.connection, counted),
            }
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
