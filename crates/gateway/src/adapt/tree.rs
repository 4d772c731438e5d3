//! Topic filters, kept so that the ones that select a topic are found without looking at the others.

use std::collections::HashMap;

/// Filters with what hangs on them. What belongs to whom is told apart by `K`.
#[derive(Debug)]
pub(crate) struct Tree<K, V> {
    root: Node<K, V>,
}

#[derive(Debug)]
struct Node<K, V> {
    here: Vec<(K, V)>,
    below: HashMap<Box<str>, Node<K, V>>,
}

impl<K, V> Default for Node<K, V> {
    fn default() -> Self {
        Self { here: Vec::new(), below: HashMap::new() }
    }
}

impl<K, V> Default for Tree<K, V> {
    fn default() -> Self {
        Self { root: Node::default() }
    }
}

impl<K: PartialEq, V> Tree<K, V> {
    /// Hangs `value` on a filter. True: `key` had nothing there before.
    pub(crate) fn insert(&mut self, filter: &str, key: K, value: V) -> bool {
        let mut node = &mut self.root;
        for level in filter.split('/') {
            node = node.below.entry(level.into()).or_default();
        }
        let before = node.here.len();
        node.here.retain(|(known, _)| *known != key);
        let new = node.here.len() == before;
        node.here.push((key, value));
        new
    }

    /// Takes away what `key` hung on a filter. False: it had nothing there.
    pub(crate) fn remove(&mut self, filter: &str, key: &K) -> bool {
        let levels: Vec<_> = filter.split('/').collect();
        self.root.remove(&levels, key)
    }

    /// Shows what hangs on each filter that selects `topic`.
    pub(crate) fn select<'a>(&'a self, topic: &str, found: &mut impl FnMut(&'a K, &'a V)) {
        let levels: Vec<_> = topic.split('/').collect();
        self.root.select(&levels, !topic.starts_with('$'), found);
    }

    /// Whether nothing hangs anywhere.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.root.below.is_empty()
    }
}

impl<K: PartialEq, V> Node<K, V> {
    fn remove(&mut self, levels: &[&str], key: &K) -> bool {
        let Some((level, rest)) = levels.split_first() else {
            let before = self.here.len();
            self.here.retain(|(known, _)| known != key);
            return self.here.len() < before;
        };
        let Some(node) = self.below.get_mut(*level) else { return false };
        let removed = node.remove(rest, key);
        if node.here.is_empty() && node.below.is_empty() {
            self.below.remove(*level);
        }
        removed
    }

    /// As deep as the deepest filter, which is bounded where filters are taken in.
    fn select<'a>(&'a self, levels: &[&str], wild: bool, found: &mut impl FnMut(&'a K, &'a V)) {
        let mut show = |node: &'a Self| node.here.iter().for_each(|(key, value)| found(key, value));
        if wild {
            self.below.get("#").into_iter().for_each(&mut show);
        }
        let Some((level, rest)) = levels.split_first() else { return show(self) };
        for name in [*level, "+"].iter().filter(|name| wild || **name != "+") {
            if let Some(node) = self.below.get(*name) {
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
        let filter =
            "(([ab$]{0,2}|\\+)/){0,3}([ab$]{0,2}|\\+|#)".prop_filter("a filter", |f| topic::check_filter(f).is_ok());
        prop::collection::vec(filter, 0..12)
    }

    proptest! {
        #[test]
        fn it_selects_what_the_definition_selects(filters in filters(), topic in "[ab$/]{1,6}", gone in 0usize..12) {
            let mut tree = Tree::default();
            for (number, filter) in filters.iter().enumerate() {
                prop_assert!(tree.insert(filter, number, ()));
            }
            if let Some(filter) = filters.get(gone) {
                prop_assert!(tree.remove(filter, &gone) && !tree.remove(filter, &gone));
            }
            let mut found = Vec::new();
            tree.select(&topic, &mut |key: &usize, ()| found.push(*key));
            found.sort_unstable();
            let wanted = (0..filters.len()).filter(|at| *at != gone && topic::matches(&filters[*at], &topic));
            prop_assert_eq!(found, wanted.collect::<Vec<_>>());
            for (number, filter) in filters.iter().enumerate() {
                tree.remove(filter, &number);
            }
            prop_assert!(tree.is_empty());
        }
    }
}
