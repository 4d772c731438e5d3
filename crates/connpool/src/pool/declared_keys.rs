//! The keys that instances have now, as the keeper and the stock know them.

use std::collections::{BTreeMap, HashMap};
use std::rc::{Rc, Weak};

use nearpath_types::FunctionId;
use nearpath_types::egress::Protocol;

use crate::counters::Ledger;
use crate::destination::{Destination, Key};
use crate::state::{Asker, KeyId};

/// Keys without an instance whose ledgers are remembered.
const REMEMBERED: usize = 1_024;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Declared {
    entries: BTreeMap<Key, Entry>,
    destinations: HashMap<KeyId, Rc<Destination>>,
    accounts: BTreeMap<Key, Account>,
    /// Those of functions that may ask now.
    askers: BTreeMap<FunctionId, Weak<Asker>>,
    last_asker: u32,
}

/// What is told of a key, also when no instance has it any more.
#[derive(Debug)]
struct Account {
    ledger: Rc<Ledger>,
    terms: (Protocol, u32),
}

/// What one key has to tell: whether the stock knows it, what was written down of it, its protocol and its ceiling.
pub(super) type Told<'a> = (&'a Key, Option<KeyId>, &'a Ledger, (Protocol, u32));

#[derive(Debug)]
struct Entry {
    id: KeyId,
    users: u32,
}

impl Declared {
    /// One more instance has a key; false: it is the first one, and [`begin`](Self::begin) is next.
    pub(super) fn joins(&mut self, key: &Key) -> bool {
        let entry = self.entries.get_mut(key);
        entry.map(|entry| entry.users += 1).is_some()
    }

    /// A key's first instance.
    pub(super) fn begin(&mut self, to: &Rc<Destination>, id: KeyId) {
        self.entries.insert(to.key.clone(), Entry { id, users: 1 });
        self.account(to);
        self.destinations.insert(id, Rc::clone(to));
    }

    /// One instance less has it. What the stock is to forget, if it was the last one.
    pub(super) fn leaves(&mut self, key: &Key) -> Option<KeyId> {
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
    pub(super) fn before(&self, key: &Key) -> Vec<(Key, KeyId)> {
        let first = Key { epoch: 0, ..key.clone() };
        self.entries.range(first..key.clone()).map(|(key, entry)| (key.clone(), entry.id)).collect()
    }

    pub(super) fn id(&self, key: &Key) -> Option<KeyId> {
        self.entries.get(key).map(|entry| entry.id)
    }

    /// All that instances have.
    pub(super) fn ids(&self) -> Vec<KeyId> {
        self.entries.values().map(|entry| entry.id).collect()
    }

    pub(super) fn destination(&self, id: KeyId) -> Option<Rc<Destination>> {
        self.destinations.get(&id).cloned()
    }

    /// The number that stands for a function where clients take turns: the same one as long as somebody holds it.
    pub(super) fn asker(&mut self, function: &FunctionId) -> Rc<Asker> {
        if let Some(asker) = self.askers.get(function).and_then(Weak::upgrade) {
            return asker;
        }
        self.askers.retain(|_, asker| asker.strong_count() > 0);
        self.last_asker = self.last_asker.wrapping_add(1);
        let asker = Rc::new(Asker(self.last_asker));
        self.askers.insert(function.clone(), Rc::downgrade(&asker));
        asker
    }

    /// What is written down of a destination.
    pub(super) fn ledger(&mut self, to: &Destination) -> Rc<Ledger> {
        Rc::clone(&self.account(to).ledger)
    }

    /// All keys that are remembered, by owner and destination, epoch after epoch.
    pub(super) fn told(&self) -> impl Iterator<Item = Told<'_>> {
        self.accounts.iter().map(|(key, account)| (key, self.id(key), &*account.ledger, account.terms))
    }

    fn account(&mut self, to: &Destination) -> &mut Account {
        if self.accounts.len() >= REMEMBERED + self.entries.len() {
            self.accounts.retain(|key, _| self.entries.contains_key(key));
        }
        let terms = (to.egress.protocol, to.egress.max);
        self.accounts.entry(to.key.clone()).or_insert_with(|| Account { ledger: Rc::default(), terms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_has_one_number_while_it_may_ask_and_none_after() {
        let mut declared = Declared::default();
        let [a, b] = ["a", "b"].map(|name| name.parse::<FunctionId>().unwrap());
        let (first, other) = (declared.asker(&a), declared.asker(&b));
        assert_eq!(declared.asker(&a), first, "all instances of a function wait in one line");
        assert_ne!(first, other);
        drop(first);
        for turn in 0..100 {
            let passing = format!("f{turn}").parse().unwrap();
            assert_ne!(declared.asker(&passing), other, "nobody takes a number that is in use");
        }
        assert!(declared.askers.len() <= 2, "functions that are gone are not remembered");
    }
}
