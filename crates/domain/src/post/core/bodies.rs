//! Bodies that this party writes piece by piece.

use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use nearpath_shm::Side;

use super::super::flow::Ticket;
use super::super::outbox::Letter;
use super::super::words::{CallError, NotWanted};
use super::Core;
use super::answers::break_off;
use crate::outflow::Outflow;

impl Core {
    /// Whether the writer of a body can hand over its next piece; else it is told when it can.
    pub(in crate::post) fn poll_room(
        &mut self,
        channel: u32,
        call: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), NotWanted>> {
        let Some(link) = self.links.get_mut(&channel) else { return Poll::Ready(Err(NotWanted)) };
        if let Some(flow) = link.flow_mut(call) {
            return flow.out.poll_room(cx.waker()).map(Ok);
        }
        match link.outbox.iter_mut().find(|letter| letter.envelope.call == call && letter.is_open()) {
            Some(letter) => {
                letter.writer = Some(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(Err(NotWanted)),
        }
    }

    /// Whether the next piece can be handed over.
    pub(in crate::post) fn has_room(&mut self, channel: u32, call: u64) -> Result<bool, NotWanted> {
        match self.poll_room(channel, call, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(room) => room.map(|()| true),
            Poll::Pending => Ok(false),
        }
    }

    /// Hands the next piece over. Only when there is room.
    pub(in crate::post) fn hand(&mut self, channel: u32, call: u64, piece: Bytes) -> Result<(), NotWanted> {
        self.stir(channel, call, |out| out.hand(piece))
    }

    pub(super) fn stir(
        &mut self,
        channel: u32,
        call: u64,
        act: impl FnOnce(&mut Outflow<Ticket>),
    ) -> Result<(), NotWanted> {
        let link = self.links.get_mut(&channel).ok_or(NotWanted)?;
        act(&mut link.flow_mut(call).ok_or(NotWanted)?.out);
        link.stir(call);
        link.pump(&self.member);
        self.unrung = true;
        Ok(())
    }

    /// Hands the last piece over.
    #[cfg(feature = "tokio")]
    pub(in crate::post) fn end(&mut self, channel: u32, call: u64, piece: Bytes) {
        let _ = self.stir(channel, call, |out| {
            out.hand(piece);
            out.close();
        });
        self.wind_up();
    }

    /// The body that was begun is complete.
    pub(in crate::post) fn finish(&mut self, channel: u32, call: u64) {
        if self.stir(channel, call, Outflow::close).is_err() {
            let link = self.links.get_mut(&channel);
            let letter = link.and_then(|link| link.outbox.iter_mut().find(|letter| letter.envelope.call == call));
            letter.into_iter().for_each(Letter::close);
        }
        self.wind_up();
    }

    /// The body that was begun will not be completed: the peer is told.
    pub(in crate::post) fn abort(&mut self, channel: u32, call: u64) {
        let Some(link) = self.links.get_mut(&channel) else { return };
        let open = link.flow_mut(call).is_some() || link.outbox.iter().any(|letter| letter.envelope.call == call);
        match link.side {
            Side::Caller if open => {
                link.disrupt(call, CallError::BrokenOff);
                self.cancel(channel, call);
                self.book.expire(call, Err(CallError::BrokenOff));
            }
            Side::Callee if open => {
                break_off(link, call);
                link.pump(&self.member);
                self.unrung = true;
            }
            _ => {}
        }
        self.wind_up();
    }
}
