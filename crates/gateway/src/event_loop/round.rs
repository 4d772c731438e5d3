//! Rounds of events: handlers read and prepare, then they write.

use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustix::event::epoll::Event;
use tokio::io::unix::AsyncFdReadyGuard;

use super::poller::{MAX_EVENTS, Token};
use super::registration::Readiness;
use super::{EventHandler, EventLoop, or_abandon};

/// Work of the event loop.
enum Work<'a> {
    /// The poller has events.
    Events(AsyncFdReadyGuard<'a, Arc<OwnedFd>>),
    /// A task has left something to flush.
    Flush,
}

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
            let Work::Events(mut ready) = poll_fn(|cx| self.poll_work(cx)).await? else {
                self.flush_handlers();
                continue;
            };
            self.poller.take_events(&mut events)?;
            self.load.note_round(events.len());
            // All events first. A handler may take an idle connection to a server later in this round. It
            // must see that the server has closed it.
            handled.extend(events.iter().filter_map(|event| self.dispatch_event(event)));
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

    /// Waits for work.
    fn poll_work(&self, cx: &mut Context<'_>) -> Poll<io::Result<Work<'_>>> {
        self.loop_waker.take(); // a round needs no wake-up
        if let Poll::Ready(ready) = self.watched.poll_read_ready(cx) {
            return Poll::Ready(ready.map(Work::Events));
        }
        if !self.unflushed.borrow().is_empty() {
            return Poll::Ready(Ok(Work::Flush));
        }
        self.loop_waker.replace(Some(cx.waker().clone()));
        Poll::Pending
    }

    /// Returns an event for a handler. Any other one wakes the tasks of its socket.
    fn dispatch_event(&self, &Event { flags, data }: &Event) -> Option<HandledEvent> {
        let (token, readiness) = (Token::from_data(data), Readiness::from_flags(flags));
        let handler = self.handler_of(token);
        // An end is noted for a handler's socket, too. epoll reports it once; the next user of the socket
        // must still find it.
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
