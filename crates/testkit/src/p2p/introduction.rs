//! An internet with two workers, a rendezvous that tells how it sees them, and what introduces them to each other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::lab::Node;
use crate::lab::nat::{Family, Internet, Pair};
use nearpath_ca::Authority;
use nearpath_p2p::driver::{Ask, Introduction, Line, Observers};
use nearpath_p2p::handshake::Side;
use nearpath_p2p::punch::session::{Grant, Role, Session};
use nearpath_types::SpiffeId;
use nearpath_wire::identity::{Credentials, Request, Trust};
use nearpath_wire::pair::{self, name_of};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};

const PORT: u16 = 3478;
const HOUR: Duration = Duration::from_secs(3600);

/// Asks with a mark, and reads an address as text.
#[derive(Debug)]
struct AsText;

impl Ask for AsText {
    fn question(&self) -> Vec<u8> {
        b"where am I?".to_vec()
    }

    fn answer(&self, bytes: &[u8]) -> Option<SocketAddr> {
        std::str::from_utf8(bytes).ok()?.strip_suffix('!')?.parse().ok()
    }
}

/// The part of the rendezvous that sees addresses. It ends with this value.
pub struct Watching {
    pub observers: Observers,
    _end: oneshot::Sender<()>,
}

impl Watching {
    pub fn begin(internet: &Internet) -> Self {
        let (end, ended) = oneshot::channel();
        let addresses = [Family::V4, Family::V6].map(|family| (internet.addresses(family)[0], PORT).into());
        let (ready, is_ready) = std::sync::mpsc::channel();
        let node = internet.rendezvous.clone();
        thread::spawn(move || node.enter(|| on_a_runtime(watch(addresses, ready, ended))));
        is_ready.recv().unwrap();
        let all = addresses.to_vec();
        Self { observers: Observers { udp: all.clone(), tcp: all, ask: Arc::new(AsText) }, _end: end }
    }
}

async fn watch(addresses: [SocketAddr; 2], ready: std::sync::mpsc::Sender<()>, ended: oneshot::Receiver<()>) {
    let mut tasks = tokio::task::JoinSet::new();
    for addr in addresses {
        let (udp, tcp) = (tokio::net::UdpSocket::bind(addr).await, tokio::net::TcpListener::bind(addr).await);
        let (udp, tcp) = (udp.unwrap(), tcp.unwrap());
        tasks.spawn(async move {
            let mut bytes = [0; 64];
            while let Ok((_, from)) = udp.recv_from(&mut bytes).await {
                let _ = udp.send_to(format!("{from}!").as_bytes(), from).await;
            }
        });
        tasks.spawn(async move {
            while let Ok((mut stream, from)) = tcp.accept().await {
                tokio::spawn(async move {
                    let _ = stream.write_all(format!("{from}!").as_bytes()).await;
                    while stream.read(&mut [0; 64]).await.is_ok_and(|n| n > 0) {}
                });
            }
        });
    }
    ready.send(()).unwrap();
    let _ = ended.await;
}

pub fn on_a_runtime<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

pub fn machines(pair: &Pair) -> [&Node; 2] {
    [&pair.first.machine().node, &pair.second.machine().node]
}

/// Both sides' introductions; the first one leads.
pub fn introduce(observers: &Observers) -> [Introduction; 2] {
    let [first, second] = ["a", "b"].map(|node| SpiffeId::gateway("test", node));
    let authority = Authority::new("test", SystemTime::now(), HOUR).unwrap();
    introduce_as(observers, [&first, &second], [&authority, &authority])
}

/// Who leads has called.
pub fn side_of(introduction: &Introduction) -> Side {
    match introduction.session.role {
        Role::Leader => Side::Caller(None),
        Role::Follower => Side::Called,
    }
}

/// The same, for certificates that these authorities give.
pub fn introduce_as(observers: &Observers, ids: [&SpiffeId; 2], authorities: [&Authority; 2]) -> [Introduction; 2] {
    let grant = Grant { id: [7; 16], secret: [9; 32], expires: 4_000_000_000 };
    let trust = Trust::new("test", &[authorities[0].certificate().clone()]).unwrap();
    let ((a, from_a), (b, from_b)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let lines = [Line { tell: a, told: from_b }, Line { tell: b, told: from_a }];
    let mut sides = lines.into_iter().zip([0, 1]).map(|(line, at)| {
        let (me, peer) = (ids[at], ids[1 - at]);
        let session = Session::new(&grant, me, peer, Instant::now() + HOUR).unwrap();
        let pair = pair::Pair::new(&credentials(authorities[at], me), &trust, peer.clone()).unwrap();
        Introduction { session, line, observers: observers.clone(), pair: Arc::new(pair) }
    });
    [sides.next().unwrap(), sides.next().unwrap()]
}

pub fn credentials(authority: &Authority, id: &SpiffeId) -> Credentials {
    let (request, name) = (Request::new().unwrap(), name_of(id));
    let issued = authority.issue(request.csr(), id, &name, SystemTime::now(), HOUR).unwrap();
    request.complete(id.clone(), name, issued)
}
