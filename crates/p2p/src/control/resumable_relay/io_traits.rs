//! A lasting relay as a way sees it.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::{Sink, SinkExt, Stream, StreamExt};
use tokio::time::Instant;

use super::timers::Timer;
use super::{Dial, End, Lasting, State, TELL};
use crate::migrate::{FRAME, Piece, Relay};

impl<D: Dial> Lasting<D> {
    /// What broke it, if anybody still needs it.
    fn failure(&self) -> Option<io::Error> {
        match &self.end {
            Some(End::Broken(kind, text)) if !self.is_done() => Some(io::Error::new(*kind, text.clone())),
            _ => None,
        }
    }

    /// Nothing more can be written once it is over.
    fn writable(&self) -> io::Result<()> {
        match &self.end {
            Some(_) => Err(self.failure().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())),
            None => Ok(()),
        }
    }

    /// Whether all that was sent is on its way.
    fn is_flushed(&self) -> bool {
        match &self.relay {
            State::Open(..) => !self.unflushed && !self.pieces.has_frame(),
            _ => self.line.is_some() && self.pieces.is_said(),
        }
    }

    /// The next piece for the reader; what is to be told at once is.
    fn take(&mut self, cx: &mut Context<'_>) -> Option<Piece> {
        let piece = self.pieces.take();
        if self.pieces.is_due() {
            self.speak(cx);
        } else if self.pieces.is_untold() {
            self.timers.set_once(Timer::Tell, || Instant::now() + TELL);
        }
        piece
    }

    /// Both have said everything, and know it: the connection is closed.
    fn finish(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let State::Open(relay, _) = &mut self.relay
            && ready!(relay.poll_close_unpin(cx)).is_ok()
        {
            while let Some(Ok(_)) = ready!(relay.poll_next_unpin(cx)) {}
        }
        self.end = Some(End::Closed);
        Poll::Ready(())
    }

    /// Waits for the peer to make room for a piece.
    fn poll_kept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.pieces.has_room() {
            if self.pieces.is_full() || !self.read(cx) {
                return Poll::Pending;
            }
            self.drive(cx);
            self.writable()?;
        }
        Poll::Ready(Ok(()))
    }
}

impl<D: Dial> Stream for Lasting<D> {
    type Item = io::Result<Piece>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            this.drive(cx);
            if let Some(piece) = this.take(cx) {
                return Poll::Ready(Some(Ok(piece)));
            }
            if this.end.is_some() {
                return Poll::Ready(this.failure().map(Err));
            }
            if this.pieces.peer_is_over() && !this.closing {
                return Poll::Ready(None);
            }
            if this.pieces.peer_is_over() && this.pieces.is_acknowledged().0 && this.is_flushed() {
                ready!(this.finish(cx));
                return Poll::Ready(None);
            }
            if !this.read(cx) {
                return Poll::Pending;
            }
        }
    }
}

impl<D: Dial> Sink<Piece> for Lasting<D> {
    type Error = io::Error;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.drive(cx);
        this.writable()?;
        this.poll_kept(cx)
    }

    fn start_send(self: Pin<&mut Self>, piece: Piece) -> io::Result<()> {
        let this = self.get_mut();
        this.writable()?;
        this.pieces.send(piece);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.drive(cx);
        this.writable()?;
        if this.is_flushed() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Until the peer has all that was sent. Who closes does not want to read what comes.
    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.pieces.end();
        this.closing = true;
        this.timers.clear(Timer::HeadStart);
        this.timers.clear(Timer::Short);
        loop {
            this.drive(cx);
            while this.take(cx).is_some() {}
            let (_, but_the_last) = this.pieces.is_acknowledged();
            if (but_the_last && (this.is_flushed() || this.end.is_some())) || this.pieces.peer_is_over() {
                this.timers.clear(Timer::Closing);
                return Poll::Ready(Ok(()));
            }
            this.writable()?;
            this.timers.set_once(Timer::Closing, || Instant::now() + this.times.patience);
            if !this.read(cx) {
                // The timer may be new.
                return if this.wait(cx) { continue } else { Poll::Pending };
            }
        }
    }
}

impl<D: Dial> Relay for Lasting<D> {
    /// Before the relay is there, no more than the line takes.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.drive(cx);
        self.writable()?;
        if self.opened {
            return self.poll_kept(cx).map_ok(|()| FRAME);
        }
        let room = self.line.as_ref().map_or(0, |_| self.pieces.room_on_the_line());
        if room > 0 { Poll::Ready(Ok(room)) } else { Poll::Pending }
    }
}

impl<D: Dial> fmt::Debug for Lasting<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lasting").field("opened", &self.opened).field("end", &self.end).finish_non_exhaustive()
    }
}
