//! Client socket that registers with epoll only when it has to be awaited.
//!
//! A connection with one short request is never registered. Its request is there on accept, and
//! the response fits into the send buffer. While the function works, only a close by the caller
//! could arrive. That saves two system calls per connection. In return, a caller that leaves is
//! noticed up to two [`TICK_INTERVAL`](crate::context::TICK_INTERVAL)s later.
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream as Socket;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::conn_state::ConnState;

/// Client socket that is registered with epoll on demand.
pub(super) struct ClientSocket {
    socket: ClientSocketState,
    state: Arc<ConnState>,
}

enum ClientSocketState {
    /// Non-blocking, not registered.
    Unregistered(Socket),
    /// Registered with the thread's epoll.
    Registered(TcpStream),
    /// The registration failed.
    Failed,
}

impl ClientSocket {
    /// Wraps a socket, which must be non-blocking.
    pub(super) fn new(socket: Socket, state: Arc<ConnState>) -> Self {
        Self {
            socket: ClientSocketState::Unregistered(socket),
            state,
        }
    }

    fn register_socket(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        if matches!(self.socket, ClientSocketState::Unregistered(_)) {
            // epoll reports a close by itself from here on, so the sweep need not wake this
            // connection.
            self.state.resume_reading();
            self.socket = match std::mem::replace(&mut self.socket, ClientSocketState::Failed) {
                ClientSocketState::Unregistered(socket) => {
                    ClientSocketState::Registered(TcpStream::from_std(socket)?)
                }
                other => other,
            };
        }
        self.registered_stream()
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn registered_stream(&mut self) -> Option<Pin<&mut TcpStream>> {
        match &mut self.socket {
            ClientSocketState::Registered(stream) => Some(Pin::new(stream)),
            _ => None,
        }
    }

    /// Tries an operation without waiting; `None`: the socket is registered, or would block.
    fn try_without_waiting<R>(
        &self,
        mut attempt: impl FnMut(&Socket) -> io::Result<R>,
    ) -> Option<io::Result<R>> {
        let ClientSocketState::Unregistered(socket) = &self.socket else {
            return None;
        };
        loop {
            match attempt(socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                // A signal may interrupt even a non-blocking call.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return Some(result),
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
        match self.try_without_waiting(|mut socket| socket.read(buf.initialize_unfilled())) {
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
        match self.try_without_waiting(|mut socket| socket.write(buf)) {
            Some(written) => Poll::Ready(written),
            None => self.register_socket()?.poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.try_without_waiting(|mut socket| socket.write_vectored(bufs)) {
            Some(written) => Poll::Ready(written),
            None => self.register_socket()?.poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // the kernel has what was written
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.try_without_waiting(|socket| socket.shutdown(std::net::Shutdown::Write)) {
            Some(shut) => Poll::Ready(shut),
            None => self.register_socket()?.poll_shutdown(cx),
        }
    }
}
