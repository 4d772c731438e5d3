//! Choice of the nodes for a stream to a function. Pure.

use std::sync::Arc;

use nearpath_types::{FunctionId, FunctionPolicy, PeerNode};

use crate::peer_states::PeerStates;

/// Returns the nodes that may take a connection to `callee`, the first one first.
///
/// Nodes with ready instances come before all others, beginning with the one that `draw`, any number,
/// selects. The others follow in the order of their names, so that all callers wake the function on the
/// same node. `policy` is that of the callee: a node cannot attract connections for other functions.
pub(crate) fn stream_targets(
    states: &PeerStates,
    callee: &FunctionId,
    policy: &FunctionPolicy,
    draw: usize,
) -> Vec<Arc<PeerNode>> {
    let permitted = states.peers.iter();
    let permitted = permitted.filter(|(name, _)| policy.runs_on(name));
    let candidates = permitted.filter_map(|(_, status)| {
        let load = status.functions.get(callee)?;
        Some((status.callable_node()?.clone(), load.ready > 0))
    });
    let (mut ready, asleep): (Vec<_>, Vec<_>) = candidates.partition(|(_, is_ready)| *is_ready);
    let first = draw.checked_rem(ready.len()).unwrap_or(0);
    ready.rotate_left(first);
    let all = ready.into_iter().chain(asleep);
    all.map(|(node, _)| node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer_states::{PeerAvailability, PeerStatus};
    use nearpath_types::FunctionLoad;
    use std::time::Instant;

    /// A node that is up, with ready instances of `store`.
    fn status(name: &str, ready: u32) -> PeerStatus {
        let node = PeerNode {
            name: name.parse().unwrap(),
            addr: ([192, 0, 2, 1], 8444).into(),
            incarnation: 1,
        };
        let load = FunctionLoad { ready, requests: 0 };
        let mut status = PeerStatus {
            availability: PeerAvailability::Up,
            node: Some(node.into()),
            ..PeerStatus::new(Instant::now())
        };
        status.functions.insert(store(), Arc::new(load));
        status
    }

    fn store() -> FunctionId {
        "store".parse().unwrap()
    }

    fn names(all: Vec<PeerStatus>, policy: &FunctionPolicy, draw: usize) -> Vec<String> {
        let mut states = PeerStates::default();
        for status in all {
            let name = status.node.as_ref().unwrap().name.clone();
            states.peers.insert(name, status.into());
        }
        let targets = stream_targets(&states, &store(), policy, draw);
        targets.iter().map(|one| one.name.to_string()).collect()
    }

    #[test]
    fn ready_nodes_take_turns_and_the_first_other_one_is_woken() {
        let all = || ["a", "b", "c", "d"].map(|name| status(name, u32::from(name > "b")));
        let policy = FunctionPolicy::default();
        let at = |draw| names(all().into(), &policy, draw).concat();
        assert_eq!(
            (at(0), at(1), at(2)),
            ("cdab".into(), "dcab".into(), "cdab".into())
        );
        assert!(names(Vec::new(), &policy, 7).is_empty());
    }

    #[test]
    fn nodes_that_take_no_calls_are_left_out() {
        let mut draining = status("a", 1);
        draining.is_draining = true;
        let mut down = status("b", 1);
        down.availability = PeerAvailability::Connecting;
        let other = PeerStatus {
            functions: Default::default(),
            ..status("c", 1)
        };
        let all = vec![draining, down, other, status("d", 1), status("e", 0)];
        let policy = FunctionPolicy {
            nodes: vec!["e".parse().unwrap()],
            ..FunctionPolicy::default()
        };
        assert_eq!(names(all, &policy, 0), ["e"], "d is not permitted");
    }
}
