//! The request's body on its way to an instance: counted, bounded, and watched for silence.

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

/// How far a request's body is. Shared by the body, which another task sends, and the request that waits for an answer.
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
        let (bytes, last) = (Cell::new(0), Cell::new(now));
        Rc::new(Self {
            byte_count: bytes,
            last_chunk: last,
            ended_at: Cell::new(None),
            fault: Cell::new(None),
            waker: RefCell::new(None),
        })
    }

    /// Bytes of the body so far.
    pub(crate) fn byte_count(&self) -> u64 {
        self.byte_count.get()
    }

    /// Why the body was not sent as a whole, when the caller or a limit is to blame.
    pub(crate) fn fault(&self) -> Option<Reason> {
        self.fault.get()
    }

    /// Where a request that was let in at `admitted` stands before its answer. Nobody asked for its body before.
    pub(crate) fn current_stage(&self, admitted: Instant) -> RequestStage {
        self.ended_at.get().map_or(
            RequestStage::Uploading(self.last_chunk.get().max(admitted)),
            RequestStage::Awaiting,
        )
    }

    /// Whether all of it was sent.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended_at.get().is_some()
    }

    /// Wakes `waker` when the stage changes.
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

/// A request's body.
#[derive(Debug)]
pub(crate) enum RequestUpload {
    /// There is none.
    Empty,
    /// An adapter has it as a whole; it is taken when it is sent.
    Complete {
        /// The body.
        body: Bytes,
        /// Where it is counted.
        progress: Rc<UploadProgress>,
    },
    /// Its first piece was taken, but not sent.
    Prefixed {
        /// The piece; it has been counted.
        first: Bytes,
        /// What follows.
        rest: Box<Self>,
    },
    /// It arrives from the caller.
    Streaming {
        /// What arrives.
        body: CallerBody,
        /// Where it is counted.
        progress: Rc<UploadProgress>,
        /// The most it may be, in bytes.
        limit: u64,
    },
}

impl RequestUpload {
    /// Wraps what arrives. No [`UploadProgress`]: there is no body.
    pub(crate) fn new(body: CallerBody, limit: Option<u64>) -> (Self, Option<Rc<UploadProgress>>) {
        if body.is_end_stream() {
            return (Self::Empty, None);
        }
        let flow = UploadProgress::new(Instant::now());
        (
            Self::Streaming {
                body,
                progress: flow.clone(),
                limit: limit.unwrap_or(u64::MAX),
            },
            Some(flow),
        )
    }

    /// Wraps a body that is there as a whole. No [`UploadProgress`]: it is empty.
    pub(crate) fn from_bytes(body: Bytes) -> (Self, Option<Rc<UploadProgress>>) {
        if body.is_empty() {
            return (Self::Empty, None);
        }
        let flow = UploadProgress::new(Instant::now());
        (
            Self::Complete {
                body,
                progress: flow.clone(),
            },
            Some(flow),
        )
    }

    /// A second one, where all of it is here. What it brings is not counted again.
    pub(crate) fn try_copy(&self) -> Option<Self> {
        match self {
            Self::Empty => Some(Self::Empty),
            Self::Complete {
                body,
                progress: flow,
            } => Some(Self::Complete {
                body: body.clone(),
                progress: flow.clone(),
            }),
            Self::Prefixed { first, rest } if rest.is_end_stream() => {
                Some(Self::Empty.with_first_chunk(first.clone()))
            }
            Self::Prefixed { .. } | Self::Streaming { .. } => None,
        }
    }

    /// Puts a piece back that was taken, but not sent.
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

/// The whole body as one frame, once.
fn take_frame(body: &mut Bytes, flow: &UploadProgress) -> Option<Frame<Bytes>> {
    if body.is_empty() {
        return None;
    }
    if !flow.has_ended() {
        flow.byte_count
            .set(flow.byte_count.get() + body.len() as u64); // not again, when a copy is sent elsewhere
        flow.mark_ended();
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
        let (body, flow, limit) = match self.get_mut() {
            Self::Empty => return Poll::Ready(None),
            Self::Complete {
                body,
                progress: flow,
            } => return Poll::Ready(take_frame(body, flow).map(Ok)),
            Self::Prefixed { first, rest } => {
                return match first.is_empty() {
                    true => Pin::new(&mut **rest).poll_frame(cx),
                    false => Poll::Ready(Some(Ok(Frame::data(std::mem::take(first))))),
                };
            }
            Self::Streaming {
                body,
                progress: flow,
                limit,
            } => (body, flow, limit),
        };
        let frame = std::task::ready!(Pin::new(&mut *body).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                flow.byte_count
                    .set(flow.byte_count.get() + frame.data_ref().map_or(0, Bytes::len) as u64);
                flow.last_chunk.set(Instant::now());
                if flow.byte_count.get() > *limit {
                    flow.fault.set(Some(Reason::BodyTooLarge));
                    return Poll::Ready(Some(Err(
                        "the request's body is larger than the limit".into()
                    )));
                }
                if body.is_end_stream() {
                    flow.mark_ended();
                }
            }
            Some(Err(error)) => flow.fault.set(Some(error.refusal_reason())),
            None => flow.mark_ended(),
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
