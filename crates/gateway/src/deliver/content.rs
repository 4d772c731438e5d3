//! The body of an answer, whoever made it.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use nearpath_types::Reason;
use nearpath_wire::{Body, BoxError};

use super::response_body::Passing;
use crate::record::Completion;

/// The body of an answer.
pub(crate) enum Content {
    /// Made by the platform, and recorded.
    Own(Body),
    /// Made by the administrator's side; recorded at its end.
    Admin(Body, Completion),
    /// Made by a function.
    Function(Passing),
}

impl Content {
    /// Nobody will take the rest, for this reason.
    pub(crate) fn cut(&mut self, reason: Reason) {
        match self {
            Self::Own(_) => {} // recorded when it was made
            Self::Admin(_, record) => record.cut(reason),
            Self::Function(passing) => passing.give_up(reason),
        }
    }

    /// The administrator's answer. `bodiless`: hyper will not ask for the body.
    pub(crate) fn admin(body: Body, mut record: Completion, bodiless: bool) -> Self {
        if bodiless || body.is_end_stream() {
            record.finished();
        }
        Self::Admin(body, record)
    }
}

fn count(record: &mut Completion, polled: &Poll<Option<Result<Frame<Bytes>, BoxError>>>, ended: bool) {
    match polled {
        Poll::Ready(Some(Ok(frame))) => record.bytes_out += frame.data_ref().map_or(0, Bytes::len) as u64,
        Poll::Ready(Some(Err(_))) => record.cut(Reason::ResponseCut),
        Poll::Ready(None) | Poll::Pending => {}
    }
    if ended || matches!(polled, Poll::Ready(None)) {
        record.finished();
    }
}

impl HttpBody for Content {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Own(body) => Pin::new(body).poll_frame(cx),
            Self::Admin(body, record) => {
                let polled = Pin::new(&mut *body).poll_frame(cx);
                count(record, &polled, body.is_end_stream());
                polled
            }
            Self::Function(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(body) | Self::Admin(body, _) => body.is_end_stream(),
            Self::Function(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(body) | Self::Admin(body, _) => body.size_hint(),
            Self::Function(body) => body.size_hint(),
        }
    }
}
