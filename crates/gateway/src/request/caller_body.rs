//! A request's body as it comes from the caller, by the protocol that it comes in.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use nearpath_types::Reason;
use nearpath_wire::{Body, h3};

/// See the module.
#[derive(Debug)]
pub(crate) enum CallerBody {
    /// HTTP/1 or HTTP/2.
    Http(Incoming),
    /// HTTP/3. Boxed, because it is large and others should not be.
    Http3(Box<h3::Http3RequestBody>),
}

/// Why it broke off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallerBodyError {
    /// Of HTTP/1 or HTTP/2.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// Of HTTP/3.
    #[error(transparent)]
    Http3(#[from] h3::RequestBodyError),
}

impl CallerBodyError {
    /// A body that breaks off means that the caller left; one whose framing cannot be read is a bad request.
    pub(crate) fn refusal_reason(&self) -> Reason {
        let error = match self {
            Self::Http(error) => error,
            Self::Http3(h3::RequestBodyError::WrongLength) => return Reason::BadRequest,
            Self::Http3(h3::RequestBodyError::ClientGone(_)) => return Reason::CallerGone,
        };
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
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http(body) => body.is_end_stream(),
            Self::Http3(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http(body) => body.size_hint(),
            Self::Http3(body) => body.size_hint(),
        }
    }
}
