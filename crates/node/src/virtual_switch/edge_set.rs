//! Declared edges, found by either of their functions. Pure.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use nearpath_kernel::bpf::AddressEdge;

/// Set of edges. The kernel's map finds them by both functions only.
#[derive(Debug, Default)]
pub(super) struct EdgeSet {
    by_caller: BTreeSet<(Ipv4Addr, Ipv4Addr)>,
    by_callee: BTreeSet<(Ipv4Addr, Ipv4Addr)>,
}

impl EdgeSet {
    pub(super) fn insert(&mut self, edge: AddressEdge) {
        self.by_caller.insert((edge.caller, edge.callee));
        self.by_callee.insert((edge.callee, edge.caller));
    }

    pub(super) fn remove(&mut self, edge: AddressEdge) {
        self.by_caller.remove(&(edge.caller, edge.callee));
        self.by_callee.remove(&(edge.callee, edge.caller));
    }

    /// Returns the edges from and to a function.
    pub(super) fn edges_of(&self, function: Ipv4Addr) -> BTreeSet<AddressEdge> {
        let last = Ipv4Addr::BROADCAST;
        let own = (function, Ipv4Addr::UNSPECIFIED)..=(function, last);
        let outgoing = self.by_caller.range(own.clone());
        let outgoing = outgoing.map(|&(caller, callee)| AddressEdge { caller, callee });
        let incoming = self.by_callee.range(own);
        let incoming = incoming.map(|&(callee, caller)| AddressEdge { caller, callee });
        outgoing.chain(incoming).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_found_by_both_functions() {
        let edge = |caller: u8, callee: u8| AddressEdge {
            caller: [10, 60, 0, caller].into(),
            callee: [10, 60, 0, callee].into(),
        };
        let mut set = EdgeSet::default();
        for (caller, callee) in [(2, 3), (3, 2), (3, 3), (4, 2), (4, 5)] {
            set.insert(edge(caller, callee));
        }
        let of = |set: &EdgeSet, number| set.edges_of([10, 60, 0, number].into());
        assert_eq!(of(&set, 2), [edge(2, 3), edge(3, 2), edge(4, 2)].into());
        assert_eq!(of(&set, 3), [edge(2, 3), edge(3, 2), edge(3, 3)].into());
        set.remove(edge(3, 2));
        set.remove(edge(4, 2));
        assert_eq!(of(&set, 2), [edge(2, 3)].into());
        assert_eq!(of(&set, 6), [].into());
    }
}
