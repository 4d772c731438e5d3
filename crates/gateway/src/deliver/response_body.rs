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

use super::instance_body::Source;
use super::open_response::{Held, Open};
use crate::call::Call;
use crate::request::Stage;

/// A response's body.
pub(crate) struct Passing {
    body: Source,
    open: Rc<Open>,
    last: Instant,
    /// Made when the body first keeps the caller waiting: most never do.
    timer: Option<Pin<Box<Sleep>>>,
    /// It was cut, and a gRPC caller has been told so.
    told: bool,
}

impl Passing {
    /// Begins to pass `body` on. `bodiless`: hyper will not ask for it (HEAD, 204, 304).
    pub(crate) fn new(body: Source, held: Held, call: Box<Call>, now: Instant, bodiless: bool) -> Self {
        let passing = Self { last: now, body, open: Open::begin(call, held), timer: None, told: false };
        if bodiless || passing.body.is_end_stream() {
            passing.open.finish();
        }
        passing
    }

    /// Ends it before its end, for a reason that lies with neither side of the connection.
    pub(super) fn give_up(&mut self, reason: Reason) {
        self.open.cut(reason);
    }

    /// The end of a body that was cut. To gRPC it is a status in trailers: a broken stream would be `INTERNAL` to its caller,
    /// whatever the reason was.
    fn cut(&mut self, reason: Reason, error: BoxError) -> Option<Result<Frame<Bytes>, BoxError>> {
        self.open.cut(reason);
        let Some(trailers) = self.open.grpc_status(reason) else { return Some(Err(error)) };
        (!std::mem::replace(&mut self.told, true)).then(|| Ok(Frame::trailers(trailers)))
    }

    fn count(&mut self, frame: &Frame<Bytes>) {
        self.open.gave(frame);
        if self.body.is_end_stream() {
            self.open.finish();
        } else if self.timer.is_some() {
            self.last = Instant::now();
        }
    }

    /// The limit that has passed, if one has. A timer that fires early, because something came since it was set, is set
    /// again.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<Reason> {
        self.open.waits();
        if self.timer.is_none() {
            self.last = Instant::now();
        }
        let stage = Stage::Streaming(self.last);
        let clock = self.open.clock();
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(clock.next(stage).0.into())));
        while timer.as_mut().poll(cx).is_ready() {
            if let Some(reason) = clock.expired(stage, Instant::now()) {
                return Poll::Ready(reason);
            }
            timer.as_mut().reset(clock.next(stage).0.into());
        }
        Poll::Pending
    }
}

impl Body for Passing {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Some(reason) = this.open.was_cut() {
            return Poll::Ready(this.cut(reason, reason.name().into()));
        }
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                this.count(&frame);
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(this.cut(this.open.broken(), error)),
            Poll::Ready(None) => {
                this.open.finish();
                Poll::Ready(None)
            }
            Poll::Pending => this.poll_silence(cx).map(|reason| this.cut(reason, reason.name().into())),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        self.open.end();
    }
}
