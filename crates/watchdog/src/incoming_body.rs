//! Body of a request as it comes in: from a connection, from a QUIC stream, or from the chain's
//! shared memory.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use nearpath_domain::endpoint::BodyReader;
use nearpath_wire::lingering_close::WatchedBody;
use nearpath_wire::quic::frame::RequestOpening;

use crate::response_body::AnyError;

type QuicStream = nearpath_wire::quic::StreamBody<RequestOpening>;

/// Body of an incoming request, by its source.
#[derive(Debug)]
pub(crate) enum IncomingBody {
    /// From an HTTP connection.
    Http(WatchedBody),
    /// From a QUIC stream.
    Quic(LimitedBody),
    /// From memory shared with the caller.
    Shm(SharedMemoryBody),
}

/// Body of a QUIC stream with an upper bound on its bytes.
#[derive(Debug)]
pub(crate) struct LimitedBody {
    stream: QuicStream,
    remaining_bytes: usize,
}

/// Error of a body that is longer than `nearpath.io/max-body` allows.
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
        // Trailers and errors count nothing: the bound is on data.
        let bytes = next
            .as_ref()
            .and_then(|next| next.as_ref().ok())
            .and_then(Frame::data_ref)
            .map_or(0, Bytes::len);
        // Checked piece by piece: a stream need not declare its length.
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

/// Body from shared memory: the bytes of the first message, then a reader for the parts that
/// follow.
#[derive(Debug)]
pub(crate) struct SharedMemoryBody {
    first: Bytes,
    reader: Option<BodyReader>,
    /// Bytes still to come, if the sender declared a total.
    remaining_bytes: Option<u64>,
}

impl SharedMemoryBody {
    pub(crate) fn new(first: Bytes, reader: Option<BodyReader>) -> Self {
        // A single message has a known length; parts have one only if their sender declared it.
        let remaining_bytes = match &reader {
            Some(rest) => rest.total_bytes(),
            None => Some(first.len() as u64),
        };
        Self {
            first,
            reader,
            remaining_bytes,
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
        // The first bytes came with the call's message, so they precede everything that the reader
        // yields.
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
            // Dropped at the end or an error: the sender learns at once that no more parts are
            // read.
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
