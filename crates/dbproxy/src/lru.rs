//! Answers that are kept to be given again, within a bound of bytes: what was used last stays. Pure.
//!
//! An answer may be overtaken by a write: who asks a server takes a [`Ticket`] before, and what comes back is kept only if nothing was written to that
//! key since.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::rc::{Rc, Weak};

/// What an entry costs beside its key and its content: maps, headers of allocations.
const COST: usize = 256;
/// Tickets of keys that are remembered before those that nobody holds any more are looked for.
const MANY: usize = 1024;

/// See the module.
#[derive(Debug)]
pub struct Larder<V> {
    bound: usize,
    held: usize,
    /// Grows with each use.
    clock: u64,
    entries: HashMap<Rc<[u8]>, Entry<V>>,
    by_use: BTreeMap<u64, Rc<[u8]>>,
    asked: HashMap<Rc<[u8]>, Weak<Cell<bool>>>,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    weight: usize,
    used: u64,
}

/// Leave to keep the answer to a question, unless somebody writes before it comes.
#[derive(Debug, Clone)]
pub struct Ticket {
    key: Rc<[u8]>,
    good: Rc<Cell<bool>>,
}

impl Ticket {
    /// The key that was asked about.
    pub fn key(&self) -> &[u8] {
        &self.key
    }
}

impl<V> Larder<V> {
    /// An empty one for so many bytes.
    pub fn new(bound: usize) -> Self {
        let (entries, by_use, asked) = (HashMap::new(), BTreeMap::new(), HashMap::new());
        Self { bound, held: 0, clock: 0, entries, by_use, asked }
    }

    /// Bytes that are held: never more than the bound.
    pub fn held(&self) -> usize {
        self.held
    }

    /// The longest content that is worth keeping: one answer is not to push out all others.
    pub fn longest(&self) -> usize {
        self.bound / 4
    }

    /// What is kept under a key; it counts as used.
    pub fn get(&mut self, key: &[u8]) -> Option<&V> {
        let entry = self.entries.get_mut(key)?;
        let key = self.by_use.remove(&entry.used)?;
        self.clock += 1;
        entry.used = self.clock;
        self.by_use.insert(self.clock, key);
        Some(&entry.value)
    }

    /// Somebody asks a server about a key.
    pub fn ask(&mut self, key: &[u8]) -> Ticket {
        if let Some((key, good)) = self.asked.get_key_value(key).and_then(|(key, good)| Some((key, good.upgrade()?))) {
            return Ticket { key: Rc::clone(key), good };
        }
        if self.asked.len() >= MANY {
            self.asked.retain(|_, good| good.strong_count() > 0);
        }
        let ticket = Ticket { key: key.into(), good: Rc::new(Cell::new(true)) };
        self.asked.insert(Rc::clone(&ticket.key), Rc::downgrade(&ticket.good));
        ticket
    }

    /// The answer came, with so many bytes of content. Whether it is kept.
    pub fn put(&mut self, ticket: &Ticket, value: V, content: usize) -> bool {
        let weight = content.saturating_add(ticket.key.len() * 2).saturating_add(COST);
        if !ticket.good.get() || content > self.longest() || weight > self.bound {
            return false;
        }
        self.remove(&ticket.key);
        while self.held + weight > self.bound {
            let Some((_, oldest)) = self.by_use.pop_first() else { break };
            self.held -= self.entries.remove(&oldest).map_or(0, |entry| entry.weight);
        }
        self.clock += 1;
        self.held += weight;
        self.by_use.insert(self.clock, Rc::clone(&ticket.key));
        self.entries.insert(Rc::clone(&ticket.key), Entry { value, weight, used: self.clock });
        true
    }

    /// Somebody writes to a key: what is kept is wrong, and so is what is being asked for.
    pub fn drop_key(&mut self, key: &[u8]) {
        self.remove(key);
        if let Some(good) = self.asked.remove(key).and_then(|good| good.upgrade()) {
            good.set(false);
        }
    }

    /// Somebody writes, and nobody knows to which keys.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.by_use.clear();
        self.held = 0;
        self.asked.drain().filter_map(|(_, good)| good.upgrade()).for_each(|good| good.set(false));
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(Entry { weight, used, .. }) = self.entries.remove(key) {
            self.by_use.remove(&used);
            self.held -= weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn put(larder: &mut Larder<usize>, key: &[u8], value: usize, content: usize) -> bool {
        let ticket = larder.ask(key);
        larder.put(&ticket, value, content)
    }

    #[test]
    fn what_was_used_last_stays() {
        let mut larder = Larder::new(4 * (COST + 2 + 100));
        for key in [b"a", b"b", b"c", b"d"] {
            assert!(put(&mut larder, key, 1, 100));
        }
        assert_eq!(larder.get(b"a"), Some(&1));
        assert!(put(&mut larder, b"e", 2, 100));
        assert_eq!(larder.get(b"a"), Some(&1));
        assert_eq!(larder.get(b"b"), None);
    }

    #[test]
    fn what_a_write_has_overtaken_is_not_kept() {
        let mut larder = Larder::new(10_000);
        let (early, other) = (larder.ask(b"a"), larder.ask(b"b"));
        larder.drop_key(b"a");
        let late = larder.ask(b"a");
        assert!(!larder.put(&early, 1, 1) && larder.put(&late, 2, 1) && larder.put(&other, 3, 1));
        larder.clear();
        assert!(!larder.put(&late, 2, 1) && larder.get(b"b").is_none());
        assert_eq!(larder.held(), 0);
    }

    #[test]
    fn one_answer_does_not_push_out_all_others() {
        let mut larder = Larder::new(10_000);
        assert!(!put(&mut larder, b"a", 1, 2_501) && put(&mut larder, b"a", 1, 2_500));
    }

    proptest! {
        /// Whatever happens, it is within its bound, and gives what was put last and not dropped since.
        #[test]
        fn it_holds_its_bound_and_never_gives_what_was_dropped(steps in prop::collection::vec((0u8..5, 0u8..8, 0usize..400), 1..200)) {
            let mut larder = Larder::new(3_000);
            let (mut truth, mut tickets) = (HashMap::new(), Vec::<(u8, Ticket, bool)>::new());
            for (step, (what, key, size)) in steps.into_iter().enumerate() {
                match what {
                    0 => tickets.push((key, larder.ask(&[key]), true)),
                    1 if !tickets.is_empty() => {
                        let (key, ticket, good) = tickets.remove(size % tickets.len());
                        let kept = larder.put(&ticket, step, size);
                        prop_assert!(!kept || good, "a write came between");
                        if kept {
                            truth.insert(key, step);
                        }
                    }
                    2 => {
                        larder.drop_key(&[key]);
                        truth.remove(&key);
                        tickets.iter_mut().filter(|(of, ..)| *of == key).for_each(|ticket| ticket.2 = false);
                    }
                    3 if size < 20 => {
                        larder.clear();
                        truth.clear();
                        tickets.iter_mut().for_each(|ticket| ticket.2 = false);
                    }
                    _ => if let Some(found) = larder.get(&[key]) {
                        prop_assert_eq!(Some(found), truth.get(&key));
                    }
                }
                prop_assert!(larder.held() <= 3_000);
                prop_assert_eq!(larder.entries.len(), larder.by_use.len());
                let weights: usize = larder.entries.values().map(|entry| entry.weight).sum();
                prop_assert_eq!(weights, larder.held());
            }
        }
    }
}
