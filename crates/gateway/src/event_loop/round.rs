//! Rounds of events: handlers read and prepare, then they write.

use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustix::event::epoll::Event;
use tokio::io::unix::AsyncFdReadyGuard;

use super::poller::{MAX_EVENTS, Token};
use super::registration::Readiness;
use super::{EventHandler, EventLoop};

/// Says that the poller has events.
type EventsReady<'a> = AsyncFdReadyGuard<'a, Arc<OwnedFd>>;

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
            let ready = poll_fn(|cx| self.poll_work(cx)).await?;
            let Some(mut ready) = ready else {
                self.flush_handlers(); // of tasks
                continue;
            };
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

    /// Waits for events; `None`: a task has left something to flush.
    fn poll_work(&self, cx: &mut Context<'_>) -> Poll<io::Result<Option<EventsReady<'_>>>> {
        self.waiting.take();
        if let Poll::Ready(ready) = self.watched.poll_read_ready(cx) {
            return Poll::Ready(ready.map(Some));
        }
        if !self.unflushed.borrow().is_empty() {
            return Poll::Ready(Ok(None));
        }
        self.waiting.replace(Some(cx.waker().clone()));
        Poll::Pending
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
