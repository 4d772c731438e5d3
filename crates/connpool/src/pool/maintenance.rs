//! The maintenance task: timers, dropped leases, and unused connections that end.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::time::sleep_until;

use super::driver::{ConnectionPool, PooledSocket};
use super::liveness::has_ended;
use super::ready_slot_table::TakeBackResult;
use crate::state::SocketId;

impl ConnectionPool {
    /// Runs as long as the thread.
    pub async fn run_maintenance(self: Rc<Self>) {
        loop {
            let due = self.state.borrow().wake_at();
            // Published before the wait, so that `apply_and_reschedule` wakes this task only for an
            // earlier timer.
            self.next_wake.set(due);
            let time = sleep_until(due.unwrap_or_else(Instant::now).into());
            tokio::select! {
                () = self.state_changed.notified() => {}
                () = time, if due.is_some() => {}
                ended = poll_fn(|cx| self.poll_ended(cx)) => ended.into_iter().for_each(|socket| self.remove_ended(socket)),
            }
            // Free slots before timers: a waiter gets one instead of a timeout.
            for socket in self.dropped_leases.take() {
                let key = self.state.borrow().key_of(socket);
                self.state
                    .borrow_mut()
                    .socket_closed(Instant::now(), socket);
                // The flow of the ended connection may allow larger windows.
                key.inspect(|key| self.recheck_ready_sockets(*key));
            }
            // Ticks in every round: a wake-up for another reason may be late for a timer.
            self.state.borrow_mut().tick(Instant::now());
            // Not `apply_and_reschedule`: this loop reads the next timer itself.
            self.apply_actions();
            self.fill_ready_slots();
        }
    }

    /// Returns the unused connections that have ended or have bytes to read. No client has asked
    /// for anything, so both mean that they are of no use.
    fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<Vec<SocketId>> {
        let sockets = self.sockets.borrow();
        let warm = sockets
            .iter()
            .filter_map(|(id, socket_state)| match socket_state {
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
        let socket_state = self.sockets.borrow_mut().remove(&socket);
        // A socket that a supervisor has taken is in use; its bytes and its end are not the pool's.
        if let (TakeBackResult::AlreadyTaken, Some(PooledSocket::Warm(stream))) =
            (self.take_back(socket), socket_state)
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
