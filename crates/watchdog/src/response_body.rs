//! Body of a response: bytes at hand or a stream, with the work that must happen at its end.
//!
//! A call ends when its response body is dropped, not when the head is sent. So the body carries
//! the deadline and the [`CallCompletion`]. Both also take effect when the caller leaves in the
//! middle.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::completion::CallCompletion;

/// Any error that can be sent between tasks.
pub(crate) type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Error of a body that was cut at the call's deadline.
#[derive(Debug, thiserror::Error)]
#[error("watchdog: exec_timeout: the answer was cut at the call's deadline")]
pub(crate) struct DeadlinePassed;

/// Response body with the call's deadline and completion.
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
    /// Empty body.
    pub(crate) fn empty() -> Self {
        Self::default()
    }

    /// Body from a stream of frames.
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

    /// Attaches the deadline, which cuts a streamed body, and the completion, which is dropped with
    /// the body.
    pub(crate) fn with_completion(
        mut self,
        deadline: Option<Instant>,
        completion: CallCompletion,
    ) -> Self {
        // Bytes at hand are sent in one piece, so only a stream can outlast the deadline.
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
        // Before the content: a stream that is always ready would otherwise never be cut.
        if self.is_deadline_passed(cx) {
            // Emptied, so that a poll after the error ends instead of continuing the stream.
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
            // hyper sends no frame of a body that has ended, so bytes at hand count as one to come.
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
