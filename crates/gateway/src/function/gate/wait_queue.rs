//! Who waits, in the order in which they came. Bounded.

use std::collections::VecDeque;

/// Names one who waits; never used again.
pub(super) type Ticket = u64;

/// First come, first served; `T` is how the one who waits is called.
#[derive(Debug)]
pub(super) struct Queue<T> {
    waiting: VecDeque<(Ticket, T)>,
    next: Ticket,
    bound: usize,
    closed: bool,
}

impl<T> Queue<T> {
    /// Nobody waits.
    pub(super) fn new(bound: u32) -> Self {
        Self { waiting: VecDeque::new(), next: 0, bound: bound as usize, closed: false }
    }

    /// How many may wait from now on. Those who wait already may go on.
    pub(super) fn set_bound(&mut self, bound: u32) {
        self.bound = bound as usize;
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
        self.closed
    }

    /// Takes the last place, unless all are taken.
    pub(super) fn join(&mut self, call: T) -> Option<Ticket> {
        if self.closed || self.waiting.len() >= self.bound {
            return None;
        }
        let ticket = self.ticket();
        self.waiting.push_back((ticket, call));
        Some(ticket)
    }

    /// Takes the first place, for one who had been let in already; the bound does not apply.
    pub(super) fn rejoin(&mut self, call: T) -> Option<Ticket> {
        if self.closed {
            return None;
        }
        let ticket = self.ticket();
        self.waiting.push_front((ticket, call));
        Some(ticket)
    }

    /// The next to be let in.
    pub(super) fn pop(&mut self) -> Option<T> {
        self.waiting.pop_front().map(|(_, call)| call)
    }

    /// Gives a place up. False: it was let in before.
    pub(super) fn abandon(&mut self, ticket: Ticket) -> bool {
        let place = self.waiting.iter().position(|(held, _)| *held == ticket);
        place.is_some_and(|place| self.waiting.remove(place).is_some())
    }

    /// Ends it: gives out everybody who waits, and lets nobody wait again.
    pub(super) fn close(&mut self) -> VecDeque<(Ticket, T)> {
        self.closed = true;
        std::mem::take(&mut self.waiting)
    }

    fn ticket(&mut self) -> Ticket {
        self.next += 1;
        self.next
    }
}
