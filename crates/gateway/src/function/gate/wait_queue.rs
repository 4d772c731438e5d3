//! Bounded queue of waiting requests, first come, first served.

use std::collections::VecDeque;

/// Id of a waiting request; never reused.
pub(super) type QueueTicket = u64;

/// FIFO queue of waiting requests. `T` notifies a request.
#[derive(Debug)]
pub(super) struct AdmissionQueue<T> {
    waiting: VecDeque<(QueueTicket, T)>,
    last_ticket: QueueTicket,
    max_waiting: usize,
    is_closed: bool,
}

impl<T> AdmissionQueue<T> {
    /// Creates an empty queue.
    pub(super) fn new(max_waiting: u32) -> Self {
        Self {
            waiting: VecDeque::new(),
            last_ticket: 0,
            max_waiting: max_waiting as usize,
            is_closed: false,
        }
    }

    /// Sets the maximum number of waiting requests. Those that wait already stay.
    pub(super) fn set_max_waiting(&mut self, max_waiting: u32) {
        self.max_waiting = max_waiting as usize;
    }

    /// Returns whether no request waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the number of waiting requests.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether the queue was closed.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Adds a request at the end, unless the queue is full.
    pub(super) fn push_last(&mut self, waiter: T) -> Option<QueueTicket> {
        if self.is_closed || self.waiting.len() >= self.max_waiting {
            return None;
        }
        let ticket = self.next_ticket();
        self.waiting.push_back((ticket, waiter));
        Some(ticket)
    }

    /// Adds a request in front, for one that was admitted before. The limit does not apply.
    pub(super) fn push_first(&mut self, waiter: T) -> Option<QueueTicket> {
        if self.is_closed {
            return None;
        }
        let ticket = self.next_ticket();
        self.waiting.push_front((ticket, waiter));
        Some(ticket)
    }

    /// Takes the next request to admit.
    pub(super) fn pop_first(&mut self) -> Option<T> {
        self.waiting.pop_front().map(|(_, waiter)| waiter)
    }

    /// Removes a request. False: it was admitted before.
    pub(super) fn remove_ticket(&mut self, ticket: QueueTicket) -> bool {
        // A linear search: requests leave the queue early only when their caller gives up.
        let position = self
            .waiting
            .iter()
            .position(|(queued, _)| *queued == ticket);
        position.is_some_and(|position| self.waiting.remove(position).is_some())
    }

    /// Closes the queue and returns all waiting requests.
    pub(super) fn close_queue(&mut self) -> VecDeque<(QueueTicket, T)> {
        self.is_closed = true;
        std::mem::take(&mut self.waiting)
    }

    fn next_ticket(&mut self) -> QueueTicket {
        self.last_ticket += 1;
        self.last_ticket
    }
}
