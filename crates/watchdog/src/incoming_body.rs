//! A body as it came: piece by piece from a connection or a stream, or out of the chain's memory, whole or in parts.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use nearpath_domain::endpoint::BodyReader;
use nearpath_wire::quic::frame::RequestOpening;

use crate::response_body::AnyError;

type QuicStream = nearpath_wire::quic::StreamBody<RequestOpening>;

/// See the module's text.
#[derive(Debug)]
pub(crate) enum IncomingBody {
    /// From a connection.
    Http(Incoming),
    /// From a stream of another machine.
    Quic(LimitedBody),
    /// From memory that is shared with who wrote it.
    Shm(SharedMemoryBody),
}

/// A body from a stream, of which no more than so many bytes are taken.
#[derive(Debug)]
pub(crate) struct LimitedBody {
    stream: QuicStream,
    remaining_bytes: usize,
}

/// A body is longer than it may be.
#[derive(Debug, thiserror::Error)]
#[error("the request's body is too large")]
pub(crate) struct RequestTooLarge;

impl LimitedBody {
    pub(crate) fn new(stream: QuicStream, max_bytes: Option<usize>) -> Self {
        Self {
            stream,
            remaining_bytes: max_bytes.unwrap_or(usize::MAX),
        }
    }
}

impl Body for LimitedBody {
    type Data = Bytes;
    type Error = AnyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnyError>>> {
        let this = self.get_mut();
        let next = std::task::ready!(Pin::new(&mut this.stream).poll_frame(cx));
        let bytes = next
            .as_ref()
            .and_then(|next| next.as_ref().ok())
            .and_then(Frame::data_ref)
            .map_or(0, Bytes::len);
        match this.remaining_bytes.checked_sub(bytes) {
            Some(left) => {
                this.remaining_bytes = left;
                Poll::Ready(next.map(|next| next.map_err(Into::into)))
            }
            None => Poll::Ready(Some(Err(RequestTooLarge.into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.stream.size_hint()
    }
}

/// What came first, and what follows.
#[derive(Debug)]
pub(crate) struct SharedMemoryBody {
    first: Bytes,
    reader: Option<BodyReader>,
    /// Bytes that are still to come, if the sender said.
    remaining_bytes: Option<u64>,
}

impl SharedMemoryBody {
    pub(crate) fn new(first: Bytes, reader: Option<BodyReader>) -> Self {
        let remaining_bytes = match &reader {
            Some(rest) => rest.total_bytes(),
            None => Some(first.len() as u64),
        };
        Self {
            first,
            reader: reader,
            remaining_bytes: remaining_bytes,
        }
    }

    fn subtract_received(&mut self, bytes: usize) {
        self.remaining_bytes = self
            .remaining_bytes
            .map(|left| left.saturating_sub(bytes as u64));
    }
}

impl From<Bytes> for IncomingBody {
    fn from(whole: Bytes) -> Self {
        Self::Shm(SharedMemoryBody::new(whole, None))
    }
}

impl Body for SharedMemoryBody {
    type Data = Bytes;
    type Error = AnyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnyError>>> {
        let this = self.get_mut();
        if !this.first.is_empty() {
            let first = std::mem::take(&mut this.first);
            this.subtract_received(first.len());
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let Some(rest) = &this.reader else {
            return Poll::Ready(None);
        };
        let next = std::task::ready!(rest.poll(cx));
        match &next {
            Some(Ok(part)) => this.subtract_received(part.len()),
            _ => this.reader = None,
        }
        Poll::Ready(next.map(|part| part.map(Frame::data).map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_empty() && self.reader.as_ref().is_none_or(BodyReader::is_complete)
    }

    fn size_hint(&self) -> SizeHint {
        self.remaining_bytes
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Body for IncomingBody {
    type Data = Bytes;
    type Error = AnyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnyError>>> {
        match self.get_mut() {
            Self::Http(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Quic(body) => Pin::new(body).poll_frame(cx),
            Self::Shm(parts) => Pin::new(parts).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http(body) => body.is_end_stream(),
            Self::Quic(body) => body.is_end_stream(),
            Self::Shm(parts) => parts.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http(body) => body.size_hint(),
            Self::Quic(body) => body.size_hint(),
            Self::Shm(parts) => parts.size_hint(),
        }
    }
}
