//! LRU cache of answers, bounded by bytes. Pure.
//!
//! A write may overtake an answer that is still in flight. So a caller takes a [`CacheTicket`]
//! before it asks the server. The answer is stored only if nothing wrote to that key since.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::rc::{Rc, Weak};

/// Overhead of an entry beside key and content: hash map, tree map, allocation headers. An
/// estimate.
const ENTRY_OVERHEAD_BYTES: usize = 256;
/// Number of tickets from which [`issue_ticket`](ByteBoundedLru::issue_ticket) removes the ones
/// that no caller holds any more.
const TICKET_PURGE_THRESHOLD: usize = 1024;

/// A cache that evicts the least recently used entries beyond its bound.
#[derive(Debug)]
pub struct ByteBoundedLru<V> {
    max_bytes: usize,
    held_bytes: usize,
    /// Logical clock: grows with each use.
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

/// Permission to store the answer to a request; any write to its key revokes it.
#[derive(Debug, Clone)]
pub struct CacheTicket {
    key: Rc<[u8]>,
    is_valid: Rc<Cell<bool>>,
}

impl CacheTicket {
    /// Returns the key of the request.
    pub fn key(&self) -> &[u8] {
        &self.key
    }
}

impl<V> ByteBoundedLru<V> {
    /// Creates an empty cache for so many bytes.
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

    /// Returns the bytes in use, which never exceed the bound.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Returns the largest content that is stored: one answer must not evict all others.
    pub fn max_value_bytes(&self) -> usize {
        // A quarter of the bound, so that a few other entries of that size still fit.
        self.max_bytes / 4
    }

    /// Returns the value of a key and marks it as used.
    pub fn get(&mut self, key: &[u8]) -> Option<&V> {
        let entry = self.entries.get_mut(key)?;
        let key = self.by_use.remove(&entry.last_use)?;
        self.clock += 1;
        entry.last_use = self.clock;
        self.by_use.insert(self.clock, key);
        Some(&entry.value)
    }

    /// Issues a ticket for a request to the server.
    pub fn issue_ticket(&mut self, key: &[u8]) -> CacheTicket {
        // Concurrent requests for one key share a ticket: one write revokes them all.
        if let Some((key, is_valid)) = self
            .tickets
            .get_key_value(key)
            .and_then(|(key, is_valid)| Some((key, is_valid.upgrade()?)))
        {
            return CacheTicket {
                key: Rc::clone(key),
                is_valid,
            };
        }
        if self.tickets.len() >= TICKET_PURGE_THRESHOLD {
            self.tickets
                .retain(|_, is_valid| is_valid.strong_count() > 0);
        }
        let ticket = CacheTicket {
            key: key.into(),
            is_valid: Rc::new(Cell::new(true)),
        };
        self.tickets
            .insert(Rc::clone(&ticket.key), Rc::downgrade(&ticket.is_valid));
        ticket
    }

    /// Stores the answer, with so many bytes of content. Returns whether it was stored.
    pub fn put(&mut self, ticket: &CacheTicket, value: V, content_bytes: usize) -> bool {
        let weight_bytes = content_bytes
            .saturating_add(ticket.key.len() * 2)
            .saturating_add(ENTRY_OVERHEAD_BYTES);
        if !ticket.is_valid.get()
            || content_bytes > self.max_value_bytes()
            || weight_bytes > self.max_bytes
        {
            return false;
        }
        self.remove(&ticket.key);
        while self.held_bytes + weight_bytes > self.max_bytes {
            let Some((_, oldest)) = self.by_use.pop_first() else {
                break;
            };
            self.held_bytes -= self
                .entries
                .remove(&oldest)
                .map_or(0, |entry| entry.weight_bytes);
        }
        self.clock += 1;
        self.held_bytes += weight_bytes;
        self.by_use.insert(self.clock, Rc::clone(&ticket.key));
        self.entries.insert(
            Rc::clone(&ticket.key),
            LruEntry {
                value,
                weight_bytes,
                last_use: self.clock,
            },
        );
        true
    }

    /// Removes the value of a key that is written to, and revokes the tickets for it.
    pub fn invalidate_key(&mut self, key: &[u8]) {
        self.remove(key);
        // The ticket leaves the map with its revocation. A request that starts from now on reads
        // the new value and needs a new ticket.
        if let Some(is_valid) = self
            .tickets
            .remove(key)
            .and_then(|is_valid| is_valid.upgrade())
        {
            is_valid.set(false);
        }
    }

