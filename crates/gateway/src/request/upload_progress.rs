//! Progress of a request body: its bytes, its end, and the time that its caller takes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;
use std::time::{Duration, Instant};

use nearpath_types::Reason;

use super::deadlines::RequestStage;
use super::grpc::FirstMessage;
use super::min_rate::{MinRate, RateAllowance};

/// Side that a request body waits for, and since when.
#[derive(Debug, Clone, Copy)]
enum UploadTurn {
    /// The gateway has asked for more.
    Caller(Instant),
    /// The instance does not take more, or the request waits for a place.
    Function(Instant),
}

/// Place at a function with a limit, which a request holds while its body arrives.
#[derive(Debug, Clone, Copy)]
struct HeldPlace {
    since: Instant,
    /// Time left to the caller while others wait for the place.
    allowance: RateAllowance,
}

/// Progress of a request body. Shared by the body, which another task may send, and the request
/// that awaits its response.
#[derive(Debug)]
pub(crate) struct UploadProgress {
    pub(super) byte_count: Cell<u64>,
    turn: Cell<UploadTurn>,
    allowance: Cell<Option<RateAllowance>>,
    /// Of a gRPC body.
    first_message: Cell<Option<FirstMessage>>,
    held_place: Cell<Option<HeldPlace>>,
    lost_place: Cell<bool>,
    ended_at: Cell<Option<Instant>>,
    /// A part of what was read is in the spool and not sent yet.
    pub(super) has_unsent_part: Cell<bool>,
    pub(super) fault: Cell<Option<Reason>>,
    waker: RefCell<Option<Waker>>,
}

