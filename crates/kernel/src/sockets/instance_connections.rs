//! Connections of an instance that show whether it has calls.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;

use super::{DumpedSocket, SocketDump, SocketProtocol};
use crate::namespace::run_in_netns;

/// The node's user. Its sockets inside an instance belong to the gateway.
const NODE_UID: u32 = 0;

/// Returns whether an instance has a connection of the gateway, or of another caller of its
/// watchdog. `watchdog` is the port at the instance's address.
///
/// The instance's own calls do not count, nor do connections of other instances to other ports.
///
/// # Errors
/// Fails when the namespace cannot be entered.
pub fn has_calls(netns: impl AsFd, address: Ipv4Addr, watchdog: u16) -> io::Result<bool> {
    let sockets = run_in_netns(netns, SocketDump::open)?;
    let listed = sockets.list_plain(SocketProtocol::Tcp)?;
    Ok(listed
        .iter()
        .any(|socket| is_call(socket, address, watchdog)))
}

fn is_call(socket: &DumpedSocket, address: Ipv4Addr, watchdog: u16) -> bool {
    let (Some(local), Some(peer)) = (socket.ipv4_local(), socket.ipv4_peer()) else {
        // The gateway's connection to a server at ::1.
        return socket.uid == NODE_UID && socket.has_peer() && socket.local_port() != watchdog;
    };
    let to_watchdog = local == address && socket.local_port() == watchdog;
    // The gateway's listener inside has the watchdog's port, too: it accepts the instance's calls.
    let to_server = socket.uid == NODE_UID && peer.is_loopback() && socket.local_port() != watchdog;
    to_watchdog || to_server
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_the_gateway_and_to_the_watchdog_are_calls() {
        let address = Ipv4Addr::new(10, 62, 0, 7);
        for (uid, local, peer, is_a_call) in [
            // At the watchdog.
            (5000, "10.62.0.7:8080", "10.62.0.1:40000", true),
            (5000, "10.62.0.7:8080", "10.62.0.9:40000", true),
            // The gateway at the function's own server, and the server's end.
            (0, "127.0.0.1:40001", "127.0.0.1:5000", true),
            (5000, "127.0.0.1:5000", "127.0.0.1:40001", false),
            // The function calls others.
            (0, "127.0.0.2:8080", "127.0.0.1:40002", false),
            (5000, "127.0.0.1:40002", "127.0.0.2:8080", false),
            (5000, "10.62.0.7:40003", "10.62.0.9:6379", false),
            // Another instance at a port of its own.
            (5000, "10.62.0.7:6379", "10.62.0.9:40000", false),
        ] {
            let peer = peer.parse().unwrap();
            let mut socket = DumpedSocket::with_peer(SocketProtocol::Tcp, peer);
            socket.set_local(local.parse().unwrap());
            socket.uid = uid;
            assert_eq!(is_call(&socket, address, 8080), is_a_call, "{local} {peer}");
        }
    }
}
