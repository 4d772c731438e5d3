//! A line's connection. It is read while it is written: a worker and a rendezvous that both waited for the other to read would wait for
//! ever.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::websocket::WebSocket;

/// See the module.
pub(super) struct DuplexSocket {
    socket: WebSocket,
    outgoing: VecDeque<Message>,
    /// Since when something is to be sent.
    blocked_since: Option<Instant>,
}

/// What has happened.
pub(super) enum DuplexEvent {
    /// All that was to be sent is.
    Sent,
    /// `NoConnection`: the connection is closed.
    Received(Option<Message>),
}

impl DuplexSocket {
    pub(super) fn new(socket: WebSocket) -> Self {
        Self {
            socket: socket,
            outgoing: VecDeque::new(),
            blocked_since: None,
        }
    }

    /// It is sent while one waits for [`Self::next`].
    pub(super) fn send(&mut self, message: Message) {
        self.blocked_since.get_or_insert_with(Instant::now);
        self.outgoing.push_back(message);
    }

    /// Since when the other side has not taken what is to be sent.
    pub(super) fn blocked_since(&self) -> Option<Instant> {
        self.blocked_since
    }

    /// May be dropped, and asked for again: nothing is lost.
    pub(super) async fn next_event(&mut self) -> Result<DuplexEvent, Error> {
        poll_fn(|cx| {
            if self.blocked_since.is_some()
                && let Poll::Ready(sent) = self.poll_send(cx)
            {
                return Poll::Ready(sent.map(|()| DuplexEvent::Sent));
            }
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
                self.blocked_since = Some(Instant::now()); // it takes something
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
