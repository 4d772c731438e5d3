//! Request bodies as they arrive from the caller, by protocol.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use nearpath_types::Reason;
use nearpath_wire::lingering_close::WatchedBody;
use nearpath_wire::quic::frame::RequestOpening;
use nearpath_wire::quic::{StreamBody, StreamBodyError};
use nearpath_wire::{Body, h3};

/// Request body from the caller.
#[derive(Debug)]
pub(crate) enum CallerBody {
    /// HTTP/1 or HTTP/2.
    Http(WatchedBody),
    /// HTTP/3. Boxed, because every variant would be as large otherwise.
    Http3(Box<h3::Http3RequestBody>),
    /// A stream of another node.
    Quic(Box<StreamBody<RequestOpening>>),
}

/// Error of a request body.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallerBodyError {
    /// Error of HTTP/1 or HTTP/2.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// Error of HTTP/3.
    #[error(transparent)]
    Http3(#[from] h3::RequestBodyError),
    /// Error of a stream.
    #[error(transparent)]
    Quic(#[from] StreamBodyError),
}

impl CallerBodyError {
    /// Returns the reason for a failed body: invalid framing is a bad request, a broken
    /// connection means that the caller left.
    pub(crate) fn refusal_reason(&self) -> Reason {
        let error = match self {
            Self::Http(error) => error,
            Self::Http3(error) if error.is_malformed() => return Reason::BadRequest,
            Self::Quic(StreamBodyError::InvalidFrame(_)) => return Reason::BadRequest,
            Self::Http3(_) | Self::Quic(_) => return Reason::CallerGone,
        };
        // hyper does not name framing errors, but keeps them as `io::Error` of these two kinds.
        let cause = error
            .source()
            .and_then(|cause| cause.downcast_ref::<io::Error>());
        match cause.map(io::Error::kind) {
            Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => Reason::BadRequest,
            _ => Reason::CallerGone,
        }
    }
}

impl From<CallerBody> for Body {
    fn from(body: CallerBody) -> Self {
        match body {
            CallerBody::Http(body) => Self::incoming(body),
            CallerBody::Http3(body) => Self::boxed(body),
            CallerBody::Quic(body) => Self::boxed(body),
        }
    }
}

impl HttpBody for CallerBody {
    type Data = Bytes;
    type Error = CallerBodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CallerBodyError>>> {
        match self.get_mut() {
            Self::Http(body) => Pin::new(body).poll_frame(cx).map_err(CallerBodyError::Http),
            Self::Http3(body) => Pin::new(body)
                .poll_frame(cx)
                .map_err(CallerBodyError::Http3),
            Self::Quic(body) => Pin::new(body).poll_frame(cx).map_err(CallerBodyError::Quic),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http(body) => body.is_end_stream(),
            Self::Http3(body) => body.is_end_stream(),
            Self::Quic(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http(body) => body.size_hint(),
            Self::Http3(body) => body.size_hint(),
            Self::Quic(body) => body.size_hint(),
        }
    }
}
