//! What a UDP socket needs to carry QUIC well: room for a burst, and datagrams that pass the kernel in batches.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};

use quinn::udp::UdpSocketState;
use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_send_buffer_size, socket_recv_buffer_size,
    socket_send_buffer_size,
};

/// Octets of buffer that are asked for, each way: a burst of first flights comes before the thread that reads them runs. Linux gives as
/// many as `net.core.rmem_max` and `net.core.wmem_max` allow, which is 208 KB where nobody has changed them.
pub const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// What this machine gives such a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpCapabilities {
    /// Octets that wait to be read, of [`BUFFER`] asked for.
    pub receive_buffer: usize,
    /// Octets that wait to be sent.
    pub send_buffer: usize,
    /// Datagrams that go out with one system call (generic segmentation offload); 1: it is not to be had.
    pub max_send_batch: usize,
    /// Datagrams that come in with one (generic receive offload); 1: it is not to be had.
    pub max_receive_batch: usize,
}

/// Asks for the buffers. Less than asked for works, too: bursts are then lost and sent again.
pub fn request_buffers(socket: &UdpSocket) {
    let _ = set_socket_recv_buffer_size(socket, SOCKET_BUFFER_BYTES);
    let _ = set_socket_send_buffer_size(socket, SOCKET_BUFFER_BYTES);
}

/// Tries it with a socket on loopback, over which nothing is sent.
///
/// # Errors
/// When there is no UDP at all.
pub fn probe_capabilities() -> io::Result<UdpCapabilities> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    request_buffers(&socket);
    let state = UdpSocketState::new((&socket).into())?;
    // socket(7): the kernel doubles what was asked for, for its own book-keeping, and says so when it is asked.
    let (receive_buffer, send_buffer) = (
        socket_recv_buffer_size(&socket)? / 2,
        socket_send_buffer_size(&socket)? / 2,
    );
    Ok(UdpCapabilities {
        receive_buffer,
        send_buffer,
        max_send_batch: state.max_gso_segments(),
        max_receive_batch: state.gro_segments(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_grow_to_what_was_requested_or_allowed() {
        let plain = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let capabilities = probe_capabilities().unwrap();
        assert!(
            capabilities.receive_buffer == SOCKET_BUFFER_BYTES
                || capabilities.receive_buffer * 2 >= socket_recv_buffer_size(&plain).unwrap()
        );
        assert!(
            capabilities.receive_buffer <= SOCKET_BUFFER_BYTES
                && capabilities.send_buffer <= SOCKET_BUFFER_BYTES
                && capabilities.max_send_batch >= 1
                && capabilities.max_receive_batch >= 1
        );
    }
}
