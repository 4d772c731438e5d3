//! UDP sockets: datagrams in and out, until one becomes QUIC's.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::task::{Context, Poll};

use rustix::net::{SendFlags, sendto};
use tokio::io::ReadBuf;
use tokio::sync::mpsc;

use crate::punch::probe::OPENING_DATAGRAM;

use super::hop_limit::set_hop_limit;

/// Largest datagram that can be a probe or a response, in bytes.
const MAX_DATAGRAM_BYTES: usize = 512;

/// Received datagram: local address, source, content.
pub(super) type ReceivedDatagram = (SocketAddr, SocketAddr, Vec<u8>);

/// UDP sockets of a session.
#[derive(Debug)]
pub(super) struct UdpSockets {
    sockets: VecDeque<BoundSocket>,
}

#[derive(Debug)]
struct BoundSocket {
    base: SocketAddr,
    /// Socket for sending, without the runtime: its readiness may lag behind the kernel's.
    socket: UdpSocket,
    source: DatagramSource,
}

#[derive(Debug)]
enum DatagramSource {
    Socket(tokio::net::UdpSocket),
    /// QUIC reads the socket and diverts what is not its own.
    Diverted(mpsc::Receiver<(SocketAddr, Vec<u8>)>),
}

impl UdpSockets {
    pub(super) fn new(sockets: Vec<(SocketAddr, UdpSocket)>) -> io::Result<Self> {
        let sockets = sockets.into_iter().map(|(base, socket)| {
            let source =
                DatagramSource::Socket(tokio::net::UdpSocket::from_std(socket.try_clone()?)?);
            Ok(BoundSocket {
                base,
                socket,
                source,
            })
        });
        Ok(Self {
            sockets: sockets.collect::<io::Result<_>>()?,
        })
    }

    /// Polls the next datagram. Each socket gets its turn.
    pub(super) fn poll_datagram(&mut self, cx: &mut Context<'_>) -> Poll<ReceivedDatagram> {
        for _ in 0..self.sockets.len() {
            self.sockets.rotate_left(1);
            let Some(socket) = self.sockets.front_mut() else {
                break;
            };
            if let Poll::Ready((from, bytes)) = socket.source.poll(cx) {
                return Poll::Ready((socket.base, from, bytes));
            }
        }
        Poll::Pending
    }

    /// Sends a datagram. What the kernel cannot take or route is lost, as on the network.
    pub(super) fn send(&self, base: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        self.send_with(base, to, |socket| socket.send(to, bytes));
    }

    /// Sends a datagram that opens the own NAT, and expires before the peer's.
    pub(super) fn send_opening(&self, base: SocketAddr, to: SocketAddr, hop_limit: u8) {
        self.send_with(base, to, |socket| socket.send_opening(to, hop_limit));
    }

    fn send_with(
        &self,
        base: SocketAddr,
        to: SocketAddr,
        send: impl FnOnce(&BoundSocket) -> io::Result<()>,
    ) {
        if let Some(socket) = self.sockets.iter().find(|socket| socket.base == base)
            && let Err(error) = send(socket)
        {
            tracing::debug!(%base, %to, %error, "driver: datagram not sent");
        }
    }

    /// Hands a socket over; later datagrams come through the channel.
    pub(super) fn hand_over(
        &mut self,
        base: SocketAddr,
        diverted: mpsc::Receiver<(SocketAddr, Vec<u8>)>,
    ) -> io::Result<UdpSocket> {
        let socket = self
            .sockets
            .iter_mut()
            .find(|socket| socket.base == base)
            .ok_or(io::ErrorKind::NotFound)?;
        // A duplicate descriptor: this side keeps sending probes on the socket that QUIC reads.
        let duplicate = socket.socket.try_clone()?;
        socket.source = DatagramSource::Diverted(diverted);
        Ok(duplicate)
    }
}

impl BoundSocket {
    fn send(&self, to: SocketAddr, bytes: &[u8]) -> io::Result<()> {
        sendto(&self.socket, bytes, SendFlags::DONTWAIT, &to)?;
        Ok(())
    }

    fn send_opening(&self, to: SocketAddr, hop_limit: u8) -> io::Result<()> {
        // No other datagram gets this limit: QUIC takes the socket over after the last opening.
        set_hop_limit(&self.socket, self.base, Some(hop_limit))?;
        let sent = self.send(to, &OPENING_DATAGRAM);
        set_hop_limit(&self.socket, self.base, None)?;
        sent
    }
}

impl DatagramSource {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(SocketAddr, Vec<u8>)> {
        match self {
            Self::Socket(socket) => poll_datagram(socket, cx),
            Self::Diverted(passed) => match passed.poll_recv(cx) {
                Poll::Ready(Some(received)) => Poll::Ready(received),
                // A closed channel means that QUIC has ended: no datagram will follow.
                Poll::Ready(None) | Poll::Pending => Poll::Pending,
            },
        }
    }
}

fn poll_datagram(
    socket: &tokio::net::UdpSocket,
    cx: &mut Context<'_>,
) -> Poll<(SocketAddr, Vec<u8>)> {
    // One byte more, so that a longer datagram is noticed instead of truncated.
    let mut bytes = [0; MAX_DATAGRAM_BYTES + 1];
    loop {
        let mut buf = ReadBuf::new(&mut bytes);
        match socket.poll_recv_from(cx, &mut buf) {
            Poll::Ready(Ok(from)) if buf.filled().len() <= MAX_DATAGRAM_BYTES => {
                return Poll::Ready((from, buf.filled().to_vec()));
            }
            Poll::Ready(_) => (), // an error of an earlier datagram, or too long: read the next one
            Poll::Pending => return Poll::Pending,
        }
    }
}
