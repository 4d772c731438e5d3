//! Does what the stock says.

use std::io;
use std::rc::Rc;
use std::time::Instant;

use tokio::net::TcpStream;
use tokio::task::spawn_local;

use super::dial::{CONNECT_TIMEOUT, dial_destination};
use super::driver::{ConnectionPool, NO_INSTANCE_MESSAGE, PooledSocket};
use super::pending_connect::ConnectFailure;
use super::ready_slots::TakeBackResult;
use crate::state::{KeyId, RefusalReason, SocketId, StateAction, WaitTicket};

impl ConnectionPool {
    /// Does all that there is to do, and has what follows minded.
    pub(super) fn apply_and_reschedule(self: &Rc<Self>) {
        self.apply_actions();
        self.fill_ready_slots();
        let (due, minded) = (self.state.borrow().wake_at(), self.next_wake.get());
        if due.is_some_and(|due| minded.is_none_or(|minded| due < minded)) {
            self.state_changed.notify_one();
        }
    }

    pub(super) fn apply_actions(self: &Rc<Self>) {
        loop {
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
        let Some(to) = self.declared_keys.borrow().destination_of(key) else {
            return self
                .state
                .borrow_mut()
                .socket_failed(Instant::now(), socket);
        };
        let keeper = Rc::clone(self);
        let opening = spawn_local(async move {
            let gives = !keeper.handover_disabled.get();
            let dialled = dial_destination(
                &keeper.resolver,
                &to,
                Instant::now() + CONNECT_TIMEOUT,
                gives,
            )
            .await;
            keeper.finish_connect(socket, dialled);
        });
        self.sockets
            .borrow_mut()
            .insert(socket, PooledSocket::Connecting(opening.abort_handle()));
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
                self.state_changed.notify_one(); // it may stay, and has to be watched then
            }
            Err(error) => {
                self.sockets.borrow_mut().remove(&socket);
                self.last_error.replace(Some(error));
                self.state.borrow_mut().socket_failed(now, socket);
            }
        }
        self.apply_and_reschedule();
    }

    fn give_socket(&self, ticket: WaitTicket, socket: SocketId) {
        let waiter = self.pending_connects.borrow_mut().remove(&ticket);
        let held = self.sockets.borrow_mut().remove(&socket);
        let Some(PooledSocket::Warm(stream)) = held else {
            return self.state.borrow_mut().socket_stale(Instant::now(), socket);
        };
        let told = match waiter {
            Some(waiter) => waiter.send(Ok((socket, stream))),
            None => Err(Ok((socket, stream))),
        };
        if let Err(Ok((socket, stream))) = told {
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
            let _ = waiter.send(Err(why)); // it may have gone
        }
    }

    /// What a clerk has taken in the same moment is not closed: it is handed out.
    fn close_socket(&self, socket: SocketId) {
        if self.take_back(socket) == TakeBackResult::AlreadyTaken {
            return self
                .state
                .borrow_mut()
                .confirm_taken(Instant::now(), socket);
        }
        let held = self.sockets.borrow_mut().remove(&socket);
        if let Some(PooledSocket::Connecting(opening)) = held {
            opening.abort();
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
                ConnectFailure::Failed(
                    error.unwrap_or_else(|| io::Error::other("it did not take the connection")),
                )
            }
            RefusalReason::TimedOut { failing: true, .. } => ConnectFailure::Other(
                "it has refused connections lately, and none was opened in time",
            ),
            RefusalReason::TimedOut {
                open,
                failing: false,
            } => ConnectFailure::TimedOut(open),
            RefusalReason::QueueFull => {
                ConnectFailure::Other("too many clients of this function wait for it")
            }
            RefusalReason::KeyForgotten => ConnectFailure::Other(NO_INSTANCE_MESSAGE),
        }
    }
}