    /// Removes all values and revokes all tickets: a write may have changed any key.
    pub fn invalidate_all(&mut self) {
        self.entries.clear();
        self.by_use.clear();
        self.held_bytes = 0;
        self.tickets
            .drain()
            .filter_map(|(_, is_valid)| is_valid.upgrade())
            .for_each(|is_valid| is_valid.set(false));
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(LruEntry {
            weight_bytes,
            last_use,
            ..
        }) = self.entries.remove(key)
        {
            self.by_use.remove(&last_use);
            self.held_bytes -= weight_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn put_value(
        cache: &mut ByteBoundedLru<usize>,
        key: &[u8],
        value: usize,
        content_bytes: usize,
    ) -> bool {
        let ticket = cache.issue_ticket(key);
        cache.put(&ticket, value, content_bytes)
    }

    #[test]
    fn recently_used_entries_stay() {
        let mut cache = ByteBoundedLru::new(4 * (ENTRY_OVERHEAD_BYTES + 2 + 100));
        for key in [b"a", b"b", b"c", b"d"] {
            assert!(put_value(&mut cache, key, 1, 100));
        }
        assert_eq!(cache.get(b"a"), Some(&1));
        assert!(put_value(&mut cache, b"e", 2, 100));
        assert_eq!(cache.get(b"a"), Some(&1));
        assert_eq!(cache.get(b"b"), None);
    }

    #[test]
    fn a_value_overtaken_by_a_write_is_not_kept() {
        let mut cache = ByteBoundedLru::new(10_000);
        let (early, other) = (cache.issue_ticket(b"a"), cache.issue_ticket(b"b"));
        cache.invalidate_key(b"a");
        let late = cache.issue_ticket(b"a");
        assert!(!cache.put(&early, 1, 1) && cache.put(&late, 2, 1) && cache.put(&other, 3, 1));
        cache.invalidate_all();
        assert!(!cache.put(&late, 2, 1) && cache.get(b"b").is_none());
        assert_eq!(cache.held_bytes(), 0);
    }

    #[test]
    fn one_value_does_not_evict_all_others() {
        let mut cache = ByteBoundedLru::new(10_000);
        assert!(!put_value(&mut cache, b"a", 1, 2_501) && put_value(&mut cache, b"a", 1, 2_500));
    }

    proptest! {
        /// The cache stays within its bound and returns the value that was stored last and not
        /// invalidated since.
        #[test]
        fn the_bound_holds_and_invalidated_values_are_not_returned(steps in prop::collection::vec((0u8..5, 0u8..8, 0usize..400), 1..200)) {
            let mut cache = ByteBoundedLru::new(3_000);
            let (mut truth, mut tickets) = (HashMap::new(), Vec::<(u8, CacheTicket, bool)>::new());
            for (step, (what, key, size)) in steps.into_iter().enumerate() {
                match what {
                    0 => tickets.push((key, cache.issue_ticket(&[key]), true)),
                    1 if !tickets.is_empty() => {
                        let (key, ticket, is_valid) = tickets.remove(size % tickets.len());
                        let kept = cache.put(&ticket, step, size);
                        prop_assert!(!kept || is_valid, "a write came between");
                        if kept {
                            truth.insert(key, step);
                        }
                    }
                    2 => {
                        cache.invalidate_key(&[key]);
                        truth.remove(&key);
                        tickets.iter_mut().filter(|(of, ..)| *of == key).for_each(|ticket| ticket.2 = false);
                    }
                    3 if size < 20 => {
                        cache.invalidate_all();
                        truth.clear();
                        tickets.iter_mut().for_each(|ticket| ticket.2 = false);
                    }
                    _ => if let Some(found) = cache.get(&[key]) {
                        prop_assert_eq!(Some(found), truth.get(&key));
                    }
                }
                prop_assert!(cache.held_bytes() <= 3_000);
                prop_assert_eq!(cache.entries.len(), cache.by_use.len());
                let weights: usize = cache.entries.values().map(|entry| entry.weight_bytes).sum();
                prop_assert_eq!(weights, cache.held_bytes());
            }
        }
    }
}
