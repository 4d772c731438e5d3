//! Body of a response from any source.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use nearpath_types::Reason;
use nearpath_wire::{Body, BoxError};

use super::response_body::ResponseBody;
use super::response_buffer::BufferedResponse;
use crate::record::CompletionRecord;

/// Body of a response.
pub(crate) enum ResponseContent {
    /// Made by the platform, recorded already.
    Platform(Body),
    /// Made by the administrative side; recorded at its end.
    Admin(Body, CompletionRecord),
    /// Made by a function.
    Function(ResponseBody),
    /// Made by a function with limited places.
    Buffered(BufferedResponse),
}

impl ResponseContent {
    /// Ends the body early because no reader will take the rest.
    pub(crate) fn cut_short(&mut self, reason: Reason) {
        match self {
            Self::Platform(_) => {} // recorded when it was made
            Self::Admin(_, record) => record.mark_truncated(reason),
            Self::Function(body) => body.cut_short(reason),
            Self::Buffered(body) => body.cut_short(reason),
        }
    }

    /// Wraps an administrative response. `has_no_body`: hyper will not poll the body.
    pub(crate) fn from_admin(body: Body, mut record: CompletionRecord, has_no_body: bool) -> Self {
        // A body that is never polled never ends, so its record has to end here.
        if has_no_body || body.is_end_stream() {
            record.mark_finished();
        }
        Self::Admin(body, record)
    }
}

fn count_frame(
    record: &mut CompletionRecord,
    polled: &Poll<Option<Result<Frame<Bytes>, BoxError>>>,
    ended: bool,
) {
    match polled {
        Poll::Ready(Some(Ok(frame))) => {
            record.bytes_out += frame.data_ref().map_or(0, Bytes::len) as u64
        }
        Poll::Ready(Some(Err(_))) => record.mark_truncated(Reason::ResponseTruncated),
        Poll::Ready(None) | Poll::Pending => {}
    }
    // hyper does not poll a body again that reports its end with the last frame.
    if ended || matches!(polled, Poll::Ready(None)) {
        record.mark_finished();
    }
}

impl HttpBody for ResponseContent {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Platform(body) => Pin::new(body).poll_frame(cx),
            Self::Admin(body, record) => {
                let polled = Pin::new(&mut *body).poll_frame(cx);
                count_frame(record, &polled, body.is_end_stream());
                polled
            }
            Self::Function(body) => Pin::new(body).poll_frame(cx),
            Self::Buffered(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Platform(body) | Self::Admin(body, _) => body.is_end_stream(),
            Self::Function(body) => body.is_end_stream(),
            Self::Buffered(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Platform(body) | Self::Admin(body, _) => body.size_hint(),
            Self::Function(body) => body.size_hint(),
            Self::Buffered(body) => body.size_hint(),
        }
    }
}
