//! What a UDP socket needs to carry QUIC well: room for a burst, and datagrams that pass the kernel in batches.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};

use quinn::udp::UdpSocketState;
use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_send_buffer_size, socket_recv_buffer_size, socket_send_buffer_size,
};

/// Octets of buffer that are asked for, each way: a burst of first flights comes before the thread that reads them runs. Linux gives as
/// many as `net.core.rmem_max` and `net.core.wmem_max` allow, which is 208 KB where nobody has changed them.
pub const BUFFER: usize = 4 << 20;

/// What this machine gives such a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Given {
    /// Octets that wait to be read, of [`BUFFER`] asked for.
    pub receive: usize,
    /// Octets that wait to be sent.
    pub send: usize,
    /// Datagrams that go out with one system call (generic segmentation offload); 1: it is not to be had.
    pub batch_out: usize,
    /// Datagrams that come in with one (generic receive offload); 1: it is not to be had.
    pub batch_in: usize,
}

/// Asks for the buffers. Less than asked for works, too: bursts are then lost and sent again.
pub fn prepare(socket: &UdpSocket) {
    let _ = set_socket_recv_buffer_size(socket, BUFFER);
    let _ = set_socket_send_buffer_size(socket, BUFFER);
}

/// Tries it with a socket on loopback, over which nothing is sent.
///
/// # Errors
/// When there is no UDP at all.
pub fn try_out() -> io::Result<Given> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    prepare(&socket);
    let state = UdpSocketState::new((&socket).into())?;
    // socket(7): the kernel doubles what was asked for, for its own book-keeping, and says so when it is asked.
    let (receive, send) = (socket_recv_buffer_size(&socket)? / 2, socket_send_buffer_size(&socket)? / 2);
    Ok(Given { receive, send, batch_out: state.max_gso_segments(), batch_in: state.gro_segments() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_given_than_a_socket_has_by_itself_or_as_much_as_was_asked_for() {
        let plain = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let given = try_out().unwrap();
        assert!(given.receive == BUFFER || given.receive * 2 >= socket_recv_buffer_size(&plain).unwrap());
        assert!(given.receive <= BUFFER && given.send <= BUFFER && given.batch_out >= 1 && given.batch_in >= 1);
    }
}
