//! The event loop of a serving thread for its sockets to callers and to functions' own servers
//! (decision 95).
//!
//! It watches sockets with an epoll instance of its own, which is nested in tokio's (epoll(7),
//! "nested"). A task awaits its socket as usual ([`PolledSocket`]). A socket with an
//! [`EventHandler`] has no task: the loop calls the handler, which costs neither a wake-up nor a
//! poll of futures.

mod load;
mod poller;
mod registration;
mod round;
mod socket;
#[cfg(test)]
pub(crate) mod tests;
mod tls;
mod waits;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub(crate) use load::BatchRule;
use load::{LoopLoad, RoundCounts};
pub(crate) use poller::{Poller, Token};
pub(crate) use registration::Readiness;
pub(crate) use socket::{PolledSocket, receive, retry_interrupted};
pub(crate) use tls::{try_read_decrypted, try_write_encrypted};
use waits::Waits;

/// Handles the events of sockets, in the event loop.
pub(crate) trait EventHandler {
    /// Handles an event of the socket with this token. Must not wait.
    fn handle_event(self: Rc<Self>, token: Token, readiness: Readiness);

    /// Hands an overdue wait to a task, and ends it. A task has timers, and notices callers that
    /// leave.
    fn handle_overdue_wait(self: Rc<Self>);

    /// Writes what the handler has prepared in this round of events.
    fn flush(self: Rc<Self>);

    /// Gives up after a panic in this handler: its connection ends, others go on.
    fn abandon(&self);
}

/// Runs a part of a handler. A panic ends its connection, as in a task, and not its thread.
pub(crate) fn or_abandon<H: EventHandler + ?Sized>(handler: Rc<H>, part: impl FnOnce(Rc<H>)) {
    let abandoned = handler.clone();
    // The handler's state is not used any more, except to give it up.
    if catch_unwind(AssertUnwindSafe(|| part(handler))).is_err() {
        abandoned.abandon();
    }
}

/// Handler of a socket's events.
struct Attached {
    token: Token,
    handler: Rc<dyn EventHandler>,
}

/// The event loop of one thread.
pub(crate) struct EventLoop {
    poller: Poller,
    /// The poller's epoll instance, in that of tokio.
    watched: AsyncFd<Arc<OwnedFd>>,
    /// Handlers, at the index of their socket's token.
    handlers: RefCell<Vec<Option<Attached>>>,
    waits: Waits,
    load: RoundCounts,
    /// Handlers that have something to write after this round of events.
    unflushed: RefCell<VecDeque<Rc<dyn EventHandler>>>,
    /// Wakes the task of the loop, while it waits for events.
    loop_waker: RefCell<Option<Waker>>,
}

impl EventLoop {
    /// Creates a loop without sockets. To be called in the runtime of its thread.
    ///
    /// # Errors
    /// If the process has no file descriptor left.
    pub(crate) fn new() -> io::Result<Rc<Self>> {
        let poller = Poller::new()?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe for descriptors of unknown safety; this one is owned"
        )]
        let watched = AsyncFd::with_interest(poller.descriptor(), Interest::READABLE)?;
        Ok(Rc::new(Self {
            poller,
            watched,
            handlers: RefCell::default(),
            waits: Waits::default(),
            load: RoundCounts::default(),
            unflushed: RefCell::default(),
            loop_waker: RefCell::default(),
        }))
    }

    /// Returns the handle with which sockets register.
    pub(crate) fn poller(&self) -> &Poller {
        &self.poller
    }

    /// Calls `handler` for each event of the socket, until [`EventLoop::detach`].
    pub(crate) fn attach(&self, socket: &PolledSocket, handler: Rc<dyn EventHandler>) {
        debug_assert!(socket.is_watched_by(&self.poller));
        let (mut handlers, token) = (self.handlers.borrow_mut(), socket.token());
        if handlers.len() <= token.index() {
            handlers.resize_with(token.index() + 1, || None);
        }
        let earlier = handlers[token.index()].replace(Attached { token, handler });
        drop(handlers);
        drop(earlier); // without the borrow: it may hold other sockets
    }

    /// Ends the calls of the socket's handler.
    pub(crate) fn detach(&self, socket: &PolledSocket) {
        let mut handlers = self.handlers.borrow_mut();
        let entry = handlers.get_mut(socket.token().index());
        let handler = entry.and_then(Option::take);
        drop(handlers);
        drop(handler); // without the borrow
    }

    /// Flushes the handler after this round of events, or after the running task. A write wakes its
    /// receiver, which may take the processor: the other events of the round would wait.
    pub(crate) fn flush_later(&self, handler: Rc<dyn EventHandler>) {
        self.unflushed.borrow_mut().push_back(handler);
        if let Some(waker) = self.loop_waker.take() {
            waker.wake(); // a task has called this: a round flushes by itself
        }
    }

    /// Begins to wait for an event with a handler; returns the key of the wait.
    pub(crate) fn begin_wait(&self, handler: Rc<dyn EventHandler>) -> usize {
        self.waits.add(handler)
    }

    /// Ends a wait.
    pub(crate) fn end_wait(&self, key: usize) {
        self.waits.remove(key);
    }

    /// Has handlers hand to tasks what takes too long, until the thread's tasks end.
    pub(crate) async fn end_overdue_waits(&self) {
        self.waits.end_overdue().await;
    }

    /// Counts a call that a handler answered.
    pub(crate) fn note_inline_call(&self) {
        self.load.note_inline_call();
    }

    /// Returns the load since the last call. To be called by the loop's thread.
    pub(crate) fn take_load(&self) -> LoopLoad {
        self.load.take()
    }

    /// Forgets all handlers, when the thread ends: they hold the loop.
    pub(crate) fn close(&self) {
        let left = (
            self.unflushed.take(),
            self.handlers.take(),
            self.waits.take(),
        );
        drop(left); // without the borrows
    }

    fn handler_of(&self, token: Token) -> Option<Rc<dyn EventHandler>> {
        let handlers = self.handlers.borrow();
        let attached = handlers.get(token.index())?.as_ref()?;
        (attached.token == token).then(|| attached.handler.clone())
    }
}
