//! Other nodes as targets of connections, one for each node of the last snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use nearpath_types::{NodeName, PeerNode};

use super::dial_target::DialTarget;

/// Targets of the nodes that are reachable. A clone shares them.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeTargets(Arc<BTreeMap<NodeName, NodeTarget>>);

/// A node, and the target of connections to its process.
#[derive(Debug, Clone)]
struct NodeTarget {
    node: Arc<PeerNode>,
    target: Arc<DialTarget>,
}

impl NodeTarget {
    /// Creates the target of a node that may be `known` already.
    fn for_node(node: &Arc<PeerNode>, known: Option<&Self>) -> Self {
        let same = known.filter(|known| known.is_process(node));
        let target = same.map(|same| same.target.clone());
        Self {
            node: node.clone(),
            target: target.unwrap_or_else(|| DialTarget::for_node(node).into()),
        }
    }

    /// Returns whether connections to this target lead to the process of `node`.
    fn is_process(&self, node: &PeerNode) -> bool {
        let (known, other) = (self.node.incarnation, node.incarnation);
        self.node.addr == node.addr && (known == other || known == 0 || other == 0)
    }
}

impl NodeTargets {
    /// Returns the target of a node.
    pub(super) fn get(&self, node: &NodeName) -> Option<&Arc<DialTarget>> {
        self.0.get(node).map(|known| &known.target)
    }

    /// Returns all targets, in the order of their names.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<DialTarget>> {
        self.0.values().map(|known| &known.target)
    }

    /// Returns the targets of these nodes. A node with the same process at the same address keeps its target.
    pub(super) fn with_nodes(&self, nodes: &[Arc<PeerNode>]) -> Self {
        let target_of = |node: &Arc<PeerNode>| {
            let target = NodeTarget::for_node(node, self.0.get(&node.name));
            (node.name.clone(), target)
        };
        Self(Arc::new(nodes.iter().map(target_of).collect()))
    }

    /// Ends the targets that `next` lacks. Connections to a node that left or has moved are cut. Those to a
    /// process that was replaced end with their open calls: the node was reachable all the time.
    pub(super) fn mark_ended_after(&self, next: &Self) {
        for (name, known) in &*self.0 {
            match next.0.get(name) {
                Some(after) if Arc::ptr_eq(&after.target, &known.target) => {}
                Some(after) if after.node.addr == known.node.addr => known.target.mark_withdrawn(),
                _ => known.target.mark_gone(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, last: u8, incarnation: u64) -> Arc<PeerNode> {
        let addr = ([192, 0, 2, last], 8444).into();
        let name = name.parse().unwrap();
        let node = PeerNode {
            name,
            addr,
            incarnation,
        };
        node.into()
    }

    fn targets<'a>(all: &'a NodeTargets, names: &[&str]) -> Vec<&'a Arc<DialTarget>> {
        let of = |name: &&str| all.get(&name.parse().unwrap()).unwrap();
        names.iter().map(of).collect()
    }

    #[test]
    fn a_node_at_another_address_is_another_target() {
        let first = NodeTargets::default().with_nodes(&[node("a", 1, 7), node("b", 2, 7)]);
        let second = first.with_nodes(&[node("a", 1, 7), node("b", 3, 7)]);
        first.mark_ended_after(&second);
        let (before, after) = (targets(&first, &["a", "b"]), targets(&second, &["a", "b"]));
        assert!(Arc::ptr_eq(before[0], after[0]) && !Arc::ptr_eq(before[1], after[1]));
        assert!(!before[0].is_gone() && before[1].is_gone() && !after[1].is_gone());
    }

    #[test]
    fn a_process_that_was_replaced_keeps_its_open_calls_and_gets_no_others() {
        let names = ["a", "b", "c"];
        let with = |numbers: [u64; 3]| (0..3).map(move |at| node(names[at], at as u8, numbers[at]));
        let first = NodeTargets::default().with_nodes(&with([7, 0, 7]).collect::<Vec<_>>());
        let second = first.with_nodes(&with([8, 8, 7]).take(2).collect::<Vec<_>>());
        first.mark_ended_after(&second);
        let (before, after) = (targets(&first, &names), targets(&second, &names[..2]));
        assert!(before[0].is_withdrawn() && !before[0].is_gone() && !after[0].is_withdrawn());
        assert!(Arc::ptr_eq(before[1], after[1]), "its run was not known");
        assert!(before[2].is_gone(), "it left");
    }
}
