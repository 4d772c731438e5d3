//! A connection that carries a request, with the pool to which it returns.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use super::connection::LoopbackConnection;
use super::server_pool::{ServerPool, UnansweredMark};

/// Connection that carries a request. Dropping it closes it.
pub(crate) struct PooledConnection {
    connection: LoopbackConnection,
    pool: Arc<ServerPool>,
    /// Kept until the connection's first response.
    unanswered: Option<UnansweredMark>,
    /// Time for which it was idle before this request; `None`: it is new.
    idle_before: Option<Duration>,
}

impl PooledConnection {
    pub(super) fn opened(
        connection: LoopbackConnection,
        pool: Arc<ServerPool>,
        unanswered: UnansweredMark,
    ) -> Self {
        Self {
            connection,
            pool,
            unanswered: Some(unanswered),
            idle_before: None,
        }
    }

    pub(super) fn reused(
        connection: LoopbackConnection,
        pool: Arc<ServerPool>,
        idle_before: Duration,
    ) -> Self {
        Self {
            connection,
            pool,
            unanswered: None,
            idle_before: Some(idle_before),
        }
    }

    /// Notes that the server closed the connection without a response. It may have done so before
    /// the request arrived.
    pub(super) fn note_loss(&self) {
        if let Some(idle_before) = self.idle_before {
            self.pool.note_closed(idle_before);
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
