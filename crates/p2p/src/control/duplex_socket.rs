//! Socket of a control connection, which is read while it is written.
//!
//! A worker and a rendezvous that each waited for the other to read would wait forever (decision
//! 50).

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::websocket::WebSocket;

/// Socket with a queue of outgoing messages.
pub(super) struct DuplexSocket {
    socket: WebSocket,
    outgoing: VecDeque<Message>,
    /// Time since which data waits to be sent.
    blocked_since: Option<Instant>,
}

/// Event of the socket.
pub(super) enum DuplexEvent {
    /// All queued messages are sent.
    Sent,
    /// Received message; `None`: the connection is closed.
    Received(Option<Message>),
}

impl DuplexSocket {
    pub(super) fn new(socket: WebSocket) -> Self {
        Self {
            socket,
            outgoing: VecDeque::new(),
            blocked_since: None,
        }
    }

    /// Queues a message; it is sent while [`Self::next_event`] is awaited.
    pub(super) fn send(&mut self, message: Message) {
        self.blocked_since.get_or_insert_with(Instant::now);
        self.outgoing.push_back(message);
    }

    /// Returns the time since which the other side has taken nothing.
    pub(super) fn blocked_since(&self) -> Option<Instant> {
        self.blocked_since
    }

    /// Awaits the next event. Cancel-safe: nothing is lost.
    pub(super) async fn next_event(&mut self) -> Result<DuplexEvent, Error> {
        poll_fn(|cx| {
            if self.blocked_since.is_some()
                && let Poll::Ready(sent) = self.poll_send(cx)
            {
                return Poll::Ready(sent.map(|()| DuplexEvent::Sent));
            }
            // Read even while the write side waits: see the module.
            let received = ready!(self.socket.poll_next_unpin(cx));
            Poll::Ready(received.transpose().map(DuplexEvent::Received))
        })
        .await
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        while !self.outgoing.is_empty() {
            ready!(self.socket.poll_ready_unpin(cx))?;
            if let Some(message) = self.outgoing.pop_front() {
                self.socket.start_send_unpin(message)?;
                // Progress restarts the stall timer: a slow peer is not a dead one.
                self.blocked_since = Some(Instant::now());
            }
        }
        ready!(self.socket.poll_flush_unpin(cx))?;
        self.blocked_since = None;
        Poll::Ready(Ok(()))
    }

    pub(super) async fn close(&mut self) -> Result<(), Error> {
        self.socket.close(None).await
    }
}
