//! The virtual switch of this node's instances: its cgroup, its rows, and its permits.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nearpath_kernel::bpf::{
    AbsentSockets, AddressEdge, DenialEvents, EdgeTraffic, SwitchNetworks, SwitchRefusals,
    VirtualSwitch,
};
use nearpath_kernel::cgroup::SocketGroup;
use nearpath_kernel::hub_netns::HubNetns;
use nearpath_kernel::sandbox::DestinationRoute;
use nearpath_types::{Eip, VirtualAddress};

use super::edge_set::EdgeSet;
use super::flow_cutter::{FlowCutter, RequestCount, TrackedInstance};
use super::switch_table::SwitchChange;
use crate::instance::variables;
use crate::machine::InstanceProcess;

/// Length of the prefix of eIPs, and of virtual addresses.
const PREFIX_LEN: u8 = 16;

/// The switch, and the group of sockets that it decides on. Clones are the same switch.
#[derive(Debug, Clone)]
pub(crate) struct NodeSwitch(Arc<SwitchParts>);

#[derive(Debug)]
struct SwitchParts {
    switch: Arc<VirtualSwitch>,
    cutter: FlowCutter,
    edges: Mutex<EdgeSet>,
    gateway: Ipv4Addr,
    local_gateway: SocketAddrV4,
}

/// Admission of one instance; ends when dropped.
#[derive(Debug)]
pub(crate) struct InstancePermit {
    switch: NodeSwitch,
    uid: u32,
    eip: Eip,
    function: Ipv4Addr,
    /// Checks of flows that were requested before, which do not concern the instance.
    admitted: RequestCount,
}

impl NodeSwitch {
    /// Attaches a switch to the cgroup of instances, and lets their hub forward packets. Returns also the
    /// sockets for virtual addresses without a ready instance.
    ///
    /// # Errors
    /// Names the missing facility of this machine or build.
    pub(crate) fn attach(
        group: &SocketGroup,
        hub: &HubNetns,
        local_gateway: SocketAddrV4,
    ) -> io::Result<(Self, AbsentSockets)> {
        let switch = VirtualSwitch::attach(group.folder())?;
        let sockets = switch.listen_for_absent(hub)?;
        let switch = Arc::new(switch);
        let cutting = switch.clone();
        let parts = SwitchParts {
            switch,
            cutter: FlowCutter::start(move |instance| cut_flows(&cutting, instance))?,
            edges: Mutex::default(),
            gateway: hub.gateway(),
            local_gateway,
        };
        let switch = Self(Arc::new(parts));
        switch.set_networks(None)?;
        // Only now: without the programs, instances would reach each other.
        hub.forward_packets()?;
        Ok((switch, sockets))
    }

    /// Makes virtual addresses of IPv6 known, by any of them.
    ///
    /// # Errors
    /// Fails when the kernel refuses the update.
    pub(crate) fn set_networks(&self, any: Option<VirtualAddress>) -> io::Result<()> {
        self.0.switch.set_networks(&SwitchNetworks {
            virtual_addresses: (VirtualAddress::NETWORK, PREFIX_LEN),
            ipv6: any.map(|address| address.v6),
            instances: (self.0.gateway, PREFIX_LEN),
            gateway: self.0.gateway,
            local_gateway: self.0.local_gateway,
        })
    }

    /// Admits an instance before it starts. Without an address of its own, its function calls no
    /// others. `has_gateway` says whether the gateway listens inside.
    ///
    /// # Errors
    /// Fails when the kernel has no memory for it.
    pub(crate) fn admit_instance(
        &self,
        (uid, eip): (u32, Eip),
        function: Option<Ipv4Addr>,
        has_gateway: bool,
    ) -> io::Result<InstancePermit> {
        let function = function.unwrap_or(Ipv4Addr::UNSPECIFIED);
        // Made before, so that a failure still removes the rows.
        let permit = InstancePermit {
            switch: self.clone(),
            uid,
            eip,
            function,
            admitted: self.0.cutter.request_count(),
        };
        let switch = &self.0.switch;
        switch.admit_instance((uid, eip), function, has_gateway)?;
        Ok(permit)
    }

    /// Writes one change.
    ///
    /// # Errors
    /// Fails when the kernel has no memory for a row, or its map is full: its connections stay denied.
    pub(crate) fn apply_change(&self, change: &SwitchChange) -> io::Result<()> {
        let switch = &self.0.switch;
        match change {
            SwitchChange::AddEdge(edge) => {
                // Before the row: a datagram may follow at once.
                self.lock_edges().insert(*edge);
                switch.add_edge(*edge)
            }
            SwitchChange::RemoveEdge(edge) => {
                switch.remove_edge(*edge);
                self.lock_edges().remove(*edge);
                Ok(())
            }
            SwitchChange::BalanceConnections(edge, is_balanced) => {
                switch.balance_connections(*edge, *is_balanced)
            }
            SwitchChange::SetBackends(function, eips) => switch.set_backends(*function, eips),
            SwitchChange::RemoveFunction(function) => {
                switch.remove_function(*function);
                Ok(())
            }
        }
    }

    /// Cuts existing connections of the edges that changes have removed, soon. Called after all of them
    /// were applied.
    ///
    /// The callee's instances are checked, too: they answer datagrams from connected sockets.
    pub(crate) fn cut_removed_edges(&self, changes: &[SwitchChange]) {
        let functions = changes.iter().flat_map(|change| match change {
            SwitchChange::RemoveEdge(edge) => vec![edge.caller, edge.callee],
            _ => Vec::new(),
        });
        let functions: BTreeSet<_> = functions.collect();
        self.0.cutter.request_cuts(functions);
    }

