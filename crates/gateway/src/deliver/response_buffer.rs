//! Response of a function that is read ahead of its caller, up to a bound (ADR 73).
//!
//! Functions with a limited number of places need this: a place is free when the function is done,
//! and not when a slow caller has read the response. Other responses go from the function to the
//! caller without a buffer.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use nearpath_types::{Reason, SourceNetwork};
use nearpath_wire::BoxError;

use super::response_body::ResponseBody;
use crate::context::{LatePlace, OpenTransfer, TICK_INTERVAL, WorkerContext};
use crate::request::RateAllowance;
use crate::spool::{FrameQueue, NextFrame};

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
    frames: RefCell<FrameQueue>,
    allowance: Cell<RateAllowance>,
    /// Ticks since the caller last took a frame, while some wait.
    idle_ticks: Cell<u32>,
    /// Wakes the caller's task, which waits for a frame.
    caller: Cell<Option<Waker>>,
    /// Wakes the reading task, which waits for room.
    reader: Cell<Option<Waker>>,
}

impl BufferedResponse {
    /// Reads what has arrived of the response to `caller`, and the rest on a task.
    pub(super) fn start(
        worker: &Rc<WorkerContext>,
        caller: SourceNetwork,
        source: ResponseBody,
    ) -> Self {
        let buffer = Rc::new(ResponseBuffer {
            worker: worker.clone(),
            source: RefCell::new(Some(source)),
            frames: RefCell::new(FrameQueue::new(&worker.spool, caller)),
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
    /// Reads until the response is complete, and what is not in memory is in the file.
    fn poll_read_ahead(&self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            // Room for more does not wait for this write.
            let written = self.frames.borrow_mut().poll_write(cx);
            let mut source = self.source.borrow_mut();
            let Some(body) = source.as_mut() else {
                return written;
            };
            if !self.frames.borrow().has_room() {
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
            let mut frames = self.frames.borrow_mut();
            // A slow caller or disk must not hold a slot of shared memory.
            let copies = in_slot && (caller.is_none() || !frames.is_empty());
            frames.push_frame(if copies { frame.map(copy_data) } else { frame });
        }
        caller.map(Waker::wake).is_some()
    }

    /// Takes the next frame; `None` if no frame waits.
    fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Option<NextFrame>> {
        let taken = self.frames.borrow_mut().poll_take(cx);
        let frame = match std::task::ready!(taken) {
            Ok(Some(frame)) => frame,
            Ok(None) => return Poll::Ready(None),
            Err(_) => {
                self.cut_short(Reason::Internal);
                Err(Reason::Internal.name().into())
            }
        };
        self.note_progress(frame.as_ref().ok());
        Poll::Ready(Some(frame))
    }

    /// Notes that the caller took a frame: there may be room for more.
    fn note_progress(&self, frame: Option<&Frame<Bytes>>) {
        let mut allowance = self.allowance.get();
        allowance.note_bytes(frame.and_then(Frame::data_ref).map_or(0, Bytes::len));
        self.allowance.set(allowance);
        self.idle_ticks.set(0);
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// Drops everything. The function's work ends too, if it has not.
    fn discard(&self) {
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

    /// Returns whether the caller could take a frame and does not.
    fn awaits_caller(&self) -> bool {
        let caller = self.caller.take();
        let is_waiting = caller.is_some();
        self.caller.set(caller);
        self.frames.borrow().has_frame() && !is_waiting
    }
}

fn copy_data(frame: Frame<Bytes>) -> Frame<Bytes> {
    frame.map_data(|data| Bytes::copy_from_slice(&data))
}

impl OpenTransfer for ResponseBuffer {
    /// Cuts a response whose caller is too slow. Until the function is done, the response has
    /// limits of its own as well.
    fn cut_if_overdue(&self, _: Instant, _: u32, max_idle_ticks: u32) {
        if !self.awaits_caller() {
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
        match buffer.poll_take(cx) {
            Poll::Ready(Some(frame)) => return Poll::Ready(Some(frame)),
            Poll::Ready(None) if buffer.source.borrow().is_none() => return Poll::Ready(None),
            // For the disk too: a cut ends what the caller waits for.
            Poll::Ready(None) | Poll::Pending => {}
        }
        buffer.caller.set(Some(cx.waker().clone()));
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.buffer.frames.borrow().is_empty() && self.buffer.source.borrow().is_none()
    }

    fn size_hint(&self) -> SizeHint {
        // A known length would drop trailers, and would hide an error.
        let waiting = self.buffer.frames.borrow().data_bytes();
        let rest = self.buffer.source.borrow().as_ref().map(Body::size_hint);
        let rest = rest.map_or(Some(0), |hint| hint.exact());
        match waiting.zip(rest) {
            Some((waiting, rest)) => SizeHint::with_exact(waiting + rest),
            None => SizeHint::new(),
        }
    }
}

impl Drop for BufferedResponse {
    fn drop(&mut self) {
        self.buffer.worker.open_transfers.remove(self.sweep_key);
        self.buffer.discard();
    }
}
