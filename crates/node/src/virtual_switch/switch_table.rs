//! Rows of the virtual switch. Pure: a function's new state gives the changes of rows.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use nearpath_kernel::bpf::AddressEdge;
use nearpath_types::{Eip, FunctionId};

/// Change of the kernel's rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SwitchChange {
    /// Permits connections.
    AddEdge(AddressEdge),
    /// Denies new connections.
    RemoveEdge(AddressEdge),
    /// Balances HTTP by name of a permitted edge per connection, or per request.
    BalanceConnections(AddressEdge, bool),
    /// Spreads connections to a function over these instances.
    SetBackends(Ipv4Addr, Vec<Eip>),
    /// Removes what is counted for a function that no longer exists.
    RemoveFunction(Ipv4Addr),
}

/// Rows of one function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FunctionRows {
    /// Its own address.
    pub(crate) address: Ipv4Addr,
    /// Addresses of its declared callees.
    pub(crate) callees: BTreeSet<Ipv4Addr>,
    /// Those of them to which HTTP by name is balanced per connection.
    pub(crate) connection_balanced: BTreeSet<Ipv4Addr>,
    /// Its instances on this node that take calls, in a fixed order.
    pub(crate) backends: Vec<Eip>,
}

/// The rows of all functions that have had instances on this node.
#[derive(Debug, Default)]
pub(crate) struct SwitchTable {
    functions: BTreeMap<FunctionId, FunctionRows>,
}

impl SwitchTable {
    /// Returns the rows of a function.
    pub(crate) fn get(&self, id: &FunctionId) -> Option<&FunctionRows> {
        self.functions.get(id)
    }

    /// Replaces the rows of a function; `None` removes it. Permissions are added before others are
    /// removed, so that no declared call is denied in between.
    pub(crate) fn replace(
        &mut self,
        id: &FunctionId,
        rows: Option<FunctionRows>,
    ) -> Vec<SwitchChange> {
        let before = match &rows {
            Some(rows) => self.functions.insert(id.clone(), rows.clone()),
            None => self.functions.remove(id),
        };
        // A function that was removed and deployed again may have another address.
        let is_same = |one: &FunctionRows, other: &FunctionRows| one.address == other.address;
        match (before, rows) {
            (Some(before), Some(after)) if is_same(&before, &after) => difference(&before, &after),
            (before, after) => {
                let added = after
                    .iter()
                    .flat_map(|after| difference(&after.empty(), after));
                let removed = before.iter().flat_map(|before| {
                    let mut changes = difference(before, &before.empty());
                    changes.push(SwitchChange::RemoveFunction(before.address));
                    changes
                });
                added.chain(removed).collect()
            }
        }
    }
}

impl FunctionRows {
    /// Returns the rows of the same function without callees and instances.
    fn empty(&self) -> Self {
        Self {
            address: self.address,
            callees: BTreeSet::new(),
            connection_balanced: BTreeSet::new(),
            backends: Vec::new(),
        }
    }
}

