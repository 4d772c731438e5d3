//! An answer, and what its call holds until its end.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tokio::task::AbortHandle;

use super::body_writer::StreamBodyWriter;
use super::frame::ResponseOpening;
use super::idle_watch::InFlightCalls;
use super::stream_body::{StreamBody, StreamBodyError};
use crate::BoxError;

/// One call that is under way.
#[derive(Debug)]
pub(super) struct InFlightCall(Arc<InFlightCalls>);

impl InFlightCall {
    pub(super) fn start(load: &Arc<InFlightCalls>) -> Self {
        load.start_call();
        Self(Arc::clone(load))
    }
}

impl Drop for InFlightCall {
    fn drop(&mut self) {
        self.0.end_call();
    }
}

/// The request's body, while the answer is read.
#[derive(Debug)]
pub(super) struct UploadGuard(AbortHandle);

impl UploadGuard {
    pub(super) fn spawn<B>(
        mut out: StreamBodyWriter,
        first: BytesMut,
        body: B,
        announced: bool,
    ) -> Self
    where
        B: Body<Data = Bytes> + 'static,
        B::Error: Into<BoxError>,
    {
        let sending = async move {
            let _ = out.send_body(first, body, announced).await; // the answer tells why
        };
        Self(tokio::task::spawn_local(sending).abort_handle())
    }
}

impl Drop for UploadGuard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The body of an answer. Dropped before its end, it tells the worker that nobody waits.
#[derive(Debug)]
pub struct QuicResponseBody {
    pub(super) body: StreamBody<ResponseOpening>,
    pub(super) opening: ResponseOpening,
    pub(super) was_early: bool,
    pub(super) _upload: Option<UploadGuard>,
    pub(super) in_flight: InFlightCall,
}

impl QuicResponseBody {
    /// What was said beside HTTP's head.
    pub fn opening(&self) -> &ResponseOpening {
        &self.opening
    }

    /// Whether its request went in the first flight, and was taken.
    pub fn was_early(&self) -> bool {
        self.was_early
    }
}

impl Body for QuicResponseBody {
    type Data = Bytes;
    type Error = StreamBodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamBodyError>>> {
        let this = self.get_mut();
        let frame = Pin::new(&mut this.body).poll_frame(cx);
        frame.map_err(|error| this.in_flight.0.explain_error(error))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
