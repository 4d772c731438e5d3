//! The body of an answer: bytes at hand or a stream, with what must happen when it ends.
//!
//! A call is over when its answer's body is dropped, not when its head is sent. So the body carries the deadline and the
//! [`Completion`], and both also do their work when the caller goes away in the middle.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::completion::Completion;

/// Any error that can travel between tasks.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A body that was cut because the call's time was over.
#[derive(Debug, thiserror::Error)]
#[error("watchdog: exec_timeout: the answer was cut at the call's deadline")]
pub(crate) struct DeadlinePassed;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Body {
    kind: Kind,
    deadline: Option<Pin<Box<Sleep>>>,
    completion: Option<Completion>,
}

#[derive(Debug, Default)]
enum Kind {
    #[default]
    Empty,
    Full(Bytes),
    Stream(UnsyncBoxBody<Bytes, BoxError>),
}

impl Body {
    /// A body of zero bytes.
    pub(crate) fn empty() -> Self {
        Self::default()
    }

    /// Any other body.
    pub(crate) fn stream<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self { kind: Kind::Stream(body.map_err(Into::into).boxed_unsync()), ..Self::default() }
    }

    /// Cuts the body at `deadline` and completes the call when the body is gone.
    pub(crate) fn until(mut self, deadline: Option<Instant>, completion: Completion) -> Self {
        let endless = matches!(self.kind, Kind::Stream(_));
        self.deadline = deadline.filter(|_| endless).map(|deadline| Box::pin(sleep_until(deadline)));
        self.completion = Some(completion);
        self
    }

    fn out_of_time(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(deadline) = &mut self.deadline else { return false };
        deadline.as_mut().poll(cx).is_ready()
    }
}

impl<T: Into<Bytes>> From<T> for Body {
    fn from(bytes: T) -> Self {
        let bytes = bytes.into();
        let kind = if bytes.is_empty() { Kind::Empty } else { Kind::Full(bytes) };
        Self { kind, ..Self::default() }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.out_of_time(cx) {
            self.kind = Kind::Empty;
            self.deadline = None;
            return Poll::Ready(Some(Err(DeadlinePassed.into())));
        }
        match &mut self.kind {
            Kind::Empty => Poll::Ready(None),
            Kind::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                self.kind = Kind::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Kind::Stream(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Empty => true,
            Kind::Full(_) => false,
            Kind::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Stream(body) => body.size_hint(),
        }
    }
}
