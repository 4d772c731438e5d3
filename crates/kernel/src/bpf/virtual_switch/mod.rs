//! The virtual switch: virtual addresses of functions, translated when an instance's socket connects,
//! and the permissions of instances to reach each other; see `bpf/vip.c`.

mod absent;
mod denials;
mod flow_cuts;
mod instance_calls;
mod rows;
mod servers;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, SockMap};
use aya::programs::{CgroupAttachMode, CgroupSock};
use nearpath_types::Eip;

use super::object::{self, attach_sock_ops, bpf_error, load_object, sum_counter, take_map};
use super::socket_cgroup_guard::attach_hook;
use rows::{
    AddressPair, BackendsRow, CallerRow, EdgeRow, MAX_BACKENDS, NetworksRow, ShareRow,
    encode_address,
};
use servers::ServerMaps;

pub use absent::AbsentSockets;
pub use denials::{DenialEvent, DenialEvents};

/// Programs for the addresses that sockets use.
const ADDRESS_HOOKS: [&str; 9] = [
    "connect4",
    "connect6",
    "sendmsg4",
    "recvmsg4",
    "recvmsg6",
    "getpeername4",
    "getpeername6",
    "bind4",
    "bind6",
];

/// Addresses that the switch decides on. Others are left to routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchNetworks {
    /// Network of the virtual addresses of IPv4, and the length of its prefix.
    pub virtual_addresses: (Ipv4Addr, u8),
    /// Any virtual address of IPv6, whose first 96 bits are those of all; `None`: there are none.
    pub ipv6: Option<Ipv6Addr>,
    /// Network of the instances.
    pub instances: (Ipv4Addr, u8),
    /// Address of the node in that network, which every instance may reach.
    pub gateway: Ipv4Addr,
    /// Address of the gateway inside instances that have it. Their HTTP calls by name go there.
    pub local_gateway: SocketAddrV4,
}

/// A caller and a callee, by the IPv4 parts of their virtual addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AddressEdge {
    /// Function that connects.
    pub caller: Ipv4Addr,
    /// Function that is called. In denials, 0.0.0.0 stands for all destinations that have no row.
    pub callee: Ipv4Addr,
}

/// Traffic of one edge since it was declared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EdgeTraffic {
    /// TCP connections to instances, and to the gateway for calls over HTTP.
    pub connections: u64,
    /// TCP connections that found no ready instance on this node. They are not among the others.
    pub cold: u64,
    /// TCP connections of both kinds that have ended.
    pub ended: u64,
    /// Instances that sockets sent datagrams to, each counted once per socket while it sends to no other.
    pub datagram_flows: u64,
    /// Bytes of ended TCP connections that callees have acknowledged. The gateway counts those of its calls.
    pub bytes_sent: u64,
    /// Bytes of ended TCP connections that callers have received. The gateway counts those of its calls.
    pub bytes_received: u64,
    /// Sum of the durations of ended TCP connections.
    pub duration: Duration,
}

/// Connections that the switch refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SwitchRefusals {
    /// The calling process belongs to no instance that is admitted.
    pub unknown_caller: u64,
    /// The kernel had no memory for the translation.
    pub no_memory: u64,
}

/// Translates virtual addresses for the instances in one cgroup. Dropping it, or the end of its process,
/// ends that: existing connections go on.
pub struct VirtualSwitch {
    maps: Mutex<SwitchMaps>,
    counters: PerCpuArray<MapData, u64>,
    events: Mutex<Option<DenialEvents>>,
    cut_flows: AtomicU64,
    /// Generation of the next edge.
    edge_generation: AtomicU64,
    /// Holds what programs store with sockets.
    flows: Map,
    /// Holds the programs and their attachments.
    loaded: Mutex<Ebpf>,
}

struct SwitchMaps {
    networks: Array<MapData, NetworksRow>,
    callers: HashMap<MapData, u32, CallerRow>,
    instances: HashMap<MapData, u32, u32>,
    backends: HashMap<MapData, u32, BackendsRow>,
    edges: HashMap<MapData, AddressPair, EdgeRow>,
    denials: HashMap<MapData, AddressPair, u64>,
    shares: HashMap<MapData, u32, ShareRow>,
    node_sockets: SockMap<MapData>,
    servers: ServerMaps,
}

impl VirtualSwitch {
    /// Attaches the programs to the cgroup in which instances make their sockets. Nothing is permitted
    /// yet.
    ///
    /// # Errors
    /// Fails if this build has no BPF programs, without `CAP_BPF` and `CAP_NET_ADMIN`, and before
    /// Linux 5.18.
    pub fn attach(group: &Path) -> io::Result<Self> {
        Self::attach_without(group, &[])
    }

