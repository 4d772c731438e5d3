//! Other nodes as targets of connections, one for each node of the last snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use nearpath_types::{NodeName, PeerNode};

use super::dial_target::DialTarget;

/// Targets of the nodes that are reachable. A clone shares them.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeTargets(Arc<BTreeMap<NodeName, Arc<DialTarget>>>);

impl NodeTargets {
    /// Returns the target of a node.
    pub(super) fn get(&self, node: &NodeName) -> Option<&Arc<DialTarget>> {
        self.0.get(node)
    }

    /// Returns all targets, in the order of their names.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<DialTarget>> {
        self.0.values()
    }

    /// Returns the targets of these nodes. A node at the same address keeps its target.
    pub(super) fn with_nodes(&self, nodes: &[Arc<PeerNode>]) -> Self {
        let target_of = |node: &Arc<PeerNode>| {
            let known = self.0.get(&node.name).filter(|one| one.addr == node.addr);
            let target = known.cloned();
            let target = target.unwrap_or_else(|| DialTarget::for_node(node).into());
            (node.name.clone(), target)
        };
        Self(Arc::new(nodes.iter().map(target_of).collect()))
    }

    /// Marks the targets that `next` lacks as gone: their connections are cut.
    pub(super) fn mark_gone_after(&self, next: &Self) {
        for (name, target) in &*self.0 {
            let stays = next.0.get(name).is_some_and(|one| Arc::ptr_eq(one, target));
            if !stays {
                target.mark_gone();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, last: u8) -> Arc<PeerNode> {
        let addr = ([192, 0, 2, last], 8444).into();
        let name = name.parse().unwrap();
        PeerNode { name, addr }.into()
    }

    #[test]
    fn a_node_at_another_address_is_another_target() {
        let first = NodeTargets::default().with_nodes(&[node("a", 1), node("b", 2)]);
        let second = first.with_nodes(&[node("a", 1), node("b", 3)]);
        first.mark_gone_after(&second);
        let of = |targets: &NodeTargets, name: &str| targets.0[name].clone();
        assert!(Arc::ptr_eq(&of(&first, "a"), &of(&second, "a")));
        assert!(!Arc::ptr_eq(&of(&first, "b"), &of(&second, "b")));
        let gone = ["a", "b"].map(|name| of(&first, name).is_gone());
        assert_eq!((gone, of(&second, "b").is_gone()), ([false, true], false));
    }
}
