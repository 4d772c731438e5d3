//! Topic filters as a tree of levels: the filters that match a topic are found without visiting the
//! others.

use std::collections::HashMap;

/// Values by topic filter. `K` tells apart the owners of values under one filter.
#[derive(Debug)]
pub(crate) struct FilterTree<K, V> {
    root: FilterNode<K, V>,
}

#[derive(Debug)]
struct FilterNode<K, V> {
    entries: Vec<(K, V)>,
    children: HashMap<Box<str>, FilterNode<K, V>>,
}

impl<K, V> Default for FilterNode<K, V> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            children: HashMap::new(),
        }
    }
}

impl<K, V> Default for FilterTree<K, V> {
    fn default() -> Self {
        Self {
            root: FilterNode::default(),
        }
    }
}

impl<K: PartialEq, V> FilterTree<K, V> {
    /// Adds `value` under a filter and returns whether `key` had none there before.
    pub(crate) fn insert(&mut self, filter: &str, key: K, value: V) -> bool {
        let mut node = &mut self.root;
        for level in filter.split('/') {
            node = node.children.entry(level.into()).or_default();
        }
        let before = node.entries.len();
        node.entries.retain(|(other, _)| *other != key);
        let new = node.entries.len() == before;
        node.entries.push((key, value));
        new
    }

    /// Removes the value of `key` under a filter and returns whether there was one.
    pub(crate) fn remove(&mut self, filter: &str, key: &K) -> bool {
        let levels: Vec<_> = filter.split('/').collect();
        self.root.remove(&levels, key)
    }

    /// Passes the values of every filter that matches `topic` to `found`.
    pub(crate) fn select<'a>(&'a self, topic: &str, found: &mut impl FnMut(&'a K, &'a V)) {
        let levels: Vec<_> = topic.split('/').collect();
        self.root.select(&levels, !topic.starts_with('$'), found);
    }

    /// Returns whether no value is left.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.root.children.is_empty()
    }
}

impl<K: PartialEq, V> FilterNode<K, V> {
    fn remove(&mut self, levels: &[&str], key: &K) -> bool {
        let Some((level, rest)) = levels.split_first() else {
            let before = self.entries.len();
            self.entries.retain(|(other, _)| other != key);
            return self.entries.len() < before;
        };
        let Some(node) = self.children.get_mut(*level) else {
            return false;
        };
        let removed = node.remove(rest, key);
        // Prunes, or clients that subscribe and leave would grow the tree for ever.
        if node.entries.is_empty() && node.children.is_empty() {
            self.children.remove(*level);
        }
        removed
    }

    // The recursion is as deep as the deepest filter; sessions and policies bound its levels.
    //
    // `wildcards` is false on the first level of a topic that begins with `$` (MQTT 5.0 section
    // 4.7.2).
    fn select<'a>(
        &'a self,
        levels: &[&str],
        wildcards: bool,
        found: &mut impl FnMut(&'a K, &'a V),
    ) {
        let mut show = |node: &'a Self| {
            node.entries
                .iter()
                .for_each(|(key, value)| found(key, value))
        };
        if wildcards {
            // Before the levels are split: `a/#` matches `a` as well (MQTT 5.0 section 4.7.1.2).
            self.children.get("#").into_iter().for_each(&mut show);
        }
        let Some((level, rest)) = levels.split_first() else {
            return show(self);
        };
        for name in [*level, "+"]
            .iter()
            .filter(|name| wildcards || **name != "+")
        {
            if let Some(node) = self.children.get(*name) {
                // `$` is special only as the first character of a topic.
                node.select(rest, true, found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_types::topic;
    use proptest::prelude::*;

    fn filters() -> impl Strategy<Value = Vec<String>> {
        let filter = "(([ab$]{0,2}|\\+)/){0,3}([ab$]{0,2}|\\+|#)"
            .prop_filter("a filter", |f| topic::check_filter(f).is_ok());
        prop::collection::vec(filter, 0..12)
    }

    proptest! {
        #[test]
        fn it_selects_what_the_definition_selects(filters in filters(), topic in "[ab$/]{1,6}", gone in 0usize..12) {
            let mut tree = FilterTree::default();
            for (number, filter) in filters.iter().enumerate() {
                prop_assert!(tree.insert(filter, number, ()));
            }
            if let Some(filter) = filters.get(gone) {
                prop_assert!(tree.remove(filter, &gone) && !tree.remove(filter, &gone));
            }
            let mut found = Vec::new();
            tree.select(&topic, &mut |key: &usize, ()| found.push(*key));
            found.sort_unstable();
            let wanted = (0..filters.len()).filter(|at| *at != gone && topic::filter_matches(&filters[*at], &topic));
            prop_assert_eq!(found, wanted.collect::<Vec<_>>());
            for (number, filter) in filters.iter().enumerate() {
                tree.remove(filter, &number);
            }
            prop_assert!(tree.is_empty());
        }
    }
}
