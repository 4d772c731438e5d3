//! Connections along edges as the kernel counts them, by the names of functions: for metrics, and for
//! `nearpath edges`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::sync::Arc;

use nearpath_kernel::bpf::{AddressEdge, EdgeTraffic, SwitchRefusals};
use nearpath_types::chain_status::EdgeStatus;
use nearpath_types::{FunctionId, FunctionMap, RoutingSnapshot, VirtualAddress};
use tokio::sync::watch;

use super::NodeSwitch;
use super::datagrams::DatagramReport;

/// Callee of denied connections whose destination is no function, or none with a row of its own.
pub(crate) const OTHER_DESTINATIONS: &str = "other";

/// Reads the switch. Clones read the same one; without a switch there is nothing.
#[derive(Debug, Clone)]
pub(crate) struct SwitchReport {
    switch: Option<NodeSwitch>,
    datagrams: Option<DatagramReport>,
    snapshots: watch::Receiver<Arc<RoutingSnapshot>>,
    addresses: watch::Receiver<FunctionMap<VirtualAddress>>,
}

/// An edge, or a denied pair, with its counts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EdgeConnections {
    pub(crate) caller: FunctionId,
    /// Chain of the caller; empty: it has none.
    pub(crate) chain: String,
    /// `None`: [`OTHER_DESTINATIONS`].
    pub(crate) callee: Option<FunctionId>,
    /// `None`: no edge is declared.
    pub(crate) traffic: Option<EdgeTraffic>,
    pub(crate) denied: u64,
}

impl EdgeConnections {
    /// Returns the name of the callee.
    pub(crate) fn callee_name(&self) -> String {
        let callee = self.callee.as_ref();
        callee.map_or_else(|| OTHER_DESTINATIONS.to_owned(), ToString::to_string)
    }
}

impl SwitchReport {
    pub(crate) fn new(
        switch: Option<NodeSwitch>,
        snapshots: watch::Receiver<Arc<RoutingSnapshot>>,
        addresses: watch::Receiver<FunctionMap<VirtualAddress>>,
    ) -> Self {
        Self {
            switch,
            datagrams: None,
            snapshots,
            addresses,
        }
    }

    /// Returns the report of the same node with its switch.
    pub(crate) fn with_switch(self, switch: Option<NodeSwitch>) -> Self {
        Self { switch, ..self }
    }

    /// Returns the same report with the datagrams that the node forwards.
    pub(crate) fn with_datagrams(self, datagrams: DatagramReport) -> Self {
        let datagrams = Some(datagrams);
        Self { datagrams, ..self }
    }

    /// Returns the counts of the datagrams that the node forwards.
    pub(crate) fn datagrams(&self) -> Option<&DatagramReport> {
        self.datagrams.as_ref()
    }

    /// Returns the refusals of all callers.
    pub(crate) fn refusals(&self) -> Option<SwitchRefusals> {
        self.switch.as_ref().map(NodeSwitch::refusals)
    }

    /// Returns how many connections were cut because their edge was removed.
    pub(crate) fn cut_flows(&self) -> u64 {
        self.switch.as_ref().map_or(0, NodeSwitch::cut_flows)
    }

    /// Returns the edges that have rows, and the pairs that were denied.
    pub(crate) fn connection_counts(&self) -> Vec<EdgeConnections> {
        let Some(switch) = &self.switch else {
            return Vec::new();
        };
        let (edges, denials) = (switch.edges(), switch.denials());
        let (snapshot, addresses) = (
            self.snapshots.borrow().clone(),
            self.addresses.borrow().clone(),
        );
        name_counts(&edges, &denials, &snapshot, &addresses)
    }

    /// Returns the name with an address. Declared callees have one before they are deployed.
    pub(crate) fn name_of(&self, address: Ipv4Addr) -> Option<FunctionId> {
        let addresses = self.addresses.borrow().clone();
        let mut all = addresses.iter();
        let found = all.find(|(_, own)| own.v4 == address);
        found.map(|(id, _)| id.clone())
    }

    /// Returns the edges with their connections, for `nearpath edges`.
    pub(crate) fn edge_status(&self) -> Vec<EdgeStatus> {
        let rows = self.connection_counts().into_iter();
        let rows = rows.map(|one| edge_entry(&one));
        // Most edges are used over HTTP and shared memory only.
        rows.filter(|row| row.connections > 0 || row.denied_connections > 0)
            .collect()
    }
}

