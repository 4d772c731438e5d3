//! A relay that is opened when it is needed, and outlives its connections.
//!
//! [`FrameSequence`] says what goes where. At first there is the line, which takes the first few bytes: enough to shake hands, and to move to a
//! direct way that comes soon; or all that a short link carries, for which no direct way is looked for. The relay is opened once the
//! direct way has had its head start, or is not to be had, or when the line does not carry what it was given. When its connection breaks
//! it is opened anew, for a while, and both sides go on where they were.
//!
//! There is no task: whoever reads, writes or waits drives it, as with a way.

mod control_channel;
mod dial;
mod direct_search;
mod io_traits;
mod timers;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{SinkExt, StreamExt};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep_until};

use super::backoff::DialBackoff;
use super::sequence::{ControlQuota, FrameSequence, SequenceError};
pub(super) use control_channel::{ControlChannel, SessionItem};
pub(super) use dial::{RelayDial, RelayDialFuture, RelayFailure};
pub(super) use direct_search::{DirectStatus, SearchWatch};
use timers::{RelayTimer, RelayTimers};

/// The peer is told so often what came, if there is nothing else to say.
const ACK_INTERVAL: Duration = Duration::from_millis(100);
/// A connection that was there for so long was a good one.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct RelayTimeouts {
    /// The direct way is waited for, before the relay is opened.
    pub(super) head_start: Duration,
    /// What was said on the line is acknowledged within, or the relay says it.
    pub(super) ack_timeout: Duration,
    /// The relay may be away.
    pub(super) resume_timeout: Duration,
}

/// See the module.
pub(super) struct ResumableRelay<D: RelayDial> {
    sequence: FrameSequence,
    control: Option<ControlChannel>,
    direct_status: Option<BoxStream<'static, DirectStatus>>,
    search_trigger: Option<Arc<Notify>>,
    dial: D,
    state: RelayState<D::Relay>,
    timeouts: RelayTimeouts,
    backoff: DialBackoff,
    timers: RelayTimers,
    alarm: Pin<Box<Sleep>>,
    /// What was given to the relay's connection is not flushed.
    unflushed: bool,
    /// A connection to the relay was there once.
    opened: bool,
    /// Why the last one is gone.
    last_error: Option<io::Error>,
    closing: bool,
    end: Option<RelayEnd>,
}

enum RelayState<R> {
    /// Nothing needs it so far.
    Unneeded,
    /// It is needed, and was not asked for; after a break once the pause is over.
    Wanted,
    Opening(RelayDialFuture<R>),
    /// Since then.
    Open(R, Instant),
}

/// There is no more.
#[derive(Debug, Clone)]
enum RelayEnd {
    /// The peer has closed.
    Closed,
    Broken(io::ErrorKind, String),
}

impl<D: RelayDial> ResumableRelay<D> {
    pub(super) fn new(
        dial: D,
        mut channel: ControlChannel,
        search: SearchWatch,
        timeouts: RelayTimeouts,
    ) -> Self {
        let (now, mut timers) = (Instant::now(), RelayTimers::default());
        let (quota, first, after) = match &search.trigger {
            None => (
                ControlQuota::HANDSHAKE,
                RelayTimer::HeadStart,
                timeouts.head_start,
            ),
            // Before a peer that needs the relay, and whose search was not heard of, gives up.
            Some((_, lasts)) => (
                ControlQuota::SHORT_LINK,
                RelayTimer::ShortLink,
                (*lasts).min(timeouts.resume_timeout / 2),
            ),
        };
        timers.set(first, now + after);
        Self {
            sequence: channel.hello.take().map_or_else(
                || FrameSequence::new(quota),
                |hello| FrameSequence::with_hello(hello, quota),
            ),
            control: Some(channel),
            direct_status: Some(search.direct_status),
            search_trigger: search.trigger.map(|(begin, _)| begin),
            dial,
            state: RelayState::Unneeded,
            timeouts: timeouts,
            backoff: DialBackoff::default(),
            timers,
            alarm: Box::pin(sleep_until(now)),
            unflushed: false,
            opened: false,
            last_error: None,
            closing: false,
            end: None,
        }
    }

