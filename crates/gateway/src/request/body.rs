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

use super::deadlines::Stage;
use super::incoming_body::Arriving;

/// How far a request's body is. Shared by the body, which another task sends, and the request that waits for an answer.
#[derive(Debug)]
pub(crate) struct Flow {
    bytes: Cell<u64>,
    last: Cell<Instant>,
    ended: Cell<Option<Instant>>,
    fault: Cell<Option<Reason>>,
    waiting: RefCell<Option<Waker>>,
}

impl Flow {
    fn new(now: Instant) -> Rc<Self> {
        let (bytes, last) = (Cell::new(0), Cell::new(now));
        Rc::new(Self { bytes, last, ended: Cell::new(None), fault: Cell::new(None), waiting: RefCell::new(None) })
    }

    /// Bytes of the body so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Why the body was not sent as a whole, when the caller or a limit is to blame.
    pub(crate) fn fault(&self) -> Option<Reason> {
        self.fault.get()
    }

    /// Where a request that was let in at `admitted` stands before its answer. Nobody asked for its body before.
    pub(crate) fn stage(&self, admitted: Instant) -> Stage {
        self.ended.get().map_or(Stage::Uploading(self.last.get().max(admitted)), Stage::Awaiting)
    }

    /// Whether all of it was sent.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    /// Wakes `waker` when the stage changes.
    pub(crate) fn watch(&self, waker: &Waker) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *waiting = Some(waker.clone());
        }
    }

    fn end(&self) {
        self.ended.set(Some(Instant::now()));
        if let Some(waker) = self.waiting.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// A request's body.
#[derive(Debug)]
pub(crate) enum Upload {
    /// There is none.
    Empty,
    /// An adapter has it as a whole; it is taken when it is sent.
    Whole {
        /// The body.
        body: Bytes,
        /// Where it is counted.
        flow: Rc<Flow>,
    },
    /// Its first piece was taken, but not sent.
    Begun {
        /// The piece; it has been counted.
        first: Bytes,
        /// What follows.
        rest: Box<Self>,
    },
    /// It arrives from the caller.
    Streaming {
        /// What arrives.
        body: Arriving,
        /// Where it is counted.
        flow: Rc<Flow>,
        /// The most it may be, in bytes.
        limit: u64,
    },
}

impl Upload {
    /// Wraps what arrives. No [`Flow`]: there is no body.
    pub(crate) fn new(body: Arriving, limit: Option<u64>) -> (Self, Option<Rc<Flow>>) {
        if body.is_end_stream() {
            return (Self::Empty, None);
        }
        let flow = Flow::new(Instant::now());
        (Self::Streaming { body, flow: flow.clone(), limit: limit.unwrap_or(u64::MAX) }, Some(flow))
    }

    /// Wraps a body that is there as a whole. No [`Flow`]: it is empty.
    pub(crate) fn whole(body: Bytes) -> (Self, Option<Rc<Flow>>) {
        if body.is_empty() {
            return (Self::Empty, None);
        }
        let flow = Flow::new(Instant::now());
        (Self::Whole { body, flow: flow.clone() }, Some(flow))
    }

    /// A second one, where all of it is here. What it brings is not counted again.
    pub(crate) fn copy(&self) -> Option<Self> {
        match self {
            Self::Empty => Some(Self::Empty),
            Self::Whole { body, flow } => Some(Self::Whole { body: body.clone(), flow: flow.clone() }),
            Self::Begun { first, rest } if rest.is_end_stream() => Some(Self::Empty.with_first(first.clone())),
            Self::Begun { .. } | Self::Streaming { .. } => None,
        }
    }

    /// Puts a piece back that was taken, but not sent.
    pub(crate) fn with_first(self, first: Bytes) -> Self {
        if first.is_empty() { self } else { Self::Begun { first, rest: Box::new(self) } }
    }
}

/// The whole body as one frame, once.
fn take(body: &mut Bytes, flow: &Flow) -> Option<Frame<Bytes>> {
    if body.is_empty() {
        return None;
    }
    if !flow.has_ended() {
        flow.bytes.set(flow.bytes.get() + body.len() as u64); // not again, when a copy is sent elsewhere
        flow.end();
    }
    Some(Frame::data(std::mem::take(body)))
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let (body, flow, limit) = match self.get_mut() {
            Self::Empty => return Poll::Ready(None),
            Self::Whole { body, flow } => return Poll::Ready(take(body, flow).map(Ok)),
            Self::Begun { first, rest } => {
                return match first.is_empty() {
                    true => Pin::new(&mut **rest).poll_frame(cx),
                    false => Poll::Ready(Some(Ok(Frame::data(std::mem::take(first))))),
                };
            }
            Self::Streaming { body, flow, limit } => (body, flow, limit),
        };
        let frame = std::task::ready!(Pin::new(&mut *body).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                flow.bytes.set(flow.bytes.get() + frame.data_ref().map_or(0, Bytes::len) as u64);
                flow.last.set(Instant::now());
                if flow.bytes.get() > *limit {
                    flow.fault.set(Some(Reason::BodyTooLarge));
                    return Poll::Ready(Some(Err("the request's body is larger than the limit".into())));
                }
                if body.is_end_stream() {
                    flow.end();
                }
            }
            Some(Err(error)) => flow.fault.set(Some(error.blame())),
            None => flow.end(),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Whole { body, .. } => body.is_empty(),
            Self::Begun { first, rest } => first.is_empty() && rest.is_end_stream(),
            Self::Streaming { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Whole { body, .. } => SizeHint::with_exact(body.len() as u64),
            Self::Begun { first, rest } => {
                let rest = rest.size_hint().exact();
                rest.map_or_else(SizeHint::new, |rest| SizeHint::with_exact(first.len() as u64 + rest))
            }
            Self::Streaming { body, .. } => body.size_hint(),
        }
    }
}
