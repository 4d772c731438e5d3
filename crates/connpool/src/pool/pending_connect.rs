//! One who waits for a connection, until it has one, is refused, or goes.

use std::rc::Rc;
use std::time::Instant;

use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::driver::ConnectionPool;
use crate::state::{SocketId, WaitTicket};

/// What a waiter is told in the end.
pub(super) type ConnectResult = Result<(SocketId, TcpStream), ConnectFailure>;

/// Why a waiter gets none.
#[derive(Debug)]
pub(super) enum ConnectFailure {
    /// The destination did not take the connection.
    Failed(std::io::Error),
    /// None became free in time: so many are open.
    TimedOut(u32),
    /// In other words.
    Other(&'static str),
}

/// A place in line. Who drops it does not wait any more; what it was given meanwhile is another one's.
pub(super) struct PendingConnect {
    pool: Rc<ConnectionPool>,
    ticket: WaitTicket,
    result: oneshot::Receiver<ConnectResult>,
}

impl PendingConnect {
    pub(super) fn start(
        keeper: &Rc<ConnectionPool>,
        ticket: WaitTicket,
    ) -> (Self, oneshot::Sender<ConnectResult>) {
        let (tell, told) = oneshot::channel();
        (
            Self {
                pool: Rc::clone(keeper),
                ticket,
                result: told,
            },
            tell,
        )
    }

    pub(super) async fn wait(mut self) -> ConnectResult {
        (&mut self.result)
            .await
            .unwrap_or(Err(ConnectFailure::Other("the pool has ended")))
    }
}

impl Drop for PendingConnect {
    fn drop(&mut self) {
        self.result.close();
        match self.result.try_recv() {
            Ok(Ok((socket, stream))) => self.pool.return_unused(socket, stream),
            Ok(Err(_)) => {}
            Err(_) => self.pool.cancel_wait(Instant::now(), self.ticket), // it may have been told already, which is no matter
        }
    }
}
