//! Queries the observers of the rendezvous for the mapped addresses of the ports.

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

/// Maximum of UDP requests per port. The first delay doubles with each: 100 ms, 200 ms and so on,
/// as STUN's RTO does (RFC 8489 section 6.2.1).
const MAX_REQUESTS: u32 = 6;
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Time for a response over TCP, connection included.
const TCP_RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest response, in bytes.
const MAX_RESPONSE_BYTES: usize = 512;

/// Encoding of requests and responses, which belongs to the rendezvous (`contract/rendezvous.md`).
pub trait BindingProtocol: fmt::Debug + Send + Sync {
    /// Encodes a request; over TCP nothing else is written.
    fn request(&self) -> Vec<u8>;

    /// Decodes the mapped address of a response. `None`: no response, or over TCP an incomplete
    /// one.
    fn parse_response(&self, bytes: &[u8]) -> Option<SocketAddr>;
}

/// Observers to query.
#[derive(Debug, Clone)]
pub struct ObserverSet {
    /// Observers on UDP. The first of each family is queried.
    pub udp: Vec<SocketAddr>,
    /// Observers on TCP, likewise.
    pub tcp: Vec<SocketAddr>,
    /// Encoding of requests and responses.
    pub protocol: Arc<dyn BindingProtocol>,
}

/// Mapped address of a local socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReflexiveAddress {
    pub(super) transport: Transport,
    pub(super) base: SocketAddr,
    pub(super) addr: SocketAddr,
}

/// Requests that have no response yet.
#[derive(Debug)]
pub(super) struct ObserverQueries {
    protocol: Arc<dyn BindingProtocol>,
    udp_requests: Vec<ObserverRequest>,
    tcp_requests: JoinSet<io::Result<(ReflexiveAddress, TcpStream)>>,
    /// Sockets of the requests over TCP.
    tcp_bases: Vec<SocketAddr>,
    /// TCP connections to the rendezvous: while they are open, NATs keep the mapping of the port.
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
        let (mut dials, mut tcp_bases) = (JoinSet::new(), Vec::new());
        for (base, to) in tcp
            .iter()
            .filter_map(|base| Some((*base, first(&observers.tcp, base)?)))
        {
            let protocol = Arc::clone(&observers.protocol);
            tcp_bases.push(base);
            dials.spawn(async move {
                tokio::time::timeout(TCP_RESPONSE_TIMEOUT, request_over_tcp(base, to, &*protocol))
                    .await?
            });
        }
        Self {
            protocol: Arc::clone(&observers.protocol),
            udp_requests,
            tcp_requests: dials,
            tcp_bases,
            kept_streams: Vec::new(),
        }
    }

    /// Returns the sockets whose mapped addresses are requested, before any response.
    pub(super) fn requested(&self) -> impl Iterator<Item = (Transport, SocketAddr)> {
        let udp = self
            .udp_requests
            .iter()
            .map(|request| (Transport::Udp, request.base));
        let tcp = self.tcp_bases.iter().map(|base| (Transport::Tcp, *base));
        udp.chain(tcp)
    }

    /// Sends requests that are due, first or again.
    pub(super) fn send_due(&mut self, datagrams: &UdpSockets, now: Instant) {
        for request in self
            .udp_requests
            .iter_mut()
            .filter(|question| question.next_send_at <= now)
        {
            // A repetition is a new request; a late response to an earlier one is as good.
            datagrams.send(request.base, request.observer, &self.protocol.request());
            request.next_send_at = now + FIRST_RETRY_DELAY * 2u32.pow(request.sent_count);
            request.sent_count += 1;
        }
        self.udp_requests
            .retain(|request| request.sent_count <= MAX_REQUESTS);
    }

    /// Returns when [`Self::send_due`] must be called again.
    pub(super) fn next_send_at(&self) -> Option<Instant> {
        self.udp_requests
            .iter()
            .map(|request| request.next_send_at)
            .min()
    }

    /// Takes a response; `None`: the datagram is something else.
    pub(super) fn take_response(
        &mut self,
        base: SocketAddr,
        from: SocketAddr,
        bytes: &[u8],
    ) -> Option<ReflexiveAddress> {
        // Only the queried observer is believed; the encoding also verifies an HMAC.
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

    /// Polls responses over TCP.
    pub(super) fn poll_responses(&mut self, cx: &mut Context<'_>) -> Poll<ReflexiveAddress> {
        while let Poll::Ready(Some(done)) = self.tcp_requests.poll_join_next(cx) {
            match done {
                Ok(Ok((address, stream))) => {
                    self.kept_streams.push(stream);
                    return Poll::Ready(address);
                }
                // A port without a mapped address still has its host candidates.
                Ok(Err(error)) => {
                    tracing::debug!(%error, "driver: binding request failed")
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
            // The exchange is complete, so a graceful close blocks no later dial (see
            // `open_on_port`).
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
                format!("no response from {to}"),
            ));
        }
    }
}
