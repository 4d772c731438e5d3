//! Slots that a strict endpoint has sent on a channel and its peer has not consumed.
//!
//! Descriptors are consumed in the order in which they were sent, so the peer's `head` alone tells
//! how many are. A peer that forges it corrupts its own messages only.

use std::collections::VecDeque;

use crate::lease::Lease;

/// Slots in the order of sending.
#[derive(Debug, Default)]
pub(crate) struct SentSlots {
    sent: VecDeque<SentSlot>,
}

#[derive(Debug)]
struct SentSlot {
    lease: Lease,
    offset: u32,
    length: u32,
}

impl SentSlots {
    /// Records a sent message.
    pub(crate) fn record_sent(&mut self, lease: Lease, offset: u32, length: u32) {
        self.sent.push_back(SentSlot {
            lease,
            offset,
            length,
        });
    }

    /// Clears and releases all but the last `unread` messages; returns how many.
    pub(crate) fn release_until(&mut self, unread: u32) -> u32 {
        let taken = self.sent.len().saturating_sub(unread as usize);
        self.sent
            .drain(..taken)
            .for_each(SentSlot::clear_and_release);
        taken as u32
    }

    /// Returns the number of messages in flight, as far as is known.
    pub(crate) fn len(&self) -> usize {
        self.sent.len()
    }

    /// Returns true if no message is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }
}

impl SentSlot {
    /// Clears the message, so that a peer cannot read it later, and releases the slot.
    fn clear_and_release(mut self) {
        self.lease.clear_bytes(self.offset, self.length);
    }
}
