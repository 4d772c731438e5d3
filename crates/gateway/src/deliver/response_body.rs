//! Response body on its way to the caller. Holds the slot, the connection and the completion
//! record until the last byte, and releases each exactly once.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use nearpath_types::Reason;
use nearpath_wire::BoxError;
use tokio::time::Sleep;

use super::instance_body::InstanceBody;
use super::open_response::{RequestGuard, ResponseState};
use crate::call::GatewayCall;
use crate::request::RequestStage;

/// Body of a function's response.
pub(crate) struct ResponseBody {
    body: InstanceBody,
    state: Rc<ResponseState>,
    last_frame: Instant,
    /// Created when the body is first pending; most bodies never are.
    timer: Option<Pin<Box<Sleep>>>,
    /// The body was cut, and the trailers for a gRPC caller were sent.
    trailers_sent: bool,
}

impl ResponseBody {
    /// Starts to forward `body`. `has_no_body`: hyper will not poll it (HEAD, 204, 304).
    pub(crate) fn new(
        body: InstanceBody,
        guard: RequestGuard,
        call: Box<GatewayCall>,
        now: Instant,
        has_no_body: bool,
    ) -> Self {
        let response_body = Self {
            last_frame: now,
            body,
            state: ResponseState::begin_response(call, guard),
            timer: None,
            trailers_sent: false,
        };
        if has_no_body || response_body.body.is_end_stream() {
            response_body.state.finish_response();
        } else if let InstanceBody::Whole(bytes) = &response_body.body {
            // The function is done, and a slow caller must not occupy it.
            response_body.state.finish_with(bytes.len() as u64);
        }
        response_body
    }

    /// Returns whether the frames are slots of shared memory.
    pub(super) fn is_in_shared_memory(&self) -> bool {
        matches!(
            self.body,
            InstanceBody::Whole(_) | InstanceBody::ShmStream(_)
        )
    }

    /// Cuts the body for a reason that lies outside of the connection to the instance.
    pub(super) fn cut_short(&mut self, reason: Reason) {
        self.state.cut_short(reason);
    }

    /// Returns the end of a cut body. gRPC gets a status in trailers: a broken stream would
    /// always be `INTERNAL` to its caller.
    fn cut_with_trailers(
        &mut self,
        reason: Reason,
        error: BoxError,
    ) -> Option<Result<Frame<Bytes>, BoxError>> {
        self.state.cut_short(reason);
        let Some(trailers) = self.state.grpc_trailers(reason) else {
            return Some(Err(error));
        };
        (!std::mem::replace(&mut self.trailers_sent, true)).then(|| Ok(Frame::trailers(trailers)))
    }

    fn note_frame(&mut self, frame: &Frame<Bytes>) {
        self.state.note_frame(frame);
        if self.body.is_end_stream() {
            self.state.finish_response();
        // Only the timer reads `last_frame`, and reading the clock for each frame is not free.
        } else if self.timer.is_some() {
            self.last_frame = Instant::now();
        }
    }

    /// Returns the limit that has passed. A timer that fires early, because data came after it
    /// was set, is set again.
    fn poll_idle_timeout(&mut self, cx: &mut Context<'_>) -> Poll<Reason> {
        self.state.note_function_waits();
        // The silence begins now: before the first pending poll, `last_frame` was not kept up to
        // date.
        if self.timer.is_none() {
            self.last_frame = Instant::now();
        }
        let stage = RequestStage::Streaming(self.last_frame);
        let deadlines = self.state.deadlines();
        let timer = self.timer.get_or_insert_with(|| {
            Box::pin(tokio::time::sleep_until(
                deadlines.next_deadline(stage).0.into(),
            ))
        });
        while timer.as_mut().poll(cx).is_ready() {
            if let Some(reason) = deadlines.expired_reason(stage, Instant::now()) {
                return Poll::Ready(reason);
            }
            timer
                .as_mut()
                .reset(deadlines.next_deadline(stage).0.into());
        }
        Poll::Pending
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        // The sweep may have cut the response since the last poll; its connection is gone then.
        if let Some(reason) = this.state.cut_reason() {
            return Poll::Ready(this.cut_with_trailers(reason, reason.name().into()));
        }
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                this.note_frame(&frame);
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                Poll::Ready(this.cut_with_trailers(this.state.break_reason(), error))
            }
            Poll::Ready(None) => {
                this.state.finish_response();
                Poll::Ready(None)
            }
            Poll::Pending => this
                .poll_idle_timeout(cx)
                .map(|reason| this.cut_with_trailers(reason, reason.name().into())),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.state.deregister();
    }
}
