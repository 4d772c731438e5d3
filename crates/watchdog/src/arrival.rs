//! A request's body as it came: piece by piece from a connection, or whole out of the chain's memory.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

/// See the module's text.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// From a connection.
    Wire(Incoming),
    /// From memory that is shared with the caller.
    Memory(Bytes),
}

impl Body for Arrival {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Wire(body) => Pin::new(body).poll_frame(cx),
            Self::Memory(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Memory(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Wire(body) => body.is_end_stream(),
            Self::Memory(bytes) => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Wire(body) => body.size_hint(),
            Self::Memory(bytes) => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}
