//! A lasting relay as a way sees it.

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
    /// What broke it, if anybody still needs it.
    fn pending_error(&self) -> Option<io::Error> {
        match &self.end {
            Some(RelayEnd::Broken(kind, text)) if !self.is_finished() => {
                Some(io::Error::new(*kind, text.clone()))
            }
            _ => None,
        }
    }

    /// Nothing more can be written once it is over.
    fn check_writable(&self) -> io::Result<()> {
        match &self.end {
            Some(_) => Err(self
                .pending_error()
                .unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())),
            None => Ok(()),
        }
    }

    /// Whether all that was sent is on its way.
    fn is_flushed(&self) -> bool {
        match &self.state {
            RelayState::Open(..) => !self.unflushed && !self.sequence.has_relay_frame(),
            _ => self.control.is_some() && self.sequence.is_control_drained(),
        }
    }

    /// The next piece for the reader; what is to be told at once is.
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

    /// Both have said everything, and know it: the connection is closed.
    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let RelayState::Open(relay, _) = &mut self.state
            && ready!(relay.poll_close_unpin(cx)).is_ok()
        {
            while let Some(Ok(_)) = ready!(relay.poll_next_unpin(cx)) {}
        }
        self.end = Some(RelayEnd::Closed);
        Poll::Ready(())
    }

    /// Waits for the peer to make room for a piece.
    fn poll_send_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.sequence.has_room() {
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

    /// Until the peer has all that was sent. Who closes does not want to read what comes.
    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let relay = self.get_mut();
        relay.sequence.push_end();
        relay.closing = true;
        relay.timers.clear(RelayTimer::HeadStart);
        relay.timers.clear(RelayTimer::ShortLink);
        loop {
            relay.drive(cx);
            while relay.take_frame(cx).is_some() {}
            let (_, all_but_end_acknowledged) = relay.sequence.acknowledgement_state();
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
                // The timer may be new.
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
    /// Before the relay is there, no more than the line takes.
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
