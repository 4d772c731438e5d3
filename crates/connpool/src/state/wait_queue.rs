//! Clients that wait for a slot below one limit: FIFO within a function, round-robin between
//! functions.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};

use super::types::{KeyId, RequesterId, WaitTicket};

/// Waiting clients of one limit group.
#[derive(Debug, Default)]
pub(super) struct LimitWaitQueue {
    tickets_by_function: BTreeMap<RequesterId, FunctionTickets>,
    /// The function that was served last.
    last_served: Option<RequesterId>,
    len: usize,
}

/// Tickets of one function by key: keys of different epochs may have different limits.
type FunctionTickets = BTreeMap<KeyId, BTreeSet<WaitTicket>>;
/// A waiting client.
pub(super) type QueuedRequest = (RequesterId, WaitTicket, KeyId);

impl LimitWaitQueue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns how many clients of one function wait.
    pub(super) fn count_waiting(&self, requester: RequesterId) -> usize {
        self.tickets_by_function
            .get(&requester)
            .map_or(0, |tickets_by_key| {
                tickets_by_key.values().map(BTreeSet::len).sum()
            })
    }

    /// Adds a client behind the others of its function.
    pub(super) fn join(&mut self, (requester, ticket, key): QueuedRequest) {
        let new = self
            .tickets_by_function
            .entry(requester)
            .or_default()
            .entry(key)
            .or_default()
            .insert(ticket);
        // A waiter that is queued already is not counted twice.
        self.len += usize::from(new);
    }

    /// Removes a client, if it waits.
    pub(super) fn leave(&mut self, (requester, ticket, key): QueuedRequest) {
        let Some(tickets_by_key) = self.tickets_by_function.get_mut(&requester) else {
            return;
        };
        let Some(tickets) = tickets_by_key.get_mut(&key) else {
            return;
        };
        self.len -= usize::from(tickets.remove(&ticket));
        // Empty entries go, so that no turn is given to a function without waiters.
        if tickets.is_empty() {
            tickets_by_key.remove(&key);
        }
        if tickets_by_key.is_empty() {
            self.tickets_by_function.remove(&requester);
        }
    }

    /// Returns the next client in turn whose key `may` be served: of each function the earliest.
    pub(super) fn next_servable(&self, may: impl Fn(KeyId) -> bool) -> Option<QueuedRequest> {
        self.functions_in_turn()
            .find_map(|(requester, tickets_by_key)| {
                let first = tickets_by_key
                    .iter()
                    .filter(|(key, _)| may(**key))
                    .filter_map(|(key, tickets)| Some((tickets.first()?, key)));
                // Tickets grow with time, so the smallest has waited longest.
                first.min().map(|(ticket, key)| (*requester, *ticket, *key))
            })
    }

    /// Removes a served client. The next turn is that of the function after its own.
    pub(super) fn mark_served(&mut self, next: QueuedRequest) {
        self.leave(next);
        self.record_turn(next.0);
    }

    /// Records that a function was served, queued or not.
    pub(super) fn record_turn(&mut self, requester: RequesterId) {
        self.last_served = Some(requester);
    }

    fn functions_in_turn(&self) -> impl Iterator<Item = (&RequesterId, &FunctionTickets)> {
        // First the functions after the one served last, then the others up to it.
        let (after, before) = match self.last_served {
            Some(last) => (Excluded(last), Included(last)),
            // Nothing was served yet, so the second range is empty.
            None => (Unbounded, Excluded(RequesterId(0))),
        };
        self.tickets_by_function
            .range((after, Unbounded))
            .chain(self.tickets_by_function.range((Unbounded, before)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: KeyId = KeyId(0);

    fn serve_all(queue: &mut LimitWaitQueue) -> Vec<(u32, u64)> {
        let next = || {
            let next = queue.next_servable(|_| true)?;
            queue.mark_served(next);
            Some((next.0.0, next.1.0))
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn functions_in_turn_and_first_come_first_served_within_one() {
        let mut queue = LimitWaitQueue::default();
        for (requester, ticket) in [(1, 1), (1, 2), (1, 3), (1, 4), (7, 5), (0, 6), (7, 7)] {
            queue.join((RequesterId(requester), WaitTicket(ticket), KEY));
        }
        (0..2).for_each(|_| queue.leave((RequesterId(1), WaitTicket(2), KEY)));
        assert_eq!((queue.len(), queue.count_waiting(RequesterId(1))), (6, 3));
        assert_eq!(
            serve_all(&mut queue),
            [(0, 6), (1, 1), (7, 5), (1, 3), (7, 7), (1, 4)]
        );
        assert!(queue.is_empty() && queue.tickets_by_function.is_empty());
    }

    #[test]
    fn a_late_function_does_not_lose_its_turn() {
        let mut queue = LimitWaitQueue::default();
        (0..10).for_each(|ticket| queue.join((RequesterId(3), WaitTicket(ticket), KEY)));
        let first = queue.next_servable(|_| true).unwrap();
        queue.mark_served(first);
        queue.join((RequesterId(2), WaitTicket(10), KEY));
        assert_eq!(serve_all(&mut queue)[..2], [(2, 10), (3, 1)]);
    }

    #[test]
    fn a_waiter_that_may_not_be_served_is_skipped() {
        let mut queue = LimitWaitQueue::default();
        for (requester, ticket, key) in
            [(1, 1, KEY), (2, 2, KEY), (2, 3, KeyId(9)), (2, 4, KeyId(8))]
        {
            queue.join((RequesterId(requester), WaitTicket(ticket), key));
        }
        assert_eq!(
            queue.next_servable(|key| key != KEY),
            Some((RequesterId(2), WaitTicket(3), KeyId(9)))
        );
        assert_eq!(
            queue.next_servable(|key| key == KeyId(8)),
            Some((RequesterId(2), WaitTicket(4), KeyId(8)))
        );
        assert_eq!(queue.next_servable(|_| false), None);
    }
}