impl UploadProgress {
    pub(super) fn new(now: Instant) -> Rc<Self> {
        Rc::new(Self {
            byte_count: Cell::new(0),
            turn: Cell::new(UploadTurn::Function(now)),
            allowance: Cell::new(None),
            first_message: Cell::new(None),
            held_place: Cell::new(None),
            lost_place: Cell::new(false),
            ended_at: Cell::new(None),
            has_unsent_part: Cell::new(false),
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

    /// Requires a minimum rate of the caller; of a gRPC body until its first message has arrived.
    /// Later messages are slow by nature.
    pub(crate) fn require_rate(&self, min: MinRate, is_grpc: bool) {
        self.allowance.set(Some(RateAllowance::new(min)));
        self.first_message.set(is_grpc.then(FirstMessage::default));
    }

    /// Notes that the request holds a place since `now`. A caller that has sent nothing has no
    /// grace while others wait.
    pub(crate) fn hold_place(&self, min: MinRate, now: Instant) {
        let mut min = min.while_contended();
        if self.byte_count.get() == 0 {
            min.grace = Duration::ZERO;
        }
        let held = HeldPlace {
            since: now,
            allowance: RateAllowance::new(min),
        };
        self.held_place
            .set((!self.has_first_message()).then_some(held));
    }

    /// Notes that no request waits for the held place: slowness until `now` does not count.
    pub(crate) fn note_uncontended(&self, now: Instant) {
        if let Some(mut held) = self.held_place.get() {
            held.since = now;
            held.allowance.reset();
            self.held_place.set(Some(held));
        }
    }

    /// Returns by how much the caller is too slow for a place that others wait for.
    pub(crate) fn lateness(&self, now: Instant) -> Option<Duration> {
        let UploadTurn::Caller(since) = self.turn.get() else {
            return None;
        };
        let HeldPlace {
            since: held_since,
            mut allowance,
        } = self
            .held_place
            .get()
            .filter(|_| !self.has_ended() && !self.lost_place.get())?;
        allowance.note_wait(now.saturating_duration_since(since.max(held_since)));
        allowance.lateness()
    }

    /// Takes the place away: the request ends as too slow.
    pub(crate) fn lose_place(&self) {
        self.lost_place.set(true);
        self.wake_waiting();
    }

    /// Returns whether the first message of a gRPC body has arrived.
    pub(crate) fn has_first_message(&self) -> bool {
        self.first_message
            .get()
            .is_some_and(|message| message.is_complete())
    }

    /// Returns the stage of a request before its response. The function can answer since
    /// `admitted`.
    pub(crate) fn current_stage(&self, admitted: Instant) -> RequestStage {
        if self.lost_place.get() {
            return RequestStage::Uploading {
                since: admitted,
                rate_limit: Some(Duration::ZERO),
            };
        }
        // Time in the queue is neither the caller's nor the function's.
        if let Some(ended_at) = self.ended_at.get().filter(|_| self.has_ended()) {
            return RequestStage::Awaiting(ended_at.max(admitted));
        }
        match self.turn.get() {
            UploadTurn::Function(since) => RequestStage::Awaiting(since.max(admitted)),
            UploadTurn::Caller(since) => RequestStage::Uploading {
                since: since.max(admitted),
                rate_limit: self.allowance.get().and_then(|rate| rate.time_left()),
            },
        }
    }

    /// Notes that the gateway waits for the caller.
    pub(super) fn note_pending(&self) {
        if let UploadTurn::Function(_) = self.turn.get() {
            self.turn.set(UploadTurn::Caller(Instant::now()));
            self.wake_waiting(); // the limit of the caller may be shorter
        }
    }

    /// Notes that the gateway asks for no more until the request has a place.
    pub(super) fn note_pause(&self, now: Instant) {
        if let UploadTurn::Caller(since) = self.turn.get() {
            self.note_wait(since, now);
            self.turn.set(UploadTurn::Function(now));
        }
    }

    /// Notes that the gateway waited for the caller until `now`.
    fn note_wait(&self, since: Instant, now: Instant) {
        if let Some(mut rate) = self.allowance.get() {
            rate.note_wait(now.saturating_duration_since(since));
            self.allowance.set(Some(rate));
        }
        if let Some(mut held) = self.held_place.get() {
            let since = since.max(held.since);
            held.allowance
                .note_wait(now.saturating_duration_since(since));
            self.held_place.set(Some(held));
        }
    }

    pub(super) fn note_frame(&self, data: &[u8]) {
        self.byte_count
            .set(self.byte_count.get() + data.len() as u64);
        let now = Instant::now();
        if let UploadTurn::Caller(since) = self.turn.get() {
            self.note_wait(since, now);
        }
        if let Some(mut rate) = self.allowance.get() {
            rate.note_bytes(data.len());
            self.allowance.set(Some(rate));
        }
        if let Some(mut held) = self.held_place.get() {
            held.allowance.note_bytes(data.len());
            self.held_place.set(Some(held));
        }
        self.note_message(data);
        self.turn.set(UploadTurn::Function(now));
    }

    /// Lifts the minimum rates when the first message of a gRPC body has arrived.
    fn note_message(&self, data: &[u8]) {
        let Some(mut message) = self.first_message.get() else {
            return;
        };
        message.note_data(data);
        self.first_message.set(Some(message));
        if message.is_complete() {
            self.allowance.set(None);
            self.held_place.set(None);
        }
    }

    /// Returns whether all of the body was sent.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended_at.get().is_some() && !self.has_unsent_part.get()
    }

    /// Notes that the instance takes a part of the body that was in the spool. `is_last`: no more
    /// is there.
    pub(super) fn note_sent_part(&self, is_last: bool) {
        self.turn.set(UploadTurn::Function(Instant::now()));
        if is_last && self.has_unsent_part.take() && self.ended_at.get().is_some() {
            self.mark_ended();
        }
    }

    /// Registers `waker` for a change of the stage.
    pub(crate) fn wake_on_change(&self, waker: &Waker) {
        let mut waiting = self.waker.borrow_mut();
        if !waiting.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *waiting = Some(waker.clone());
        }
    }

    pub(super) fn mark_ended(&self) {
        self.ended_at.set(Some(Instant::now()));
        self.wake_waiting();
    }

    fn wake_waiting(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowness_counts_only_while_others_wait_for_the_place() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let min = MinRate {
            bytes_per_second: 240,
            grace: Duration::from_secs(10),
        };
        let progress = UploadProgress::new(start);
        progress.note_frame(b"x");
        progress.hold_place(min, start);
        progress.turn.set(UploadTurn::Caller(start));
        assert_eq!(progress.lateness(at(60)), Some(Duration::from_secs(58)));
        progress.note_uncontended(at(60));
        assert_eq!(progress.lateness(at(61)), None, "the grace begins again");
        assert_eq!(progress.lateness(at(65)), Some(Duration::from_secs(3)));
    }
}