fn difference(before: &FunctionRows, after: &FunctionRows) -> Vec<SwitchChange> {
    let caller = after.address;
    let edge = |callee: &Ipv4Addr| AddressEdge {
        caller,
        callee: *callee,
    };
    let added = after.callees.difference(&before.callees).map(edge);
    let removed = before.callees.difference(&after.callees).map(edge);
    // After the edge itself, whose row it refers to.
    let by_connection = after
        .connection_balanced
        .difference(&before.connection_balanced)
        .map(|callee| SwitchChange::BalanceConnections(edge(callee), true));
    // The end of an edge also ends its balance.
    let by_request = before
        .connection_balanced
        .difference(&after.connection_balanced)
        .filter(|callee| after.callees.contains(callee))
        .map(|callee| SwitchChange::BalanceConnections(edge(callee), false));
    let moved = (before.backends != after.backends)
        .then(|| SwitchChange::SetBackends(caller, after.backends.clone()));
    added
        .map(SwitchChange::AddEdge)
        .chain(by_connection)
        .chain(by_request)
        .chain(moved)
        .chain(removed.map(SwitchChange::RemoveEdge))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The kernel's rows after all changes.
    #[derive(Debug, Default, PartialEq, Eq)]
    struct AppliedRows {
        edges: BTreeSet<(Ipv4Addr, Ipv4Addr)>,
        connection_balanced: BTreeSet<(Ipv4Addr, Ipv4Addr)>,
        backends: BTreeMap<Ipv4Addr, Vec<Eip>>,
    }

    impl AppliedRows {
        fn apply(&mut self, change: SwitchChange) {
            match change {
                SwitchChange::AddEdge(edge) => {
                    assert!(self.edges.insert((edge.caller, edge.callee)));
                }
                SwitchChange::RemoveEdge(edge) => {
                    assert!(self.edges.remove(&(edge.caller, edge.callee)));
                    self.connection_balanced.remove(&(edge.caller, edge.callee));
                }
                SwitchChange::BalanceConnections(edge, true) => {
                    assert!(self.edges.contains(&(edge.caller, edge.callee)));
                    let edge = (edge.caller, edge.callee);
                    assert!(self.connection_balanced.insert(edge));
                }
                SwitchChange::BalanceConnections(edge, false) => {
                    let edge = (edge.caller, edge.callee);
                    assert!(self.connection_balanced.remove(&edge));
                }
                SwitchChange::SetBackends(function, eips) if eips.is_empty() => {
                    assert!(self.backends.remove(&function).is_some());
                }
                SwitchChange::SetBackends(function, eips) => {
                    self.backends.insert(function, eips);
                }
                SwitchChange::RemoveFunction(address) => {
                    assert!(self.edges.iter().all(|(caller, _)| *caller != address));
                    assert!(!self.backends.contains_key(&address));
                }
            }
        }
    }

    fn address(number: u8) -> Ipv4Addr {
        [10, 60, 0, number].into()
    }

    fn rows(own: u8, callees: &BTreeSet<u8>, backends: &BTreeSet<u8>) -> FunctionRows {
        FunctionRows {
            address: address(own),
            callees: callees.iter().map(|number| address(*number)).collect(),
            connection_balanced: BTreeSet::new(),
            backends: backends
                .iter()
                .map(|number| Eip([10, 62, 0, *number].into()))
                .collect(),
        }
    }

    #[test]
    fn permissions_are_added_before_others_are_removed() {
        let (id, mut table) = ("cart".parse().unwrap(), SwitchTable::default());
        let none = BTreeSet::new();
        table.replace(&id, Some(rows(2, &[3].into(), &none)));
        let edge = |callee| AddressEdge {
            caller: address(2),
            callee: address(callee),
        };
        let changes = table.replace(&id, Some(rows(2, &[4].into(), &none)));
        assert_eq!(
            changes,
            [
                SwitchChange::AddEdge(edge(4)),
                SwitchChange::RemoveEdge(edge(3))
            ]
        );
        assert_eq!(table.replace(&id, Some(rows(2, &[4].into(), &none))), []);
    }

    proptest! {
        #[test]
        fn the_kernel_has_the_rows_of_the_last_states(
            steps in prop::collection::vec(
                (0..4usize, any::<bool>(), prop::collection::btree_set(2..6u8, 0..3), prop::collection::btree_set(0..4u8, 0..3), any::<bool>(), any::<bool>()),
                0..60,
            )
        ) {
            let (mut table, mut kernel) = (SwitchTable::default(), AppliedRows::default());
            let mut wanted: BTreeMap<usize, FunctionRows> = BTreeMap::new();
            for (function, is_removed, callees, backends, has_moved, is_balanced) in steps {
                let id: FunctionId = format!("f{function}").parse().unwrap();
                // Numbers of different functions never meet, as the controller's.
                let own = 100 + 10 * function as u8 + u8::from(has_moved);
                let mut state = (!is_removed).then(|| rows(own, &callees, &backends));
                if let Some(state) = state.as_mut().filter(|_| is_balanced) {
                    state.connection_balanced = state.callees.iter().skip(1).copied().collect();
                }
                match &state {
                    Some(state) => drop(wanted.insert(function, state.clone())),
                    None => drop(wanted.remove(&function)),
                }
                table.replace(&id, state).into_iter().for_each(|change| kernel.apply(change));
            }
            let mut expected = AppliedRows::default();
            for rows in wanted.into_values() {
                expected.edges.extend(rows.callees.iter().map(|callee| (rows.address, *callee)));
                let balanced = rows.connection_balanced.iter().map(|callee| (rows.address, *callee));
                expected.connection_balanced.extend(balanced);
                if !rows.backends.is_empty() {
                    expected.backends.insert(rows.address, rows.backends);
                }
            }
            prop_assert_eq!(kernel, expected);
        }
    }
}
