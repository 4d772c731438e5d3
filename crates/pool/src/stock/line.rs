//! Who waits for a place below one ceiling: first come, first served within a function, and the functions in turn.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};

use super::words::{Asker, KeyId, Ticket};

/// Those who wait at one place.
#[derive(Debug, Default)]
pub(super) struct Line {
    functions: BTreeMap<Asker, BTreeMap<Ticket, KeyId>>,
    /// Whose turn it was last.
    last: Option<Asker>,
    len: usize,
}

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
        self.functions.get(&asker).map_or(0, BTreeMap::len)
    }

    /// The last one of its function, from now on.
    pub(super) fn join(&mut self, asker: Asker, ticket: Ticket, key: KeyId) {
        let new = self.functions.entry(asker).or_default().insert(ticket, key).is_none();
        self.len += usize::from(new);
    }

    /// Waits no more; whether it did.
    pub(super) fn leave(&mut self, asker: Asker, ticket: Ticket) -> bool {
        let Some(own) = self.functions.get_mut(&asker) else { return false };
        let left = own.remove(&ticket).is_some();
        if own.is_empty() {
            self.functions.remove(&asker);
        }
        self.len -= usize::from(left);
        left
    }

    /// The next in turn among those whose key may be served: of each function its first alone.
    pub(super) fn next(&self, may: impl Fn(KeyId) -> bool) -> Option<Next> {
        let first = |(asker, own): (&Asker, &BTreeMap<Ticket, KeyId>)| {
            own.first_key_value().filter(|(_, key)| may(**key)).map(|(ticket, key)| (*asker, *ticket, *key))
        };
        self.in_turn().find_map(first)
    }

    /// The next in turn among those of one key.
    pub(super) fn next_of(&self, key: KeyId) -> Option<Next> {
        let first = |(asker, own): (&Asker, &BTreeMap<Ticket, KeyId>)| {
            own.iter().find(|(_, own)| **own == key).map(|(ticket, key)| (*asker, *ticket, *key))
        };
        self.in_turn().find_map(first)
    }

    /// One is served: the next turn is that of the function after its own.
    pub(super) fn serve(&mut self, (asker, ticket, _): Next) {
        self.leave(asker, ticket);
        self.had_turn(asker);
    }

    /// A function was served, in line or not.
    pub(super) fn had_turn(&mut self, asker: Asker) {
        self.last = Some(asker);
    }

    fn in_turn(&self) -> impl Iterator<Item = (&Asker, &BTreeMap<Ticket, KeyId>)> {
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
            line.join(Asker(asker), Ticket(ticket), KEY);
        }
        assert!(line.leave(Asker(1), Ticket(2)) && !line.leave(Asker(1), Ticket(2)) && line.len() == 6);
        assert_eq!(served(&mut line), [(0, 6), (1, 1), (7, 5), (1, 3), (7, 7), (1, 4)]);
        assert!(line.is_empty() && line.functions.is_empty());
    }

    #[test]
    fn who_comes_late_does_not_lose_its_turn() {
        let mut line = Line::default();
        (0..10).for_each(|ticket| line.join(Asker(3), Ticket(ticket), KEY));
        let first = line.next(|_| true).unwrap();
        line.serve(first);
        line.join(Asker(2), Ticket(10), KEY);
        assert_eq!(served(&mut line)[..2], [(2, 10), (3, 1)]);
    }

    #[test]
    fn who_may_not_be_served_is_passed_over() {
        let mut line = Line::default();
        line.join(Asker(1), Ticket(1), KEY);
        line.join(Asker(2), Ticket(2), KeyId(9));
        assert_eq!(line.next(|key| key != KEY), Some((Asker(2), Ticket(2), KeyId(9))));
        assert_eq!(line.next(|_| false), None);
        assert_eq!((line.next_of(KeyId(9)).map(|next| next.1), line.next_of(KeyId(8))), (Some(Ticket(2)), None));
    }
}
