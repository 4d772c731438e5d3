//! An answer's body as it comes from an instance, by the path that it takes.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use nearpath_wire::BoxError;
use nearpath_wire::quic::Answer;

use super::shm_body::Parts;

/// See the module.
pub(crate) enum Source {
    /// Over a connection.
    Http(Incoming),
    /// On a stream of a QUIC connection. Boxed: all sources would be as large otherwise.
    Quic(Box<Answer>),
    /// In shared memory, whole; the slot is given back when the last byte has gone.
    Memory(Bytes),
    /// In shared memory, as the function writes it.
    Parts(Parts),
}

impl Body for Source {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Http(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Quic(body) => Pin::new(&mut **body).poll_frame(cx).map_err(Into::into),
            Self::Memory(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Memory(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Parts(parts) => parts.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http(body) => body.is_end_stream(),
            Self::Quic(body) => body.is_end_stream(),
            Self::Memory(bytes) => bytes.is_empty(),
            Self::Parts(parts) => parts.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http(body) => body.size_hint(),
            Self::Quic(body) => body.size_hint(),
            Self::Memory(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Parts(parts) => parts.size_hint(),
        }
    }
}
