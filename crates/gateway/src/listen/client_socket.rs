//! Client socket that registers with the event loop only when it has to be awaited.
//!
//! A connection whose only request is there on accept is never registered, if it is short: the response
//! fits into the send buffer. While the function works, only a close by the caller could arrive. That
//! saves two system calls per connection. In return, a caller that leaves is noticed up to two
//! [`TICK_INTERVAL`](crate::context::TICK_INTERVAL)s later.
//!
//! Dropping the socket closes it: close(2) sends buffered data and then FIN, like shutdown(2). A
//! client that may still be sending gets a lingering close first, so that no reset overtakes its
//! last response.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream as Socket;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use nearpath_wire::lingering_close::LingeringClose;
use rustix::net::Shutdown;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::poll_proceed;

use super::accepted_socket::AcceptedSocket;
use super::conn_state::ConnState;
use crate::event_loop::{PolledSocket, Poller, retry_interrupted};

/// Client socket that is registered with the event loop on demand.
pub(super) struct ClientSocket {
    /// `None`: taken by a handler of the event loop, or the registration failed.
    socket: Option<AcceptedSocket>,
    poller: Poller,
    state: Arc<ConnState>,
    /// Boxed: most connections never have it.
    lingering: Option<Box<LingeringClose>>,
}

impl ClientSocket {
    /// Wraps a caller's socket.
    pub(super) fn new(socket: AcceptedSocket, poller: Poller, state: Arc<ConnState>) -> Self {
        Self {
            socket: Some(socket),
            poller,
            state,
            lingering: None,
        }
    }

    fn register_socket(&mut self) -> io::Result<Pin<&mut PolledSocket>> {
        if matches!(self.socket, Some(AcceptedSocket::Unregistered(_))) {
            // epoll reports a close by itself from here on, so the sweep need not wake this
            // connection.
            self.state.resume_reading();
            self.socket = match self.socket.take() {
                Some(socket) => Some(socket.register(&self.poller)?),
                None => None,
            };
        }
        self.registered_stream().ok_or_else(taken_before)
    }

    /// Has the event loop watch the socket.
    ///
    /// # Errors
    /// If the kernel cannot.
    pub(super) fn register(&mut self) -> io::Result<()> {
        self.register_socket().map(drop)
    }

    /// Takes the socket, which the event loop watches.
    ///
    /// # Errors
    /// If the kernel cannot watch it.
    pub(super) fn take(&mut self) -> io::Result<AcceptedSocket> {
        self.register()?;
        self.socket.take().ok_or_else(taken_before)
    }

    /// Returns a socket that was taken.
    pub(super) fn restore(&mut self, socket: AcceptedSocket) {
        self.socket = Some(socket);
    }

    /// Returns the registered socket.
    pub(super) fn registered(&self) -> Option<&PolledSocket> {
        self.socket.as_ref()?.registered()
    }

    /// Returns the registered socket.
    ///
    /// # Errors
    /// If it was taken, or is not registered.
    pub(super) fn require_registered(&self) -> io::Result<&PolledSocket> {
        self.registered().ok_or_else(taken_before)
    }

    fn registered_stream(&mut self) -> Option<Pin<&mut PolledSocket>> {
        match &mut self.socket {
            Some(AcceptedSocket::Registered(stream)) => Some(Pin::new(stream)),
            _ => None,
        }
    }

    /// Ends the sending direction without waiting.
    fn shut_down_writes(&self) -> io::Result<()> {
        let socket = self.socket.as_ref().ok_or_else(taken_before)?;
        Ok(rustix::net::shutdown(socket, Shutdown::Write)?)
    }

    /// Notes whether the socket takes bytes. Here, and not above TLS, whose session takes some for a client
    /// that reads none.
    fn note_write(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.state.note_write(polled.is_ready());
        polled
    }

    fn has_unread_input(&self) -> bool {
        let unread = &self.state.unread_input;
        self.socket
            .as_ref()
            .is_some_and(|socket| socket.has_unread_input(unread))
    }

