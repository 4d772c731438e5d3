//! Sockets of the hub that receive datagrams, each of some instances.

use std::io;

use futures_util::future::select_all;
use nearpath_kernel::sockets::{ReceivedDatagram, receive_datagram};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// Buffer for the largest datagram (RFC 768).
pub(super) const MAX_DATAGRAM_BYTES: usize = 65_535;

/// Datagrams that are read at a time, before other events have their turn.
pub(super) const MAX_BATCH: usize = 64;

/// A socket, and how many datagrams it has lost.
pub(super) struct ReceiveQueue {
    socket: UdpSocket,
    lost: u32,
}

impl ReceiveQueue {
    pub(super) fn new(socket: std::net::UdpSocket) -> io::Result<Self> {
        let socket = UdpSocket::from_std(socket)?;
        Ok(Self { socket, lost: 0 })
    }

    /// Receives a datagram. Returns it with the number of those lost before it.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<(ReceivedDatagram, usize)> {
        let socket = &self.socket;
        let received = socket.try_io(Interest::READABLE, || receive_datagram(socket, buffer))?;
        // The kernel tells the total.
        let lost = received.lost.wrapping_sub(self.lost);
        self.lost = received.lost;
        Ok((received, lost as usize))
    }
}

/// Waits until one of the sockets has a datagram.
pub(super) async fn wait_readable(queues: &[ReceiveQueue]) -> io::Result<()> {
    // Which one is ready does not matter: all are read in turn.
    let waits = queues.iter().map(|queue| Box::pin(queue.socket.readable()));
    select_all(waits).await.0
}
