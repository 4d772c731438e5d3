//! A line's connection. It is read while it is written: a worker and a rendezvous that both waited for the other to read would wait for
//! ever.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::websocket::Web;

/// See the module.
pub(super) struct Duplex {
    web: Web,
    out: VecDeque<Message>,
    /// Since when something is to be sent.
    since: Option<Instant>,
}

/// What has happened.
pub(super) enum Event {
    /// All that was to be sent is.
    Sent,
    /// `None`: the connection is closed.
    Heard(Option<Message>),
}

impl Duplex {
    pub(super) fn new(web: Web) -> Self {
        Self { web, out: VecDeque::new(), since: None }
    }

    /// It is sent while one waits for [`Self::next`].
    pub(super) fn send(&mut self, message: Message) {
        self.since.get_or_insert_with(Instant::now);
        self.out.push_back(message);
    }

    /// Since when the other side has not taken what is to be sent.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// May be dropped, and asked for again: nothing is lost.
    pub(super) async fn next(&mut self) -> Result<Event, Error> {
        poll_fn(|cx| {
            if self.since.is_some()
                && let Poll::Ready(sent) = self.poll_send(cx)
            {
                return Poll::Ready(sent.map(|()| Event::Sent));
            }
            let heard = ready!(self.web.poll_next_unpin(cx));
            Poll::Ready(heard.transpose().map(Event::Heard))
        })
        .await
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        while !self.out.is_empty() {
            ready!(self.web.poll_ready_unpin(cx))?;
            if let Some(message) = self.out.pop_front() {
                self.web.start_send_unpin(message)?;
                self.since = Some(Instant::now()); // it takes something
            }
        }
        ready!(self.web.poll_flush_unpin(cx))?;
        self.since = None;
        Poll::Ready(Ok(()))
    }

    pub(super) async fn close(&mut self) -> Result<(), Error> {
        self.web.close(None).await
    }
}
