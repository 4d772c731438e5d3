//! Who waits for a place below one ceiling: first come, first served within a function, and the functions in turn.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};

use super::types::{KeyId, RequesterId, WaitTicket};

/// Those who wait at one place.
#[derive(Debug, Default)]
pub(super) struct LimitWaitQueue {
    tickets_by_function: BTreeMap<RequesterId, FunctionTickets>,
    /// Whose turn it was last.
    last_served: Option<RequesterId>,
    len: usize,
}

/// Those of one function, by key: an old key and the one after it may have different ceilings.
type FunctionTickets = BTreeMap<KeyId, BTreeSet<WaitTicket>>;
/// One who waits.
pub(super) type QueuedRequest = (RequesterId, WaitTicket, KeyId);

impl LimitWaitQueue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many of one function wait.
    pub(super) fn count_waiting(&self, asker: RequesterId) -> usize {
        self.tickets_by_function
            .get(&asker)
            .map_or(0, |own| own.values().map(BTreeSet::len).sum())
    }

    /// The last one of its function, from now on.
    pub(super) fn join(&mut self, (asker, ticket, key): QueuedRequest) {
        let new = self
            .tickets_by_function
            .entry(asker)
            .or_default()
            .entry(key)
            .or_default()
            .insert(ticket);
        self.len += usize::from(new);
    }

    /// Waits no more, if it did.
    pub(super) fn leave(&mut self, (asker, ticket, key): QueuedRequest) {
        let Some(own) = self.tickets_by_function.get_mut(&asker) else {
            return;
        };
        let Some(tickets) = own.get_mut(&key) else {
            return;
        };
        self.len -= usize::from(tickets.remove(&ticket));
        if tickets.is_empty() {
            own.remove(&key);
        }
        if own.is_empty() {
            self.tickets_by_function.remove(&asker);
        }
    }

    /// The next in turn among those whose key may be served: of each function the first to come.
    pub(super) fn next_servable(&self, may: impl Fn(KeyId) -> bool) -> Option<QueuedRequest> {
        self.functions_in_turn().find_map(|(asker, own)| {
            let first = own
                .iter()
                .filter(|(key, _)| may(**key))
                .filter_map(|(key, tickets)| Some((tickets.first()?, key)));
            first.min().map(|(ticket, key)| (*asker, *ticket, *key))
        })
    }

    /// One is served: the next turn is that of the function after its own.
    pub(super) fn mark_served(&mut self, next: QueuedRequest) {
        self.leave(next);
        self.record_turn(next.0);
    }

    /// A function was served, in line or not.
    pub(super) fn record_turn(&mut self, asker: RequesterId) {
        self.last_served = Some(asker);
    }

    fn functions_in_turn(&self) -> impl Iterator<Item = (&RequesterId, &FunctionTickets)> {
        let (after, before) = match self.last_served {
            Some(last) => (Excluded(last), Included(last)),
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

    fn serve_all(line: &mut LimitWaitQueue) -> Vec<(u32, u64)> {
        let next = || {
            let next = line.next_servable(|_| true)?;
            line.mark_served(next);
            Some((next.0.0, next.1.0))
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn functions_in_turn_and_first_come_first_served_within_one() {
        let mut line = LimitWaitQueue::default();
        for (asker, ticket) in [(1, 1), (1, 2), (1, 3), (1, 4), (7, 5), (0, 6), (7, 7)] {
            line.join((RequesterId(asker), WaitTicket(ticket), KEY));
        }
        (0..2).for_each(|_| line.leave((RequesterId(1), WaitTicket(2), KEY)));
        assert_eq!((line.len(), line.count_waiting(RequesterId(1))), (6, 3));
        assert_eq!(
            serve_all(&mut line),
            [(0, 6), (1, 1), (7, 5), (1, 3), (7, 7), (1, 4)]
        );
        assert!(line.is_empty() && line.tickets_by_function.is_empty());
    }

    #[test]
    fn a_late_function_does_not_lose_its_turn() {
        let mut line = LimitWaitQueue::default();
        (0..10).for_each(|ticket| line.join((RequesterId(3), WaitTicket(ticket), KEY)));
        let first = line.next_servable(|_| true).unwrap();
        line.mark_served(first);
        line.join((RequesterId(2), WaitTicket(10), KEY));
        assert_eq!(serve_all(&mut line)[..2], [(2, 10), (3, 1)]);
    }

    #[test]
    fn a_waiter_that_may_not_be_served_is_skipped() {
        let mut line = LimitWaitQueue::default();
        for (asker, ticket, key) in [(1, 1, KEY), (2, 2, KEY), (2, 3, KeyId(9)), (2, 4, KeyId(8))] {
            line.join((RequesterId(asker), WaitTicket(ticket), key));
        }
        assert_eq!(
            line.next_servable(|key| key != KEY),
            Some((RequesterId(2), WaitTicket(3), KeyId(9)))
        );
        assert_eq!(
            line.next_servable(|key| key == KeyId(8)),
            Some((RequesterId(2), WaitTicket(4), KeyId(8)))
        );
        assert_eq!(line.next_servable(|_| false), None);
    }
}
