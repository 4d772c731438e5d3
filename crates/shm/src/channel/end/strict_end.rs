//! Channel end in a strict domain. It writes only to its own pool, and copies messages from the
//! peer's pool (ADR 0016).
//!
//! No lease is transferred. The receiver copies a message before it moves `head`, so entries before
//! `head` belong to the sender again. The sender's private [`SentSlots`] lists the outstanding
//! slots: no other endpoint can free, take or change them.

use super::{ChannelEnd, ChannelReceiveError, ChannelSide, ChannelState, UnsentMessage};
use crate::descriptor::{Descriptor, DescriptorError};
use crate::endpoint::AcceptOfferError;
use crate::message::{OutgoingMessage, ReceivedMessage};
use crate::peer_pool::PeerPool;
use crate::sent_slots::SentSlots;
use crate::sync::{Ordering, fence};

/// Number of outstanding messages from which each send releases consumed slots. Below it, only a
/// flush releases them. A busy endpoint may never flush, so the number bounds its slots.
const RELEASE_ON_SEND_THRESHOLD: usize = 16;

/// Additional state of a strict end.
#[derive(Debug)]
pub(super) struct StrictState {
    /// The peer's pool.
    pub(super) peer_pool: PeerPool,
    sent_slots: SentSlots,
}

impl ChannelEnd {
    /// Switches the end to a strict domain, in which it reads from `peer_pool`. Its own pool must
    /// come from [`crate::SlotPool::create_strict`].
    pub fn with_peer_pool(self, peer_pool: PeerPool) -> Self {
        Self {
            strict: Some(StrictState {
                peer_pool,
                sent_slots: SentSlots::default(),
            }),
            ..self
        }
    }

    pub(super) fn send_strict(&mut self, message: OutgoingMessage) -> Result<(), UnsentMessage> {
        let OutgoingMessage {
            lease,
            offset,
            length,
        } = message;
        let descriptor = Descriptor {
            slot: lease.slot(),
            generation: lease.generation(),
            offset,
            length,
        };
        // The lease is not offered first: a strict pool's lease words are private, and `head`
        // returns the slot.
        if let Err(fault) = self.producer.push_descriptor(descriptor) {
            let error = self.push_fault(fault);
            return Err(UnsentMessage {
                error,
                message: Some(OutgoingMessage {
                    lease,
                    offset,
                    length,
                }),
            });
        }
        self.sockmap
            .as_mut()
            .into_iter()
            .for_each(|sockmap| sockmap.queue_descriptor(descriptor));
        if let Some(strict) = &mut self.strict {
            strict.sent_slots.record_sent(lease, offset, length);
            if strict.sent_slots.len() >= RELEASE_ON_SEND_THRESHOLD {
                self.release_consumed();
            }
        }
        self.counters.record_sent(length);
        self.pushed = true;
        Ok(())
    }

    /// Frees the peer's slot after the copy. Discards the copy if the peer may have reclaimed the
    /// slot: it considers this endpoint dead, or the channel broken.
    pub(super) fn finish_copy(
        &mut self,
        copy: Result<Vec<u8>, DescriptorError>,
    ) -> Result<Option<ReceivedMessage>, ChannelReceiveError> {
        // Pairs with the fence in `close_with`: a reader that sees bytes written after a close also
        // sees the close.
        fence(Ordering::Acquire);
        let state = self.channel.state();
        // After the copy: `head` returns the slot, and the sender may overwrite it at once.
        self.consumer.commit_head();
        self.popped = true;
        if is_unusable_for(state, self.side) {
            return Err(ChannelReceiveError::Closed(state));
        }
        Ok(Some(ReceivedMessage::from_copy(
            copy.map_err(AcceptOfferError::from)?,
        )?))
    }

    /// Releases the slots of consumed messages and returns their number. Each
    /// [`ChannelEnd::flush_batch`] does this. Call it when no slot is free.
    pub fn release_consumed(&mut self) -> u32 {
        let Some(strict) = self
            .strict
            .as_mut()
            .filter(|strict| !strict.sent_slots.is_empty())
        else {
            return 0;
        };
        // No count means an invalid `head`: the peer broke the channel, so all slots are released.
        // Only the peer's own reads suffer.
        let unread = self
            .producer
            .free_entries()
            .map_or(0, |free| self.channel.capacity() - free);
        strict.sent_slots.release_until(unread)
    }

    /// Frees all sent messages if the peer can no longer read them, otherwise the consumed ones.
    pub(super) fn reclaim_strict(&mut self) -> u32 {
        let peer = match self.side {
            ChannelSide::Caller => ChannelSide::Callee,
            ChannelSide::Callee => ChannelSide::Caller,
        };
        if !is_unusable_for(self.channel.state(), peer) {
            return self.release_consumed(); // the peer is alive and may still read the others
        }
        self.strict
            .as_mut()
            .map_or(0, |strict| strict.sent_slots.release_until(0))
    }

    /// Returns true if the end can be dropped: the peer has read all messages in this end's pool.
    /// Always true in a shared domain. Before sleeping, use [`ChannelEnd::is_newly_drained`].
    pub fn is_drained(&mut self) -> bool {
        if !self.has_unread() {
            return true;
        }
        self.reclaim_strict();
        !self.has_unread()
    }

    /// Returns true if the end was not drained at the last check, and is now. Otherwise requests a
    /// wakeup. For use before sleeping.
    pub fn is_newly_drained(&mut self) -> bool {
        if !self.has_unread() {
            return false;
        }
        // The error is ignored: `is_drained` reads `head` again, and counts a broken ring as
        // drained.
        let _ = self.producer.request_wakeup();
        self.is_drained()
    }

    fn has_unread(&self) -> bool {
        self.strict
            .as_ref()
            .is_some_and(|strict| !strict.sent_slots.is_empty())
    }
}

/// Returns true if the channel is unusable for this side: broken, or closed because the side is
/// dead.
fn is_unusable_for(state: ChannelState, side: ChannelSide) -> bool {
    match state {
        ChannelState::Open | ChannelState::Withdrawn => false,
        ChannelState::CallerDead => side == ChannelSide::Caller,
        ChannelState::CalleeDead => side == ChannelSide::Callee,
        ChannelState::Broken => true,
    }
}
