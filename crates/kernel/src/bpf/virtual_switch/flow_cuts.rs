//! Ends the connections of instances whose edge is no longer declared, UDP sockets whose peer has
//! ended, and connections to frozen instances.
//!
//! The kernel lists the sockets of an instance's network namespace, each of TCP with the flow that
//! `bpf/vip.c` stored with it. No table of flows exists that an instance could fill.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

use aya::maps::Map;
use nearpath_types::Eip;

use super::rows::{self, AddressPair, NetworksRow, encode_address};
use super::{SwitchMaps, VirtualSwitch};
use crate::namespace::run_in_netns;
use crate::sockets::{DumpedSocket, SocketDump, SocketProtocol};

/// A listing may miss sockets while others end, so it is repeated until nothing is left.
const MAX_ROUNDS: usize = 16;
/// `ANSWER_MARK` of `bpf/vip.c`: the socket connected to a peer that it answers.
const ANSWER_MARK: u32 = 1;

/// Declared edges, and the functions of addresses.
trait FlowPolicy {
    fn is_declared(&self, edge: AddressPair) -> bool;
    fn destination_at(&self, address: u32) -> FlowDestination;
}

/// Destination of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FlowDestination {
    /// A function, or one of its instances.
    Function(u32),
    /// An address of instances that none has: its instance has ended.
    EndedInstance,
    /// Neither of both.
    Other,
}

impl VirtualSwitch {
    /// Ends the connected TCP and UDP sockets in an instance's network namespace for which no edge
    /// is declared, whoever holds them. Returns how many.
    ///
    /// UDP sockets whose instance has ended are among them: they would reach the next instance with
    /// its address. TCP tells its peers of an end by itself.
    ///
    /// A connect that was permitted before the edge was removed may complete later than this
    /// listing. So callers repeat it after a while.
    ///
    /// # Errors
    /// Fails without `CAP_NET_ADMIN`, or on a kernel without `CONFIG_INET_DIAG_DESTROY`.
    pub fn cut_undeclared_flows(&self, netns: impl AsFd, eip: Eip) -> io::Result<usize> {
        let sockets = run_in_netns(netns, SocketDump::open)?;
        let cut = destroy_listed(&sockets, || self.undeclared_sockets(&sockets, eip))?;
        self.cut_flows.fetch_add(cut as u64, Ordering::Relaxed); // orders nothing
        Ok(cut)
    }

    /// Returns how many flows were cut since the switch was attached.
    pub fn cut_flows(&self) -> u64 {
        self.cut_flows.load(Ordering::Relaxed) // orders nothing
    }

    fn undeclared_sockets(&self, sockets: &SocketDump, eip: Eip) -> io::Result<Vec<DumpedSocket>> {
        let mut listed = sockets.list(self.flows_map()?)?;
        // Locked only now: a listing may take long.
        let maps = self.lock();
        let Ok(function) = maps.instances.get(&encode_address(eip.0), 0) else {
            return Ok(Vec::new());
        };
        let instance = [function, encode_address(eip.0)];
        listed.retain(|socket| is_undeclared(socket, instance, &*maps));
        Ok(listed)
    }

    pub(super) fn flows_map(&self) -> io::Result<BorrowedFd<'_>> {
        match &self.flows {
            Map::SkStorage(map) => Ok(map.fd().as_fd()),
            _ => Err(io::Error::other(
                "bpf/lib/switch_tables.h has no map `flows`",
            )),
        }
    }
}

impl FlowPolicy for SwitchMaps {
    fn is_declared(&self, edge: AddressPair) -> bool {
        self.edges.get(&edge, 0).is_ok()
    }

    fn destination_at(&self, address: u32) -> FlowDestination {
        let Ok(networks) = self.networks.get(&0, 0) else {
            return FlowDestination::Other;
        };
        if is_in(address, &networks[..2]) {
            return FlowDestination::Function(address);
        }
        match self.instances.get(&address, 0) {
            Ok(function) => FlowDestination::Function(function),
            Err(_) if is_instance(address, &networks) => FlowDestination::EndedInstance,
            Err(_) => FlowDestination::Other,
        }
    }
}

/// Returns whether an address may be an instance's, not the node's own in the same network.
fn is_instance(address: u32, networks: &NetworksRow) -> bool {
    is_in(address, &networks[2..4]) && address != networks[4]
}

pub(super) fn is_in(address: u32, network: &[u32]) -> bool {
    address & network[1] == network[0]
}

/// Returns whether no edge permits a socket of an instance, given by function and eIP.
fn is_undeclared(
    socket: &DumpedSocket,
    [function, eip]: [u32; 2],
    policy: &impl FlowPolicy,
) -> bool {
    let Some(peer) = socket.ipv4_peer().filter(|_| socket.has_peer()) else {
        return false;
    };
    let peer = encode_address(peer);
    match socket.protocol {
        // It cannot connect again without another decision, which changes its flow.
        SocketProtocol::Tcp => {
            let flow = socket.stored.as_deref().and_then(rows::decode_flow);
            flow.is_some_and(|flow| flow.destination == peer && !policy.is_declared(flow.edge))
        }
        // The kernel does not list its flow, which may be that of a datagram to another function.
        SocketProtocol::Udp => match policy.destination_at(peer) {
            FlowDestination::Function(callee) if peer != eip => {
                let is_answer = socket.mark == ANSWER_MARK;
                let answers = is_answer && policy.is_declared([callee, function]);
                !policy.is_declared([function, callee]) && !answers
            }
            FlowDestination::EndedInstance => true,
            FlowDestination::Function(_) | FlowDestination::Other => false,
        },
    }
}

