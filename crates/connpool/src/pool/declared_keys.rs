//! The keys that instances have now, as the keeper and the stock know them.

use std::collections::{BTreeMap, HashMap};
use std::rc::{Rc, Weak};

use nearpath_types::FunctionId;
use nearpath_types::egress::EgressProtocol;

use crate::counters::DestinationCounters;
use crate::destination::{EgressDestination, PoolKey};
use crate::state::{KeyId, RequesterId};

/// Keys without an instance whose ledgers are remembered.
const MAX_REMEMBERED_ACCOUNTS: usize = 1_024;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct DeclaredKeys {
    entries: BTreeMap<PoolKey, DeclaredEntry>,
    destinations: HashMap<KeyId, Rc<EgressDestination>>,
    accounts: BTreeMap<PoolKey, KeyAccount>,
    /// Those of functions that may ask now.
    requesters: BTreeMap<FunctionId, Weak<RequesterId>>,
    last_requester: u32,
}

/// What is told of a key, also when no instance has it any more.
#[derive(Debug)]
struct KeyAccount {
    counters: Rc<DestinationCounters>,
    terms: (EgressProtocol, u32),
}

/// What one key has to tell: whether the stock knows it, what was written down of it, its protocol and its ceiling.
pub(super) type KeyReport<'a> = (
    &'a PoolKey,
    Option<KeyId>,
    &'a DestinationCounters,
    (EgressProtocol, u32),
);

#[derive(Debug)]
struct DeclaredEntry {
    id: KeyId,
    users: u32,
}

impl DeclaredKeys {
    /// One more instance has a key; false: it is the first one, and [`begin`](Self::begin) is next.
    pub(super) fn add_user(&mut self, key: &PoolKey) -> bool {
        let entry = self.entries.get_mut(key);
        entry.map(|entry| entry.users += 1).is_some()
    }

    /// A key's first instance.
    pub(super) fn add_key(&mut self, to: &Rc<EgressDestination>, id: KeyId) {
        self.entries
            .insert(to.key.clone(), DeclaredEntry { id, users: 1 });
        self.account_for(to);
        self.destinations.insert(id, Rc::clone(to));
    }

    /// One instance less has it. What the stock is to forget, if it was the last one.
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

    /// The keys that this one takes the place of: of earlier epochs.
    pub(super) fn earlier_epochs(&self, key: &PoolKey) -> Vec<(PoolKey, KeyId)> {
        let first = PoolKey {
            epoch: 0,
            ..key.clone()
        };
        self.entries
            .range(first..key.clone())
            .map(|(key, entry)| (key.clone(), entry.id))
            .collect()
    }

    pub(super) fn key_id(&self, key: &PoolKey) -> Option<KeyId> {
        self.entries.get(key).map(|entry| entry.id)
    }

    /// All that instances have.
    pub(super) fn key_ids(&self) -> Vec<KeyId> {
        self.entries.values().map(|entry| entry.id).collect()
    }

    pub(super) fn destination_of(&self, id: KeyId) -> Option<Rc<EgressDestination>> {
        self.destinations.get(&id).cloned()
    }

    /// The number that stands for a function where clients take turns: the same one as long as somebody holds it.
    pub(super) fn requester_for(&mut self, function: &FunctionId) -> Rc<RequesterId> {
        if let Some(asker) = self.requesters.get(function).and_then(Weak::upgrade) {
            return asker;
        }
        self.requesters.retain(|_, asker| asker.strong_count() > 0);
        self.last_requester = self.last_requester.wrapping_add(1);
        let asker = Rc::new(RequesterId(self.last_requester));
        self.requesters
            .insert(function.clone(), Rc::downgrade(&asker));
        asker
    }

    /// What is written down of a destination.
    pub(super) fn counters_for(&mut self, to: &EgressDestination) -> Rc<DestinationCounters> {
        Rc::clone(&self.account_for(to).counters)
    }

    /// All keys that are remembered, by owner and destination, epoch after epoch.
    pub(super) fn key_reports(&self) -> impl Iterator<Item = KeyReport<'_>> {
        self.accounts
            .iter()
            .map(|(key, account)| (key, self.key_id(key), &*account.counters, account.terms))
    }

    fn account_for(&mut self, to: &EgressDestination) -> &mut KeyAccount {
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
            "all instances of a function wait in one line"
        );
        assert_ne!(first, other);
        drop(first);
        for turn in 0..100 {
            let passing = format!("f{turn}").parse().unwrap();
            assert_ne!(
                declared.requester_for(&passing),
                other,
                "nobody takes a number that is in use"
            );
        }
        assert!(
            declared.requesters.len() <= 2,
            "functions that are gone are not remembered"
        );
    }
}
