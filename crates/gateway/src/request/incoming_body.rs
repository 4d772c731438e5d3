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
pub(crate) enum Arriving {
    /// HTTP/1 or HTTP/2.
    Http(Incoming),
    /// HTTP/3. Boxed, because it is large and others should not be.
    Http3(Box<h3::Incoming>),
}

/// Why it broke off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Cut {
    /// Of HTTP/1 or HTTP/2.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// Of HTTP/3.
    #[error(transparent)]
    Http3(#[from] h3::Broken),
}

impl Cut {
    /// A body that breaks off means that the caller left; one whose framing cannot be read is a bad request.
    pub(crate) fn blame(&self) -> Reason {
        let error = match self {
            Self::Http(error) => error,
            Self::Http3(h3::Broken::Length) => return Reason::BadRequest,
            Self::Http3(h3::Broken::Gone(_)) => return Reason::CallerGone,
        };
        let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
        match cause.map(io::Error::kind) {
            Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => Reason::BadRequest,
            _ => Reason::CallerGone,
        }
    }
}

impl From<Arriving> for Body {
    fn from(body: Arriving) -> Self {
        match body {
            Arriving::Http(body) => Self::incoming(body),
            Arriving::Http3(body) => Self::boxed(body),
        }
    }
}

impl HttpBody for Arriving {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match self.get_mut() {
            Self::Http(body) => Pin::new(body).poll_frame(cx).map_err(Cut::Http),
            Self::Http3(body) => Pin::new(body).poll_frame(cx).map_err(Cut::Http3),
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
