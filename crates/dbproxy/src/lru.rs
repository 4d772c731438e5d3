//! Answers that are kept to be given again, within a bound of bytes: what was used last stays. Pure.
//!
//! An answer may be overtaken by a write: who asks a server takes a [`CacheTicket`] before, and what comes back is kept only if nothing was written to that
//! key since.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::rc::{Rc, Weak};

/// What an entry costs beside its key and its content: maps, headers of allocations.
const ENTRY_OVERHEAD_BYTES: usize = 256;
/// Tickets of keys that are remembered before those that nobody holds any more are looked for.
const TICKET_PURGE_THRESHOLD: usize = 1024;

/// See the module.
#[derive(Debug)]
pub struct ByteBoundedLru<V> {
    max_bytes: usize,
    held_bytes: usize,
    /// Grows with each use.
    clock: u64,
    entries: HashMap<Rc<[u8]>, LruEntry<V>>,
    by_use: BTreeMap<u64, Rc<[u8]>>,
    tickets: HashMap<Rc<[u8]>, Weak<Cell<bool>>>,
}

#[derive(Debug)]
struct LruEntry<V> {
    value: V,
    weight_bytes: usize,
    last_use: u64,
}

/// Leave to keep the answer to a question, unless somebody writes before it comes.
#[derive(Debug, Clone)]
pub struct CacheTicket {
    key: Rc<[u8]>,
    is_valid: Rc<Cell<bool>>,
}

impl CacheTicket {
    /// The key that was asked about.
    pub fn key(&self) -> &[u8] {
        &self.key
    }
}

impl<V> ByteBoundedLru<V> {
    /// An empty one for so many bytes.
    pub fn new(max_bytes: usize) -> Self {
        let (entries, by_use, tickets) = (HashMap::new(), BTreeMap::new(), HashMap::new());
        Self {
            max_bytes,
            held_bytes: 0,
            clock: 0,
            entries,
            by_use,
            tickets,
        }
    }

    /// Bytes that are held: never more than the bound.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// The longest content that is worth keeping: one answer is not to push out all others.
    pub fn max_value_bytes(&self) -> usize {
        self.max_bytes / 4
    }

    /// What is kept under a key; it counts as used.
    pub fn get(&mut self, key: &[u8]) -> Option<&V> {
        let entry = self.entries.get_mut(key)?;
        let key = self.by_use.remove(&entry.last_use)?;
        self.clock += 1;
        entry.last_use = self.clock;
        self.by_use.insert(self.clock, key);
        Some(&entry.value)
    }

    /// Somebody asks a server about a key.
    pub fn issue_ticket(&mut self, key: &[u8]) -> CacheTicket {
        if let Some((key, good)) = self
            .tickets
            .get_key_value(key)
            .and_then(|(key, good)| Some((key, good.upgrade()?)))
        {
            return CacheTicket {
                key: Rc::clone(key),
                is_valid: good,
            };
        }
        if self.tickets.len() >= TICKET_PURGE_THRESHOLD {
            self.tickets.retain(|_, good| good.strong_count() > 0);
        }
        let ticket = CacheTicket {
            key: key.into(),
            is_valid: Rc::new(Cell::new(true)),
        };
        self.tickets
            .insert(Rc::clone(&ticket.key), Rc::downgrade(&ticket.is_valid));
        ticket
    }

    /// The answer came, with so many bytes of content. Whether it is kept.
    pub fn put(&mut self, ticket: &CacheTicket, value: V, content: usize) -> bool {
        let weight = content
            .saturating_add(ticket.key.len() * 2)
            .saturating_add(ENTRY_OVERHEAD_BYTES);
        if !ticket.is_valid.get() || content > self.max_value_bytes() || weight > self.max_bytes {
            return false;
        }
        self.remove(&ticket.key);
        while self.held_bytes + weight > self.max_bytes {
            let Some((_, oldest)) = self.by_use.pop_first() else {
                break;
            };
            self.held_bytes -= self
                .entries
                .remove(&oldest)
                .map_or(0, |entry| entry.weight_bytes);
        }
        self.clock += 1;
        self.held_bytes += weight;
        self.by_use.insert(self.clock, Rc::clone(&ticket.key));
        self.entries.insert(
            Rc::clone(&ticket.key),
            LruEntry {
                value,
                weight_bytes: weight,
                last_use: self.clock,
            },
        );
        true
    }

