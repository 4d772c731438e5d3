//! One who waits for a connection, until it has one, is refused, or goes.

use std::rc::Rc;
use std::time::Instant;

use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::driver::Keeper;
use crate::state::{SocketId, Ticket};

/// What a waiter is told in the end.
pub(super) type Told = Result<(SocketId, TcpStream), Refused>;

/// Why a waiter gets none.
#[derive(Debug)]
pub(super) enum Refused {
    /// The destination did not take the connection.
    Failed(std::io::Error),
    /// None became free in time: so many are open.
    Late(u32),
    /// In other words.
    Because(&'static str),
}

/// A place in line. Who drops it does not wait any more; what it was given meanwhile is another one's.
pub(super) struct Waiting {
    keeper: Rc<Keeper>,
    ticket: Ticket,
    told: oneshot::Receiver<Told>,
}

impl Waiting {
    pub(super) fn begin(keeper: &Rc<Keeper>, ticket: Ticket) -> (Self, oneshot::Sender<Told>) {
        let (tell, told) = oneshot::channel();
        (Self { keeper: Rc::clone(keeper), ticket, told }, tell)
    }

    pub(super) async fn end(mut self) -> Told {
        (&mut self.told).await.unwrap_or(Err(Refused::Because("the pool has ended")))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.told.close();
        match self.told.try_recv() {
            Ok(Ok((socket, stream))) => self.keeper.unused(socket, stream),
            Ok(Err(_)) => {}
            Err(_) => self.keeper.cancel(Instant::now(), self.ticket), // it may have been told already, which is no matter
        }
    }
}
