//! State of responses on their way to callers. A sweep ends those whose callers do not read.
//!
//! While the function is slow, [`ResponseBody`](super::response_body::ResponseBody) has a timer.
//! While the caller is slow, no task polls the body: a full socket or a closed HTTP/2 window
//! would otherwise hold the slot for any length of time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use nearpath_types::{PlatformError, Reason};

use super::endpoint_slot::EndpointSlot;
use nearpath_wire::hop::grpc::{error_trailers, names_fault};

use crate::COMPONENT;
use crate::call::GatewayCall;
use crate::context::{LatePlace, OpenTransfer, TICK_INTERVAL};
use crate::request::{RateAllowance, RequestDeadlines};
use crate::transport::HttpConnection;

/// Allowed difference between the deadlines of caller and function, whose timers are not in step.
const CLOCK_SKEW_GRACE: Duration = Duration::from_millis(50);

/// Resources that a request holds until the end of its response.
pub(crate) struct RequestGuard {
    /// Slot at the instance.
    pub(crate) slot: EndpointSlot,
    /// Connection to the instance; none through shared memory.
    pub(crate) connection: Option<HttpConnection>,
}

/// State of one response.
pub(super) struct ResponseState {
    guard: RefCell<Option<RequestGuard>>,
    call: RefCell<Box<GatewayCall>>,
    deadlines: RequestDeadlines,
    /// Tick plus one at which the caller's turn to read began; 0 during the function's turn to
    /// write.
    caller_turn_since: Cell<u32>,
    /// Time left to the caller, who has the turn.
    allowance: Cell<RateAllowance>,
    /// The same while others wait for the place, at a function with limited places.
    contended: Cell<Option<RateAllowance>>,
    cut_reason: Cell<Option<Reason>>,
    sweep_key: Cell<usize>,
}

impl ResponseState {
    /// Registers a response. The caller's turn comes first: it reads the head.
    pub(super) fn begin_response(call: Box<GatewayCall>, guard: RequestGuard) -> Rc<Self> {
        let (deadlines, worker) = (call.deadlines, call.worker.clone());
        let has_limit = call.route.policy.max_inflight.is_some();
        let contended_rate = worker.min_read_rate.while_contended();
        let (guard, call, cut) = (
            RefCell::new(Some(guard)),
            RefCell::new(call),
            Cell::new(None),
        );
        // Plus one, because 0 means that the function has the turn.
        let state = Rc::new(Self {
            guard,
            call,
            deadlines,
            caller_turn_since: Cell::new(worker.current_tick() + 1),
            allowance: Cell::new(RateAllowance::new(worker.min_read_rate)),
            contended: Cell::new(has_limit.then(|| RateAllowance::new(contended_rate))),
            cut_reason: cut,
            sweep_key: Cell::new(0),
        });
        state
            .sweep_key
            .set(worker.open_transfers.add(state.clone()));
        state
    }

    /// Returns the deadlines of the request.
    pub(super) fn deadlines(&self) -> RequestDeadlines {
        self.deadlines
    }

    /// Counts a frame handed to the caller and starts its turn.
    pub(super) fn note_frame(&self, frame: &Frame<Bytes>) {
        if let Some(trailers) = frame.trailers_ref() {
            self.note_trailers(trailers);
        }
        if self.guard.borrow().is_none() {
            return; // counted when the function was done
        }
        let (call, bytes) = (
            &mut self.call.borrow_mut(),
            frame.data_ref().map_or(0, Bytes::len),
        );
        call.record.bytes_out += bytes as u64;
        self.update_allowances(|allowance| allowance.note_bytes(bytes));
        self.caller_turn_since.set(call.worker.current_tick() + 1);
    }

    fn note_trailers(&self, trailers: &HeaderMap) {
        let call = &mut self.call.borrow_mut();
        if call.options.is_grpc && names_fault(trailers) {
            call.record.mark_grpc_fault();
        }
    }

    fn update_allowances(&self, update: impl Fn(&mut RateAllowance)) {
        let mut allowance = self.allowance.get();
        update(&mut allowance);
        self.allowance.set(allowance);
        let mut contended = self.contended.get();
        contended.iter_mut().for_each(update);
        self.contended.set(contended);
    }

    /// Starts the time left while others wait again if none waits: earlier slowness does not count.
    fn reset_if_uncontended(&self) {
        if self.call.borrow().function.gate.has_waiting() {
            return;
        }
        let mut contended = self.contended.get();
        contended.iter_mut().for_each(RateAllowance::reset);
        self.contended.set(contended);
    }

