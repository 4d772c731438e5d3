//! Does what the stock says.

use std::io;
use std::rc::Rc;
use std::time::Instant;

use tokio::net::TcpStream;
use tokio::task::spawn_local;

use super::dial::{LONGEST, dial};
use super::driver::{GONE, Held, Keeper};
use super::pending_connect::Refused;
use super::ready_slots::Lifted;
use crate::state::{Action, KeyId, SocketId, Ticket, Why};

impl Keeper {
    /// Does all that there is to do, and has what follows minded.
    pub(super) fn act(self: &Rc<Self>) {
        self.obey();
        self.lay_out();
        let (due, minded) = (self.stock.borrow().wake_at(), self.minded.get());
        if due.is_some_and(|due| minded.is_none_or(|minded| due < minded)) {
            self.changed.notify_one();
        }
    }

    pub(super) fn obey(self: &Rc<Self>) {
        loop {
            let next = self.stock.borrow_mut().poll();
            match next {
                Some(Action::Connect(key, socket)) => self.open(key, socket),
                Some(Action::Give(ticket, socket)) => self.give(ticket, socket),
                Some(Action::Refuse(ticket, why)) => self.refuse(ticket, why),
                Some(Action::Close(socket)) => self.close(socket),
                Some(Action::Reclaim(key)) => self.reclaim(key),
                None => break,
            }
        }
    }

    fn open(self: &Rc<Self>, key: KeyId, socket: SocketId) {
        let Some(to) = self.declared.borrow().destination(key) else {
            return self.stock.borrow_mut().failed(Instant::now(), socket);
        };
        let keeper = Rc::clone(self);
        let opening = spawn_local(async move {
            let gives = !keeper.keeps_all.get();
            let dialled = dial(&keeper.names, &to, Instant::now() + LONGEST, gives).await;
            keeper.dialled(socket, dialled);
        });
        self.sockets.borrow_mut().insert(socket, Held::Opening(opening.abort_handle()));
    }

    fn dialled(self: &Rc<Self>, socket: SocketId, dialled: io::Result<TcpStream>) {
        let now = Instant::now();
        match dialled {
            Ok(stream) => {
                self.sockets.borrow_mut().insert(socket, Held::Warm(stream));
                self.stock.borrow_mut().connected(now, socket);
                self.has_more(socket);
                self.changed.notify_one(); // it may stay, and has to be watched then
            }
            Err(error) => {
                self.sockets.borrow_mut().remove(&socket);
                self.refusal.replace(Some(error));
                self.stock.borrow_mut().failed(now, socket);
            }
        }
        self.act();
    }

    fn give(&self, ticket: Ticket, socket: SocketId) {
        let waiter = self.waiting.borrow_mut().remove(&ticket);
        let held = self.sockets.borrow_mut().remove(&socket);
        let Some(Held::Warm(stream)) = held else {
            return self.stock.borrow_mut().stale(Instant::now(), socket);
        };
        let told = match waiter {
            Some(waiter) => waiter.send(Ok((socket, stream))),
            None => Err(Ok((socket, stream))),
        };
        if let Err(Ok((socket, stream))) = told {
            self.sockets.borrow_mut().insert(socket, Held::Warm(stream));
            self.stock.borrow_mut().unused(Instant::now(), socket);
            self.has_more(socket);
        }
    }

    fn refuse(&self, ticket: Ticket, why: Why) {
        let why = self.why(why);
        if let Some(waiter) = self.waiting.borrow_mut().remove(&ticket) {
            let _ = waiter.send(Err(why)); // it may have gone
        }
    }

    /// What a clerk has taken in the same moment is not closed: it is handed out.
    fn close(&self, socket: SocketId) {
        if self.lift(socket) == Lifted::Taken {
            return self.stock.borrow_mut().taken(Instant::now(), socket);
        }
        let held = self.sockets.borrow_mut().remove(&socket);
        if let Some(Held::Opening(opening)) = held {
            opening.abort();
        }
        self.stock.borrow_mut().closed(Instant::now(), socket);
    }

    fn reclaim(&self, key: KeyId) {
        let to = self.declared.borrow().destination(key);
        to.map(|to| self.rooms.reclaim(&to.key));
    }

    pub(super) fn why(&self, why: Why) -> Refused {
        match why {
            Why::Failed => {
                let error = self.refusal.take();
                Refused::Failed(error.unwrap_or_else(|| io::Error::other("it did not take the connection")))
            }
            Why::Late { failing: true, .. } => {
                Refused::Because("it has refused connections lately, and none was opened in time")
            }
            Why::Late { open, failing: false } => Refused::Late(open),
            Why::Crowded => Refused::Because("too many clients of this function wait for it"),
            Why::Gone => Refused::Because(GONE),
        }
    }
}
