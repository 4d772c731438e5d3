//! Response bodies as they arrive from an instance, by path.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use nearpath_wire::BoxError;
use nearpath_wire::quic::QuicResponseBody;

use super::shm_body::ShmBody;
use crate::transport::Http1Body;

/// Response body from an instance.
pub(crate) enum InstanceBody {
    /// Over a connection.
    Http(Incoming),
    /// On a stream of a QUIC connection. Boxed, because every variant would be as large
    /// otherwise.
    Quic(Box<QuicResponseBody>),
    /// Complete, from shared memory or the function's own server; the slot is released with the last
    /// byte.
    Whole(Bytes),
    /// In shared memory, as the function writes it.
    ShmStream(ShmBody),
    /// From the function's own server.
    Loopback(Box<Http1Body>),
}

impl Body for InstanceBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Http(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Quic(body) => Pin::new(&mut **body).poll_frame(cx).map_err(Into::into),
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::ShmStream(parts) => parts.poll_frame(cx),
            Self::Loopback(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http(body) => body.is_end_stream(),
            Self::Quic(body) => body.is_end_stream(),
            Self::Whole(bytes) => bytes.is_empty(),
            Self::ShmStream(parts) => parts.is_complete(),
            Self::Loopback(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http(body) => body.size_hint(),
            Self::Quic(body) => body.size_hint(),
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::ShmStream(parts) => parts.size_hint(),
            Self::Loopback(body) => body.size_hint(),
        }
    }
}
