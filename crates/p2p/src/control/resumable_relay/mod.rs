//! Relay that opens on demand and outlives its connections (decision 48).
//!
//! [`FrameSequence`] decides what goes where. The control connection carries the first bytes: a
//! handshake and an early migration, or all of a short link. The relay is opened in three cases.
//! The direct connection had its head start; the search has failed; or the control connection does
//! not deliver. When its connection breaks it is redialled for a while, and both sides resume.
//!
//! There is no task: reading, writing or waiting drives it, as with a stream.

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

/// Delay of an acknowledgement without other traffic.
const ACK_INTERVAL: Duration = Duration::from_millis(100);
/// Age at which a connection counts as stable.
const STABLE_AGE: Duration = Duration::from_secs(10);

/// Times of a relay.
#[derive(Debug, Clone, Copy)]
pub(super) struct RelayTimeouts {
    /// Head start of the direct connection before the relay is opened.
    pub(super) head_start: Duration,
    /// Time for acknowledgements on the control connection; then the relay carries the frames.
    pub(super) ack_timeout: Duration,
    /// Time for which a broken relay is redialled.
    pub(super) resume_timeout: Duration,
}

/// Relay of one stream; see the module.
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
    /// True if frames were given to the relay's connection and not flushed.
    unflushed: bool,
    /// True if the relay was ever connected.
    opened: bool,
    /// Error of the last connection.
    last_error: Option<io::Error>,
    closing: bool,
    end: Option<RelayEnd>,
}

enum RelayState<R> {
    /// Not needed so far.
    Unneeded,
    /// Needed and not dialled; after a break once the delay is over.
    Wanted,
    Opening(RelayDialFuture<R>),
    /// Connected since this time.
    Open(R, Instant),
}

/// End of the relay.
#[derive(Debug, Clone)]
enum RelayEnd {
    /// Closed by the peer.
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
            // Half of the resume time: a peer that needs the relay, and whose search was not
            // noticed, still waits (decision 50).
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
            timeouts,
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

    /// Makes all progress that is possible without reading the relay.
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

