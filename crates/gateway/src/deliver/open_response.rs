//! Answers that are on their way to their callers, and the sweep that ends those whose callers do not take them.
//!
//! While the function keeps its caller waiting, [`Passing`](super::response_body::Passing) has a timer. While it is the caller who
//! keeps the answer waiting, nobody asks the answer's body for anything: a full socket or a closed HTTP/2 window would hold
//! the function's place for as long as its owner likes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use nearpath_types::{PlatformError, Reason};

use super::endpoint_slot::Place;
use crate::COMPONENT;
use crate::call::Call;
use crate::context::OpenResponse;
use crate::request::{Clock, grpc};
use crate::transport::Line;

/// Clocks of two machines may differ by so much, and still mean the same moment.
const NEAR: Duration = Duration::from_millis(50);

/// What a request holds until its response's end.
pub(crate) struct Held {
    /// Its place at the instance.
    pub(crate) place: Place,
    /// Its connection to the instance; none through memory.
    pub(crate) line: Option<Line>,
}

/// One answer.
pub(super) struct Open {
    held: RefCell<Option<Held>>,
    call: RefCell<Box<Call>>,
    clock: Clock,
    /// Tick plus one since when it is the caller's turn to take; 0: it is the function's to give.
    turn: Cell<u32>,
    cut: Cell<Option<Reason>>,
    key: Cell<usize>,
}

impl Open {
    /// Begins with the caller's turn: to take the head.
    pub(super) fn begin(call: Box<Call>, held: Held) -> Rc<Self> {
        let (clock, lane) = (call.clock, call.lane.clone());
        let (held, call, cut) = (RefCell::new(Some(held)), RefCell::new(call), Cell::new(None));
        let open = Rc::new(Self { held, call, clock, turn: Cell::new(lane.now() + 1), cut, key: Cell::new(0) });
        open.key.set(lane.open_responses.add(open.clone()));
        open
    }

    /// The request's limits.
    pub(super) fn clock(&self) -> Clock {
        self.clock
    }

    /// A frame is handed to the caller.
    pub(super) fn gave(&self, frame: &Frame<Bytes>) {
        let call = &mut self.call.borrow_mut();
        call.record.bytes_out += frame.data_ref().map_or(0, Bytes::len) as u64;
        self.turn.set(call.lane.now() + 1);
    }

    /// The function has nothing to give.
    pub(super) fn waits(&self) {
        self.turn.set(0);
    }

    /// The response is complete: the connection may serve the next request, unless this one's body is still coming.
    pub(super) fn finish(&self) {
        let Some(Held { place, line }) = self.held.take() else { return };
        let call = &mut self.call.borrow_mut();
        call.record.finished();
        let line = line.filter(|_| call.flow.as_ref().is_none_or(|flow| flow.has_ended()));
        line.into_iter().for_each(|line| call.lane.pools.put(&place.endpoint, line, call.lane.now()));
    }

    /// Ends it before its end: place and connection are given up at once.
    pub(super) fn cut(&self, reason: Reason) {
        if self.held.take().is_some() {
            self.call.borrow_mut().record.cut(reason);
            self.cut.set(Some(reason));
        }
    }

    /// Why the function broke off. One that speaks gRPC keeps its caller's time as well, and may be first when it is over.
    pub(super) fn broken(&self) -> Reason {
        let late = self.call.borrow().asked.grpc && self.clock.is_over(Instant::now() + NEAR);
        if late { Reason::TotalTimeout } else { Reason::ResponseCut }
    }

    /// The trailers that tell a gRPC caller why its answer was cut; none to others, and to one that took nothing for too long.
    pub(super) fn grpc_status(&self, reason: Reason) -> Option<HeaderMap> {
        let why = match reason {
            Reason::TotalTimeout => "the call's deadline is over",
            Reason::IdleTimeout => "nothing more of the answer came",
            _ => "the function broke its answer off",
        };
        let tells = self.call.borrow().asked.grpc && reason != Reason::CallerGone;
        tells.then(|| grpc::trailers(&PlatformError::new(COMPONENT, reason, why)))
    }

    /// Why it was cut, if it was.
    pub(super) fn was_cut(&self) -> Option<Reason> {
        self.cut.get()
    }

    /// Off the sweep's list, with the body that it belongs to.
    pub(super) fn end(&self) {
        self.call.borrow().lane.open_responses.remove(self.key.get());
    }
}

impl OpenResponse for Open {
    fn cut_if_overdue(&self, now: Instant, tick: u32, stuck: u32) {
        let Some(since) = self.turn.get().checked_sub(1) else { return };
        if self.clock.is_over(now) {
            self.cut(Reason::TotalTimeout);
        } else if tick.wrapping_sub(since) > stuck {
            self.cut(Reason::CallerGone);
        }
    }
}
