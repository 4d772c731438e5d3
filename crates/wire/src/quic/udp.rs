//! UDP sockets for QUIC: buffers for bursts, and datagrams in batches.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};

use quinn::udp::UdpSocketState;
use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_send_buffer_size, socket_recv_buffer_size,
    socket_send_buffer_size,
};

/// Requested buffer size in octets, for each direction: a burst of first flights arrives before the
/// reading thread runs. Linux limits it to `net.core.rmem_max` and `net.core.wmem_max`, 208 KB by
/// default.
pub const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// Buffers and batches that this machine provides for such a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpCapabilities {
    /// Receive buffer in octets, of [`SOCKET_BUFFER_BYTES`] requested.
    pub receive_buffer: usize,
    /// Send buffer in octets.
    pub send_buffer: usize,
    /// Datagrams per system call when sending (generic segmentation offload); 1: unavailable.
    pub max_send_batch: usize,
    /// Datagrams per system call when receiving (generic receive offload); 1: unavailable.
    pub max_receive_batch: usize,
}

/// Requests the buffers. Smaller ones work, too: bursts are then lost and sent again.
pub fn request_buffers(socket: &UdpSocket) {
    // Errors are ignored: QUIC works with the default sizes, too.
    let _ = set_socket_recv_buffer_size(socket, SOCKET_BUFFER_BYTES);
    let _ = set_socket_send_buffer_size(socket, SOCKET_BUFFER_BYTES);
}

/// Probes a socket on loopback, without sending anything.
///
/// # Errors
/// When UDP is unavailable.
pub fn probe_capabilities() -> io::Result<UdpCapabilities> {
    // The offloads are properties of the kernel and the socket, so loopback is representative.
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    request_buffers(&socket);
    let state = UdpSocketState::new((&socket).into())?;
    // The kernel reports twice the requested size, which includes its own overhead (socket(7)).
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
