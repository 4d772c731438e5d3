//! What a strict party has sent on a channel and its peer has not taken: whose slots these are is nobody else's to say.
//!
//! Descriptors come back in the order in which they went, so the peer's `head` alone says how many are taken. A peer that
//! lies about it gets its own messages mixed up, and nobody else's.

use std::collections::VecDeque;

use crate::lease::Lease;

/// Slots in the order in which they were sent.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    sent: VecDeque<Entry>,
}

#[derive(Debug)]
struct Entry {
    lease: Lease,
    offset: u32,
    length: u32,
}

impl Ledger {
    /// A message went out.
    pub(crate) fn note(&mut self, lease: Lease, offset: u32, length: u32) {
        self.sent.push_back(Entry { lease, offset, length });
    }

    /// Only the last `unread` are still wanted: the others' bytes are cleared and their slots are free. How many these were.
    pub(crate) fn settle(&mut self, unread: u32) -> u32 {
        let taken = self.sent.len().saturating_sub(unread as usize);
        self.sent.drain(..taken).for_each(Entry::end);
        taken as u32
    }

    /// Messages underway, as far as is known.
    pub(crate) fn len(&self) -> usize {
        self.sent.len()
    }

    /// Whether nothing is underway.
    pub(crate) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }
}

impl Entry {
    /// Clears what the message held, so that a peer does not find it later, and releases the slot.
    fn end(mut self) {
        self.lease.clear(self.offset, self.length);
    }
}
