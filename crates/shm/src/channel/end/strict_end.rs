//! Channel end in a strict domain: it writes only to its own pool, and reads the peer's pool by
//! copying.
//!
//! No lease is transferred. The receiver copies a message before it moves `head`, so entries before
//! `head` belong to the sender again. The sender's private record names these slots: no other
//! endpoint can free, take or change them.

use super::{ChannelEnd, ChannelReceiveError, ChannelSide, ChannelState, UnsentMessage};
use crate::descriptor::{Descriptor, DescriptorError};
use crate::endpoint::AcceptOfferError;
use crate::message::{OutgoingMessage, ReceivedMessage};
use crate::peer_pool::PeerPool;
use crate::sent_slots::SentSlots;
use crate::sync::{Ordering, fence};

/// Messages in flight from which each send releases consumed slots; below that, only each flush
/// does.
const RELEASE_EVERY_SEND_FROM: usize = 16;

/// Additional state of a strict end.
#[derive(Debug)]
pub(super) struct StrictState {
    /// The peer's pool.
    pub(super) peer_pool: PeerPool,
    sent_slots: SentSlots,
}

impl ChannelEnd {
    /// Switches the end to a strict domain: `source` is the peer's pool, and the own pool comes
    /// from [`crate::SlotPool::create_strict`].
    pub fn with_peer_pool(self, source: PeerPool) -> Self {
        Self {
            strict: Some(StrictState {
                peer_pool: source,
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
        // No offer precedes the push: lease words of a strict pool are private, and `head` returns
        // the slot (ADR 0016).
        if let Err(fault) = self.producer.push_descriptor(descriptor) {
            let why = self.push_fault(fault);
            return Err(UnsentMessage {
                error: why,
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
            .for_each(|line| line.queue_descriptor(descriptor));
        if let Some(strict) = &mut self.strict {
            strict.sent_slots.record_sent(lease, offset, length);
            if strict.sent_slots.len() >= RELEASE_EVERY_SEND_FROM {
                // An endpoint whose batch never ends gets its slots back, too
                self.release_consumed();
            }
        }
        self.counters.record_sent(length);
        self.pushed = true;
        Ok(())
    }

    /// Frees the peer's slot after the copy. A copy made after the peer reclaimed its slots is
    /// discarded: the peer considered this endpoint dead, or the channel broken.
    pub(super) fn finish_copy(
        &mut self,
        copy: Result<Vec<u8>, DescriptorError>,
    ) -> Result<Option<ReceivedMessage>, ChannelReceiveError> {
        // Pairs with the fence in `close_with`: bytes written after a close are seen only with the
        // close
        fence(Ordering::Acquire);
        let state = self.channel.state();
        // After the copy: `head` gives the slot back, and the sender may overwrite it at once.
        self.consumer.commit_head();
        self.popped = true;
        if is_lost_to(state, self.side) {
            return Err(ChannelReceiveError::Closed(state));
        }
        Ok(Some(ReceivedMessage::from_copy(
            copy.map_err(AcceptOfferError::from)?,
        )?))
    }

    /// Releases the slots of consumed messages. Each [`ChannelEnd::flush_batch`] does this; call it
    /// when no slot is free.
    pub fn release_consumed(&mut self) -> u32 {
        let Some(strict) = self
            .strict
            .as_mut()
            .filter(|strict| !strict.sent_slots.is_empty())
        else {
            return 0;
        };
        // An impossible head: the peer broke the channel, and what it still reads is its own loss.
        let unread = self
            .producer
            .free_entries()
            .map_or(0, |room| self.channel.capacity() - room);
        strict.sent_slots.release_until(unread)
    }

    /// Frees all sent messages when no peer reads them any more.
    pub(super) fn reclaim_strict(&mut self) -> u32 {
        let peer = match self.side {
            ChannelSide::Caller => ChannelSide::Callee,
            ChannelSide::Callee => ChannelSide::Caller,
        };
        if !is_lost_to(self.channel.state(), peer) {
            return self.release_consumed(); // the peer lives and reads on
        }
        self.strict
            .as_mut()
            .map_or(0, |strict| strict.sent_slots.release_until(0))
    }

    /// Returns true if the end can be dropped: the peer has read all messages in the own pool.
    /// Always true in a shared domain. Before sleeping, use [`ChannelEnd::drains_now`].
    pub fn is_drained(&mut self) -> bool {
        if !self.has_unread() {
            return true;
        }
        self.reclaim_strict();
        !self.has_unread()
    }

    /// Returns true if an undrained end is drained now. Otherwise requests a wakeup; check it
    /// before sleeping.
    pub fn drains_now(&mut self) -> bool {
        if !self.has_unread() {
            return false;
        }
        // The result is ignored: `is_drained` reads `head` again, and counts a poisoned ring as
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
fn is_lost_to(state: ChannelState, side: ChannelSide) -> bool {
    match state {
        ChannelState::Open | ChannelState::Withdrawn => false,
        ChannelState::CallerDead => side == ChannelSide::Caller,
        ChannelState::CalleeDead => side == ChannelSide::Callee,
        ChannelState::Broken => true,
    }
}
