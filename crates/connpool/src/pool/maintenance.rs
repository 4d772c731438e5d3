//! The one task that sees to what nobody else does: time that passes, and connections that end while they are open for nobody.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::time::sleep_until;

use super::driver::{ConnectionPool, PooledSocket};
use super::liveness::has_ended;
use super::ready_slots::TakeBackResult;
use crate::state::SocketId;

impl ConnectionPool {
    /// Runs as long as the thread.
    pub async fn run_maintenance(self: Rc<Self>) {
        loop {
            let due = self.state.borrow().wake_at();
            self.next_wake.set(due);
            let time = sleep_until(due.unwrap_or_else(Instant::now).into());
            tokio::select! {
                () = self.state_changed.notified() => {}
                () = time, if due.is_some() => {}
                ended = poll_fn(|cx| self.poll_ended(cx)) => ended.into_iter().for_each(|socket| self.remove_ended(socket)),
            }
            for socket in self.dropped_leases.take() {
                let key = self.state.borrow().key_of(socket);
                self.state
                    .borrow_mut()
                    .socket_closed(Instant::now(), socket);
                key.inspect(|key| self.recheck_ready_sockets(*key));
            }
            self.state.borrow_mut().tick(Instant::now());
            self.apply_actions();
            self.fill_ready_slots();
        }
    }

    /// Those that are open for nobody and have something to read, an end or an error. Nobody has asked for any of these.
    fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<Vec<SocketId>> {
        let sockets = self.sockets.borrow();
        let warm = sockets.iter().filter_map(|(id, held)| match held {
            PooledSocket::Warm(stream) => Some((*id, stream)),
            PooledSocket::Connecting(_) | PooledSocket::Taken(_) => None,
        });
        let ended: Vec<_> = warm
            .filter(|(_, stream)| has_ended(stream, cx))
            .map(|(id, _)| id)
            .collect();
        if ended.is_empty() {
            Poll::Pending
        } else {
            Poll::Ready(ended)
        }
    }

    fn remove_ended(&self, socket: SocketId) {
        let held = self.sockets.borrow_mut().remove(&socket);
        if let (TakeBackResult::AlreadyTaken, Some(PooledSocket::Warm(stream))) =
            (self.take_back(socket), held)
        {
            self.sockets
                .borrow_mut()
                .insert(socket, PooledSocket::Taken(stream));
            return;
        }
        self.state
            .borrow_mut()
            .socket_closed(Instant::now(), socket);
    }
}
