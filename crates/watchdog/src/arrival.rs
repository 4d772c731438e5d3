//! A body as it came: piece by piece from a connection or a stream, or out of the chain's memory, whole or in parts.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use nearpath_domain::endpoint::BodyReader;
use nearpath_wire::quic::frame::Asked;

use crate::body::BoxError;

type Stream = nearpath_wire::quic::Incoming<Asked>;

/// See the module's text.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// From a connection.
    Wire(Incoming),
    /// From a stream of another machine.
    Quic(Bounded),
    /// From memory that is shared with who wrote it.
    Memory(Parts),
}

/// A body from a stream, of which no more than so many bytes are taken.
#[derive(Debug)]
pub(crate) struct Bounded {
    stream: Stream,
    left: usize,
}

/// A body is longer than it may be.
#[derive(Debug, thiserror::Error)]
#[error("the request's body is too large")]
pub(crate) struct TooLarge;

impl Bounded {
    pub(crate) fn new(stream: Stream, most: Option<usize>) -> Self {
        Self { stream, left: most.unwrap_or(usize::MAX) }
    }
}

impl Body for Bounded {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let next = std::task::ready!(Pin::new(&mut this.stream).poll_frame(cx));
        let bytes = next.as_ref().and_then(|next| next.as_ref().ok()).and_then(Frame::data_ref).map_or(0, Bytes::len);
        match this.left.checked_sub(bytes) {
            Some(left) => {
                this.left = left;
                Poll::Ready(next.map(|next| next.map_err(Into::into)))
            }
            None => Poll::Ready(Some(Err(TooLarge.into()))),
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
pub(crate) struct Parts {
    first: Bytes,
    rest: Option<BodyReader>,
    /// Bytes that are still to come, if the sender said.
    left: Option<u64>,
}

impl Parts {
    pub(crate) fn new(first: Bytes, rest: Option<BodyReader>) -> Self {
        let left = match &rest {
            Some(rest) => rest.total_bytes(),
            None => Some(first.len() as u64),
        };
        Self { first, rest, left }
    }

    fn count(&mut self, bytes: usize) {
        self.left = self.left.map(|left| left.saturating_sub(bytes as u64));
    }
}

impl From<Bytes> for Arrival {
    fn from(whole: Bytes) -> Self {
        Self::Memory(Parts::new(whole, None))
    }
}

impl Body for Parts {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if !this.first.is_empty() {
            let first = std::mem::take(&mut this.first);
            this.count(first.len());
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let Some(rest) = &this.rest else { return Poll::Ready(None) };
        let next = std::task::ready!(rest.poll(cx));
        match &next {
            Some(Ok(part)) => this.count(part.len()),
            _ => this.rest = None,
        }
        Poll::Ready(next.map(|part| part.map(Frame::data).map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_empty() && self.rest.as_ref().is_none_or(BodyReader::is_complete)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Body for Arrival {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Wire(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Quic(body) => Pin::new(body).poll_frame(cx),
            Self::Memory(parts) => Pin::new(parts).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Wire(body) => body.is_end_stream(),
            Self::Quic(body) => body.is_end_stream(),
            Self::Memory(parts) => parts.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Wire(body) => body.size_hint(),
            Self::Quic(body) => body.size_hint(),
            Self::Memory(parts) => parts.size_hint(),
        }
    }
}
