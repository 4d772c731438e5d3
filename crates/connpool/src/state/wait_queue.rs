//! Who waits for a place below one ceiling: first come, first served within a function, and the functions in turn.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};

use super::types::{Asker, KeyId, Ticket};

/// Those who wait at one place.
#[derive(Debug, Default)]
pub(super) struct Line {
    functions: BTreeMap<Asker, Own>,
    /// Whose turn it was last.
    last: Option<Asker>,
    len: usize,
}

/// Those of one function, by key: an old key and the one after it may have different ceilings.
type Own = BTreeMap<KeyId, BTreeSet<Ticket>>;
/// One who waits.
pub(super) type Next = (Asker, Ticket, KeyId);

impl Line {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many of one function wait.
    pub(super) fn waiting(&self, asker: Asker) -> usize {
        self.functions.get(&asker).map_or(0, |own| own.values().map(BTreeSet::len).sum())
    }

    /// The last one of its function, from now on.
    pub(super) fn join(&mut self, (asker, ticket, key): Next) {
        let new = self.functions.entry(asker).or_default().entry(key).or_default().insert(ticket);
        self.len += usize::from(new);
    }

    /// Waits no more, if it did.
    pub(super) fn leave(&mut self, (asker, ticket, key): Next) {
        let Some(own) = self.functions.get_mut(&asker) else { return };
        let Some(tickets) = own.get_mut(&key) else { return };
        self.len -= usize::from(tickets.remove(&ticket));
        if tickets.is_empty() {
            own.remove(&key);
        }
        if own.is_empty() {
            self.functions.remove(&asker);
        }
    }

    /// The next in turn among those whose key may be served: of each function the first to come.
    pub(super) fn next(&self, may: impl Fn(KeyId) -> bool) -> Option<Next> {
        self.in_turn().find_map(|(asker, own)| {
            let first =
                own.iter().filter(|(key, _)| may(**key)).filter_map(|(key, tickets)| Some((tickets.first()?, key)));
            first.min().map(|(ticket, key)| (*asker, *ticket, *key))
        })
    }

    /// One is served: the next turn is that of the function after its own.
    pub(super) fn serve(&mut self, next: Next) {
        self.leave(next);
        self.had_turn(next.0);
    }

    /// A function was served, in line or not.
    pub(super) fn had_turn(&mut self, asker: Asker) {
        self.last = Some(asker);
    }

    fn in_turn(&self) -> impl Iterator<Item = (&Asker, &Own)> {
        let (after, before) = match self.last {
            Some(last) => (Excluded(last), Included(last)),
            None => (Unbounded, Excluded(Asker(0))),
        };
        self.functions.range((after, Unbounded)).chain(self.functions.range((Unbounded, before)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: KeyId = KeyId(0);

    fn served(line: &mut Line) -> Vec<(u32, u64)> {
        let next = || {
            let next = line.next(|_| true)?;
            line.serve(next);
            Some((next.0.0, next.1.0))
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn functions_in_turn_and_first_come_first_served_within_one() {
        let mut line = Line::default();
        for (asker, ticket) in [(1, 1), (1, 2), (1, 3), (1, 4), (7, 5), (0, 6), (7, 7)] {
            line.join((Asker(asker), Ticket(ticket), KEY));
        }
        (0..2).for_each(|_| line.leave((Asker(1), Ticket(2), KEY)));
        assert_eq!((line.len(), line.waiting(Asker(1))), (6, 3));
        assert_eq!(served(&mut line), [(0, 6), (1, 1), (7, 5), (1, 3), (7, 7), (1, 4)]);
        assert!(line.is_empty() && line.functions.is_empty());
    }

    #[test]
    fn who_comes_late_does_not_lose_its_turn() {
        let mut line = Line::default();
        (0..10).for_each(|ticket| line.join((Asker(3), Ticket(ticket), KEY)));
        let first = line.next(|_| true).unwrap();
        line.serve(first);
        line.join((Asker(2), Ticket(10), KEY));
        assert_eq!(served(&mut line)[..2], [(2, 10), (3, 1)]);
    }

    #[test]
    fn who_may_not_be_served_is_passed_over() {
        let mut line = Line::default();
        for (asker, ticket, key) in [(1, 1, KEY), (2, 2, KEY), (2, 3, KeyId(9)), (2, 4, KeyId(8))] {
            line.join((Asker(asker), Ticket(ticket), key));
        }
        assert_eq!(line.next(|key| key != KEY), Some((Asker(2), Ticket(3), KeyId(9))));
        assert_eq!(line.next(|key| key == KeyId(8)), Some((Asker(2), Ticket(4), KeyId(8))));
        assert_eq!(line.next(|_| false), None);
    }
}
