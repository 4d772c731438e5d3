//! Observers: sockets that report a client's mapped address, on one or two addresses with two ports
//! each, over UDP and TCP.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nearpath_daemon::drain::DrainWatch;
use nearpath_p2p::punch::Transport;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;

use super::rate_limits::KeyedBuckets;
use super::settings::{ObserverBinding, address_prefix};
use super::shared_state::SharedState;
use super::state::ClockReading;
use nearpath_p2p::message::ObserverAddress;
use nearpath_p2p::reflexive_address::{
    BindingDecision, MESSAGE_BYTES, ObserverPolicy, ResponseOrigin, origin_socket,
};

/// Tracked addresses; see [`KeyedBuckets::new`].
const MAX_TRACKED_ADDRESSES: usize = 65_536;
/// Time for a request over TCP.
const TCP_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which an answered TCP connection stays open, if the worker keeps it: its NAT holds the
/// mapping meanwhile.
const MAPPING_HOLD_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum of TCP connections at a time.
const MAX_TCP_CONNECTIONS: usize = 16_384;

/// Slot of a socket: on the second address, on its second port.
type ObserverSlot = (bool, bool);

/// State shared by all sockets.
struct ObserverService {
    policy: Arc<ObserverPolicy>,
    shared: Arc<SharedState>,
    addresses: Mutex<KeyedBuckets<IpAddr>>,
    connections: Arc<Semaphore>,
    udp: Vec<(ObserverSlot, UdpSocket)>,
}

/// Opens the sockets, and serves until the drain. Returns the addresses that workers learn.
pub(super) fn start_observers(
    bindings: &[ObserverBinding],
    policy: &Arc<ObserverPolicy>,
    shared: &Arc<SharedState>,
    drain: &DrainWatch,
) -> io::Result<Vec<ObserverAddress>> {
    let (mut udp, mut tcp, mut observers) = (Vec::new(), Vec::new(), Vec::new());
    for (binding, second_address) in bindings.iter().zip([false, true]) {
        for second_port in [false, true] {
            let bind = second_or_first_port(binding.bind, second_port);
            let (datagrams, listener) = open_sockets(bind)?;
            let mut add_observer = |transport, addr: SocketAddr| {
                // The kernel may have chosen the port.
                let addr = SocketAddr::new(binding.public.unwrap_or(addr.ip()), addr.port());
                observers.push(ObserverAddress {
                    transport,
                    addr,
                    second_address,
                    second_port,
                });
            };
            add_observer(Transport::Udp, datagrams.local_addr()?);
            add_observer(Transport::Tcp, listener.local_addr()?);
            udp.push(((second_address, second_port), datagrams));
            tcp.push(((second_address, second_port), listener));
        }
    }
    let addresses = Mutex::new(KeyedBuckets::new(
        shared.limits.observer_rate,
        MAX_TRACKED_ADDRESSES,
    ));
    let connections = Arc::new(Semaphore::new(MAX_TCP_CONNECTIONS));
    let service = Arc::new(ObserverService {
        policy: policy.clone(),
        shared: shared.clone(),
        addresses,
        connections,
        udp,
    });
    for (at, (which, listener)) in tcp.into_iter().enumerate() {
        tokio::spawn(run_until_drain(
            drain.clone(),
            service.clone().serve_tcp(which, listener),
        ));
        tokio::spawn(run_until_drain(
            drain.clone(),
            service.clone().serve_udp(at),
        ));
    }
    Ok(observers)
}

/// Returns the address to bind: the second port is the next one, unless the kernel chooses.
fn second_or_first_port(bind: SocketAddr, second: bool) -> SocketAddr {
    let port = if second && bind.port() != 0 {
        bind.port().saturating_add(1)
    } else {
        bind.port()
    };
    SocketAddr::new(bind.ip(), port)
}

fn open_sockets(bind: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
    let no_socket = |what| io::Error::other(format!("no {what} socket was opened on {bind}"));
    let datagrams = nearpath_wire::sockets::bind_udp(bind, 1)?
        .pop()
        .ok_or_else(|| no_socket("UDP"))?;
    let listener = nearpath_wire::sockets::bind_tcp(bind, 1)?
        .pop()
        .ok_or_else(|| no_socket("TCP"))?;
    Ok((
        UdpSocket::from_std(datagrams)?,
        TcpListener::from_std(listener)?,
    ))
}

