//! Keys that instances have now, as the pool and the state machine know them.

use std::collections::{BTreeMap, HashMap};
use std::rc::{Rc, Weak};

use nearpath_types::FunctionId;
use nearpath_types::egress::EgressProtocol;

use crate::counters::DestinationCounters;
use crate::destination::{EgressDestination, PoolKey};
use crate::state::{KeyId, RequesterId};

/// Maximum number of keys without an instance whose counters are kept.
const MAX_REMEMBERED_ACCOUNTS: usize = 1_024;

/// Declared keys, their destinations, counters and functions.
#[derive(Debug, Default)]
pub(super) struct DeclaredKeys {
    entries: BTreeMap<PoolKey, DeclaredEntry>,
    destinations: HashMap<KeyId, Rc<EgressDestination>>,
    accounts: BTreeMap<PoolKey, KeyAccount>,
    /// Ids of functions with a live source.
    requesters: BTreeMap<FunctionId, Weak<RequesterId>>,
    last_requester: u32,
}

/// Counters of a key, kept after its last instance for reports.
#[derive(Debug)]
struct KeyAccount {
    counters: Rc<DestinationCounters>,
    terms: (EgressProtocol, u32),
    declared_group: String,
}

/// Report of a key: its id while it is declared, its counters, its protocol and declared limit, and the
/// limit group of its declaration.
pub(super) type KeyReport<'a> = (
    &'a PoolKey,
    Option<KeyId>,
    &'a DestinationCounters,
    (EgressProtocol, u32),
    &'a str,
);

#[derive(Debug)]
struct DeclaredEntry {
    id: KeyId,
    users: u32,
}

impl DeclaredKeys {
    /// Adds an instance to a key. Returns false for the first one, which needs
    /// [`add_key`](Self::add_key).
    pub(super) fn add_user(&mut self, key: &PoolKey) -> bool {
        let entry = self.entries.get_mut(key);
        entry.map(|entry| entry.users += 1).is_some()
    }

    /// Adds a key with its first instance.
    pub(super) fn add_key(&mut self, to: &Rc<EgressDestination>, id: KeyId) {
        self.entries
            .insert(to.key.clone(), DeclaredEntry { id, users: 1 });
        self.account_for(to);
        self.destinations.insert(id, Rc::clone(to));
    }

    /// Removes an instance from a key. Returns the id to forget if it was the last one.
    pub(super) fn remove_user(&mut self, key: &PoolKey) -> Option<KeyId> {
        let entry = self.entries.get_mut(key)?;
        entry.users -= 1;
        if entry.users > 0 {
            return None;
        }
        let id = self.entries.remove(key)?.id;
        self.destinations.remove(&id);
        Some(id)
    }

    /// Returns the keys of earlier epochs that this one replaces.
    pub(super) fn earlier_epochs(&self, key: &PoolKey) -> Vec<(PoolKey, KeyId)> {
        let first = PoolKey {
            epoch: 0,
            ..key.clone()
        };
        // Keys are ordered by their epoch last, so the earlier epochs directly precede this one.
        self.entries
            .range(first..key.clone())
            .map(|(key, entry)| (key.clone(), entry.id))
            .collect()
    }

    pub(super) fn key_id(&self, key: &PoolKey) -> Option<KeyId> {
        self.entries.get(key).map(|entry| entry.id)
    }

    /// Returns the ids of all declared keys.
    pub(super) fn key_ids(&self) -> Vec<KeyId> {
        self.entries.values().map(|entry| entry.id).collect()
    }

    pub(super) fn destination_of(&self, id: KeyId) -> Option<Rc<EgressDestination>> {
        self.destinations.get(&id).cloned()
    }

    /// Returns all declared destinations with the ids of their keys.
    pub(super) fn destinations(&self) -> Vec<(KeyId, Rc<EgressDestination>)> {
        let all = self.destinations.iter();
        all.map(|(id, to)| (*id, Rc::clone(to))).collect()
    }

    /// Returns the id of a function for the round-robin, the same one while any holder lives.
    pub(super) fn requester_for(&mut self, function: &FunctionId) -> Rc<RequesterId> {
        if let Some(requester) = self.requesters.get(function).and_then(Weak::upgrade) {
            return requester;
        }
        // Ids without a source are dropped here, so the map stays as small as the set of live
        // functions.
        self.requesters
            .retain(|_, requester| requester.strong_count() > 0);
        // Ids may wrap: 2^32 functions never live at the same time.
        self.last_requester = self.last_requester.wrapping_add(1);
        let requester = Rc::new(RequesterId(self.last_requester));
        self.requesters
            .insert(function.clone(), Rc::downgrade(&requester));
        requester
    }

    /// Returns the counters of a destination.
    pub(super) fn counters_for(&mut self, to: &EgressDestination) -> Rc<DestinationCounters> {
        Rc::clone(&self.account_for(to).counters)
    }

    /// Reports all remembered keys, ordered by owner, destination and epoch.
    pub(super) fn key_reports(&self) -> impl Iterator<Item = KeyReport<'_>> {
        self.accounts.iter().map(|(key, account)| {
            let (id, group) = (self.key_id(key), &*account.declared_group);
            (key, id, &*account.counters, account.terms, group)
        })
    }

    fn account_for(&mut self, to: &EgressDestination) -> &mut KeyAccount {
        // Declared keys stay, so that the counters of running functions are never lost.
        if self.accounts.len() >= MAX_REMEMBERED_ACCOUNTS + self.entries.len() {
            self.accounts
                .retain(|key, _| self.entries.contains_key(key));
        }
        let terms = (to.egress.protocol, to.egress.max);
        self.accounts
            .entry(to.key.clone())
            .or_insert_with(|| KeyAccount {
                counters: Rc::default(),
                terms,
                declared_group: to.declared_group(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_keeps_one_requester_id_while_it_is_in_use() {
        let mut declared = DeclaredKeys::default();
        let [a, b] = ["a", "b"].map(|name| name.parse::<FunctionId>().unwrap());
        let (first, other) = (declared.requester_for(&a), declared.requester_for(&b));
        assert_eq!(
            declared.requester_for(&a),
            first,
            "all instances of a function share one queue"
        );
        assert_ne!(first, other);
        drop(first);
        for turn in 0..100 {
            let passing = format!("f{turn}").parse().unwrap();
            assert_ne!(
                declared.requester_for(&passing),
                other,
                "an id in use is not assigned again"
            );
        }
        assert!(
            declared.requesters.len() <= 2,
            "functions without a source are forgotten"
        );
    }
}
