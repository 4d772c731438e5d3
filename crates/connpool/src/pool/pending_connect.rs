//! A client that waits for a connection until it has one, is refused, or gives up.

use std::rc::Rc;
use std::time::Instant;

use tokio::sync::oneshot;

use super::driver::{ConnectFailure, ConnectResult, ConnectionPool};
use crate::state::WaitTicket;

/// A waiting client. Dropping it cancels the wait, and returns a connection that arrived in the
/// same moment.
pub(super) struct PendingConnect {
    pool: Rc<ConnectionPool>,
    ticket: WaitTicket,
    result: oneshot::Receiver<ConnectResult>,
}

impl ConnectionPool {
    /// Registers a waiting client with the pool.
    pub(super) fn start_waiting(self: &Rc<Self>, ticket: WaitTicket) -> PendingConnect {
        let (pending, sender) = PendingConnect::start(self, ticket);
        self.pending_connects.borrow_mut().insert(ticket, sender);
        self.apply_and_reschedule();
        pending
    }
}

impl PendingConnect {
    fn start(
        pool: &Rc<ConnectionPool>,
        ticket: WaitTicket,
    ) -> (Self, oneshot::Sender<ConnectResult>) {
        let (sender, result) = oneshot::channel();
        (
            Self {
                pool: Rc::clone(pool),
                ticket,
                result,
            },
            sender,
        )
    }

    pub(super) async fn wait(mut self) -> ConnectResult {
        (&mut self.result)
            .await
            .unwrap_or(Err(ConnectFailure::Other(
                "the connection pool has stopped",
            )))
    }
}

impl Drop for PendingConnect {
    fn drop(&mut self) {
        // Closed first, so that no connection can arrive after the check.
        self.result.close();
        match self.result.try_recv() {
            Ok(Ok((socket, stream))) => self.pool.return_unused(socket, stream),
            Ok(Err(_)) => {}
            // After an answer the ticket is unknown, and cancelling does nothing.
            Err(_) => self.pool.cancel_wait(Instant::now(), self.ticket),
        }
    }
}
