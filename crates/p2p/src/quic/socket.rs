//! A UDP socket of which QUIC reads what is its own, and the punching machine the rest.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::sync::mpsc;

/// Probes begin so; no QUIC packet does (`contract/punch.md`).
const PROBE_FIRST_BYTE: u8 = 0x0e;

/// Wraps a socket of quinn's.
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
    /// Passes probes on, and leaves nothing of them. A kernel may hand over several datagrams of one length as one.
    fn divert_probes(&self, bytes: &[u8], meta: &mut RecvMeta) {
        if bytes.first() != Some(&PROBE_FIRST_BYTE) {
            return;
        }
        for probe in bytes[..meta.len].chunks(meta.stride.max(1)) {
            let _ = self.probes.try_send((meta.addr, probe.to_vec())); // what finds no room is lost, as on the network
        }
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