    /// Attaches all programs but some, so that tests can show what each one is for.
    #[doc(hidden)]
    pub fn attach_without(group: &Path, left_out: &[&str]) -> io::Result<Self> {
        let group = File::open(group)?;
        let mut loaded = load_object(object::vip()?)?;
        for hook in ADDRESS_HOOKS.iter().filter(|hook| !left_out.contains(hook)) {
            attach_hook(&mut loaded, hook, &group)?;
        }
        if !left_out.contains(&"sock_create") {
            attach_sock_create(&mut loaded, &group)?;
        }
        if !left_out.contains(&"follow_connection") {
            attach_sock_ops(&mut loaded, "follow_connection", [&group])?;
        }
        servers::load_program(&mut loaded)?;
        let flows = loaded.take_map("flows");
        Ok(Self {
            maps: Mutex::new(SwitchMaps::take_from(&mut loaded)?),
            counters: take_map(&mut loaded, "counters")?,
            events: Mutex::new(Some(DenialEvents::take_from(&mut loaded)?)),
            cut_flows: AtomicU64::new(0),
            edge_generation: AtomicU64::new(1),
            flows: flows.ok_or_else(|| io::Error::other("the programs have no map `flows`"))?,
            loaded: Mutex::new(loaded),
        })
    }

    /// Sets the networks that the switch decides on. Before, every connection is denied.
    ///
    /// # Errors
    /// Fails when the kernel refuses the update.
    pub fn set_networks(&self, networks: &SwitchNetworks) -> io::Result<()> {
        let row = rows::networks_row(networks);
        map_result(self.lock().networks.set(0, row, 0))
    }

    /// Admits the instance of a user: its connections are those of `function`. `has_gateway` says whether
    /// the gateway listens inside.
    ///
    /// # Errors
    /// Fails when the kernel has no memory, or with 65,536 instances.
    pub fn admit_instance(
        &self,
        (uid, eip): (u32, Eip),
        function: Ipv4Addr,
        has_gateway: bool,
    ) -> io::Result<()> {
        let mut maps = self.lock();
        let share = encode_address(function);
        if maps.shares.get(&share, 0).is_err() {
            map_result(maps.shares.insert(share, ShareRow::default(), 0))?;
        }
        map_result(
            maps.instances
                .insert(encode_address(eip.0), encode_address(function), 0),
        )?;
        let row = [
            encode_address(function),
            encode_address(eip.0),
            has_gateway.into(),
        ];
        map_result(maps.callers.insert(uid, row, 0))
    }

    /// Hides a frozen instance. It answers nothing, so its address is treated as that of an ended
    /// one. Its own sockets keep their flows.
    pub fn hide_instance(&self, eip: Eip) {
        let _ = self.lock().instances.remove(&encode_address(eip.0)); // it may be hidden already
    }

    /// Shows an instance that [`Self::hide_instance`] has hidden.
    ///
    /// # Errors
    /// Fails when the kernel has no memory.
    pub fn show_instance(&self, eip: Eip, function: Ipv4Addr) -> io::Result<()> {
        let (eip, function) = (encode_address(eip.0), encode_address(function));
        map_result(self.lock().instances.insert(eip, function, 0))
    }

    /// Removes an instance whose processes have ended.
    pub fn remove_instance(&self, uid: u32, eip: Eip) {
        let mut maps = self.lock();
        // Both exist unless admitting failed.
        let _ = maps.callers.remove(&uid);
        let _ = maps.instances.remove(&encode_address(eip.0));
        maps.servers.remove(eip);
    }

    /// Sets the instances over which connections to a function are spread. Uses the first 256.
    ///
    /// # Errors
    /// Fails when the kernel has no memory, or with 65,536 functions.
    pub fn set_backends(&self, function: Ipv4Addr, eips: &[Eip]) -> io::Result<()> {
        let (mut maps, function) = (self.lock(), encode_address(function));
        if eips.is_empty() {
            let _ = maps.backends.remove(&function); // it may have had none
            return Ok(());
        }
        // The turn goes on, so that a change does not favour the first ones.
        let turn = maps.backends.get(&function, 0).map_or(0, |row| row[1]);
        let eips = &eips[..eips.len().min(MAX_BACKENDS)];
        let row = rows::backends_row(turn, eips);
        map_result(maps.backends.insert(function, row, 0))
    }

