//! Who waits, in the order in which they came. Bounded.

use std::collections::VecDeque;

/// Names one who waits; never used again.
pub(super) type QueueTicket = u64;

/// First come, first served; `T` is how the one who waits is called.
#[derive(Debug)]
pub(super) struct AdmissionQueue<T> {
    waiting: VecDeque<(QueueTicket, T)>,
    last_ticket: QueueTicket,
    max_waiting: usize,
    is_closed: bool,
}

impl<T> AdmissionQueue<T> {
    /// Nobody waits.
    pub(super) fn new(max_waiting: u32) -> Self {
        Self {
            waiting: VecDeque::new(),
            last_ticket: 0,
            max_waiting: max_waiting as usize,
            is_closed: false,
        }
    }

    /// How many may wait from now on. Those who wait already may go on.
    pub(super) fn set_max_waiting(&mut self, max_waiting: u32) {
        self.max_waiting = max_waiting as usize;
    }

    /// Whether nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether it will never be served again.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Takes the last place, unless all are taken.
    pub(super) fn push_last(&mut self, waiter: T) -> Option<QueueTicket> {
        if self.is_closed || self.waiting.len() >= self.max_waiting {
            return None;
        }
        let ticket = self.next_ticket();
        self.waiting.push_back((ticket, waiter));
        Some(ticket)
    }

    /// Takes the first place, for one who had been let in already; the bound does not apply.
    pub(super) fn push_first(&mut self, waiter: T) -> Option<QueueTicket> {
        if self.is_closed {
            return None;
        }
        let ticket = self.next_ticket();
        self.waiting.push_front((ticket, waiter));
        Some(ticket)
    }

    /// The next to be let in.
    pub(super) fn pop_first(&mut self) -> Option<T> {
        self.waiting.pop_front().map(|(_, waiter)| waiter)
    }

    /// Gives a place up. False: it was let in before.
    pub(super) fn remove_ticket(&mut self, ticket: QueueTicket) -> bool {
        let position = self
            .waiting
            .iter()
            .position(|(queued, _)| *queued == ticket);
        position.is_some_and(|place| self.waiting.remove(place).is_some())
    }

    /// Ends it: gives out everybody who waits, and lets nobody wait again.
    pub(super) fn close_queue(&mut self) -> VecDeque<(QueueTicket, T)> {
        self.is_closed = true;
        std::mem::take(&mut self.waiting)
    }

    fn next_ticket(&mut self) -> QueueTicket {
        self.last_ticket += 1;
        self.last_ticket
    }
}
