//! Response of a call, and the resources that the call holds until its end.

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

/// Counts a call as in flight until it is dropped.
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

/// Task that sends the request's body while the response is read. Dropping it stops the task.
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
            // the response carries the reason of a failure
            let _ = out.send_body(first, body, announced).await;
        };
        Self(tokio::task::spawn_local(sending).abort_handle())
    }
}

impl Drop for UploadGuard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Body of a response. Dropping it before its end cancels the call at the worker.
#[derive(Debug)]
pub struct QuicResponseBody {
    pub(super) body: StreamBody<ResponseOpening>,
    pub(super) opening: ResponseOpening,
    pub(super) was_early: bool,
    pub(super) _upload: Option<UploadGuard>,
    pub(super) in_flight: InFlightCall,
}

impl QuicResponseBody {
    /// Opening of the response.
    pub fn opening(&self) -> &ResponseOpening {
        &self.opening
    }

    /// Returns true if the worker accepted the request in the first flight.
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
        // A stalled connection was closed by this side; the caller needs the cause.
        frame.map_err(|error| this.in_flight.0.explain_error(error))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
