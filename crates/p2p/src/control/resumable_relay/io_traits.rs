//! `Stream` and `Sink` of a resumable relay.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::{Sink, SinkExt, Stream, StreamExt};
use tokio::time::Instant;

use super::timers::RelayTimer;
use super::{ACK_INTERVAL, RelayDial, RelayEnd, RelayState, ResumableRelay};
use crate::migrate::{MAX_FRAME_BYTES, RelayConnection, StreamFrame};

impl<D: RelayDial> ResumableRelay<D> {
    /// Returns the error that broke it, if it is still needed.
    fn pending_error(&self) -> Option<io::Error> {
        match &self.end {
            Some(RelayEnd::Broken(kind, text)) if !self.is_finished() => {
                Some(io::Error::new(*kind, text.clone()))
            }
            _ => None,
        }
    }

    /// Fails once the relay has ended.
    fn check_writable(&self) -> io::Result<()> {
        match &self.end {
            Some(_) => Err(self
                .pending_error()
                .unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())),
            None => Ok(()),
        }
    }

    /// Returns whether all frames were given to a carrier.
    fn is_flushed(&self) -> bool {
        match &self.state {
            RelayState::Open(..) => !self.unflushed && !self.sequence.has_relay_frame(),
            _ => self.control.is_some() && self.sequence.is_control_drained(),
        }
    }

    /// Takes the next frame for the reader, and sends an acknowledgement that is due.
    fn take_frame(&mut self, cx: &mut Context<'_>) -> Option<StreamFrame> {
        let frame = self.sequence.take_frame();
        if self.sequence.is_ack_due() {
            self.send_pending(cx);
        } else if self.sequence.has_unsent_ack() {
            self.timers
                .set_once(RelayTimer::SendAck, || Instant::now() + ACK_INTERVAL);
        }
        frame
    }

    /// Closes the connection: both sides have sent everything and know it.
    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let RelayState::Open(relay, _) = &mut self.state
            && ready!(relay.poll_close_unpin(cx)).is_ok()
        {
            // Reads until the peer's close frame, as the closing handshake requires (RFC 6455
            // section 5.5.1).
            while let Some(Ok(_)) = ready!(relay.poll_next_unpin(cx)) {}
        }
        self.end = Some(RelayEnd::Closed);
        Poll::Ready(())
    }

    /// Waits until the peer's acknowledgements free capacity for a frame.
    fn poll_send_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.sequence.has_room() {
            // A full input queue is not read further, or a peer could fill this side's memory.
            if self.sequence.is_full() || !self.read_relay(cx) {
                return Poll::Pending;
            }
            self.drive(cx);
            self.check_writable()?;
        }
        Poll::Ready(Ok(()))
    }
}

impl<D: RelayDial> Stream for ResumableRelay<D> {
    type Item = io::Result<StreamFrame>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let relay = self.get_mut();
        loop {
            relay.drive(cx);
            if let Some(frame) = relay.take_frame(cx) {
                return Poll::Ready(Some(Ok(frame)));
            }
            if relay.end.is_some() {
                return Poll::Ready(relay.pending_error().map(Err));
            }
            // The reader's end only: this side may still write, so nothing is closed yet.
            if relay.sequence.has_peer_ended() && !relay.closing {
                return Poll::Ready(None);
            }
            if relay.sequence.has_peer_ended()
                && relay.sequence.acknowledgement_state().0
                && relay.is_flushed()
            {
                ready!(relay.poll_finish(cx));
                return Poll::Ready(None);
            }
            if !relay.read_relay(cx) {
                return Poll::Pending;
            }
        }
    }
}

impl<D: RelayDial> Sink<StreamFrame> for ResumableRelay<D> {
    type Error = io::Error;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let relay = self.get_mut();
        relay.drive(cx);
        relay.check_writable()?;
        relay.poll_send_room(cx)
    }

    fn start_send(self: Pin<&mut Self>, frame: StreamFrame) -> io::Result<()> {
        let relay = self.get_mut();
        relay.check_writable()?;
        relay.sequence.push_frame(frame);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let relay = self.get_mut();
        relay.drive(cx);
        relay.check_writable()?;
        if relay.is_flushed() {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    /// Waits until the peer has all frames. The closing side does not read what still comes.
    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let relay = self.get_mut();
        relay.sequence.push_end();
        relay.closing = true;
        relay.timers.clear(RelayTimer::HeadStart);
        relay.timers.clear(RelayTimer::ShortLink);
        loop {
            relay.drive(cx);
            // Frames that arrive during a close are dropped, but must be acknowledged.
            while relay.take_frame(cx).is_some() {}
            let (_, all_but_end_acknowledged) = relay.sequence.acknowledgement_state();
            // The peer need not confirm the end frame: its own end says the same.
            if (all_but_end_acknowledged && (relay.is_flushed() || relay.end.is_some()))
                || relay.sequence.has_peer_ended()
            {
                relay.timers.clear(RelayTimer::CloseDeadline);
                return Poll::Ready(Ok(()));
            }
            relay.check_writable()?;
            relay.timers.set_once(RelayTimer::CloseDeadline, || {
                Instant::now() + relay.timeouts.resume_timeout
            });
            if !relay.read_relay(cx) {
                // The timer may be new, so the alarm must be set before waiting.
                return if relay.poll_timers(cx) {
                    continue;
                } else {
                    Poll::Pending
                };
            }
        }
    }
}

impl<D: RelayDial> RelayConnection for ResumableRelay<D> {
    /// Returns the control connection's capacity until the relay is open.
    fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.drive(cx);
        self.check_writable()?;
        if self.opened {
            return self.poll_send_room(cx).map_ok(|()| MAX_FRAME_BYTES);
        }
        let capacity = self
            .control
            .as_ref()
            .map_or(0, |_| self.sequence.control_room());
        if capacity > 0 {
            Poll::Ready(Ok(capacity))
        } else {
            Poll::Pending
        }
    }
}

impl<D: RelayDial> fmt::Debug for ResumableRelay<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lasting")
            .field("opened", &self.opened)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}