async fn run_until_drain(drain: DrainWatch, work: impl Future<Output = ()>) {
    tokio::select! {
        () = work => {}
        () = drain.signaled() => {}
    }
}

impl ObserverService {
    /// Serves one UDP socket. Other lengths are dropped by the policy, and a lost response is
    /// requested again.
    async fn serve_udp(self: Arc<Self>, at: usize) {
        let (received_on, socket) = &self.udp[at];
        // One byte more than a message, so that a longer datagram is not taken for one.
        let mut bytes = [0; MESSAGE_BYTES + 1];
        loop {
            // An error concerns one datagram.
            let Ok((n, from)) = socket.recv_from(&mut bytes).await else {
                continue;
            };
            let answer = self.respond_to(&bytes[..n], *received_on, from);
            let sent = answer.and_then(|(slot, answer)| {
                // Without a second address the requested socket may not exist; then there is no
                // response.
                let (_, origin) = self.udp.iter().find(|(one, _)| *one == slot)?;
                // `try_send_to`: a full socket buffer drops the response instead of delaying other
                // clients.
                origin.try_send_to(&answer, from).ok()
            });
            self.count_request(sent.is_some());
        }
    }

    fn respond_to(
        &self,
        request: &[u8],
        received_on: ObserverSlot,
        from: SocketAddr,
    ) -> Option<(ObserverSlot, [u8; MESSAGE_BYTES])> {
        if !self.is_within_rate(from.ip()) {
            return None;
        }
        match self
            .policy
            .decide(request, received_on, from, ClockReading::now().unix)
        {
            BindingDecision::Drop => None,
            BindingDecision::Respond {
                origin: from,
                bytes,
            } => Some((origin_socket(received_on, from), bytes)),
        }
    }

    fn is_within_rate(&self, ip: IpAddr) -> bool {
        let mut addresses = self
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        addresses.admit(address_prefix(ip), 1, Instant::now())
    }

    fn count_request(&self, answered: bool) {
        let metrics = &self.shared.metrics;
        let counter = if answered {
            &metrics.answered_requests
        } else {
            &metrics.dropped_requests
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    async fn serve_tcp(self: Arc<Self>, received_on: ObserverSlot, listener: TcpListener) {
        loop {
            let Ok((stream, from)) = listener.accept().await else {
                // Out of file descriptors: do not spin.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            // The permit bounds open sockets: workers keep theirs for half a minute.
            let permit = self.connections.clone().try_acquire_owned();
            let (Ok(permit), true) = (permit, self.is_within_rate(from.ip())) else {
                self.count_request(false);
                continue;
            };
            let service = self.clone();
            tokio::spawn(async move {
                let answered = service.answer_stream(stream, received_on, from).await;
                service.count_request(answered.is_some());
                drop(permit);
                if let Some(mut stream) = answered {
                    // Until the worker closes, or the time is over.
                    let _ = tokio::time::timeout(MAPPING_HOLD_TIMEOUT, stream.read(&mut [0])).await;
                }
            });
        }
    }

    /// Answers one request on a stream; over TCP from the queried socket only.
    async fn answer_stream(
        &self,
        mut stream: TcpStream,
        received_on: ObserverSlot,
        from: SocketAddr,
    ) -> Option<TcpStream> {
        let mut request = [0; MESSAGE_BYTES];
        // Bounds idle clients, which hold a permit.
        tokio::time::timeout(TCP_REQUEST_TIMEOUT, stream.read_exact(&mut request))
            .await
            .ok()?
            .ok()?;
        match self
            .policy
            .decide(&request, received_on, from, ClockReading::now().unix)
        {
            // Another socket cannot respond on this connection, so such a request is dropped.
            BindingDecision::Respond {
                origin: ResponseOrigin::SameSocket,
                bytes,
            } => stream.write_all(&bytes).await.ok().map(|()| stream),
            _ => None,
        }
    }
}