    /// Permits connections from one function to another. An edge that exists keeps its counters.
    ///
    /// # Errors
    /// Fails when the kernel has no memory, or with 262,144 edges.
    pub fn add_edge(&self, edge: AddressEdge) -> io::Result<()> {
        let (mut maps, key) = (self.lock(), rows::edge_key(edge));
        if maps.edges.get(&key, 0).is_ok() {
            return Ok(());
        }
        let mut row = EdgeRow::default();
        row[0] = self.edge_generation.fetch_add(1, Ordering::Relaxed); // orders nothing
        map_result(maps.edges.insert(key, row, 0))
    }

    /// Denies new connections of an edge; [`Self::cut_undeclared_flows`] ends the others. Returns its
    /// traffic.
    pub fn remove_edge(&self, edge: AddressEdge) -> EdgeTraffic {
        let (mut maps, key) = (self.lock(), rows::edge_key(edge));
        let traffic = maps.edges.get(&key, 0).unwrap_or_default();
        let _ = maps.edges.remove(&key); // it may not exist
        maps.servers.balance_requests(key);
        rows::traffic(traffic)
    }

    /// Removes the counters of a function that no longer exists.
    pub fn remove_function(&self, function: Ipv4Addr) {
        let mut maps = self.lock();
        let _ = maps.shares.remove(&encode_address(function)); // it may never have had an instance here
        let keys: Vec<AddressPair> = maps.denials.keys().flatten().collect();
        for key in keys
            .iter()
            .filter(|key| key.contains(&encode_address(function)))
        {
            if maps.denials.remove(key).is_ok() {
                maps.return_row(key[0]);
            }
        }
    }

    /// Returns the traffic of all edges.
    pub fn edges(&self) -> BTreeMap<AddressEdge, EdgeTraffic> {
        let maps = self.lock();
        let rows = maps.edges.iter().flatten();
        rows.map(|(key, row)| (rows::edge(key), rows::traffic(row)))
            .collect()
    }

    /// Returns the traffic of an edge; `None`: it is not declared.
    pub fn edge_traffic(&self, edge: AddressEdge) -> Option<EdgeTraffic> {
        let row = self.lock().edges.get(&rows::edge_key(edge), 0).ok()?;
        Some(rows::traffic(row))
    }

    /// Returns how often each pair without an edge was denied.
    pub fn denials(&self) -> BTreeMap<AddressEdge, u64> {
        let maps = self.lock();
        let rows = maps.denials.iter().flatten();
        rows.map(|(key, count)| (rows::edge(key), count)).collect()
    }

    /// Returns the refusals of all callers.
    pub fn refusals(&self) -> SwitchRefusals {
        let sum = |index| sum_counter(&self.counters, index);
        SwitchRefusals {
            unknown_caller: sum(1),
            no_memory: sum(2),
        }
    }

    /// Takes the stream of denied connections; `None` when it was taken.
    pub fn take_events(&self) -> Option<DenialEvents> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.take()
    }

    fn lock(&self) -> MutexGuard<'_, SwitchMaps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner) // each map operation is atomic
    }

    fn lock_programs(&self) -> MutexGuard<'_, Ebpf> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner) // only attached to more places
    }
}

impl SwitchMaps {
    /// Gives a row of denied connections back to its caller's share.
    fn return_row(&mut self, caller: u32) {
        let Ok(mut row) = self.shares.get(&caller, 0) else {
            return; // the caller itself was removed
        };
        // A program may take a row meanwhile, and its count is lost: the share is one row larger then.
        row[0] = row[0].saturating_sub(1);
        let _ = self.shares.insert(caller, row, 0); // else the row stays counted
    }

    fn take_from(loaded: &mut Ebpf) -> io::Result<Self> {
        Ok(Self {
            networks: take_map(loaded, "network_settings")?,
            callers: take_map(loaded, "callers")?,
            instances: take_map(loaded, "instances")?,
            backends: take_map(loaded, "function_backends")?,
            edges: take_map(loaded, "edges")?,
            denials: take_map(loaded, "denials")?,
            shares: take_map(loaded, "denial_shares")?,
            node_sockets: take_map(loaded, "node_sockets")?,
            servers: ServerMaps::take_from(loaded)?,
        })
    }
}

fn attach_sock_create(loaded: &mut Ebpf, group: &File) -> io::Result<()> {
    let program: &mut CgroupSock = object::program(loaded, "sock_create")?;
    program.load().map_err(|error| bpf_error(&error))?;
    // Links allow no other mode, and still share the group with other programs.
    let attached = program.attach(group, CgroupAttachMode::Single);
    attached.map(drop).map_err(|error| bpf_error(&error))
}

fn map_result<T>(result: Result<T, MapError>) -> io::Result<T> {
    result.map_err(|error| bpf_error(&error))
}

impl fmt::Debug for VirtualSwitch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualSwitch").finish_non_exhaustive()
    }
}
