//! Handed-out sockets show the address that their function connected to as their peer.

use nearpath_kernel::bpf::PeerNames;
use tokio::net::TcpStream;

use super::driver::ConnectionPool;
use crate::destination::EgressDestination;

impl ConnectionPool {
    /// Starts to name the peers of sockets for handover.
    pub fn enable_peer_names(&self, names: PeerNames) {
        self.peer_names.replace(Some(names));
    }

    /// Names the peer of a new connection. A function may connect to its peer again: it reaches the
    /// visible address, and not the destination's own.
    pub(super) fn name_peer(&self, to: &EgressDestination, stream: &TcpStream) {
        let mut names = self.peer_names.borrow_mut();
        let Some(names) = names.as_mut().filter(|_| to.can_be_handed_over()) else {
            return;
        };
        // The connection works without the name, so a failure is only logged.
        if let Err(error) = names.set_peer_name(stream, to.visible_addr()) {
            tracing::debug!(to = to.key.host_port, %error, "peer name: cannot set it, functions see the destination's own address");
        }
    }
}
