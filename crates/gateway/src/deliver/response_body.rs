//! The response's body on its way to the caller. It holds the request's place at the instance, the connection and the
//! completion record until the last byte, and gives them back exactly once.

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

/// A response's body.
pub(crate) struct ResponseBody {
    body: InstanceBody,
    state: Rc<ResponseState>,
    last_frame: Instant,
    /// Made when the body first keeps the caller waiting: most never do.
    timer: Option<Pin<Box<Sleep>>>,
    /// It was cut, and a gRPC caller has been told so.
    trailers_sent: bool,
}

impl ResponseBody {
    /// Begins to pass `body` on. `bodiless`: hyper will not ask for it (HEAD, 204, 304).
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
        }
        response_body
    }

    /// Ends it before its end, for a reason that lies with neither side of the connection.
    pub(super) fn cut_short(&mut self, reason: Reason) {
        self.state.cut_short(reason);
    }

    /// The end of a body that was cut. To gRPC it is a status in trailers: a broken stream would be `INTERNAL` to its caller,
    /// whatever the reason was.
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
        } else if self.timer.is_some() {
            self.last_frame = Instant::now();
        }
    }

    /// The limit that has passed, if one has. A timer that fires early, because something came since it was set, is set
    /// again.
    fn poll_idle_timeout(&mut self, cx: &mut Context<'_>) -> Poll<Reason> {
        self.state.note_function_waits();
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
