//! A caller's connection: plain, or in TLS. One type, so that HTTP is in the program once.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use nearpath_wire::mtls::{PeekedStream, ServerStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// See the module's text.
#[derive(Debug)]
pub(crate) enum Socket {
    /// Nobody looked at it before HTTP does.
    Plain(TcpStream),
    /// It could have been TLS, and is not.
    Begun(PeekedStream<TcpStream>),
    Tls(Box<ServerStream<PeekedStream<TcpStream>>>),
}

/// Does the same with whichever it is.
macro_rules! each {
    ($socket:expr, $io:ident => $do:expr) => {
        match $socket.get_mut() {
            Socket::Plain($io) => $do,
            Socket::Begun($io) => $do,
            Socket::Tls(boxed) => {
                let $io = &mut **boxed;
                $do
            }
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self, io => Pin::new(io).poll_read(cx, buf))
    }
}

impl AsyncWrite for Socket {
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
            Self::Begun(io) => io.is_write_vectored(),
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
