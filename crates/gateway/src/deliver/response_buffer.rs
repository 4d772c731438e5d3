//! Response of a function that is read ahead of its caller, up to a bound (ADR 73).
//!
//! Functions with a limited number of places need this: a place is free when the function is done,
//! and not when a slow caller has read the response. Other responses go from the function to the
//! caller without a buffer.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use nearpath_types::Reason;
use nearpath_wire::BoxError;

use super::response_body::ResponseBody;
use crate::context::{LatePlace, OpenTransfer, TICK_INTERVAL, WorkerContext};
use crate::request::RateAllowance;

/// Maximum bytes that are read ahead of one caller.
const MAX_RESPONSE_BYTES: usize = 1024 * 1024;
/// Maximum bytes that a thread reads ahead of all callers. Above, each has one frame.
const MAX_BUFFERED_BYTES: usize = 128 * 1024 * 1024;

type NextFrame = Result<Frame<Bytes>, BoxError>;

/// Response body that is read ahead of its caller.
pub(crate) struct BufferedResponse {
    buffer: Rc<ResponseBuffer>,
    sweep_key: usize,
}

/// Frames between a function and its caller.
struct ResponseBuffer {
    worker: Rc<WorkerContext>,
    /// `None` once the response is complete or its caller has left.
    source: RefCell<Option<ResponseBody>>,
    frames: RefCell<VecDeque<NextFrame>>,
    byte_count: Cell<usize>,
    allowance: Cell<RateAllowance>,
    /// Ticks since the caller last took a frame, while some wait.
    idle_ticks: Cell<u32>,
    /// Wakes the caller's task, which waits for a frame.
    caller: Cell<Option<Waker>>,
    /// Wakes the reading task, which waits for room.
    reader: Cell<Option<Waker>>,
}

impl BufferedResponse {
    /// Reads what has arrived of the response, and the rest on a task.
    pub(super) fn start(worker: &Rc<WorkerContext>, source: ResponseBody) -> Self {
        let buffer = Rc::new(ResponseBuffer {
            worker: worker.clone(),
            source: RefCell::new(Some(source)),
            frames: RefCell::default(),
            byte_count: Cell::new(0),
            allowance: Cell::new(RateAllowance::new(worker.min_read_rate)),
            idle_ticks: Cell::new(0),
            caller: Cell::new(None),
            reader: Cell::new(None),
        });
        // Most responses are complete with their head: they need no task.
        let polled = buffer.poll_read_ahead(&mut Context::from_waker(Waker::noop()));
        if polled.is_pending() {
            let buffer = buffer.clone();
            worker.spawn(async move { poll_fn(|cx| buffer.poll_read_ahead(cx)).await });
        }
        let sweep_key = worker.open_transfers.add(buffer.clone());
        Self { buffer, sweep_key }
    }

    /// Ends the response early.
    pub(super) fn cut_short(&mut self, reason: Reason) {
        self.buffer.cut_short(reason);
    }
}