/// Adds names to counts. Callers that no longer exist are left out: their rows are about to go.
fn name_counts(
    edges: &BTreeMap<AddressEdge, EdgeTraffic>,
    denials: &BTreeMap<AddressEdge, u64>,
    snapshot: &RoutingSnapshot,
    addresses: &FunctionMap<VirtualAddress>,
) -> Vec<EdgeConnections> {
    let by_address: HashMap<Ipv4Addr, &FunctionId> =
        addresses.iter().map(|(id, own)| (own.v4, id)).collect();
    let pairs: BTreeSet<_> = edges.keys().chain(denials.keys()).collect();
    let named = pairs.into_iter().filter_map(|pair| {
        let caller = *by_address.get(&pair.caller)?;
        let route = snapshot.functions.get(caller);
        let chain = route.and_then(|route| route.policy.chain.clone());
        Some(EdgeConnections {
            caller: caller.clone(),
            chain: chain.unwrap_or_default(),
            callee: by_address.get(&pair.callee).map(|&id| id.clone()),
            traffic: edges.get(pair).copied(),
            denied: denials.get(pair).copied().unwrap_or(0),
        })
    });
    merge_others(named)
}

/// Adds up the denied pairs of a caller whose callees have no name.
fn merge_others(counts: impl Iterator<Item = EdgeConnections>) -> Vec<EdgeConnections> {
    let mut merged: Vec<EdgeConnections> = Vec::new();
    for one in counts {
        let same = merged
            .iter_mut()
            .find(|known| known.caller == one.caller && known.callee.is_none());
        match same.filter(|_| one.callee.is_none()) {
            Some(known) => known.denied += one.denied,
            None => merged.push(one),
        }
    }
    merged
}

fn edge_entry(counts: &EdgeConnections) -> EdgeStatus {
    let traffic = counts.traffic.unwrap_or_default();
    EdgeStatus {
        chain: counts.chain.clone(),
        namespace: counts.caller.namespace.to_string(),
        caller: counts.caller.to_string(),
        callee: counts.callee_name(),
        connections: traffic.connections + traffic.cold + traffic.datagram_flows,
        cold_connections: traffic.cold,
        denied_connections: counts.denied,
        connection_bytes: traffic.bytes_sent + traffic.bytes_received,
        ..EdgeStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    fn addresses(names: &[(&str, u8)]) -> FunctionMap<VirtualAddress> {
        let all = names.iter().map(|(name, number)| {
            let address = VirtualAddress {
                v4: [10, 60, 0, *number].into(),
                v6: "fd00::1".parse().unwrap(),
            };
            (name.parse().unwrap(), address)
        });
        all.collect()
    }

    #[test]
    fn pairs_have_names_and_unnamed_callees_are_one_row() {
        // A declared callee has an address before it is deployed.
        let addresses = addresses(&[("cart", 2), ("store", 3)]);
        let snapshot = RoutingSnapshot::default();
        let pair = |caller: u8, callee: u8| AddressEdge {
            caller: [10, 60, 0, caller].into(),
            callee: [10, 60, 0, callee].into(),
        };
        let traffic = EdgeTraffic {
            connections: 5,
            cold: 1,
            bytes_sent: 10,
            bytes_received: 20,
            ..EdgeTraffic::default()
        };
        let edges = BTreeMap::from([(pair(2, 3), traffic), (pair(9, 3), traffic)]);
        let denials = BTreeMap::from([(pair(2, 8), 3), (pair(2, 9), 4), (pair(3, 2), 1)]);
        let counts = name_counts(&edges, &denials, &snapshot, &addresses);
        let rows: Vec<_> = counts.iter().map(edge_entry).collect();
        let rows = rows.iter().map(|row| {
            let EdgeStatus {
                caller,
                callee,
                connections,
                denied_connections,
                ..
            } = row;
            format!("{caller} {callee} {connections} {denied_connections}")
        });
        assert_eq!(
            rows.collect::<Vec<_>>(),
            [
                "cart.openfaas-fn store.openfaas-fn 6 0",
                "cart.openfaas-fn other 0 7",
                "store.openfaas-fn cart.openfaas-fn 0 1",
            ]
        );
    }
}