    /// Cuts UDP sockets that are connected to ended or frozen instances of a function, soon. Checks
    /// only functions that have exchanged datagrams with it.
    fn cut_ended_peers(&self, function: Ipv4Addr) {
        let edges = self.lock_edges().edges_of(function);
        let had_datagrams = |edge: &AddressEdge| {
            let traffic = self.0.switch.edge_traffic(*edge);
            traffic.is_some_and(|traffic| traffic.datagram_flows > 0)
        };
        let edges = edges.into_iter().filter(had_datagrams);
        // Callers are connected by their edge, and servers to answer.
        let peers = edges.map(|edge| match edge.caller == function {
            true => edge.callee,
            false => edge.caller,
        });
        self.0.cutter.request_cuts(peers.collect());
    }

    fn lock_edges(&self) -> MutexGuard<'_, EdgeSet> {
        let edges = &self.0.edges;
        edges.lock().unwrap_or_else(PoisonError::into_inner) // each change is complete
    }

    /// Returns how many connections were cut because their edge was removed, or their instance ended.
    pub(crate) fn cut_flows(&self) -> u64 {
        self.0.switch.cut_flows()
    }

    /// Returns the traffic of all edges.
    pub(crate) fn edges(&self) -> BTreeMap<AddressEdge, EdgeTraffic> {
        self.0.switch.edges()
    }

    /// Returns how often each pair without an edge was denied.
    pub(crate) fn denials(&self) -> BTreeMap<AddressEdge, u64> {
        self.0.switch.denials()
    }

    /// Returns the refusals of all callers.
    pub(crate) fn refusals(&self) -> SwitchRefusals {
        self.0.switch.refusals()
    }

    /// Takes the stream of denied connections; `None` when it was taken.
    pub(crate) fn take_events(&self) -> Option<DenialEvents> {
        self.0.switch.take_events()
    }

    /// Returns the routes that each instance needs: to virtual addresses, and to other instances.
    pub(crate) fn routes(&self) -> [DestinationRoute; 2] {
        [VirtualAddress::NETWORK, network_of(self.0.gateway)].map(|address| DestinationRoute {
            address,
            prefix_len: PREFIX_LEN,
            hostname: None,
        })
    }
}

fn network_of(gateway: Ipv4Addr) -> Ipv4Addr {
    let [a, b, ..] = gateway.octets();
    [a, b, 0, 0].into()
}

fn cut_flows(switch: &VirtualSwitch, instance: &TrackedInstance) -> io::Result<usize> {
    let process = instance.process.upgrade();
    let netns = process.map_or(Ok(None), |process| process.open_netns())?;
    // Before it has a network of its own, an instance has no connections.
    netns.map_or(Ok(0), |netns| {
        switch.cut_undeclared_flows(netns, instance.eip)
    })
}

impl InstancePermit {
    /// Returns whether the instance has calls. Blocks.
    ///
    /// # Errors
    /// Fails when the namespace cannot be entered.
    pub(crate) fn has_calls(&self, netns: impl AsFd) -> io::Result<bool> {
        let switch = &self.switch.0.switch;
        switch.has_calls(netns, self.eip, variables::WATCHDOG_PORT)
    }

    /// Lets connections reach the instance's own HTTP server, at a port in its network namespace.
    ///
    /// # Errors
    /// Fails when the kernel has no memory. Its calls take the gateway then.
    pub(crate) fn open_server(&self, netns: impl AsFd, port: u16) -> io::Result<()> {
        self.switch.0.switch.open_server(self.eip, netns, port)
    }

    /// Hides this instance, which is frozen, from others, and ends their connections to it, except
    /// those to its watchdog.
    ///
    /// # Errors
    /// Fails on a kernel without `CONFIG_INET_DIAG_DESTROY`.
    pub(crate) fn leave_peers(&self, netns: impl AsFd) -> io::Result<()> {
        let switch = &self.switch.0.switch;
        // First: a connection that was permitted after the listing would get no answer.
        switch.hide_instance(self.eip);
        switch.cut_accepted(netns, self.eip, variables::WATCHDOG_PORT)?;
        self.switch.cut_ended_peers(self.function);
        Ok(())
    }

    /// Shows the instance to others again, after [`Self::leave_peers`].
    ///
    /// # Errors
    /// Fails when the kernel has no memory.
    pub(crate) fn rejoin_peers(&self) -> io::Result<()> {
        let switch = &self.switch.0;
        // Before it runs: its own datagrams need the row.
        switch.switch.show_instance(self.eip, self.function)?;
        // Edges of its function may have ended meanwhile.
        switch.cutter.request_cuts([self.function].into());
        Ok(())
    }

    /// Makes the process of the instance known, so that its connections can be cut.
    pub(crate) fn track_process(&self, process: Weak<dyn InstanceProcess>) {
        let instance = TrackedInstance {
            eip: self.eip,
            function: self.function,
            process,
        };
        self.switch.0.cutter.track(instance, self.admitted);
    }
}

impl Drop for InstancePermit {
    fn drop(&mut self) {
        self.switch.0.cutter.forget(self.eip);
        self.switch.0.switch.remove_instance(self.uid, self.eip);
        self.switch.cut_ended_peers(self.function);
    }
}