impl ResponseBuffer {
    /// Reads until the response is complete.
    fn poll_read_ahead(&self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut source = self.source.borrow_mut();
            let Some(body) = source.as_mut() else {
                return Poll::Ready(());
            };
            if !self.has_room() {
                self.reader.set(Some(cx.waker().clone()));
                return Poll::Pending;
            }
            let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(cx) else {
                return Poll::Pending;
            };
            let in_slot = body.is_in_shared_memory();
            let is_last = body.is_end_stream() || !matches!(frame, Some(Ok(_)));
            let ended = source.take_if(|_| is_last);
            drop(source);
            drop(ended);
            if self.push_frame(frame, in_slot) && !is_last {
                cx.waker().wake_by_ref(); // the caller first: it waits for this frame
                return Poll::Pending;
            }
        }
    }

    /// Adds a frame. Returns whether the caller waits for it.
    fn push_frame(&self, frame: Option<NextFrame>, in_slot: bool) -> bool {
        let caller = self.caller.take();
        if let Some(frame) = frame {
            self.add_bytes(data_bytes(&frame));
            // A slow caller must not hold a slot of shared memory.
            let copies = in_slot && caller.is_none();
            let frame = if copies { frame.map(copy_data) } else { frame };
            self.frames.borrow_mut().push_back(frame);
        }
        caller.map(Waker::wake).is_some()
    }

    fn take_frame(&self) -> Option<NextFrame> {
        let frame = self.frames.borrow_mut().pop_front()?;
        let bytes = data_bytes(&frame);
        self.remove_bytes(bytes);
        let mut allowance = self.allowance.get();
        allowance.note_bytes(bytes);
        self.allowance.set(allowance);
        self.idle_ticks.set(0);
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        Some(frame)
    }

    fn has_room(&self) -> bool {
        let worker = &self.worker;
        self.byte_count.get() == 0
            || (self.byte_count.get() < MAX_RESPONSE_BYTES
                && worker.buffered_bytes.get() < MAX_BUFFERED_BYTES)
    }

    fn add_bytes(&self, bytes: usize) {
        let total = &self.worker.buffered_bytes;
        self.byte_count.set(self.byte_count.get() + bytes);
        total.set(total.get() + bytes);
    }

    fn remove_bytes(&self, bytes: usize) {
        let total = &self.worker.buffered_bytes;
        self.byte_count.set(self.byte_count.get() - bytes);
        total.set(total.get() - bytes);
    }

    /// Drops everything. The function's work ends too, if it has not.
    fn discard(&self) {
        self.remove_bytes(self.byte_count.get());
        self.frames.borrow_mut().clear();
        let source = self.source.borrow_mut().take();
        drop(source);
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn cut_short(&self, reason: Reason) {
        if let Some(source) = self.source.borrow_mut().as_mut() {
            source.cut_short(reason);
        }
        self.discard();
        self.push_frame(Some(Err(reason.name().into())), false);
    }
}

fn data_bytes(frame: &NextFrame) -> usize {
    frame
        .as_ref()
        .ok()
        .and_then(Frame::data_ref)
        .map_or(0, Bytes::len)
}

fn copy_data(frame: Frame<Bytes>) -> Frame<Bytes> {
    frame.map_data(|data| Bytes::copy_from_slice(&data))
}

impl OpenTransfer for ResponseBuffer {
    /// Cuts a response whose caller is too slow. Until the function is done, the response has
    /// limits of its own as well.
    fn cut_if_overdue(&self, _: Instant, _: u32, max_idle_ticks: u32) {
        if self.frames.borrow().is_empty() {
            return;
        }
        let mut allowance = self.allowance.get();
        allowance.note_wait(TICK_INTERVAL);
        self.allowance.set(allowance);
        self.idle_ticks.set(self.idle_ticks.get() + 1);
        if allowance.is_used_up() || self.idle_ticks.get() > max_idle_ticks {
            self.cut_short(Reason::CallerGone);
        }
    }

    // The place belongs to the response itself, which is in the sweep too.
    fn late_place(&self, _: Instant) -> Option<LatePlace> {
        None
    }

    fn lose_place(&self) {}
}

impl Body for BufferedResponse {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let buffer = &self.buffer;
        if let Some(frame) = buffer.take_frame() {
            return Poll::Ready(Some(frame));
        }
        if buffer.source.borrow().is_none() {
            return Poll::Ready(None);
        }
        buffer.caller.set(Some(cx.waker().clone()));
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.buffer.frames.borrow().is_empty() && self.buffer.source.borrow().is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let (buffer, mut frames) = (&self.buffer, SizeHint::new());
        // A known length would drop trailers, and would hide an error.
        if buffer
            .frames
            .borrow()
            .iter()
            .all(|frame| frame.as_ref().is_ok_and(Frame::is_data))
        {
            let rest = buffer.source.borrow().as_ref().map(Body::size_hint);
            let rest = rest.map_or(Some(0), |hint| hint.exact());
            if let Some(rest) = rest {
                frames.set_exact(buffer.byte_count.get() as u64 + rest);
            }
        }
        frames
    }
}

impl Drop for BufferedResponse {
    fn drop(&mut self) {
        self.buffer.worker.open_transfers.remove(self.sweep_key);
        self.buffer.discard();
    }
}