    /// Does all that can be done now, but to read the relay.
    fn drive(&mut self, cx: &mut Context<'_>) {
        while self.end.is_none() {
            self.poll_direct_status(cx);
            self.read_control(cx);
            self.poll_open(cx);
            self.send_pending(cx);
            if !self.poll_timers(cx) {
                return;
            }
        }
    }

    /// What comes over the line.
    fn read_control(&mut self, cx: &mut Context<'_>) {
        while let Some(control) = &mut self.control
            && let Poll::Ready(saying) = control.incoming.poll_recv(cx)
        {
            match saying {
                Some(message) => {
                    let gap =
                        self.apply_incoming(|sequence| sequence.handle_control_message(message));
                    if gap {
                        self.request_relay(); // what is missing comes over the relay
                    }
                }
                None => {
                    self.control = None;
                    self.request_relay();
                    if self.is_finished() {
                        self.end = Some(RelayEnd::Closed);
                    }
                }
            }
        }
    }

    /// Something that the peer said is taken in.
    fn apply_incoming<T: Default>(
        &mut self,
        apply: impl FnOnce(&mut FrameSequence) -> Result<T, SequenceError>,
    ) -> T {
        let before = self.sequence.first_unacknowledged();
        let applied = apply(&mut self.sequence).unwrap_or_else(|error| {
            self.fail(io::ErrorKind::InvalidData, error.to_string());
            T::default()
        });
        if self.sequence.first_unacknowledged() > before {
            self.timers.clear(RelayTimer::AckOverdue);
            self.timers.clear(RelayTimer::CloseDeadline);
        }
        applied
    }

    /// The relay is needed, unless everything was said. The search tells the peer, who may need nothing: it opens its end, or both move.
    fn request_relay(&mut self) {
        self.timers.clear(RelayTimer::HeadStart);
        if matches!(self.state, RelayState::Unneeded) && !self.is_finished() {
            self.state = RelayState::Wanted;
            self.timers.set(
                RelayTimer::ResumeDeadline,
                Instant::now() + self.timeouts.resume_timeout,
            );
            self.start_search();
        }
    }

    /// Opens the relay.
    fn poll_open(&mut self, cx: &mut Context<'_>) {
        if matches!(self.state, RelayState::Wanted) && !self.timers.is_set(RelayTimer::Dial) {
            self.state = RelayState::Opening(self.dial.dial());
        }
        if let RelayState::Opening(dialling) = &mut self.state
            && let Poll::Ready(opened) = dialling.as_mut().poll(cx)
        {
            match opened {
                Ok(relay) => {
                    self.state = RelayState::Open(relay, Instant::now());
                    self.opened = true;
                    self.sequence.attach_relay();
                }
                Err(failure) => self.handle_failure(failure),
            }
        }
    }

    /// Says what is to be said, on the line while there is one, and on the relay if it takes it.
    fn send_pending(&mut self, cx: &mut Context<'_>) {
        if let Some(control) = &self.control {
            while let Some(message) = self.sequence.next_control_message() {
                (control.send)(message);
            }
            if self.sequence.awaits_control_ack() {
                let ack_timeout = self.timeouts.ack_timeout;
                self.timers
                    .set_once(RelayTimer::AckOverdue, || Instant::now() + ack_timeout);
            }
            if !self.sequence.is_control_drained() {
                self.request_relay();
            }
            if self.sequence.is_quota_half_used() {
                self.start_search();
            }
        }
        if let Err(error) = self.send_frames(cx) {
            self.handle_failure(RelayFailure::from_error(error));
        }
    }

    fn send_frames(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let RelayState::Open(relay, _) = &mut self.state else {
            return Ok(());
        };
        while self.sequence.has_relay_frame() && relay.poll_ready_unpin(cx)?.is_ready() {
            let Some(frame) = self.sequence.next_relay_frame() else {
                break;
            };
            relay.start_send_unpin(frame)?;
            self.unflushed = true;
        }
        if self.unflushed {
            self.unflushed = relay.poll_flush_unpin(cx)?.is_pending();
        }
        Ok(())
    }

