//! Body of a response of the tenant's server.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use nearpath_wire::hop::headers::strip_platform_headers;

use crate::response_body::{AnyError, WatchdogBody};

/// Body whose trailers have no fields that only the platform sets.
#[derive(Debug)]
pub(super) struct TenantBody(pub(super) WatchdogBody);

impl Body for TenantBody {
    type Data = Bytes;
    type Error = AnyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnyError>>> {
        let mut polled = Pin::new(&mut self.0).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &mut polled
            && let Some(trailers) = frame.trailers_mut()
        {
            strip_platform_headers(trailers);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
