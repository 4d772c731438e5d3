//! UDP sockets: datagrams in and out, until one becomes QUIC's.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::task::{Context, Poll};

use rustix::net::{SendFlags, sendto};
use tokio::io::ReadBuf;
use tokio::sync::mpsc;

/// A longer datagram is no probe and no answer.
const LONGEST: usize = 512;

/// A datagram that came, by the socket's base and where it came from.
pub(super) type Came = (SocketAddr, SocketAddr, Vec<u8>);

/// All of them.
#[derive(Debug)]
pub(super) struct Datagrams {
    sockets: VecDeque<Socket>,
}

#[derive(Debug)]
struct Socket {
    base: SocketAddr,
    /// For sending: without the runtime, which may not know yet that there is room.
    socket: UdpSocket,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Socket(tokio::net::UdpSocket),
    /// QUIC reads the socket, and passes on what is none of its own.
    Passed(mpsc::Receiver<(SocketAddr, Vec<u8>)>),
}

impl Datagrams {
    pub(super) fn new(sockets: Vec<(SocketAddr, UdpSocket)>) -> io::Result<Self> {
        let sockets = sockets.into_iter().map(|(base, socket)| {
            let source = Source::Socket(tokio::net::UdpSocket::from_std(socket.try_clone()?)?);
            Ok(Socket { base, socket, source })
        });
        Ok(Self { sockets: sockets.collect::<io::Result<_>>()? })
    }

    /// The next datagram. Each socket has its turn.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Came> {
        for _ in 0..self.sockets.len() {
            self.sockets.rotate_left(1);
            let Some(socket) = self.sockets.front_mut() else { break };
            if let Poll::Ready((from, bytes)) = socket.source.poll(cx) {
                return Poll::Ready((socket.base, from, bytes));
            }
        }
        Poll::Pending
    }

    /// Sends; what the kernel has no room or no way for is lost, as on the network.
    pub(super) fn send(&self, base: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        if let Some(socket) = self.sockets.iter().find(|socket| socket.base == base)
            && let Err(error) = sendto(&socket.socket, bytes, SendFlags::DONTWAIT, &to)
        {
            tracing::debug!(%base, %to, %error, "a datagram was not sent");
        }
    }

    /// Gives a socket away; from now on its datagrams are what comes through the channel.
    pub(super) fn give(
        &mut self,
        base: SocketAddr,
        passed: mpsc::Receiver<(SocketAddr, Vec<u8>)>,
    ) -> io::Result<UdpSocket> {
        let socket = self.sockets.iter_mut().find(|socket| socket.base == base).ok_or(io::ErrorKind::NotFound)?;
        let given = socket.socket.try_clone()?;
        socket.source = Source::Passed(passed);
        Ok(given)
    }
}

impl Source {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(SocketAddr, Vec<u8>)> {
        match self {
            Self::Socket(socket) => receive(socket, cx),
            Self::Passed(passed) => match passed.poll_recv(cx) {
                Poll::Ready(Some(came)) => Poll::Ready(came),
                Poll::Ready(None) | Poll::Pending => Poll::Pending,
            },
        }
    }
}

fn receive(socket: &tokio::net::UdpSocket, cx: &mut Context<'_>) -> Poll<(SocketAddr, Vec<u8>)> {
    let mut bytes = [0; LONGEST + 1];
    loop {
        let mut buf = ReadBuf::new(&mut bytes);
        match socket.poll_recv_from(cx, &mut buf) {
            Poll::Ready(Ok(from)) if buf.filled().len() <= LONGEST => {
                return Poll::Ready((from, buf.filled().to_vec()));
            }
            Poll::Ready(_) => (), // an error of an earlier datagram's, or one that is too long: the next one
            Poll::Pending => return Poll::Pending,
        }
    }
}