    /// Whether it was time for something.
    fn poll_timers(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(at) = self.timers.next_deadline() else {
            return false;
        };
        if self.alarm.deadline() != at {
            self.alarm.as_mut().reset(at);
        }
        if self.alarm.as_mut().poll(cx).is_pending() {
            return false;
        }
        while let Some(timer) = self.timers.take_due(Instant::now()) {
            self.handle_timer(timer);
        }
        true
    }

    fn handle_timer(&mut self, timer: RelayTimer) {
        match timer {
            RelayTimer::ShortLink => self.start_search(),
            RelayTimer::HeadStart | RelayTimer::AckOverdue => self.request_relay(),
            RelayTimer::SendAck => self.sequence.request_ack(),
            RelayTimer::Dial => (), // it is wanted
            RelayTimer::ResumeDeadline => self.give_up_resuming(),
            RelayTimer::CloseDeadline => {
                let text = format!(
                    "the peer has taken nothing for {:?} of what is left for it",
                    self.timeouts.resume_timeout
                );
                self.fail(io::ErrorKind::TimedOut, text);
            }
        }
    }

    /// Reads the relay. Whether something came of it.
    fn read_relay(&mut self, cx: &mut Context<'_>) -> bool {
        let RelayState::Open(relay, _) = &mut self.state else {
            return false;
        };
        match relay.poll_next_unpin(cx) {
            Poll::Pending => return false,
            Poll::Ready(Some(Ok(frame))) => {
                if self.apply_incoming(|sequence| sequence.handle_relay_frame(frame)) {
                    self.on_peer_joined();
                }
            }
            Poll::Ready(Some(Err(error))) => self.handle_failure(RelayFailure::from_error(error)),
            Poll::Ready(None) => self.end = Some(RelayEnd::Closed),
        }
        true
    }

    /// The peer is there, too: nobody needs the line any more.
    fn on_peer_joined(&mut self) {
        self.timers.clear(RelayTimer::ResumeDeadline);
        self.timers.clear(RelayTimer::AckOverdue);
        (self.control, self.direct_status, self.last_error) = (None, None, None);
    }

    /// The relay's connection is gone, or did not come to be.
    fn handle_failure(&mut self, cut: RelayFailure) {
        if let RelayState::Open(_, since) = &self.state
            && since.elapsed() >= STABLE_AFTER
        {
            self.backoff.reset();
        }
        self.sequence.detach_relay();
        (self.state, self.unflushed) = (RelayState::Wanted, false);
        if self.is_finished() {
            self.end = Some(RelayEnd::Closed);
        } else if cut.is_final {
            self.fail(cut.error.kind(), cut.error.to_string());
        } else {
            let now = Instant::now();
            self.timers.set(
                RelayTimer::Dial,
                now + self.backoff.next_delay(fastrand::f64()),
            );
            self.timers.set_once(RelayTimer::ResumeDeadline, || {
                now + self.timeouts.resume_timeout
            });
            self.last_error = Some(cut.error);
        }
    }

    fn give_up_resuming(&mut self) {
        let kind = self
            .last_error
            .as_ref()
            .map_or(io::ErrorKind::TimedOut, io::Error::kind);
        let last_error = self.last_error.take().map_or_else(
            || "the peer did not come to it".to_owned(),
            |last| last.to_string(),
        );
        let text = format!(
            "the way over the relay is gone, and did not come back within {:?}: {last_error}",
            self.timeouts.resume_timeout
        );
        self.fail(kind, text);
    }

    fn fail(&mut self, kind: io::ErrorKind, text: String) {
        (self.control, self.direct_status, self.state) = (None, None, RelayState::Unneeded);
        self.end = Some(RelayEnd::Broken(kind, text));
    }

    /// Nobody wants to hear, and nothing is left to be said: the peer has it, or says nothing more itself.
    fn is_finished(&self) -> bool {
        self.closing && (self.sequence.acknowledgement_state().0 || self.sequence.has_peer_ended())
    }
}

#[cfg(test)]
mod tests;
