//! Sockets that tell who asks where they see him: on one or two addresses, two ports each, over UDP and TCP.

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

/// So many addresses are known at a time; see [`KeyedBuckets::new`].
const MAX_TRACKED_ADDRESSES: usize = 65_536;
/// A question over TCP may take so long.
const TCP_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// After an answer over TCP the connection stays so long, if the worker keeps it: its NAT remembers the port meanwhile.
const MAPPING_HOLD_TIMEOUT: Duration = Duration::from_secs(30);
/// Connections at a time.
const MAX_TCP_CONNECTIONS: usize = 16_384;

/// Which socket: on the second address, on its second port.
type ObserverSlot = (bool, bool);

/// What all of them share.
struct ObserverService {
    policy: Arc<ObserverPolicy>,
    shared: Arc<SharedState>,
    addresses: Mutex<KeyedBuckets<IpAddr>>,
    connections: Arc<Semaphore>,
    udp: Vec<(ObserverSlot, UdpSocket)>,
}

/// Opens the sockets, and answers until the drain. Where they are, as workers are told.
pub(super) fn start_observers(
    bindings: &[ObserverBinding],
    policy: &Arc<ObserverPolicy>,
    shared: &Arc<SharedState>,
    drain: &DrainWatch,
) -> io::Result<Vec<ObserverAddress>> {
    let (mut udp, mut tcp, mut observers) = (Vec::new(), Vec::new(), Vec::new());
    for (place, second_address) in bindings.iter().zip([false, true]) {
        for second_port in [false, true] {
            let bind = second_or_first_port(place.bind, second_port);
            let (datagrams, listener) = open_sockets(bind)?;
            let mut add_observer = |transport, addr: SocketAddr| {
                let addr = SocketAddr::new(place.public.unwrap_or(addr.ip()), addr.port());
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

/// The second port is the next one, unless the kernel chooses.
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
    /// Datagrams of one socket. One of another length is not looked at, and an answer that cannot be sent is lost.
    async fn serve_udp(self: Arc<Self>, at: usize) {
        let (received_on, socket) = &self.udp[at];
        let mut bytes = [0; MESSAGE_BYTES + 1];
        loop {
            let Ok((n, from)) = socket.recv_from(&mut bytes).await else {
                continue;
            };
            let answer = self.respond_to(&bytes[..n], *received_on, from);
            let sent = answer.and_then(|(slot, answer)| {
                let (_, origin) = self.udp.iter().find(|(one, _)| *one == slot)?;
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
                tokio::time::sleep(Duration::from_millis(100)).await; // out of file descriptors: do not spin
                continue;
            };
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
                    let _ = tokio::time::timeout(MAPPING_HOLD_TIMEOUT, stream.read(&mut [0])).await; // its end, or time's
                }
            });
        }
    }

    /// One question, one answer; over TCP from the asked socket only.
    async fn answer_stream(
        &self,
        mut stream: TcpStream,
        received_on: ObserverSlot,
        from: SocketAddr,
    ) -> Option<TcpStream> {
        let mut request = [0; MESSAGE_BYTES];
        tokio::time::timeout(TCP_REQUEST_TIMEOUT, stream.read_exact(&mut request))
            .await
            .ok()?
            .ok()?;
        match self
            .policy
            .decide(&request, received_on, from, ClockReading::now().unix)
        {
            BindingDecision::Respond {
                origin: ResponseOrigin::SameSocket,
                bytes,
            } => stream.write_all(&bytes).await.ok().map(|()| stream),
            _ => None,
        }
    }
}
