//! The body of an answer: bytes at hand or a stream, with what must happen when it ends.
//!
//! A call is over when its answer's body is dropped, not when its head is sent. So the body carries the deadline and the
//! [`CallCompletion`], and both also do their work when the caller goes away in the middle.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::completion::CallCompletion;

/// Any error that can travel between tasks.
pub(crate) type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// A body that was cut because the call's time was over.
#[derive(Debug, thiserror::Error)]
#[error("watchdog: the answer was cut at the call's deadline")]
pub(crate) struct DeadlinePassed;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct WatchdogBody {
    content: BodyContent,
    deadline: Option<Pin<Box<Sleep>>>,
    completion: Option<CallCompletion>,
}

#[derive(Debug, Default)]
enum BodyContent {
    #[default]
    Empty,
    Full(Bytes),
    Stream(UnsyncBoxBody<Bytes, AnyError>),
}

impl WatchdogBody {
    /// A body of zero bytes.
    pub(crate) fn empty() -> Self {
        Self::default()
    }

    /// Any other body.
    pub(crate) fn from_stream<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<AnyError>,
    {
        Self {
            content: BodyContent::Stream(body.map_err(Into::into).boxed_unsync()),
            ..Self::default()
        }
    }

    /// Cuts the body at `deadline` and completes the call when the body is gone.
    pub(crate) fn with_completion(
        mut self,
        deadline: Option<Instant>,
        completion: CallCompletion,
    ) -> Self {
        let is_stream = matches!(self.content, BodyContent::Stream(_));
        self.deadline = deadline
            .filter(|_| is_stream)
            .map(|deadline| Box::pin(sleep_until(deadline)));
        self.completion = Some(completion);
        self
    }

    fn is_deadline_passed(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(deadline) = &mut self.deadline else {
            return false;
        };
        deadline.as_mut().poll(cx).is_ready()
    }
}

impl<T: Into<Bytes>> From<T> for WatchdogBody {
    fn from(bytes: T) -> Self {
        let bytes = bytes.into();
        let content = if bytes.is_empty() {
            BodyContent::Empty
        } else {
            BodyContent::Full(bytes)
        };
        Self {
            content,
            ..Self::default()
        }
    }
}

impl HttpBody for WatchdogBody {
    type Data = Bytes;
    type Error = AnyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnyError>>> {
        if self.is_deadline_passed(cx) {
            self.content = BodyContent::Empty;
            self.deadline = None;
            return Poll::Ready(Some(Err(DeadlinePassed.into())));
        }
        match &mut self.content {
            BodyContent::Empty => Poll::Ready(None),
            BodyContent::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                self.content = BodyContent::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            BodyContent::Stream(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            BodyContent::Empty => true,
            BodyContent::Full(_) => false,
            BodyContent::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            BodyContent::Empty => SizeHint::with_exact(0),
            BodyContent::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            BodyContent::Stream(body) => body.size_hint(),
        }
    }
}
