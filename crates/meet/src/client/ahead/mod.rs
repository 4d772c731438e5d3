//! A relay that is still being opened, which takes two or three round trips to the rendezvous. Meanwhile the line is there: the first bytes
//! of a way, which shake hands, go over it as well, and their reader skips them when they come again over the relay. So a line that breaks, or a
//! peer that does not listen, costs time alone.

mod joint;

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use tokio::sync::mpsc;

use crate::way::{Piece, Relay};
use joint::{Joint, MOST};

/// A message of a line has room for so many, as text.
pub(super) const LONGEST: usize = 4 << 10;

/// Where bytes begin in their direction, and they.
pub(super) type Early = (u64, Bytes);

/// The way to a session's other side over the line.
pub(super) struct Words {
    pub(super) tell: Box<dyn Fn(Early) + Send>,
    /// What has been said before there was a session: with the call.
    pub(super) said: Option<Bytes>,
    pub(super) told: mpsc::UnboundedReceiver<Early>,
}

/// See the module.
pub(super) struct Ahead<R> {
    state: State<R>,
    words: Words,
    /// What waits for the relay, and how many bytes of it.
    held: VecDeque<Piece>,
    waiting: u64,
    joint: Joint,
}

enum State<R> {
    Opening(Pin<Box<dyn Future<Output = io::Result<R>> + Send>>),
    Open(R),
    Failed,
}

impl<R: Relay> Ahead<R> {
    pub(super) fn new(opening: impl Future<Output = io::Result<R>> + Send + 'static, words: Words) -> Self {
        let waiting = words.said.as_ref().map_or(0, |said| said.len() as u64);
        let held = words.said.clone().map(Piece::Bytes).into_iter().collect();
        Self { state: State::Opening(Box::pin(opening)), words, held, waiting, joint: Joint::default() }
    }

    /// The relay, once it is open and what was held has gone to it.
    fn open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut R>> {
        if let State::Opening(opening) = &mut self.state {
            match ready!(opening.as_mut().poll(cx)) {
                Ok(relay) => self.state = State::Open(relay),
                Err(error) => {
                    self.state = State::Failed;
                    return Poll::Ready(Err(error));
                }
            }
        }
        let State::Open(relay) = &mut self.state else { return Poll::Ready(Err(io::ErrorKind::NotConnected.into())) };
        while !self.held.is_empty() {
            ready!(relay.poll_ready_unpin(cx))?;
            let Some(piece) = self.held.pop_front() else { break };
            relay.start_send_unpin(piece)?;
            if self.held.is_empty() {
                let _ = relay.poll_flush_unpin(cx)?; // what does not go now goes with the next poll
            }
        }
        Poll::Ready(Ok(relay))
    }

    /// Keeps a piece for the relay, and sends its bytes ahead as far as they are among the first ones.
    fn hold(&mut self, piece: Piece) {
        if let Piece::Bytes(bytes) = &piece {
            for part in bytes.chunks(LONGEST) {
                let at = self.waiting;
                self.waiting += part.len() as u64;
                if self.waiting <= MOST {
                    (self.words.tell)((at, bytes.slice_ref(part)));
                }
            }
        }
        self.held.push_back(piece);
    }

    /// Whether all that was sent is on its way, one or the other.
    fn is_told(&self) -> bool {
        self.waiting <= MOST && self.held.iter().all(|piece| matches!(piece, Piece::Bytes(_)))
    }
}

impl<R: Relay> Stream for Ahead<R> {
    type Item = io::Result<Piece>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        while let Poll::Ready(Some((at, bytes))) = this.words.told.poll_recv(cx) {
            if let Some(bytes) = this.joint.line(at, bytes) {
                return Poll::Ready(Some(Ok(Piece::Bytes(bytes))));
            }
        }
        loop {
            let relay = match ready!(this.open(cx)) {
                Ok(relay) => relay,
                Err(error) => return Poll::Ready(Some(Err(error))),
            };
            let piece = ready!(relay.poll_next_unpin(cx));
            let Some(Ok(Piece::Bytes(bytes))) = piece else { return Poll::Ready(piece) };
            if let Some(bytes) = this.joint.relay(bytes) {
                return Poll::Ready(Some(Ok(Piece::Bytes(bytes))));
            }
        }
    }
}

impl<R: Relay> Sink<Piece> for Ahead<R> {
    type Error = io::Error;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let may_wait = this.waiting < MOST;
        match this.open(cx) {
            Poll::Ready(Ok(relay)) => relay.poll_ready_unpin(cx),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending if may_wait => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        }
    }

    fn start_send(self: Pin<&mut Self>, piece: Piece) -> io::Result<()> {
        let this = self.get_mut();
        match &mut this.state {
            State::Open(relay) if this.held.is_empty() => relay.start_send_unpin(piece),
            _ => {
                this.hold(piece);
                Ok(())
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let is_told = this.is_told();
        match this.open(cx) {
            Poll::Ready(Ok(relay)) => relay.poll_flush_unpin(cx),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending if is_told => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        }
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.get_mut().open(cx))?.poll_close_unpin(cx)
    }
}

#[cfg(test)]
mod tests;
