//! Connections to an instance that is to be frozen: it has to be idle, and no caller may wait for it then.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use nearpath_types::Eip;

use super::flow_cuts::{destroy_listed, is_in};
use super::rows::{NetworksRow, encode_address};
use super::{VirtualSwitch, map_result};
use crate::namespace::run_in_netns;
use crate::sockets::{DumpedSocket, SocketDump, SocketProtocol};

/// The node's user. Its sockets inside an instance belong to the gateway.
const NODE_UID: u32 = 0;
/// Time without a byte after which a connection of another instance counts as idle.
const QUIET_INTERVAL: Duration = Duration::from_secs(1);

/// Purpose of a connection.
#[derive(Debug, PartialEq, Eq)]
enum ConnectionKind {
    /// The gateway calls the watchdog or the function's own server.
    OfGateway,
    /// Another instance, or the node for it, has connected to a port of the function.
    OfOthers,
    /// The instance's own.
    Own,
}

impl VirtualSwitch {
    /// Returns whether an instance has a connection of the gateway for calls, or one of another instance with
    /// traffic in the last second. `watchdog` is the port of its watchdog.
    ///
    /// # Errors
    /// Fails when the namespace cannot be entered.
    pub fn has_calls(&self, netns: impl AsFd, eip: Eip, watchdog: u16) -> io::Result<bool> {
        let sockets = run_in_netns(netns, SocketDump::open)?;
        let networks = self.networks()?;
        let listed = sockets.list(self.flows_map()?)?;
        Ok(listed
            .iter()
            .any(|socket| match kind_of(socket, eip, &networks, watchdog) {
                ConnectionKind::OfGateway => true,
                // The kernel knows no requests: a silent connection hardly has an open one.
                ConnectionKind::OfOthers => {
                    socket.quiet_time.is_none_or(|time| time < QUIET_INTERVAL)
                }
                ConnectionKind::Own => false,
            }))
    }

    /// Ends the TCP connections of other instances to a frozen one, which would get no answer.
    /// Returns how many.
    ///
    /// Those of the gateway to its watchdog stay, and those that it has made itself.
    ///
    /// # Errors
    /// As [`Self::cut_undeclared_flows`].
    pub fn cut_accepted(&self, netns: impl AsFd, eip: Eip, watchdog: u16) -> io::Result<usize> {
        let sockets = run_in_netns(netns, SocketDump::open)?;
        let networks = self.networks()?;
        destroy_listed(&sockets, || {
            let mut listed = sockets.list(self.flows_map()?)?;
            listed.retain(|socket| {
                kind_of(socket, eip, &networks, watchdog) == ConnectionKind::OfOthers
            });
            Ok(listed)
        })
    }

    fn networks(&self) -> io::Result<NetworksRow> {
        map_result(self.lock().networks.get(&0, 0))
    }
}

fn kind_of(
    socket: &DumpedSocket,
    eip: Eip,
    networks: &NetworksRow,
    watchdog: u16,
) -> ConnectionKind {
    // A datagram that is lost is no call that waits.
    if socket.protocol == SocketProtocol::Udp || !socket.has_peer() {
        return ConnectionKind::Own;
    }
    let (local, peer) = (socket.ipv4_local(), socket.ipv4_peer());
    let is_of_node = socket.uid == NODE_UID && socket.local_port() != watchdog;
    // The gateway at the function's own server, also at ::1. Its listener inside has the watchdog's port.
    if is_of_node && peer.is_none_or(|peer| peer.is_loopback()) {
        return ConnectionKind::OfGateway;
    }
    let Some(peer) = peer.map(encode_address).filter(|_| local == Some(eip.0)) else {
        return ConnectionKind::Own;
    };
    let is_gateway = peer == networks[4];
    // Its own connections have a flow, or lead to the gateway's port.
    let is_own = socket.stored.is_some() || (is_gateway && socket.peer_port() == watchdog);
    match (is_own, socket.local_port() == watchdog && is_gateway) {
        (false, true) => ConnectionKind::OfGateway,
        (false, false) if is_in(peer, &networks[2..4]) => ConnectionKind::OfOthers,
        _ => ConnectionKind::Own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn connections_are_told_apart() {
        use ConnectionKind::{OfGateway, OfOthers, Own};
        let address = |octets: [u8; 4]| encode_address(octets.into());
        let mut networks = NetworksRow::default();
        networks[2..5].copy_from_slice(&[
            address([10, 62, 0, 0]),
            address([255, 255, 0, 0]),
            address([10, 62, 0, 1]),
        ]);
        for (uid, local, peer, has_flow, kind) in [
            // At the watchdog, and at the function's own server on an edge that balances connections.
            (5000, "10.62.0.7:8080", "10.62.0.1:40000", false, OfGateway),
            (5000, "10.62.0.7:8080", "10.62.0.9:40000", false, OfOthers),
            // The gateway at the own server, and the server's end.
            (0, "127.0.0.1:40001", "127.0.0.1:5000", false, OfGateway),
            (5000, "127.0.0.1:5000", "127.0.0.1:40001", false, Own),
            // The function calls others.
            (0, "127.0.0.2:8080", "127.0.0.1:40002", false, Own),
            (5000, "127.0.0.1:40002", "127.0.0.2:8080", true, Own),
            (5000, "10.62.0.7:40003", "10.62.0.9:6379", true, Own),
            (5000, "10.62.0.7:40003", "10.62.0.1:8080", false, Own),
            (5000, "10.62.0.7:40003", "10.61.0.2:5432", false, Own),
            // At a port of its own, also through the node.
            (5000, "10.62.0.7:6379", "10.62.0.9:40000", false, OfOthers),
            (5000, "10.62.0.7:6379", "10.62.0.1:40000", false, OfOthers),
        ] {
            let mut socket = DumpedSocket::with_peer(SocketProtocol::Tcp, peer.parse().unwrap());
            socket.set_local(local.parse().unwrap());
            socket.uid = uid;
            socket.stored = has_flow.then(Vec::new);
            let eip = Eip(Ipv4Addr::new(10, 62, 0, 7));
            let found = kind_of(&socket, eip, &networks, 8080);
            assert_eq!(found, kind, "{local} {peer}");
        }
    }
}
