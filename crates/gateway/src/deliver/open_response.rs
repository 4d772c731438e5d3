//! Answers that are on their way to their callers, and the sweep that ends those whose callers do not take them.
//!
//! While the function keeps its caller waiting, [`ResponseBody`](super::response_body::ResponseBody) has a timer. While it is the caller who
//! keeps the answer waiting, nobody asks the answer's body for anything: a full socket or a closed HTTP/2 window would hold
//! the function's place for as long as its owner likes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use nearpath_types::{PlatformError, Reason};

use super::endpoint_slot::EndpointSlot;
use crate::COMPONENT;
use crate::call::GatewayCall;
use crate::context::OpenResponse;
use crate::request::{RequestDeadlines, grpc};
use crate::transport::HttpConnection;

/// Clocks of two machines may differ by so much, and still mean the same moment.
const CLOCK_SKEW_GRACE: Duration = Duration::from_millis(50);

/// What a request holds until its response's end.
pub(crate) struct RequestGuard {
    /// Its place at the instance.
    pub(crate) slot: EndpointSlot,
    /// Its connection to the instance; none through memory.
    pub(crate) connection: Option<HttpConnection>,
}

/// One answer.
pub(super) struct ResponseState {
    guard: RefCell<Option<RequestGuard>>,
    call: RefCell<Box<GatewayCall>>,
    deadlines: RequestDeadlines,
    /// Tick plus one since when it is the caller's turn to take; 0: it is the function's to give.
    caller_turn_since: Cell<u32>,
    cut_reason: Cell<Option<Reason>>,
    sweep_key: Cell<usize>,
}

impl ResponseState {
    /// Begins with the caller's turn: to take the head.
    pub(super) fn begin_response(call: Box<GatewayCall>, guard: RequestGuard) -> Rc<Self> {
        let (deadlines, worker) = (call.deadlines, call.worker.clone());
        let (guard, call, cut) = (
            RefCell::new(Some(guard)),
            RefCell::new(call),
            Cell::new(None),
        );
        let state = Rc::new(Self {
            guard,
            call,
            deadlines,
            caller_turn_since: Cell::new(worker.current_tick() + 1),
            cut_reason: cut,
            sweep_key: Cell::new(0),
        });
        state
            .sweep_key
            .set(worker.open_responses.add(state.clone()));
        state
    }

    /// The request's limits.
    pub(super) fn deadlines(&self) -> RequestDeadlines {
        self.deadlines
    }

    /// A frame is handed to the caller.
    pub(super) fn note_frame(&self, frame: &Frame<Bytes>) {
        let call = &mut self.call.borrow_mut();
        call.record.bytes_out += frame.data_ref().map_or(0, Bytes::len) as u64;
        self.caller_turn_since.set(call.worker.current_tick() + 1);
    }

    /// The function has nothing to give.
    pub(super) fn note_function_waits(&self) {
        self.caller_turn_since.set(0);
    }

    /// The response is complete: the connection may serve the next request, unless this one's body is still coming.
    pub(super) fn finish_response(&self) {
        let Some(RequestGuard { slot, connection }) = self.guard.take() else {
            return;
        };
        let call = &mut self.call.borrow_mut();
        call.record.mark_finished();
        let connection = connection.filter(|_| {
            call.upload_progress
                .as_ref()
                .is_none_or(|flow| flow.has_ended())
        });
        connection.into_iter().for_each(|line| {
            call.worker
                .tcp_pools
                .put_connection(&slot.endpoint, line, call.worker.current_tick())
        });
    }

    /// Ends it before its end: place and connection are given up at once.
    pub(super) fn cut_short(&self, reason: Reason) {
        if self.guard.take().is_some() {
            self.call.borrow_mut().record.mark_cut(reason);
            self.cut_reason.set(Some(reason));
        }
    }

    /// Why the function broke off. One that speaks gRPC keeps its caller's time as well, and may be first when it is over.
    pub(super) fn break_reason(&self) -> Reason {
        let is_late = self.call.borrow().options.is_grpc
            && self.deadlines.is_over(Instant::now() + CLOCK_SKEW_GRACE);
        if is_late {
            Reason::TotalTimeout
        } else {
            Reason::ResponseCut
        }
    }

    /// The trailers that tell a gRPC caller why its answer was cut; none to others, and to one that took nothing for too long.
    pub(super) fn grpc_trailers(&self, reason: Reason) -> Option<HeaderMap> {
        let why = match reason {
            Reason::TotalTimeout => "the call's deadline is over",
            Reason::IdleTimeout => "nothing more of the answer came",
            _ => "the function broke its answer off",
        };
        let needs_status = self.call.borrow().options.is_grpc && reason != Reason::CallerGone;
        needs_status.then(|| grpc::error_trailers(&PlatformError::new(COMPONENT, reason, why)))
    }

    /// Why it was cut, if it was.
    pub(super) fn cut_reason(&self) -> Option<Reason> {
        self.cut_reason.get()
    }

    /// Off the sweep's list, with the body that it belongs to.
    pub(super) fn deregister(&self) {
        self.call
            .borrow()
            .worker
            .open_responses
            .remove(self.sweep_key.get());
    }
}

impl OpenResponse for ResponseState {
    fn cut_if_overdue(&self, now: Instant, tick: u32, max_idle_ticks: u32) {
        let Some(since) = self.caller_turn_since.get().checked_sub(1) else {
            return;
        };
        if self.deadlines.is_over(now) {
            self.cut_short(Reason::TotalTimeout);
        } else if tick.wrapping_sub(since) > max_idle_ticks {
            self.cut_short(Reason::CallerGone);
        }
    }
}