    /// Notes that the function has no data, so its own timer applies.
    pub(super) fn note_function_waits(&self) {
        self.caller_turn_since.set(0);
    }

    /// Completes a response whose remaining `bytes` are in memory.
    pub(super) fn finish_with(&self, bytes: u64) {
        self.call.borrow_mut().record.bytes_out += bytes;
        self.finish_response();
    }

    /// Completes the response. The connection returns to the pool, unless the request body is
    /// still being sent.
    pub(super) fn finish_response(&self) {
        let Some(RequestGuard { slot, connection }) = self.guard.take() else {
            return;
        };
        let call = &mut self.call.borrow_mut();
        call.record.mark_finished();
        // A function may answer before it has read its request. The rest of that body would be
        // read as the next request.
        let connection = connection.filter(|_| {
            call.upload_progress
                .as_ref()
                .is_none_or(|progress| progress.has_ended())
        });
        connection.into_iter().for_each(|connection| {
            let target = &slot.endpoint.target;
            call.worker.connections_to(target).tcp.put_connection(
                target,
                connection,
                call.worker.current_tick(),
            )
        });
    }

    /// Ends the response early. Slot and connection are released at once.
    pub(super) fn cut_short(&self, reason: Reason) {
        // Sweep and body may both find the response overdue. Only the first of them records it.
        if self.guard.take().is_some() {
            self.call.borrow_mut().record.mark_truncated(reason);
            self.cut_reason.set(Some(reason));
        }
    }

    /// Returns the reason for a broken body. A gRPC function keeps the deadline too and may end
    /// first.
    pub(super) fn break_reason(&self) -> Reason {
        let is_late = self.call.borrow().options.is_grpc
            && self.deadlines.is_over(Instant::now() + CLOCK_SKEW_GRACE);
        if is_late {
            Reason::TotalTimeout
        } else {
            Reason::ResponseTruncated
        }
    }

    /// Returns the trailers that explain a cut to a gRPC caller; `None` for others, and for a
    /// caller that read nothing for too long.
    pub(super) fn grpc_trailers(&self, reason: Reason) -> Option<HeaderMap> {
        let why = match reason {
            Reason::TotalTimeout => "the call's deadline has passed",
            Reason::IdleTimeout => "the function sent no more data within the idle timeout",
            _ => "the function ended its response early",
        };
        let needs_status = self.call.borrow().options.is_grpc && reason != Reason::CallerGone;
        needs_status.then(|| error_trailers(&PlatformError::new(COMPONENT, reason, why)))
    }

    /// Returns the reason of the cut, if there was one.
    pub(super) fn cut_reason(&self) -> Option<Reason> {
        self.cut_reason.get()
    }

    /// Removes the response from the sweep; called when its body is dropped.
    pub(super) fn deregister(&self) {
        self.call
            .borrow()
            .worker
            .open_transfers
            .remove(self.sweep_key.get());
    }
}

impl OpenTransfer for ResponseState {
    fn cut_if_overdue(&self, now: Instant, tick: u32, max_idle_ticks: u32) {
        let Some(since) = self.caller_turn_since.get().checked_sub(1) else {
            return;
        };
        self.update_allowances(|allowance| allowance.note_wait(TICK_INTERVAL));
        self.reset_if_uncontended();
        // In the function's turn this is checked by the body's timer, which is more exact than a
        // tick.
        if self.deadlines.is_over(now) {
            self.cut_short(self.deadlines.deadline_reason());
        } else if self.allowance.get().is_used_up() || tick.wrapping_sub(since) > max_idle_ticks {
            self.cut_short(Reason::CallerGone);
        }
    }

    fn late_place(&self, _: Instant) -> Option<LatePlace> {
        let is_place = |guard: &RequestGuard| guard.slot.is_place();
        let has_place =
            self.guard.borrow().as_ref().is_some_and(is_place) && self.caller_turn_since.get() > 0;
        let contended = self.contended.get().filter(|_| has_place)?;
        let (lateness, call) = (contended.lateness()?, self.call.borrow());
        Some(LatePlace {
            gate: call.function.gate.clone(),
            source: call.source,
            lateness,
        })
    }

    fn lose_place(&self) {
        self.cut_short(Reason::CallerGone);
    }
}
