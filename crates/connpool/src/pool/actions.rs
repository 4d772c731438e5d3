//! Carries out the actions of the state machine.

use std::io;
use std::rc::Rc;
use std::time::Instant;

use tokio::net::TcpStream;
use tokio::task::spawn_local;

use super::dial::{CONNECT_TIMEOUT, dial_destination};
use super::driver::{ConnectFailure, ConnectionPool, NO_INSTANCE_MESSAGE, PooledSocket};
use super::ready_slot_table::TakeBackResult;
use crate::state::{KeyId, RefusalReason, SocketId, StateAction, WaitTicket};

impl ConnectionPool {
    /// Applies all pending actions, fills ready slots, and wakes the maintenance task if a timer is
    /// now due earlier.
    pub(super) fn apply_and_reschedule(self: &Rc<Self>) {
        self.apply_actions();
        self.fill_ready_slots();
        let (due, scheduled) = (self.state.borrow().wake_at(), self.next_wake.get());
        if due.is_some_and(|due| scheduled.is_none_or(|scheduled| due < scheduled)) {
            self.state_changed.notify_one();
        }
    }

    pub(super) fn apply_actions(self: &Rc<Self>) {
        loop {
            // Borrowed for the call alone: the actions below borrow the state again.
            let next = self.state.borrow_mut().poll();
            match next {
                Some(StateAction::Connect(key, socket)) => self.open_socket(key, socket),
                Some(StateAction::Give(ticket, socket)) => self.give_socket(ticket, socket),
                Some(StateAction::Refuse(ticket, why)) => self.refuse_waiter(ticket, why),
                Some(StateAction::Close(socket)) => self.close_socket(socket),
                Some(StateAction::Reclaim(key)) => self.reclaim_idle(key),
                None => break,
            }
        }
    }

    fn open_socket(self: &Rc<Self>, key: KeyId, socket: SocketId) {
        // The key may have been forgotten since the action was queued.
        let Some(to) = self.declared_keys.borrow().destination_of(key) else {
            return self
                .state
                .borrow_mut()
                .socket_failed(Instant::now(), socket);
        };
        let pool = Rc::clone(self);
        // A separate task, because a dial may take seconds.
        let connecting = spawn_local(async move {
            let hands_over = !pool.handover_disabled.get();
            let started = Instant::now();
            let dialled = dial_destination(
                &pool.resolver,
                &to,
                Instant::now() + CONNECT_TIMEOUT,
                hands_over,
            )
            .await;
            if let Ok(stream) = &dialled {
                pool.name_peer(&to, stream);
                pool.record_connect_time(&to, stream, started.elapsed());
            }
            pool.finish_connect(socket, dialled);
        });
        // `spawn_local` does not poll the task at once, so the entry is there before the dial can
        // finish.
        self.sockets
            .borrow_mut()
            .insert(socket, PooledSocket::Connecting(connecting.abort_handle()));
    }

    fn finish_connect(self: &Rc<Self>, socket: SocketId, dialled: io::Result<TcpStream>) {
        let now = Instant::now();
        match dialled {
            Ok(stream) => {
                self.sockets
                    .borrow_mut()
                    .insert(socket, PooledSocket::Warm(stream));
                self.state.borrow_mut().socket_connected(now, socket);
                self.mark_slot_fillable(socket);
                // The connection may stay warm, so the maintenance task has to poll it.
                self.state_changed.notify_one();
            }
            Err(error) => {
                self.sockets.borrow_mut().remove(&socket);
                // The refusal that follows takes its error from here.
                self.last_error.replace(Some(error));
                self.state.borrow_mut().socket_failed(now, socket);
            }
        }
        self.apply_and_reschedule();
    }

    fn give_socket(&self, ticket: WaitTicket, socket: SocketId) {
        let waiter = self.pending_connects.borrow_mut().remove(&ticket);
        let removed = self.sockets.borrow_mut().remove(&socket);
        // The connection has ended between the decision and this action.
        let Some(PooledSocket::Warm(stream)) = removed else {
            return self.state.borrow_mut().socket_stale(Instant::now(), socket);
        };
        let sent = match waiter {
            Some(waiter) => waiter.send(Ok((socket, stream))),
            None => Err(Ok((socket, stream))),
        };
        // The client has gone, and the connection is as unused as before.
        if let Err(Ok((socket, stream))) = sent {
            self.sockets
                .borrow_mut()
                .insert(socket, PooledSocket::Warm(stream));
            self.state
                .borrow_mut()
                .socket_unused(Instant::now(), socket);
            self.mark_slot_fillable(socket);
        }
    }

    fn refuse_waiter(&self, ticket: WaitTicket, why: RefusalReason) {
        let why = self.failure_of(why);
        if let Some(waiter) = self.pending_connects.borrow_mut().remove(&ticket) {
            let _ = waiter.send(Err(why)); // the waiter may have gone
        }
    }

    /// Closes a connection, unless a supervisor has taken it in the same moment: then it counts as
    /// handed out.
    fn close_socket(&self, socket: SocketId) {
        // The state machine then counts the socket as used and frees another slot.
        if self.take_back(socket) == TakeBackResult::AlreadyTaken {
            return self
                .state
                .borrow_mut()
                .confirm_taken(Instant::now(), socket);
        }
        let removed = self.sockets.borrow_mut().remove(&socket);
        if let Some(PooledSocket::Connecting(connecting)) = removed {
            // Dropping the dial closes its half-open socket.
            connecting.abort();
        }
        self.state
            .borrow_mut()
            .socket_closed(Instant::now(), socket);
    }

    fn reclaim_idle(&self, key: KeyId) {
        let to = self.declared_keys.borrow().destination_of(key);
        to.map(|to| self.adapters.reclaim_oldest(&to.key));
    }

    pub(super) fn failure_of(&self, why: RefusalReason) -> ConnectFailure {
        match why {
            RefusalReason::Failed => {
                let error = self.last_error.take();
                ConnectFailure::Failed(error.unwrap_or_else(|| {
                    io::Error::other("the connect failed for an unknown reason")
                }))
            }
            // The limit is not the cause then, so the text must not advise to raise it.
            RefusalReason::TimedOut { failing: true, .. } => {
                ConnectFailure::Other("recent connects failed, and none succeeded in time")
            }
            RefusalReason::TimedOut {
                open,
                failing: false,
            } => ConnectFailure::TimedOut(open),
            RefusalReason::QueueFull => ConnectFailure::Other(
                "too many clients of this function are waiting for a connection",
            ),
            RefusalReason::KeyForgotten => ConnectFailure::Other(NO_INSTANCE_MESSAGE),
        }
    }
}
