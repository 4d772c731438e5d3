//! A socket of an event loop, for tasks and for handlers.

use std::future::poll_fn;
use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, connect, recv};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::poll_proceed;

use super::poller::{Poller, Token};
use super::registration::{Readiness, Registration};

/// Bytes of one read. They pass the stack: memory of the reader would have to be cleared before.
pub(super) const READ_BYTES: usize = 16 * 1024;

/// Connected TCP socket that an event loop watches.
#[derive(Debug)]
pub(crate) struct PolledSocket {
    socket: TcpStream,
    registration: Arc<Registration>,
    poller: Poller,
    token: Token,
}

impl PolledSocket {
    /// Registers a non-blocking socket. The first event tells what it is ready for.
    ///
    /// # Errors
    /// If the kernel cannot watch it.
    pub(crate) fn register(socket: TcpStream, poller: &Poller) -> io::Result<Self> {
        let registration = Arc::<Registration>::default();
        let token = poller.add(&socket, registration.clone())?;
        Ok(Self {
            socket,
            registration,
            poller: poller.clone(),
            token,
        })
    }

    /// Connects a non-blocking socket.
    ///
    /// # Errors
    /// If the peer accepts no connection.
    pub(crate) async fn connect(
        socket: OwnedFd,
        addr: SocketAddr,
        poller: &Poller,
    ) -> io::Result<Self> {
        let is_connected = match connect(&socket, &addr) {
            Ok(()) => true,
            Err(Errno::INPROGRESS) => false,
            Err(error) => return Err(error.into()),
        };
        // After the connect: an unconnected socket would report an end.
        let socket = Self::register(TcpStream::from(socket), poller)?;
        if is_connected {
            socket.note_ready(Readiness::WRITE);
        } else {
            poll_fn(|cx| socket.poll_ready(cx, Readiness::WRITE)).await;
            socket.socket.take_error()?.map_or(Ok(()), Err)?;
        }
        Ok(socket)
    }

    /// Moves the socket to another loop, if it is not there.
    ///
    /// # Errors
    /// If the kernel cannot watch it.
    pub(crate) fn move_to(&mut self, poller: &Poller) -> io::Result<()> {
        if self.is_watched_by(poller) {
            return Ok(());
        }
        let token = poller.add(&self.socket, self.registration.clone())?;
        self.poller.remove(&self.socket, self.token);
        (self.poller, self.token) = (poller.clone(), token);
        Ok(())
    }

    /// Returns whether this loop watches the socket.
    pub(crate) fn is_watched_by(&self, poller: &Poller) -> bool {
        self.poller.is_same(poller)
    }

    /// Returns the token of the socket's events.
    pub(crate) fn token(&self) -> Token {
        self.token
    }

    /// Returns whether a read may find something: its event came to no handler, or the last read left
    /// more.
    pub(crate) fn may_be_readable(&self) -> bool {
        self.registration.is_ready(Readiness::READ)
    }

    /// Notes what a handler leaves to the next user of the socket.
    pub(crate) fn note_ready(&self, readiness: Readiness) {
        self.registration.note(readiness);
    }

    /// Reads what has arrived, once, behind the bytes in `buffer`. 0: the peer has ended its direction.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived; of the connection.
    pub(crate) fn try_read(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        self.try_read_up_to(READ_BYTES, |bytes| buffer.extend_from_slice(bytes))
    }

    /// Writes once.
    ///
    /// # Errors
    /// `WouldBlock` if the socket takes nothing; of the connection.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.try_io(Readiness::WRITE, || (&self.socket).write(bytes))
    }

    /// Writes once.
    ///
    /// # Errors
    /// `WouldBlock` if the socket takes nothing; of the connection.
    pub(crate) fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.try_io(Readiness::WRITE, || (&self.socket).write_vectored(parts))
    }

    /// Ends the own direction.
    pub(crate) fn shut_down_writes(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.socket, Shutdown::Write)?)
    }

    /// Reads once, at most [`READ_BYTES`], and passes the bytes to `take`.
    pub(super) fn try_read_up_to(
        &self,
        most: usize,
        mut take: impl FnMut(&[u8]),
    ) -> io::Result<usize> {
        let most = most.min(READ_BYTES);
        let read = self.try_io(Readiness::READ, || {
            receive_up_to(&self.socket, most, &mut take)
        });
        match read {
            // The kernel had no more, and tells of later bytes (epoll(7), question 9).
            Ok(n) if (1..most).contains(&n) => self.registration.clear_read(),
            Ok(_) => self.registration.note(Readiness::READ),
            Err(_) => {}
        }
        read
    }

    /// Tries an operation, and notes when the socket is not ready for it.
    fn try_io<R>(
        &self,
        readiness: Readiness,
        operation: impl FnMut() -> io::Result<R>,
    ) -> io::Result<R> {
        let done = retry_interrupted(operation);
        if done
            .as_ref()
            .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        {
            self.registration.clear(readiness);
        }
        done
    }

    fn poll_ready(&self, cx: &mut Context<'_>, readiness: Readiness) -> Poll<()> {
        if !self.registration.is_ready(readiness) {
            self.registration.waker(readiness).register(cx.waker());
            if !self.registration.is_ready(readiness) {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }

    /// Tries an operation when the socket is ready for it, within the budget of the task.
    fn poll_io<R>(
        &self,
        cx: &mut Context<'_>,
        readiness: Readiness,
        mut operation: impl FnMut() -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        let turn = ready!(poll_proceed(cx));
        loop {
            ready!(self.poll_ready(cx, readiness));
            match operation() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => {
                    turn.made_progress();
                    return Poll::Ready(result);
                }
            }
        }
    }
}

/// Receives from a socket that no loop watches what has arrived, once, behind the bytes in `buffer`.
/// 0: the peer has ended its direction.
///
/// # Errors
/// `WouldBlock` if nothing has arrived; of the connection.
pub(crate) fn receive(socket: impl AsFd, buffer: &mut BytesMut) -> io::Result<usize> {
    retry_interrupted(|| {
        receive_up_to(&socket, READ_BYTES, &mut |bytes: &[u8]| {
            buffer.extend_from_slice(bytes)
        })
    })
}

/// Receives once. `most` is at most [`READ_BYTES`].
fn receive_up_to(
    socket: impl AsFd,
    most: usize,
    take: &mut impl FnMut(&[u8]),
) -> io::Result<usize> {
    let mut space = [MaybeUninit::<u8>::uninit(); READ_BYTES];
    let ((filled, _), _) = recv(socket, &mut space[..most], RecvFlags::empty())?;
    take(filled);
    Ok(filled.len())
}

/// Tries an operation until no signal interrupts it.
pub(crate) fn retry_interrupted<R>(mut operation: impl FnMut() -> io::Result<R>) -> io::Result<R> {
    loop {
        match operation() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

impl AsFd for PolledSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for PolledSocket {
    fn drop(&mut self) {
        self.poller.remove(&self.socket, self.token);
    }
}

impl AsyncRead for PolledSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let most = buf.remaining();
        let read = self.poll_io(cx, Readiness::READ, || {
            self.try_read_up_to(most, |bytes| buf.put_slice(bytes))
        });
        read.map_ok(drop)
    }
}

impl AsyncWrite for PolledSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_io(cx, Readiness::WRITE, || self.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_io(cx, Readiness::WRITE, || self.try_write_vectored(parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // the kernel has what was written
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shut_down_writes())
    }
}
