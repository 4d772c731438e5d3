//! A body whose first message was sent: its parts, paced by the receiver's releases.
//!
//! In a shared domain the slot's lease shows if a part was released. In a strict domain the
//! receiver reports how many it released, in the order of sending.

use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use nearpath_shm::{
    ChannelEnd, Envelope, Lease, MessageDraft, MessageKind, PoolEndpoint, SlotId, envelope,
};

use super::part_sending::{SendProgress, claim_for_body, has_ring_room, send_draft};
use super::types::UnsentReason;
use crate::outbound_body::{OutboundBody, SendReadiness};

/// Maximum bytes per part: larger slots are few, and a slow reader keeps some.
const MAX_PART_BYTES: usize = 65_536 - envelope::ENVELOPE_BYTES;

/// Identifies a message that is with the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SentPart(SlotId, u32);

impl SentPart {
    pub(super) fn from_lease(lease: &Lease) -> Self {
        Self(lease.slot(), lease.generation())
    }
}

/// A body in flight; see the module documentation.
#[derive(Debug)]
pub(super) struct BodyFlow {
    envelope: Envelope,
    pub(super) body: OutboundBody<SentPart>,
    release_count: ReleaseCount,
}

/// Releases that a strict receiver reported.
#[derive(Debug, Default)]
struct ReleaseCount {
    /// Highest reported number, including the first message.
    released: u64,
    /// Reported releases that are not yet counted.
    uncounted: u64,
}

impl ReleaseCount {
    /// Records a report; only increases count. A receiver that lies stalls or floods only itself.
    fn record_release(&mut self, all: u64) {
        self.uncounted = self
            .uncounted
            .saturating_add(all.saturating_sub(self.released));
        self.released = self.released.max(all);
    }

    /// Returns true if the oldest uncounted message is with the receiver.
    fn holds_oldest(&mut self) -> bool {
        // A report is a count and no list: the oldest messages count as released first.
        let holds = self.uncounted == 0;
        self.uncounted = self.uncounted.saturating_sub(1);
        holds
    }
}

impl BodyFlow {
    /// Creates the flow of a body: `first` was sent, `rest` remains.
    pub(super) fn new(first: Envelope, rest: Bytes, open: bool, ticket: SentPart) -> Self {
        let envelope = Envelope {
            total: first.total,
            ..Envelope::new(MessageKind::Part, first.call)
        };
        Self {
            envelope,
            body: OutboundBody::new(rest, open, ticket),
            release_count: ReleaseCount::default(),
        }
    }

    /// Records that a strict receiver released `let_go` messages of this body.
    pub(super) fn record_release(&mut self, let_go: u64) {
        self.release_count.record_release(let_go);
    }

    fn send_readiness(&mut self, member: &PoolEndpoint, window: usize) -> SendReadiness {
        let Self {
            body: out,
            release_count,
            ..
        } = self;
        match member.pool().is_strict() {
            // A strict receiver copies: the slot's lease ends long before the part is released.
            true => out.send_readiness(window, |_| release_count.holds_oldest()),
            false => out.send_readiness(window, |ticket| member.is_slot_in_use(ticket.0, ticket.1)),
        }
    }

    /// Sends all parts that can be sent.
    pub(super) fn send_parts(
        &mut self,
        end: &mut ChannelEnd,
        member: &Arc<PoolEndpoint>,
        window: usize,
    ) -> SendProgress {
        loop {
            match self.send_readiness(member, window) {
                SendReadiness::Complete => return SendProgress::Sent,
                SendReadiness::AwaitsWriter => return SendProgress::NeedsWriter,
                SendReadiness::AwaitsReceiver => return SendProgress::NeedsRoom,
                // Parts leave ring entries to other messages: one body must not stop the calls of a
                // channel.
                SendReadiness::Part if !has_ring_room(end, true) => return SendProgress::NeedsRoom,
                SendReadiness::Part => {}
            }
            match self.send_part(end, member) {
                Ok(()) => {}
                Err(UnsentReason::NoCredit) => return SendProgress::NeedsRoom,
                Err(UnsentReason::NoSlot) => return SendProgress::NeedsSlot,
                Err(_) => return SendProgress::Impossible,
            }
        }
    }

    fn send_part(
        &mut self,
        end: &mut ChannelEnd,
        member: &Arc<PoolEndpoint>,
    ) -> Result<(), UnsentReason> {
        let piece = self.body.chunk();
        let part = &piece[..piece.len().min(MAX_PART_BYTES)];
        let draft = MessageDraft::new(claim_for_body(
            member,
            envelope::body_offset(0),
            part.len(),
        )?);
        // Before the send, which moves the lease away.
        let ticket = SentPart::from_lease(draft.lease());
        // A pool short of slots gives a smaller one: the rest follows as another part.
        let bytes = part.len().min(draft.body_capacity() as usize);
        let more = !self.body.is_last_part(bytes);
        send_draft(end, draft, self.envelope, &part[..bytes], more)?;
        self.body
            .record_part(bytes, ticket)
            .into_iter()
            .for_each(Waker::wake);
        Ok(())
    }

    /// Returns true if a part can be sent; checked before sleeping.
    pub(super) fn can_send(&mut self, member: &Arc<PoolEndpoint>, window: usize) -> bool {
        self.send_readiness(member, window) == SendReadiness::Part
    }
}

/// Wakes the writer: no more is wanted.
impl Drop for BodyFlow {
    fn drop(&mut self) {
        self.body.take_writer().into_iter().for_each(Waker::wake);
    }
}
