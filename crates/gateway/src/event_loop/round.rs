//! Rounds of events: handlers read and prepare, then they write.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use rustix::event::epoll::Event;

use super::poller::{MAX_EVENTS, Token};
use super::registration::Readiness;
use super::{EventHandler, EventLoop};

/// Event of a socket with a handler.
struct HandledEvent {
    handler: Rc<dyn EventHandler>,
    token: Token,
    readiness: Readiness,
}

impl EventLoop {
    /// Handles events until the thread's tasks end.
    ///
    /// # Errors
    /// If the epoll instance fails.
    pub(crate) async fn run(self: Rc<Self>) -> io::Result<()> {
        let (mut events, mut handled) = (Vec::with_capacity(MAX_EVENTS), Vec::new());
        loop {
            let mut ready = self.watched.readable().await?;
            self.poller.take_waiting(&mut events)?;
            self.load.note_round(events.len());
            // All of them first: a handler that takes an idle connection must know of its events.
            handled.extend(events.iter().filter_map(|event| self.sort_event(event)));
            handled.drain(..).for_each(handle_event);
            self.flush_handlers();
            // With fewer events than fit, nothing is left. An event from now on is a new edge of the
            // outer epoll.
            if events.len() < MAX_EVENTS {
                ready.clear_ready();
            } else {
                tokio::task::yield_now().await; // other tasks of the thread
            }
        }
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
