//! Request bodies on their way to an instance: counted, limited, and timed.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use nearpath_types::Reason;
use nearpath_wire::BoxError;

use super::caller_body::CallerBody;
use super::deadlines::RequestStage;

/// Progress of a request body. Shared by the body, which another task may send, and the request
/// that awaits its response.
#[derive(Debug)]
pub(crate) struct UploadProgress {
    byte_count: Cell<u64>,
    last_chunk: Cell<Instant>,
    ended_at: Cell<Option<Instant>>,
    fault: Cell<Option<Reason>>,
    waker: RefCell<Option<Waker>>,
}

impl UploadProgress {
    fn new(now: Instant) -> Rc<Self> {
        let (byte_count, last_chunk) = (Cell::new(0), Cell::new(now));
        Rc::new(Self {
            byte_count,
            last_chunk,
            ended_at: Cell::new(None),
            fault: Cell::new(None),
            waker: RefCell::new(None),
        })
    }

    /// Returns the bytes so far.
    pub(crate) fn byte_count(&self) -> u64 {
        self.byte_count.get()
    }

    /// Returns why the body was not sent completely, if the caller or a limit is the cause.
    pub(crate) fn fault(&self) -> Option<Reason> {
        self.fault.get()
    }

    /// Returns the stage of a request before its response. Its body was not read before
    /// `admitted`.
    pub(crate) fn current_stage(&self, admitted: Instant) -> RequestStage {
        // Time in the queue is not silence of the caller: the body was not read then.
        self.ended_at.get().map_or(
            RequestStage::Uploading(self.last_chunk.get().max(admitted)),
            RequestStage::Awaiting,
        )
    }

    /// Returns whether all of the body was sent.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended_at.get().is_some()
    }

    /// Registers `waker` for a change of the stage.
    pub(crate) fn wake_on_change(&self, waker: &Waker) {
        let mut waiting = self.waker.borrow_mut();
        if !waiting.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *waiting = Some(waker.clone());
        }
    }

    fn mark_ended(&self) {
        self.ended_at.set(Some(Instant::now()));
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// Request body on its way to an instance.
#[derive(Debug)]
pub(crate) enum RequestUpload {
    /// No body.
    Empty,
    /// Complete in memory.
    Complete {
        /// The body.
        body: Bytes,
        /// Its progress.
        progress: Rc<UploadProgress>,
    },
    /// A first chunk that was read but not sent, and the rest.
    Prefixed {
        /// The chunk, counted already.
        first: Bytes,
        /// The rest.
        rest: Box<Self>,
    },
    /// Arriving from the caller.
    Streaming {
        /// The caller's body.
        body: CallerBody,
        /// Its progress.
        progress: Rc<UploadProgress>,
        /// Maximum length in bytes.
        limit: u64,
    },
}

impl RequestUpload {
    /// Wraps an arriving body. No [`UploadProgress`] without a body.
    pub(crate) fn new(body: CallerBody, limit: Option<u64>) -> (Self, Option<Rc<UploadProgress>>) {
        if body.is_end_stream() {
            return (Self::Empty, None);
        }
        let progress = UploadProgress::new(Instant::now());
        (
            Self::Streaming {
                body,
                progress: progress.clone(),
                limit: limit.unwrap_or(u64::MAX),
            },
            Some(progress),
        )
    }

    /// Wraps a complete body. No [`UploadProgress`] if it is empty.
    pub(crate) fn from_bytes(body: Bytes) -> (Self, Option<Rc<UploadProgress>>) {
        if body.is_empty() {
            return (Self::Empty, None);
        }
        let progress = UploadProgress::new(Instant::now());
        (
            Self::Complete {
                body,
                progress: progress.clone(),
            },
            Some(progress),
        )
    }

    /// Copies a complete body; `None` for others. The copy is not counted again.
    pub(crate) fn try_copy(&self) -> Option<Self> {
        match self {
            Self::Empty => Some(Self::Empty),
            Self::Complete { body, progress } => Some(Self::Complete {
                body: body.clone(),
                progress: progress.clone(),
            }),
            Self::Prefixed { first, rest } if rest.is_end_stream() => {
                Some(Self::Empty.with_first_chunk(first.clone()))
            }
            Self::Prefixed { .. } | Self::Streaming { .. } => None,
        }
    }

    /// Puts back a chunk that was read but not sent.
    pub(crate) fn with_first_chunk(self, first: Bytes) -> Self {
        if first.is_empty() {
            self
        } else {
            Self::Prefixed {
                first,
                rest: Box::new(self),
            }
        }
    }
}

/// Returns the whole body as one frame, once.
fn take_frame(body: &mut Bytes, progress: &UploadProgress) -> Option<Frame<Bytes>> {
    if body.is_empty() {
        return None;
    }
    if !progress.has_ended() {
        progress
            .byte_count
            // Not again if a copy is sent elsewhere.
            .set(progress.byte_count.get() + body.len() as u64);
        progress.mark_ended();
    }
    Some(Frame::data(std::mem::take(body)))
}

impl Body for RequestUpload {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let (body, progress, limit) = match self.get_mut() {
            Self::Empty => return Poll::Ready(None),
            Self::Complete { body, progress } => {
                return Poll::Ready(take_frame(body, progress).map(Ok));
            }
            Self::Prefixed { first, rest } => {
                return match first.is_empty() {
                    true => Pin::new(&mut **rest).poll_frame(cx),
                    false => Poll::Ready(Some(Ok(Frame::data(std::mem::take(first))))),
                };
            }
            Self::Streaming {
                body,
                progress,
                limit,
            } => (body, progress, limit),
        };
        let frame = std::task::ready!(Pin::new(&mut *body).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                progress
                    .byte_count
                    .set(progress.byte_count.get() + frame.data_ref().map_or(0, Bytes::len) as u64);
                progress.last_chunk.set(Instant::now());
                // Checked on every frame: a chunked body announces no length.
                if progress.byte_count.get() > *limit {
                    progress.fault.set(Some(Reason::BodyTooLarge));
                    return Poll::Ready(Some(Err(
                        "the request's body is larger than the limit".into()
                    )));
                }
                // hyper does not poll a body again whose end it knows, and the stage must change.
                if body.is_end_stream() {
                    progress.mark_ended();
                }
            }
            // Kept here, because hyper reports only that the body failed, not why.
            Some(Err(error)) => progress.fault.set(Some(error.refusal_reason())),
            None => progress.mark_ended(),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Complete { body, .. } => body.is_empty(),
            Self::Prefixed { first, rest } => first.is_empty() && rest.is_end_stream(),
            Self::Streaming { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Complete { body, .. } => SizeHint::with_exact(body.len() as u64),
            Self::Prefixed { first, rest } => {
                let rest = rest.size_hint().exact();
                rest.map_or_else(SizeHint::new, |rest| {
                    SizeHint::with_exact(first.len() as u64 + rest)
                })
            }
            Self::Streaming { body, .. } => body.size_hint(),
        }
    }
}