    /// Somebody writes to a key: what is kept is wrong, and so is what is being asked for.
    pub fn invalidate_key(&mut self, key: &[u8]) {
        self.remove(key);
        if let Some(good) = self.tickets.remove(key).and_then(|good| good.upgrade()) {
            good.set(false);
        }
    }

    /// Somebody writes, and nobody knows to which keys.
    pub fn invalidate_all(&mut self) {
        self.entries.clear();
        self.by_use.clear();
        self.held_bytes = 0;
        self.tickets
            .drain()
            .filter_map(|(_, good)| good.upgrade())
            .for_each(|good| good.set(false));
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(LruEntry {
            weight_bytes: weight,
            last_use: used,
            ..
        }) = self.entries.remove(key)
        {
            self.by_use.remove(&used);
            self.held_bytes -= weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn put_value(
        larder: &mut ByteBoundedLru<usize>,
        key: &[u8],
        value: usize,
        content: usize,
    ) -> bool {
        let ticket = larder.issue_ticket(key);
        larder.put(&ticket, value, content)
    }

    #[test]
    fn recently_used_entries_stay() {
        let mut larder = ByteBoundedLru::new(4 * (ENTRY_OVERHEAD_BYTES + 2 + 100));
        for key in [b"a", b"b", b"c", b"d"] {
            assert!(put_value(&mut larder, key, 1, 100));
        }
        assert_eq!(larder.get(b"a"), Some(&1));
        assert!(put_value(&mut larder, b"e", 2, 100));
        assert_eq!(larder.get(b"a"), Some(&1));
        assert_eq!(larder.get(b"b"), None);
    }

    #[test]
    fn a_value_overtaken_by_a_write_is_not_kept() {
        let mut larder = ByteBoundedLru::new(10_000);
        let (early, other) = (larder.issue_ticket(b"a"), larder.issue_ticket(b"b"));
        larder.invalidate_key(b"a");
        let late = larder.issue_ticket(b"a");
        assert!(!larder.put(&early, 1, 1) && larder.put(&late, 2, 1) && larder.put(&other, 3, 1));
        larder.invalidate_all();
        assert!(!larder.put(&late, 2, 1) && larder.get(b"b").is_none());
        assert_eq!(larder.held_bytes(), 0);
    }

    #[test]
    fn one_value_does_not_evict_all_others() {
        let mut larder = ByteBoundedLru::new(10_000);
        assert!(!put_value(&mut larder, b"a", 1, 2_501) && put_value(&mut larder, b"a", 1, 2_500));
    }

    proptest! {
        /// Whatever happens, it is within its bound, and gives what was put last and not dropped since.
        #[test]
        fn it_holds_its_bound_and_never_gives_what_was_dropped(steps in prop::collection::vec((0u8..5, 0u8..8, 0usize..400), 1..200)) {
            let mut larder = ByteBoundedLru::new(3_000);
            let (mut truth, mut tickets) = (HashMap::new(), Vec::<(u8, CacheTicket, bool)>::new());
            for (step, (what, key, size)) in steps.into_iter().enumerate() {
                match what {
                    0 => tickets.push((key, larder.issue_ticket(&[key]), true)),
                    1 if !tickets.is_empty() => {
                        let (key, ticket, good) = tickets.remove(size % tickets.len());
                        let kept = larder.put(&ticket, step, size);
                        prop_assert!(!kept || good, "a write came between");
                        if kept {
                            truth.insert(key, step);
                        }
                    }
                    2 => {
                        larder.invalidate_key(&[key]);
                        truth.remove(&key);
                        tickets.iter_mut().filter(|(of, ..)| *of == key).for_each(|ticket| ticket.2 = false);
                    }
                    3 if size < 20 => {
                        larder.invalidate_all();
                        truth.clear();
                        tickets.iter_mut().for_each(|ticket| ticket.2 = false);
                    }
                    _ => if let Some(found) = larder.get(&[key]) {
                        prop_assert_eq!(Some(found), truth.get(&key));
                    }
                }
                prop_assert!(larder.held_bytes() <= 3_000);
                prop_assert_eq!(larder.entries.len(), larder.by_use.len());
                let weights: usize = larder.entries.values().map(|entry| entry.weight_bytes).sum();
                prop_assert_eq!(weights, larder.held_bytes());
            }
        }
    }
}
