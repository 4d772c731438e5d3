//! State that this node reports to others. Pure.

use std::sync::Arc;

use nearpath_types::{FunctionLoad, FunctionMap, NodeName};

use crate::protocol::{NodeHello, NodeIncarnation, PROTOCOL};

/// Facts of this node that do not change while its process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// Name of the node.
    pub name: NodeName,
    /// Run of this process.
    pub incarnation: NodeIncarnation,
    /// Release of this program, printable ASCII of at most
    /// [`MAX_VERSION_BYTES`](crate::protocol::MAX_VERSION_BYTES).
    pub version: String,
    /// Start of the process in seconds since 1970.
    pub started: u64,
}

/// Functions that may run on this node, and their load, at one moment.
///
/// Each change makes a new one from the last. The two versions then share what did not change, and
/// a reader that missed some finds all changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalState {
    facts: Arc<NodeFacts>,
    functions: FunctionMap<FunctionLoad>,
    is_draining: bool,
    is_replaced: bool,
    version: u64,
    readiness_version: u64,
}

impl LocalState {
    /// Creates the state of a node that runs no function yet.
    pub fn new(facts: NodeFacts) -> Self {
        Self {
            facts: Arc::new(facts),
            functions: FunctionMap::default(),
            is_draining: false,
            is_replaced: false,
            version: 0,
            readiness_version: 0,
        }
    }

    /// Returns the next state, with other functions: all that may run here, also those without
    /// ready instances that a call may wake. Takes time for what changed, if `functions` was made
    /// from the last map.
    ///
    /// Other nodes refuse a node with more functions than
    /// [`MAX_FUNCTIONS`](crate::protocol::MAX_FUNCTIONS).
    #[must_use]
    pub fn with_functions(&self, functions: FunctionMap<FunctionLoad>) -> Self {
        let mut next = self.clone();
        next.functions = functions;
        let ready_of = |load: Option<&Arc<FunctionLoad>>| load.map(|load| load.ready);
        let mut changes = next.functions.changes_since(&self.functions).peekable();
        let has_changes = changes.peek().is_some();
        let has_other_readiness =
            changes.any(|change| ready_of(change.before) != ready_of(change.after));
        drop(changes);
        next.count_changes(has_changes, has_other_readiness);
        next
    }

    /// Returns the next state, in which the node takes no new calls, or takes them again.
    #[must_use]
    pub fn with_draining(&self, is_draining: bool) -> Self {
        let mut next = self.clone();
        next.is_draining = is_draining;
        let is_other = is_draining != self.is_draining;
        next.count_changes(is_other, is_other);
        next
    }

    /// Returns the next state, in which another process of the node accepts connections.
    #[must_use]
    pub fn with_replaced(&self) -> Self {
        let mut next = self.clone();
        next.is_replaced = true;
        next.count_changes(!self.is_replaced, !self.is_replaced);
        next
    }

    fn count_changes(&mut self, has_changes: bool, has_other_readiness: bool) {
        self.version += u64::from(has_changes);
        if has_other_readiness {
            self.readiness_version = self.version;
        }
    }

    /// Returns the facts of the node.
    pub fn facts(&self) -> &NodeFacts {
        &self.facts
    }

    /// Returns the functions that may run here.
    pub fn functions(&self) -> &FunctionMap<FunctionLoad> {
        &self.functions
    }

    /// Returns whether the node takes no new calls.
    pub fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Returns whether another process of the node accepts connections.
    pub fn is_replaced(&self) -> bool {
        self.is_replaced
    }

    /// Returns the number of the state, which grows with each change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the version of the last change that is not only a number of requests.
    pub fn readiness_version(&self) -> u64 {
        self.readiness_version
    }

    pub(crate) fn hello(&self) -> NodeHello {
        NodeHello {
            protocol: PROTOCOL,
            node: self.facts.name.clone(),
            incarnation: self.facts.incarnation,
            version: self.facts.version.clone(),
            started: self.facts.started,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(state: &LocalState) -> (u64, u64) {
        (state.version(), state.readiness_version())
    }

    #[test]
    fn requests_alone_do_not_change_readiness() {
        let facts = NodeFacts {
            name: "a".parse().unwrap(),
            incarnation: NodeIncarnation(1),
            version: "0.1.0".to_owned(),
            started: 1,
        };
        let with = |state: &LocalState, ready, requests| {
            let mut functions = state.functions().clone();
            functions.insert("echo".parse().unwrap(), FunctionLoad { ready, requests });
            state.with_functions(functions)
        };
        let first = LocalState::new(facts);
        let added = with(&first, 0, 0);
        assert_eq!(versions(&added), (1, 1), "a function without instances");
        let busy = with(&added, 0, 3);
        assert_eq!(versions(&busy), (2, 1));
        assert_eq!(versions(&with(&busy, 0, 3)), (2, 1), "no change");
        assert_eq!(versions(&with(&busy, 1, 3)), (3, 3));
        assert_eq!(versions(&busy.with_draining(true)), (3, 3));
        assert_eq!(versions(&busy.with_replaced().with_replaced()), (3, 3));
        assert_eq!(versions(&busy.with_draining(false)), (2, 1));
        assert_eq!(
            versions(&busy.with_functions(FunctionMap::default())),
            (3, 3)
        );
    }
}
