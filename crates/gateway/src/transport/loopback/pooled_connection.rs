//! A connection that carries a request, with the pool to which it returns.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::connection::LoopbackConnection;
use super::server_pool::{ServerPool, UnansweredMark};

/// Connection that carries a request. Dropping it closes it.
pub(crate) struct PooledConnection {
    connection: LoopbackConnection,
    pool: Arc<ServerPool>,
    /// Kept until the connection's first response.
    unanswered: Option<UnansweredMark>,
}

impl PooledConnection {
    pub(super) fn new(
        connection: LoopbackConnection,
        pool: Arc<ServerPool>,
        unanswered: Option<UnansweredMark>,
    ) -> Self {
        Self {
            connection,
            pool,
            unanswered,
        }
    }

    /// Notes that the server has accepted the connection: it has answered.
    pub(super) fn note_response(&mut self) {
        if let Some(mark) = self.unanswered.take() {
            mark.note_answer();
        }
    }

    /// Keeps the connection for another request, if nothing follows the response.
    pub(super) fn put_back(self) {
        // No request asked for further bytes: the next response would be taken from them.
        if self.connection.buffer.is_empty() {
            self.pool.put_idle(self.connection);
        }
    }
}

impl Deref for PooledConnection {
    type Target = LoopbackConnection;

    fn deref(&self) -> &LoopbackConnection {
        &self.connection
    }
}

impl DerefMut for PooledConnection {
    fn deref_mut(&mut self) -> &mut LoopbackConnection {
        &mut self.connection
    }
}
