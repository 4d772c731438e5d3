//! State of functions by id, of which clones share what they have in common.
//!
//! A clone costs nothing, a change costs a few nodes of a tree, and the changes between two versions
//! are found without a look at what both share ([decision
//! 90](../../../docs/adr/0090-orders-cost-what-they-change.md)). A reader compares the last version
//! that it applied with a new one, so no change can be lost, however many versions it missed.

use std::fmt;
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;

use crate::name::FunctionId;

/// Values by function, in the order of the ids.
pub struct FunctionMap<T>(OrdMap<FunctionId, Arc<T>>);

/// A function whose value differs between two versions of a map.
#[derive(Debug, PartialEq, Eq)]
pub struct FunctionChange<'a, T> {
    /// Id of the function.
    pub id: &'a FunctionId,
    /// Value in the earlier version; `None`: it was not there.
    pub before: Option<&'a Arc<T>>,
    /// Value in the later version; `None`: it was removed.
    pub after: Option<&'a Arc<T>>,
}

impl<T> FunctionMap<T> {
    /// Returns the value of a function.
    pub fn get(&self, id: &FunctionId) -> Option<&Arc<T>> {
        self.0.get(id)
    }

    /// Sets the value of a function; returns the one before.
    pub fn insert(&mut self, id: FunctionId, value: impl Into<Arc<T>>) -> Option<Arc<T>> {
        self.0.insert(id, value.into())
    }

    /// Removes a function; returns its value.
    pub fn remove(&mut self, id: &FunctionId) -> Option<Arc<T>> {
        self.0.remove(id)
    }

    /// Returns whether the map has the function.
    pub fn contains(&self, id: &FunctionId) -> bool {
        self.0.contains_key(id)
    }

    /// Returns the functions and their values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&FunctionId, &Arc<T>)> {
        self.0.iter()
    }

    /// Returns the values, in the order of the functions.
    pub fn values(&self) -> impl Iterator<Item = &Arc<T>> {
        self.0.values()
    }

    /// Returns the value of the first function.
    pub fn first(&self) -> Option<&Arc<T>> {
        self.0.get_min().map(|(_, value)| value)
    }

    /// Returns the number of functions.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the map has no functions.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T: Eq> FunctionMap<T> {
    /// Returns the functions whose values differ from those of an earlier version, in order. Takes
    /// time for what changed, if one version was made from the other.
    pub fn changes_since<'a>(
        &'a self,
        earlier: &'a Self,
    ) -> impl Iterator<Item = FunctionChange<'a, T>> {
        let change = |id, before, after| FunctionChange { id, before, after };
        earlier.0.diff(&self.0).map(move |item| match item {
            DiffItem::Add(id, after) => change(id, None, Some(after)),
            DiffItem::Update { old, new } => change(new.0, Some(old.1), Some(new.1)),
            DiffItem::Remove(id, before) => change(id, Some(before), None),
        })
    }
}

// By hand: a derive would require that `T` can be cloned, too.
impl<T> Clone for FunctionMap<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for FunctionMap<T> {
    fn default() -> Self {
        Self(OrdMap::new())
    }
}

impl<T: PartialEq> PartialEq for FunctionMap<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T: Eq> Eq for FunctionMap<T> {}

impl<T: fmt::Debug> fmt::Debug for FunctionMap<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.values()).finish()
    }
}

impl<T> FromIterator<(FunctionId, T)> for FunctionMap<T> {
    fn from_iter<I: IntoIterator<Item = (FunctionId, T)>>(all: I) -> Self {
        let shared = all.into_iter().map(|(id, value)| (id, Arc::new(value)));
        Self(shared.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    type Values = BTreeMap<FunctionId, u8>;
    /// Sets the value of a function, or removes it.
    type Step = (u16, Option<u8>);

    fn function_id(number: u16) -> FunctionId {
        format!("f{number}").parse().unwrap()
    }

    fn apply_steps(map: &mut FunctionMap<u8>, steps: &[Step]) {
        for (number, value) in steps {
            match value {
                Some(value) => drop(map.insert(function_id(*number), *value)),
                None => drop(map.remove(&function_id(*number))),
            }
        }
    }

    fn values_of(map: &FunctionMap<u8>) -> Values {
        map.iter()
            .map(|(id, value)| (id.clone(), **value))
            .collect()
    }

    /// Brings a copy up to date by changes alone, `skip` of them left out.
    fn follow_changes(
        copy: &mut Values,
        from: &FunctionMap<u8>,
        to: &FunctionMap<u8>,
        skip: usize,
    ) {
        for change in to.changes_since(from).skip(skip) {
            assert_eq!(copy.get(change.id), change.before.map(|value| &**value));
            match change.after {
                Some(value) => drop(copy.insert(change.id.clone(), **value)),
                None => drop(copy.remove(change.id)),
            }
        }
    }

    fn some_steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
        // Few enough ids that values are replaced and removed, enough for a tree of three levels.
        prop::collection::vec((0u16..2_000, prop::option::weighted(0.7, 0u8..4)), 0..most)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn changes_lead_from_any_version_to_any_later_one(
            first in some_steps(3_000),
            batches in prop::collection::vec(some_steps(20), 1..12),
            reads in prop::collection::vec(any::<bool>(), 12),
        ) {
            let mut map = FunctionMap::default();
            apply_steps(&mut map, &first);
            let (mut seen, mut copy) = (map.clone(), values_of(&map));
            // A reader that misses some versions.
            for (steps, read) in batches.iter().zip(reads) {
                apply_steps(&mut map, steps);
                if read {
                    follow_changes(&mut copy, &seen, &map, 0);
                    prop_assert_eq!(&copy, &values_of(&map));
                    seen = map.clone();
                }
            }
            follow_changes(&mut copy, &seen, &map, 0);
            prop_assert_eq!(copy, values_of(&map));
        }

        #[test]
        fn unrelated_maps_are_compared_too(one in some_steps(300), other in some_steps(300)) {
            let [mut a, mut b] = [FunctionMap::default(), FunctionMap::default()];
            apply_steps(&mut a, &one);
            apply_steps(&mut b, &other);
            let mut copy = values_of(&a);
            follow_changes(&mut copy, &a, &b, 0);
            prop_assert_eq!(copy, values_of(&b));
        }
    }

    #[test]
    fn a_lost_change_is_noticed() {
        let mut map = FunctionMap::default();
        apply_steps(&mut map, &[(1, Some(1))]);
        let (before, mut copy) = (map.clone(), values_of(&map));
        apply_steps(&mut map, &[(2, Some(2)), (1, None)]);
        follow_changes(&mut copy, &before, &map, 1);
        assert_ne!(copy, values_of(&map));
    }

    #[test]
    fn an_equal_value_is_no_change() {
        let mut map = FunctionMap::default();
        apply_steps(&mut map, &[(1, Some(1)), (2, Some(2))]);
        let before = map.clone();
        apply_steps(&mut map, &[(1, Some(1)), (2, None), (2, Some(2))]);
        assert_eq!(map.changes_since(&before).count(), 0);
    }
}