/// Destroys the listed sockets, until a listing has none that can be found. Returns how many.
pub(super) fn destroy_listed(
    sockets: &SocketDump,
    list: impl Fn() -> io::Result<Vec<DumpedSocket>>,
) -> io::Result<usize> {
    let mut total = 0;
    for _ in 0..MAX_ROUNDS {
        match destroy_all(sockets, &list()?)? {
            0 => break,
            destroyed => total += destroyed,
        }
    }
    Ok(total)
}

/// Destroys sockets by their exact identities. Returns how many were found.
fn destroy_all(sockets: &SocketDump, all: &[DumpedSocket]) -> io::Result<usize> {
    let mut missed = Vec::new();
    for socket in all {
        if !sockets.destroy(socket)? {
            missed.push(socket);
        }
    }
    let mut destroyed = all.len() - missed.len();
    // The kernel finds one of several UDP sockets with equal addresses (SO_REUSEPORT): the first or the
    // last of the listing. So both orders are tried.
    for socket in missed.into_iter().rev() {
        destroyed += usize::from(sockets.destroy(socket)?);
    }
    Ok(destroyed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// Function 2 with instance 2 calls function 3, whose instance is 3, and is called by 4 and 5.
    struct SamplePolicy;

    const INSTANCE: [u8; 4] = [10, 62, 0, 2];

    fn function(number: u8) -> u32 {
        encode_address([10, 60, 0, number].into())
    }

    impl FlowPolicy for SamplePolicy {
        fn is_declared(&self, edge: AddressPair) -> bool {
            [(2, 3), (4, 2), (5, 2)]
                .iter()
                .any(|(caller, callee)| edge == [function(*caller), function(*callee)])
        }

        fn destination_at(&self, address: u32) -> FlowDestination {
            match Ipv4Addr::from(address.to_ne_bytes()).octets() {
                [10, 62, 0, 9] => FlowDestination::EndedInstance,
                [10, 62, 0, number] => FlowDestination::Function(function(number)),
                [10, 60, ..] => FlowDestination::Function(address),
                _ => FlowDestination::Other,
            }
        }
    }

    fn is_cut(socket: &DumpedSocket) -> bool {
        let instance = [function(2), encode_address(INSTANCE.into())];
        is_undeclared(socket, instance, &SamplePolicy)
    }

    fn udp(peer: [u8; 4], mark: u32) -> DumpedSocket {
        let peer = std::net::SocketAddrV4::new(peer.into(), 7000);
        let mut socket = DumpedSocket::with_peer(SocketProtocol::Udp, peer);
        socket.mark = mark;
        socket
    }

    /// A connection to instance 6, with a flow of an edge to `callee` by `eip`.
    fn tcp(callee: u8, eip: [u8; 4]) -> DumpedSocket {
        let peer = "10.62.0.6:7000".parse().unwrap();
        let mut flow = vec![0; rows::FLOW_BYTES];
        flow[16..20].copy_from_slice(&function(2).to_ne_bytes());
        flow[20..24].copy_from_slice(&function(callee).to_ne_bytes());
        flow[24..28].copy_from_slice(&eip);
        let mut socket = DumpedSocket::with_peer(SocketProtocol::Tcp, peer);
        socket.stored = Some(flow);
        socket
    }

    /// Virtual addresses, instances, and the node's own address among these.
    fn sample_networks() -> NetworksRow {
        let mask = [255, 255, 0, 0];
        let parts = [[10, 60, 0, 0], mask, [10, 62, 0, 0], mask, [10, 62, 0, 1]];
        let mut row = NetworksRow::default();
        row[..5].copy_from_slice(&parts.map(|part| encode_address(part.into())));
        row
    }

    #[test]
    fn the_peer_of_a_udp_socket_decides() {
        for (peer, mark, cut) in [
            ([10, 62, 0, 3], 0, false),
            ([10, 60, 0, 3], 0, false),
            ([10, 62, 0, 6], 0, true),
            ([10, 60, 0, 6], 0, true),
            // It answers a caller, or it calls one.
            ([10, 62, 0, 4], ANSWER_MARK, false),
            ([10, 62, 0, 4], 0, true),
            // The caller's edge is gone.
            ([10, 62, 0, 6], ANSWER_MARK, true),
            // Its instance has ended.
            ([10, 62, 0, 9], 0, true),
            ([10, 62, 0, 9], ANSWER_MARK, true),
            // Not another instance.
            (INSTANCE, 0, false),
            ([127, 0, 0, 53], 0, false),
            ([192, 0, 2, 1], 0, false),
        ] {
            assert_eq!(is_cut(&udp(peer, mark)), cut, "{peer:?} {mark}");
        }
    }

    #[test]
    fn the_nodes_own_address_is_no_instances() {
        let networks = sample_networks();
        for (address, expected) in [
            ([10, 62, 0, 1], false),
            ([10, 62, 0, 2], true),
            ([10, 63, 0, 2], false),
        ] {
            let is_instance = is_instance(encode_address(address.into()), &networks);
            assert_eq!(is_instance, expected, "{address:?}");
        }
    }

    #[test]
    fn the_flow_of_a_connection_decides() {
        assert!(is_cut(&tcp(6, [10, 62, 0, 6])));
        assert!(!is_cut(&tcp(3, [10, 62, 0, 6])), "declared");
        assert!(!is_cut(&tcp(6, [10, 62, 0, 7])), "of an earlier connect");
        let mut accepted = tcp(6, [10, 62, 0, 6]);
        accepted.stored = None;
        assert!(!is_cut(&accepted));
    }
}