    /// Tries an operation without waiting; `None`: the socket is registered, or would block. Pending
    /// only while the task has used up its budget.
    fn poll_unregistered<R>(
        &self,
        cx: &mut Context<'_>,
        mut attempt: impl FnMut(&Socket) -> io::Result<R>,
    ) -> Poll<Option<io::Result<R>>> {
        let Some(AcceptedSocket::Unregistered(socket)) = &self.socket else {
            return Poll::Ready(None);
        };
        // Must be dropped before the registered socket is tried: its drop gives back the budget.
        let turn = ready!(poll_proceed(cx));
        match retry_interrupted(|| attempt(socket)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Ready(None),
            result => {
                turn.made_progress();
                Poll::Ready(Some(result))
            }
        }
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(stream) = self.registered_stream() {
            return stream.poll_read(cx, buf);
        }
        if self.state.is_read_paused() {
            return Poll::Pending; // the sweep wakes it when it has to read again
        }
        match ready!(
            self.poll_unregistered(cx, |mut socket| socket.read(buf.initialize_unfilled()))
        ) {
            Some(read) => Poll::Ready(read.map(|n| buf.advance(n))),
            None => self.register_socket()?.poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = match ready!(self.poll_unregistered(cx, |mut socket| socket.write(buf))) {
            Some(written) => Poll::Ready(written),
            None => self.register_socket()?.poll_write(cx, buf),
        };
        self.note_write(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled =
            match ready!(self.poll_unregistered(cx, |mut socket| socket.write_vectored(bufs))) {
                Some(written) => Poll::Ready(written),
                None => self.register_socket()?.poll_write_vectored(cx, bufs),
            };
        self.note_write(polled)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // the kernel has what was written
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.state.has_http_ended() {
            // Not closed by a drop soon: the other half of a tunnel goes on.
            return Poll::Ready(this.shut_down_writes());
        }
        if this.lingering.is_none() {
            if !this.has_unread_input() {
                return Poll::Ready(Ok(()));
            }
            this.shut_down_writes()?;
            this.register_socket()?;
            this.state.mark_lingering();
        }
        let Some(AcceptedSocket::Registered(stream)) = &mut this.socket else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        let lingering = this
            .lingering
            .get_or_insert_with(|| Box::new(LingeringClose::begin()));
        lingering.poll_closed(stream, cx).map(Ok)
    }
}

fn taken_before() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::rc::Rc;

    use futures_util::poll;
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::event_loop::EventLoop;
    use crate::event_loop::tests::run_with_loop;

    /// Returns how often a byte was written before a write had to wait; at most a thousand times. The
    /// socket's buffer takes far more.
    async fn writes_at_once(client: &mut ClientSocket, is_vectored: bool) -> usize {
        for count in 0..1_000 {
            let bytes = [IoSlice::new(b"x")];
            let is_pending = match is_vectored {
                true => poll!(std::pin::pin!(client.write_vectored(&bytes))).is_pending(),
                false => poll!(std::pin::pin!(client.write(b"x"))).is_pending(),
            };
            if is_pending {
                return count;
            }
        }
        1_000
    }

    async fn write_until_the_budget_ends(event_loop: Rc<EventLoop>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        for (is_registered, is_vectored) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let socket = Socket::connect(listener.local_addr().unwrap()).unwrap();
            socket.set_nonblocking(true).unwrap();
            let poller = event_loop.poller().clone();
            let socket = AcceptedSocket::Unregistered(socket);
            let mut client = ClientSocket::new(socket, poller, ConnState::new(&Arc::default()));
            if is_registered {
                client.register_socket().unwrap();
                client.write_all(b"x").await.unwrap(); // writable from here on
            }
            tokio::task::yield_now().await; // a new budget
            let writes = writes_at_once(&mut client, is_vectored).await;
            assert!(
                (1..1_000).contains(&writes),
                "{writes} writes, registered {is_registered}, vectored {is_vectored}: without a wait, \
                 other connections of the thread wait"
            );
        }
    }

    #[test]
    fn a_task_that_writes_without_end_lets_others_run() {
        run_with_loop(write_until_the_budget_ends);
    }
}
