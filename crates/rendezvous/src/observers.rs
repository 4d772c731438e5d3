//! Sockets that tell who asks where they see him: on one or two addresses, two ports each, over UDP and TCP.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nearpath_daemon::drain::Watch;
use nearpath_p2p::punch::Transport;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;

use super::rate_limits::Buckets;
use super::settings::{Place, household};
use super::shared_state::Hall;
use super::state::Moment;
use nearpath_p2p::message::Observer;
use nearpath_p2p::reflexive_address::{From, Judge, SIZE, Verdict, leaves};

/// So many addresses are known at a time; see [`Buckets::new`].
const HOUSEHOLDS: usize = 65_536;
/// A question over TCP may take so long.
const PATIENCE: Duration = Duration::from_secs(5);
/// After an answer over TCP the connection stays so long, if the worker keeps it: its NAT remembers the port meanwhile.
const KEPT: Duration = Duration::from_secs(30);
/// Connections at a time.
const CONNECTIONS: usize = 16_384;

/// Which socket: on the second address, on its second port.
type Which = (bool, bool);

/// What all of them share.
struct Office {
    judge: Arc<Judge>,
    hall: Arc<Hall>,
    households: Mutex<Buckets<IpAddr>>,
    connections: Arc<Semaphore>,
    udp: Vec<(Which, UdpSocket)>,
}

/// Opens the sockets, and answers until the drain. Where they are, as workers are told.
pub(super) fn start(
    places: &[Place],
    judge: &Arc<Judge>,
    hall: &Arc<Hall>,
    drain: &Watch,
) -> io::Result<Vec<Observer>> {
    let (mut udp, mut tcp, mut observers) = (Vec::new(), Vec::new(), Vec::new());
    for (place, second_address) in places.iter().zip([false, true]) {
        for second_port in [false, true] {
            let bind = port(place.bind, second_port);
            let (datagrams, listener) = open(bind)?;
            let mut tell = |transport, addr: SocketAddr| {
                let addr = SocketAddr::new(place.public.unwrap_or(addr.ip()), addr.port());
                observers.push(Observer { transport, addr, second_address, second_port });
            };
            tell(Transport::Udp, datagrams.local_addr()?);
            tell(Transport::Tcp, listener.local_addr()?);
            udp.push(((second_address, second_port), datagrams));
            tcp.push(((second_address, second_port), listener));
        }
    }
    let households = Mutex::new(Buckets::new(hall.limits.questions, HOUSEHOLDS));
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    let office = Arc::new(Office { judge: judge.clone(), hall: hall.clone(), households, connections, udp });
    for (at, (which, listener)) in tcp.into_iter().enumerate() {
        tokio::spawn(until(drain.clone(), office.clone().listen(which, listener)));
        tokio::spawn(until(drain.clone(), office.clone().receive(at)));
    }
    Ok(observers)
}

/// The second port is the next one, unless the kernel chooses.
fn port(bind: SocketAddr, second: bool) -> SocketAddr {
    let port = if second && bind.port() != 0 { bind.port().saturating_add(1) } else { bind.port() };
    SocketAddr::new(bind.ip(), port)
}

fn open(bind: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
    let only = |what| io::Error::other(format!("no {what} socket was opened on {bind}"));
    let datagrams = nearpath_wire::bind::datagrams(bind, 1)?.pop().ok_or_else(|| only("UDP"))?;
    let listener = nearpath_wire::bind::bind(bind, 1)?.pop().ok_or_else(|| only("TCP"))?;
    Ok((UdpSocket::from_std(datagrams)?, TcpListener::from_std(listener)?))
}

async fn until(drain: Watch, work: impl Future<Output = ()>) {
    tokio::select! {
        () = work => {}
        () = drain.signaled() => {}
    }
}

impl Office {
    /// Datagrams of one socket. One of another length is not looked at, and an answer that cannot be sent is lost.
    async fn receive(self: Arc<Self>, at: usize) {
        let (here, socket) = &self.udp[at];
        let mut bytes = [0; SIZE + 1];
        loop {
            let Ok((n, from)) = socket.recv_from(&mut bytes).await else { continue };
            let answer = self.consider(&bytes[..n], *here, from);
            let sent = answer.and_then(|(which, answer)| {
                let (_, leaving) = self.udp.iter().find(|(one, _)| *one == which)?;
                leaving.try_send_to(&answer, from).ok()
            });
            self.count(sent.is_some());
        }
    }

    fn consider(&self, question: &[u8], here: Which, from: SocketAddr) -> Option<(Which, [u8; SIZE])> {
        if !self.is_welcome(from.ip()) {
            return None;
        }
        match self.judge.judge(question, here, from, Moment::now().unix) {
            Verdict::Drop => None,
            Verdict::Answer { from, bytes } => Some((leaves(here, from), bytes)),
        }
    }

    fn is_welcome(&self, ip: IpAddr) -> bool {
        let mut households = self.households.lock().unwrap_or_else(PoisonError::into_inner);
        households.admit(household(ip), 1, Instant::now())
    }

    fn count(&self, answered: bool) {
        let ledger = &self.hall.ledger;
        let counter = if answered { &ledger.answered } else { &ledger.dropped };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    async fn listen(self: Arc<Self>, here: Which, listener: TcpListener) {
        loop {
            let Ok((stream, from)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await; // out of file descriptors: do not spin
                continue;
            };
            let permit = self.connections.clone().try_acquire_owned();
            let (Ok(permit), true) = (permit, self.is_welcome(from.ip())) else {
                self.count(false);
                continue;
            };
            let office = self.clone();
            tokio::spawn(async move {
                let answered = office.answer(stream, here, from).await;
                office.count(answered.is_some());
                drop(permit);
                if let Some(mut stream) = answered {
                    let _ = tokio::time::timeout(KEPT, stream.read(&mut [0])).await; // its end, or time's
                }
            });
        }
    }

    /// One question, one answer; over TCP from the asked socket only.
    async fn answer(&self, mut stream: TcpStream, here: Which, from: SocketAddr) -> Option<TcpStream> {
        let mut question = [0; SIZE];
        tokio::time::timeout(PATIENCE, stream.read_exact(&mut question)).await.ok()?.ok()?;
        match self.judge.judge(&question, here, from, Moment::now().unix) {
            Verdict::Answer { from: From::Here, bytes } => stream.write_all(&bytes).await.ok().map(|()| stream),
            _ => None,
        }
    }
}
