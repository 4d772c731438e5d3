//! Bodies that this endpoint writes in chunks.

use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use nearpath_shm::ChannelSide;

use super::super::body_flow::SentPart;
use super::super::send_queue::QueuedMessage;
use super::super::types::{BodyUnwanted, CallError};
use super::EndpointCore;
use super::responses::abort_response;
use crate::outbound_body::OutboundBody;

impl EndpointCore {
    /// Polls for room for the next chunk of a body.
    pub(in crate::endpoint) fn poll_writable(
        &mut self,
        channel: u32,
        call: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), BodyUnwanted>> {
        let Some(link) = self.links.get_mut(&channel) else {
            return Poll::Ready(Err(BodyUnwanted));
        };
        // Flow first: most bodies are in flight, and the queue is searched in order.
        if let Some(flow) = link.flow_mut(call) {
            return flow.body.poll_writable(cx.waker()).map(Ok);
        }
        match link
            .send_queue
            .iter_mut()
            .find(|queued| queued.envelope.call == call && queued.is_open())
        {
            Some(queued) => {
                // Its first message waits for room: no part may overtake it.
                queued.writer = Some(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(Err(BodyUnwanted)),
        }
    }

    /// Returns true if the next chunk can be written.
    pub(in crate::endpoint) fn is_writable(
        &mut self,
        channel: u32,
        call: u64,
    ) -> Result<bool, BodyUnwanted> {
        match self.poll_writable(channel, call, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(room) => room.map(|()| true),
            Poll::Pending => Ok(false),
        }
    }

    /// Writes the next chunk. Requires room.
    pub(in crate::endpoint) fn push_chunk(
        &mut self,
        channel: u32,
        call: u64,
        piece: Bytes,
    ) -> Result<(), BodyUnwanted> {
        self.update_flow(channel, call, |out| out.push_chunk(piece))
    }

    pub(super) fn update_flow(
        &mut self,
        channel: u32,
        call: u64,
        act: impl FnOnce(&mut OutboundBody<SentPart>),
    ) -> Result<(), BodyUnwanted> {
        let link = self.links.get_mut(&channel).ok_or(BodyUnwanted)?;
        act(&mut link.flow_mut(call).ok_or(BodyUnwanted)?.body);
        // An idle flow left the list of sendable ones when it had nothing to send.
        link.mark_sendable(call);
        link.send_unsent(&self.endpoint);
        self.needs_flush = true;
        Ok(())
    }

    /// Writes the last chunk.
    #[cfg(feature = "tokio")]
    pub(in crate::endpoint) fn finish_with(&mut self, channel: u32, call: u64, piece: Bytes) {
        // Without a flow the peer wants no more of the body: nothing is left to finish.
        let _ = self.update_flow(channel, call, |out| {
            out.push_chunk(piece);
            out.close_input();
        });
        self.end_finished_links();
    }

    /// Completes a body.
    pub(in crate::endpoint) fn finish_body(&mut self, channel: u32, call: u64) {
        if self
            .update_flow(channel, call, OutboundBody::close_input)
            .is_err()
        {
            // Its first message is still queued: it then leaves as a complete body.
            let link = self.links.get_mut(&channel);
            let queued = link.and_then(|link| {
                link.send_queue
                    .iter_mut()
                    .find(|queued| queued.envelope.call == call)
            });
            queued.into_iter().for_each(QueuedMessage::close_input);
        }
        self.end_finished_links();
    }

    /// Aborts a body; the peer is told.
    pub(in crate::endpoint) fn abort_body(&mut self, channel: u32, call: u64) {
        let Some(link) = self.links.get_mut(&channel) else {
            return;
        };
        let open = link.flow_mut(call).is_some()
            || link
                .send_queue
                .iter()
                .any(|queued| queued.envelope.call == call);
        match link.side {
            ChannelSide::Caller if open => {
                // The reader learns of it now; the response's end is still expected, since every
                // call is answered.
                link.interrupt_reader(call, CallError::Aborted);
                self.cancel_call(channel, call);
                self.peer_table.expire_call(call, Err(CallError::Aborted));
            }
            ChannelSide::Callee if open => {
                abort_response(link, call);
                link.send_unsent(&self.endpoint);
                self.needs_flush = true;
            }
            _ => {}
        }
        self.end_finished_links();
    }
}
