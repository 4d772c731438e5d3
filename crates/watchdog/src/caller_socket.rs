//! Connection of a caller: plain or TLS. One type, so that HTTP is compiled once.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use nearpath_wire::lingering_close::{LingeringStream, UnreadInput};
use nearpath_wire::mtls::{PeekedStream, ServerStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Socket of a caller, which may be sending a body that is not read.
pub(crate) type CallerTcpStream = LingeringStream<TcpStream>;

/// Connection of a caller.
#[derive(Debug)]
pub(crate) enum CallerSocket {
    /// Plain, where TLS is not possible.
    Plain(CallerTcpStream),
    /// Plain, after its first bytes were inspected for TLS.
    Peeked(PeekedStream<CallerTcpStream>),
    /// TLS; boxed, because its state is large and most connections are plain.
    Tls(Box<ServerStream<PeekedStream<CallerTcpStream>>>),
}

impl CallerSocket {
    /// Returns the state by which requests of this connection decide about its close.
    pub(crate) fn unread_input(&self) -> UnreadInput {
        match self {
            Self::Plain(stream) => stream.unread_input(),
            Self::Peeked(peeked) => peeked.get_ref().unread_input(),
            Self::Tls(tls) => tls.get_ref().0.get_ref().unread_input(),
        }
    }
}

/// Applies the expression to the inner stream.
macro_rules! each {
    ($socket:expr, $io:ident => $do:expr) => {
        match $socket.get_mut() {
            CallerSocket::Plain($io) => $do,
            CallerSocket::Peeked($io) => $do,
            CallerSocket::Tls(boxed) => {
                let $io = &mut **boxed;
                $do
            }
        }
    };
}

impl AsyncRead for CallerSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self, io => Pin::new(io).poll_read(cx, buf))
    }
}

impl AsyncWrite for CallerSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self, io => Pin::new(io).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, io => Pin::new(io).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(io) => io.is_write_vectored(),
            Self::Peeked(io) => io.is_write_vectored(),
            Self::Tls(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, io => Pin::new(io).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, io => Pin::new(io).poll_shutdown(cx))
    }
}
