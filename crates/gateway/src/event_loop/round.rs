//! Rounds of events: handlers read and prepare, then they write.

use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use rustix::event::epoll::Event;
use tokio::io::unix::AsyncFdReadyGuard;

use super::poller::{MAX_EVENTS, Token};
use super::registration::Readiness;
use super::{EventHandler, EventLoop};

/// Event of a socket with a handler.
struct HandledEvent {
    handler: Rc<dyn EventHandler>,
    token: Token,
    readiness: Readiness,
}

/// Memory of a round, which the next one uses again.
struct Round {
    events: Vec<Event>,
    handled: Vec<HandledEvent>,
    woken: Vec<Rc<dyn EventHandler>>,
}

impl Default for Round {
    fn default() -> Self {
        Self {
            events: Vec::with_capacity(MAX_EVENTS),
            handled: Vec::new(),
            woken: Vec::new(),
        }
    }
}

impl EventLoop {
    /// Handles events until the thread's tasks end.
    ///
    /// # Errors
    /// If the epoll instance fails.
    pub(crate) async fn run(self: Rc<Self>) -> io::Result<()> {
        let mut round = Round::default();
        loop {
            let sockets = self.wait_for_round().await?;
            if sockets.is_some() {
                self.poller.take_waiting(&mut round.events)?;
            }
            let is_full = round.events.len() == MAX_EVENTS;
            self.run_round(&mut round);
            // With fewer events than fit, nothing is left. An event from now on is a new edge of the
            // outer epoll.
            match sockets {
                Some(mut ready) if !is_full => ready.clear_ready(),
                Some(_) => tokio::task::yield_now().await, // other tasks of the thread
                None => {}
            }
        }
    }

    /// Waits for events of sockets, or woken handlers. Returns the readiness of sockets, if there is
    /// any.
    async fn wait_for_round(&self) -> io::Result<Option<AsyncFdReadyGuard<'_, Arc<OwnedFd>>>> {
        poll_fn(|cx| match self.watched.poll_read_ready(cx) {
            Poll::Ready(ready) => Poll::Ready(ready.map(Some)),
            Poll::Pending if self.wakes.poll_woken(cx) => Poll::Ready(Ok(None)),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    fn run_round(&self, round: &mut Round) {
        // All of them first: a handler that takes an idle connection must know of its events.
        let event_count = round.events.len();
        let events = round.events.drain(..);
        let handled = events.filter_map(|event| self.sort_event(&event));
        round.handled.extend(handled);
        self.wakes.take_woken(&mut round.woken);
        self.load.note_round(event_count + round.woken.len());
        round.handled.drain(..).for_each(handle_event);
        for handler in round.woken.drain(..) {
            or_abandon(handler, |handler| handler.handle_wake());
        }
        self.flush_handlers();
    }

    /// Returns an event for a handler. Any other one wakes the tasks of its socket.
    fn sort_event(&self, &Event { flags, data }: &Event) -> Option<HandledEvent> {
        let (token, readiness) = (Token::from_data(data), Readiness::from_flags(flags));
        let handler = self.handler_of(token);
        // Noted also where a handler sees it: no event tells the next user of the socket again.
        if handler.is_none() || readiness.has(Readiness::END) {
            self.poller.note_and_wake(token, readiness);
        }
        Some(HandledEvent {
            handler: handler?,
            token,
            readiness,
        })
    }

    fn flush_handlers(&self) {
        while let Some(handler) = self.next_unflushed() {
            or_abandon(handler, |handler| handler.flush());
        }
    }

    fn next_unflushed(&self) -> Option<Rc<dyn EventHandler>> {
        self.unflushed.borrow_mut().pop_front()
    }
}

fn handle_event(event: HandledEvent) {
    let (token, readiness) = (event.token, event.readiness);
    or_abandon(event.handler, |handler| {
        handler.handle_event(token, readiness);
    });
}

/// Runs a part of a handler. A panic ends its connection, as in a task, and not its thread.
fn or_abandon(handler: Rc<dyn EventHandler>, part: impl FnOnce(Rc<dyn EventHandler>)) {
    let abandoned = handler.clone();
    // The handler's state is not used any more, except to give it up.
    if catch_unwind(AssertUnwindSafe(|| part(handler))).is_err() {
        abandoned.abandon();
    }
}
