//! UDP socket whose QUIC packets go to quinn, and whose probes go to the punching state machine.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::sync::mpsc;

/// First byte of probes; no QUIC packet begins so (`contract/punch.md`, RFC 9443).
const PROBE_FIRST_BYTE: u8 = 0x0e;

/// Wraps a socket of quinn.
pub(super) struct DemuxSocket {
    pub(super) socket: Arc<dyn AsyncUdpSocket>,
    pub(super) probes: mpsc::Sender<(SocketAddr, Vec<u8>)>,
}

impl fmt::Debug for DemuxSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shared").field(&self.socket).finish()
    }
}

impl DemuxSocket {
    /// Diverts probes, and leaves nothing of them for quinn.
    ///
    /// With GRO the kernel hands over several datagrams of one length as one buffer.
    fn divert_probes(&self, bytes: &[u8], meta: &mut RecvMeta) {
        if bytes.first() != Some(&PROBE_FIRST_BYTE) {
            return;
        }
        // A mixed buffer goes by its first datagram: the wrong reader drops the rest, and its
        // sender repeats it.
        for probe in bytes[..meta.len].chunks(meta.stride.max(1)) {
            // A full queue loses probes, as the network does.
            let _ = self.probes.try_send((meta.addr, probe.to_vec()));
        }
        // A length of 0 makes quinn skip the entry.
        meta.len = 0;
    }
}

impl AsyncUdpSocket for DemuxSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.socket).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let n = ready!(self.socket.poll_recv(cx, bufs, meta))?;
        for (buf, meta) in bufs.iter().zip(meta).take(n) {
            self.divert_probes(buf, meta);
        }
        Poll::Ready(Ok(n))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.socket.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}
