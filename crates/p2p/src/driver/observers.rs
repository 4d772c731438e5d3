//! Asking the rendezvous under which addresses it sees the ports.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::punch::Transport;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use super::local_ports;
use super::udp::UdpSockets;

/// A question over UDP goes so often, and again after so long, then twice that, and so on.
const MAX_REQUESTS: u32 = 6;
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(100);
/// An answer over TCP may take so long, with the connection.
const TCP_RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// An answer is no longer.
const MAX_RESPONSE_BYTES: usize = 512;

/// What is asked, and how the answer is read: the words are the rendezvous' (`contract/rendezvous.md`).
pub trait BindingProtocol: fmt::Debug + Send + Sync {
    /// A question; over TCP it is all that is written.
    fn request(&self) -> Vec<u8>;

    /// The address that an answer tells; `NoConnection`: it is none, or over TCP not all of it.
    fn parse_response(&self, bytes: &[u8]) -> Option<SocketAddr>;
}

/// Whom to ask.
#[derive(Debug, Clone)]
pub struct ObserverSet {
    /// Those that listen on UDP. Of each family the first one is asked.
    pub udp: Vec<SocketAddr>,
    /// Those that listen on TCP, likewise.
    pub tcp: Vec<SocketAddr>,
    /// How.
    pub protocol: Arc<dyn BindingProtocol>,
}

/// What is seen of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReflexiveAddress {
    pub(super) transport: Transport,
    pub(super) base: SocketAddr,
    pub(super) addr: SocketAddr,
}

/// The questions that are open.
#[derive(Debug)]
pub(super) struct ObserverQueries {
    protocol: Arc<dyn BindingProtocol>,
    udp_requests: Vec<ObserverRequest>,
    tcp_requests: JoinSet<io::Result<(ReflexiveAddress, TcpStream)>>,
    /// Connections to the rendezvous; as long as they are there, NATs remember the port.
    kept_streams: Vec<TcpStream>,
}

#[derive(Debug)]
struct ObserverRequest {
    base: SocketAddr,
    observer: SocketAddr,
    sent_count: u32,
    next_send_at: Instant,
}

impl ObserverQueries {
    pub(super) fn new(
        observers: &ObserverSet,
        udp: &[SocketAddr],
        tcp: &[SocketAddr],
        now: Instant,
    ) -> Self {
        let first = |all: &[SocketAddr], base: &SocketAddr| {
            all.iter()
                .find(|to| to.is_ipv4() == base.is_ipv4())
                .copied()
        };
        let targets = udp
            .iter()
            .filter_map(|base| Some((*base, first(&observers.udp, base)?)));
        let udp_requests = targets
            .map(|(base, to)| ObserverRequest {
                base,
                observer: to,
                sent_count: 0,
                next_send_at: now,
            })
            .collect();
        let mut dials = JoinSet::new();
        for (base, to) in tcp
            .iter()
            .filter_map(|base| Some((*base, first(&observers.tcp, base)?)))
        {
            let protocol = Arc::clone(&observers.protocol);
            dials.spawn(async move {
                tokio::time::timeout(TCP_RESPONSE_TIMEOUT, request_over_tcp(base, to, &*protocol))
                    .await?
            });
        }
        Self {
            protocol: Arc::clone(&observers.protocol),
            udp_requests,
            tcp_requests: dials,
            kept_streams: Vec::new(),
        }
    }

    /// Asks what is to be asked (again).
    pub(super) fn send_due(&mut self, datagrams: &UdpSockets, now: Instant) {
        for request in self
            .udp_requests
            .iter_mut()
            .filter(|question| question.next_send_at <= now)
        {
            datagrams.send(request.base, request.observer, &self.protocol.request());
            request.next_send_at = now + FIRST_RETRY_DELAY * 2u32.pow(request.sent_count);
            request.sent_count += 1;
        }
        self.udp_requests
            .retain(|request| request.sent_count <= MAX_REQUESTS);
    }

    /// When to come back for [`Self::send`].
    pub(super) fn next_send_at(&self) -> Option<Instant> {
        self.udp_requests
            .iter()
            .map(|request| request.next_send_at)
            .min()
    }

    /// Whether a datagram was an answer.
    pub(super) fn take_response(
        &mut self,
        base: SocketAddr,
        from: SocketAddr,
        bytes: &[u8],
    ) -> Option<ReflexiveAddress> {
        let at = self
            .udp_requests
            .iter()
            .position(|request| request.base == base && request.observer == from)?;
        let address = self.protocol.parse_response(bytes)?;
        self.udp_requests.swap_remove(at);
        Some(ReflexiveAddress {
            transport: Transport::Udp,
            base,
            addr: address,
        })
    }

    /// Answers over TCP.
    pub(super) fn poll_responses(&mut self, cx: &mut Context<'_>) -> Poll<ReflexiveAddress> {
        while let Poll::Ready(Some(done)) = self.tcp_requests.poll_join_next(cx) {
            match done {
                Ok(Ok((seen, stream))) => {
                    self.kept_streams.push(stream);
                    return Poll::Ready(seen);
                }
                Ok(Err(error)) => {
                    tracing::debug!(%error, "the rendezvous does not say how it sees a port")
                }
                Err(_) => (),
            }
        }
        Poll::Pending
    }
}

async fn request_over_tcp(
    base: SocketAddr,
    to: SocketAddr,
    protocol: &dyn BindingProtocol,
) -> io::Result<(ReflexiveAddress, TcpStream)> {
    let mut stream = TcpSocket::from_std_stream(local_ports::open_on_port(base)?)
        .connect(to)
        .await?;
    stream.write_all(&protocol.request()).await?;
    let (mut bytes, mut filled) = ([0; MAX_RESPONSE_BYTES], 0);
    loop {
        let n = stream.read(&mut bytes[filled..]).await?;
        filled += n;
        if let Some(at) = protocol.parse_response(&bytes[..filled]) {
            local_ports::restore_graceful_close(&stream)?;
            return Ok((
                ReflexiveAddress {
                    transport: Transport::Tcp,
                    base,
                    addr: at,
                },
                stream,
            ));
        }
        if n == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{to} gave no answer"),
            ));
        }
    }
}