    /// Handles messages of the control connection.
    fn read_control(&mut self, cx: &mut Context<'_>) {
        while let Some(control) = &mut self.control
            && let Poll::Ready(saying) = control.incoming.poll_recv(cx)
        {
            match saying {
                Some(message) => {
                    let gap =
                        self.apply_incoming(|sequence| sequence.handle_control_message(message));
                    if gap {
                        self.request_relay(); // the control connection never repeats a frame
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

    /// Applies input of the peer to the sequence.
    fn apply_incoming<T: Default>(
        &mut self,
        apply: impl FnOnce(&mut FrameSequence) -> Result<T, SequenceError>,
    ) -> T {
        let before = self.sequence.first_unacknowledged();
        let applied = apply(&mut self.sequence).unwrap_or_else(|error| {
            self.fail(io::ErrorKind::InvalidData, error.to_string());
            T::default()
        });
        // Any progress proves that the carrier works.
        if self.sequence.first_unacknowledged() > before {
            self.timers.clear(RelayTimer::AckOverdue);
            self.timers.clear(RelayTimer::CloseDeadline);
        }
        applied
    }

    /// Requests the relay, unless everything is done.
    ///
    /// Its search informs the peer, which may need nothing itself: the peer then opens its end, or
    /// both migrate.
    fn request_relay(&mut self) {
        self.timers.clear(RelayTimer::HeadStart);
        if matches!(self.state, RelayState::Unneeded) && !self.is_finished() {
            self.state = RelayState::Wanted;
            // Both sides must open the relay within this time, or the stream fails.
            self.timers.set(
                RelayTimer::ResumeDeadline,
                Instant::now() + self.timeouts.resume_timeout,
            );
            self.start_search();
        }
    }

    /// Dials the relay.
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

    /// Sends what is due: on the control connection while it exists, and on the relay if it
    /// accepts.
    fn send_pending(&mut self, cx: &mut Context<'_>) {
        if let Some(control) = &self.control {
            while let Some(message) = self.sequence.next_control_message() {
                (control.send)(message);
            }
            // Started with the first unacknowledged frame, not with the last.
            if self.sequence.awaits_control_ack() {
                let ack_timeout = self.timeouts.ack_timeout;
                self.timers
                    .set_once(RelayTimer::AckOverdue, || Instant::now() + ack_timeout);
            }
            // The quota is used up: what is left needs the relay.
            if !self.sequence.is_control_drained() {
                self.request_relay();
            }
            // The other half of the quota carries bytes until the direct connection exists
            // (decision 50).
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
        // Flushed after a batch: one system call for several frames.
        if self.unflushed {
            self.unflushed = relay.poll_flush_unpin(cx)?.is_pending();
        }
        Ok(())
    }

    /// Runs expired timers. Returns whether there were any.
    fn poll_timers(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(at) = self.timers.next_deadline() else {
            return false;
        };
        // An unchanged alarm keeps its registration with the runtime.
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
            RelayTimer::Dial => (), // the state asks for the dial
            RelayTimer::ResumeDeadline => self.give_up_resuming(),
            RelayTimer::CloseDeadline => {
                let text = format!(
                    "the peer has accepted none of the remaining frames for {:?}",
                    self.timeouts.resume_timeout
                );
                self.fail(io::ErrorKind::TimedOut, text);
            }
        }
    }

    /// Reads the relay. Returns whether it made progress.
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

    /// Drops the control connection: the peer is on the relay, too.
    fn on_peer_joined(&mut self) {
        self.timers.clear(RelayTimer::ResumeDeadline);
        self.timers.clear(RelayTimer::AckOverdue);
        (self.control, self.direct_status, self.last_error) = (None, None, None);
    }

    /// Handles the loss of the relay's connection, or a failed dial.
    fn handle_failure(&mut self, failure: RelayFailure) {
        if let RelayState::Open(_, since) = &self.state
            && since.elapsed() >= STABLE_AGE
        {
            self.backoff.reset();
        }
        // The next connection starts from acknowledged frames, whatever this one had taken.
        self.sequence.detach_relay();
        (self.state, self.unflushed) = (RelayState::Wanted, false);
        if self.is_finished() {
            self.end = Some(RelayEnd::Closed);
        } else if failure.is_final {
            self.fail(failure.error.kind(), failure.error.to_string());
        } else {
            let now = Instant::now();
            // Both sides redial at once after a restart of the rendezvous; the random delay spreads
            // them.
            self.timers.set(
                RelayTimer::Dial,
                now + self.backoff.next_delay(fastrand::f64()),
            );
            self.timers.set_once(RelayTimer::ResumeDeadline, || {
                now + self.timeouts.resume_timeout
            });
            self.last_error = Some(failure.error);
        }
    }

    fn give_up_resuming(&mut self) {
        let kind = self
            .last_error
            .as_ref()
            .map_or(io::ErrorKind::TimedOut, io::Error::kind);
        let last_error = self.last_error.take().map_or_else(
            || "the peer did not connect".to_owned(),
            |last| last.to_string(),
        );
        let text = format!(
            "the relay was lost, and not restored within {:?}: {last_error}",
            self.timeouts.resume_timeout
        );
        self.fail(kind, text);
    }

    fn fail(&mut self, kind: io::ErrorKind, text: String) {
        // Ends the session: the rendezvous learns of it when the channel is dropped.
        (self.control, self.direct_status, self.state) = (None, None, RelayState::Unneeded);
        self.end = Some(RelayEnd::Broken(kind, text));
    }

    /// Returns whether nothing is left to do: the peer has everything, or sends no more itself.
    fn is_finished(&self) -> bool {
        self.closing && (self.sequence.acknowledgement_state().0 || self.sequence.has_peer_ended())
    }
}

#[cfg(test)]
mod tests;
